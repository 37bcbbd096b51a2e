"""Reading requests: query and body become the types that the route names, or a refusal that says what is wrong."""

import re
from typing import Any, Final

import msgspec
from aiohttp import web

from ..operations.refusal import MISSING, NOT_JSON, WRONG, Refusal

_MISSING_FIELD: Final = re.compile(r"missing required field `([^`]+)`")
_PLACE: Final = re.compile(r" - at `([^`]+)`")


class PageQuery(msgspec.Struct, kw_only=True):
    """The query of every listing."""

    page: int = msgspec.field(default=1, name="_page")
    limit: int | None = msgspec.field(default=None, name="_limit")

    def rows(self, most: int) -> int:
        """Rows a page, never more than ``most`` (``max_row_limit``)."""
        if self.limit is None:
            return most
        if self.limit < 0:
            raise Refusal(WRONG, "_limit: expected 0 or more")
        return min(self.limit, most)


def read_query(request: web.Request, kind: type[Any]) -> Any:
    """The query string as ``kind``; unknown keys are ignored, of a key given twice the first counts."""
    given: dict[str, str] = {}
    for key, value in request.rel_url.query.items():
        given.setdefault(key, value)
    return convert(given, kind, strict=False)


async def read_body(request: web.Request, kind: Any, most: int, setting: str) -> Any:
    """The body as ``kind``; where that is an object, keys that are in the query string win over the body's."""
    octets = await read_octets(request, most, setting)
    if not octets.strip():
        value: Any = {}
        if _is_list(kind):
            raise Refusal(MISSING, "the body is missing: a JSON array is expected")
    else:
        value = parse(octets)
    if isinstance(value, dict):
        for key, text in request.rel_url.query.items():
            value[key] = text
    return convert(value, kind, strict=not (isinstance(value, dict) and request.rel_url.query))


def parse(octets: bytes) -> Any:
    """JSON text as Python's objects."""
    try:
        return msgspec.json.decode(octets)
    except RecursionError:
        raise Refusal(NOT_JSON, "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(NOT_JSON, f"the body is not JSON: {error}") from None


async def read_octets(request: web.Request, most: int, setting: str) -> bytes:
    """The whole body, refused as soon as it is longer than ``most`` bytes."""
    too_long = Refusal(WRONG, f"the body is longer than {most} bytes (setting management.{setting})")
    if request.content_length is not None and request.content_length > most:
        raise too_long
    octets = bytearray()
    async for chunk in request.content.iter_any():
        octets += chunk
        if len(octets) > most:
            raise too_long
    return bytes(octets)


def convert(value: Any, kind: Any, strict: bool = True) -> Any:
    """``value`` as ``kind``. Raises Refusal 107 for a key that is missing, 108 for anything else."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        where = place[1].removeprefix("$").removeprefix(".") if place is not None else ""
        absent = _MISSING_FIELD.search(text)
        if absent is not None:
            inside = f" in {where}" if where else ""
            raise Refusal(MISSING, f"{absent[1]} is missing{inside}") from None
        what = _PLACE.sub("", text)
        raise Refusal(WRONG, f"{where}: {what}" if where else what) from None


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", kind) is list
