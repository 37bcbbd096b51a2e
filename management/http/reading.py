"""Reading requests: query and body become the types that the route names, or a refusal that says what is wrong."""

import asyncio
import re
import types
import typing
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..operations.refusal import MISSING, NOT_JSON, WRONG, Refusal
from ..validation import Fault, Validator

_ARRAY: Final = re.compile(rb"\s*\[")
_CHUNK: Final = 262_144
_LARGE: Final = 65_536
"""Bytes from which on an array is read in slices."""
_SLOWEST: Final = 16_384
"""Bytes a second from which a body is not too slow."""


def read_query(request: web.Request, kind: type[object]) -> object:
    """The query string as ``kind``; unknown keys are ignored, of a key given twice the first counts."""
    given: dict[str, str] = {}
    for key, value in request.rel_url.query.items():
        given.setdefault(key, value)
    return convert(given, kind, strict=False)


async def read_body(request: web.Request, kind: object, most: int, setting: str, timeout: float) -> object:
    """The body as ``kind``; where that is an object, keys that are in the query string win over the body's."""
    data = b"".join(await read_chunks(request, most, setting, timeout))
    member = _member_of(kind)
    if len(data) > _LARGE and member is not None and _ARRAY.match(data):
        return await _read_members(data, member)
    if not data or data.isspace():
        value: object = {}
        if _is_list(kind):
            raise Refusal(MISSING, "the body is missing: a JSON array is expected")
    else:
        value = parse(data)
    if isinstance(value, dict):
        for key, text in request.rel_url.query.items():
            value[key] = text
    return convert(value, kind, strict=not (isinstance(value, dict) and request.rel_url.query))


async def _read_members(data: bytes, member: object) -> list[object]:
    """A long array, its members converted in stretches that let others run."""
    raw: list[msgspec.Raw] = parse(data, list[msgspec.Raw])
    found: list[object] = []
    work = CooperativeSlice()
    for index, each in enumerate(raw):
        found.append(convert(parse(each), member, place=f"[{index}]"))
        await work.checkpoint()
    return found


def parse(data: bytes | msgspec.Raw, kind: object = Any) -> Any:
    """JSON text as Python's objects."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise Refusal(NOT_JSON, "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(NOT_JSON, f"the body is not JSON: {error}") from None


async def read_chunks(request: web.Request, most: int, setting: str, timeout: float) -> list[bytearray]:
    """The whole body, refused as soon as it is longer than ``most`` bytes, or slow for ``timeout`` seconds in all.

    In pieces: a copy of a long one, to have it in one, would hold the loop.
    """
    too_long = Refusal(WRONG, f"the body is longer than {most} bytes (setting management.{setting})")
    if request.content_length is not None and request.content_length > most:
        raise too_long
    chunks = [bytearray()]
    size = 0
    try:
        async with asyncio.timeout(timeout) as bound:
            end = bound.when() or 0.0
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > most:
                    raise too_long
                if len(chunks[-1]) >= _CHUNK:
                    chunks.append(bytearray())
                chunks[-1] += chunk
                bound.reschedule(end + size / _SLOWEST)
    except TimeoutError:
        raise Refusal(WRONG, f"the body came too slowly: {size} bytes (setting management.read_timeout)") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Refusal(WRONG, f"the body does not come as its headers say: {error}") from None
    return chunks


def convert(value: object, kind: object, strict: bool = True, place: str = "") -> object:
    """``value`` as ``kind``. Raises Refusal 107 for a key that is missing, 108 for anything else.

    ``place``: where it stands in the body.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        # Only where something is wrong are the types walked to say it well.
        fault = next(Validator(strict, "object").faults(value, kind), Fault((), str(error)))
        where = place + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.place)
        where = where.removeprefix(".")
        if fault.missing:
            raise Refusal(MISSING, fault.what + (f" in {where}" if where else "")) from None
        raise Refusal(WRONG, f"{where}: {fault.what}" if where else fault.what) from None


def _member_of(kind: object) -> object:
    """What an array has, where ``kind`` is one or may be one; else ``None``."""
    for each in typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,):
        if typing.get_origin(each) is list:
            return typing.get_args(each)[0]
    return None


def _is_list(kind: object) -> bool:
    return getattr(kind, "__origin__", kind) is list
