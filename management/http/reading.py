"""Reading requests: query and body are converted to the types that the route names, or refused with the reason."""

import asyncio
import re
import types
import typing
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..configuration.setting_types import fields_of, union_members
from ..configuration.validation import Fault, Validator, expected, shown
from ..operations.refusal import MISSING, NOT_JSON, WRONG, Refusal
from .protocol import connection_of

_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_CODINGS: Final = ("", "identity", "gzip", "deflate")
MAX_DRAINED: Final = 33_554_432
"""Number of bytes of a refused body that are read and discarded, because many clients read the answer only
afterwards."""
_SENDS_WITHIN: Final = 1.0
"""Seconds within which a client that is still sending sends more data."""
_ARRAY: Final = re.compile(rb"\s*\[")
_CHUNK: Final = 262_144
_LARGE: Final = 65_536
"""Size in bytes from which on an array is read in slices."""
_SLOWEST: Final = 16_384
"""Minimum speed of a body in bytes per second."""


def read_query(request: web.Request, kind: type[object]) -> object:
    """Convert the query string to ``kind``. Unknown keys are ignored; if a key occurs twice, the first value is
    used."""
    given: dict[str, str] = {}
    for key, value in request.rel_url.query.items():
        given.setdefault(key, value)
    _check_whole_numbers(given, kind)
    return convert(given, kind, strict=False)


def _check_whole_numbers(given: Mapping[str, object], kind: type[object]) -> None:
    """Refuse texts such as ``1e3`` or ``5.0`` for a whole number: only some texts of this form can be converted."""
    if not issubclass(kind, msgspec.Struct):
        return
    for field in fields_of(kind):
        value, types_ = given.get(field.encode_name), union_members(field.type)
        if isinstance(value, str) and int in types_ and str not in types_ and not _WHOLE.fullmatch(value):
            words = f"expected {expected(field.type, 'object')}, got {shown(value, 'object')}"
            raise Refusal(WRONG, f"{field.encode_name}: {words}")


async def read_body(request: web.Request, kind: object, most: int, setting: str, timeout: float) -> object:
    """Convert the body to ``kind``. If that is an object, keys of the query string override those of the body."""
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
    """Convert the members of a long array, with pauses for other tasks."""
    raw: list[msgspec.Raw] = parse(data, list[msgspec.Raw])
    found: list[object] = []
    work = CooperativeSlice()
    for index, each in enumerate(raw):
        found.append(convert(parse(each), member, place=f"[{index}]"))
        await work.checkpoint()
    return found


def parse(data: bytes | msgspec.Raw, kind: object = Any) -> Any:
    """Parse JSON text to Python objects."""
    try:
        if bytes(memoryview(data)[: len(BOM_UTF8)]) == BOM_UTF8:
            data = bytes(memoryview(data)[len(BOM_UTF8) :])
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise Refusal(NOT_JSON, "the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Refusal(NOT_JSON, f"the body is not JSON: not UTF-8 at byte {error.start}") from None
    except msgspec.DecodeError as error:
        raise Refusal(NOT_JSON, f"the body is not JSON: {error}") from None


async def read_chunks(request: web.Request, most: int, setting: str, timeout: float) -> list[bytearray]:
    """Return the whole body. Refuse it as soon as it is longer than ``most`` bytes, or slow for a total of ``timeout``
    seconds.

    It is returned in pieces, because copying a long body into one would block the loop."""
    why = f"setting {setting}" if setting else "the limit without credentials"
    too_long = Refusal(WRONG, f"the body is longer than {most} bytes ({why})")
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in _CODINGS:
        await _drain(request, most, timeout)
        raise Refusal(WRONG, f"Content-Encoding: expected gzip, deflate or none, got {shown(coding)}")
    if request.content_length is not None and request.content_length > most:
        await _drain(request, request.content_length, timeout)
        raise too_long
    chunks = [bytearray()]
    size = 0
    connection = connection_of(request)
    connection.reading = True
    try:
        async with asyncio.timeout(timeout) as bound:
            end = bound.when() or 0.0
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > most:
                    break
                if len(chunks[-1]) >= _CHUNK:
                    chunks.append(bytearray())
                chunks[-1] += chunk
                bound.reschedule(end + size / _SLOWEST)
    except TimeoutError:
        raise Refusal(WRONG, f"the body arrived too slowly: {size} bytes (setting management.read_timeout)") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Refusal(WRONG, f"the body does not match its headers: {error}") from None
    finally:
        connection.reading = False
    if size > most:
        await _drain(request, MAX_DRAINED, timeout)
        raise too_long
    return chunks


async def _drain(request: web.Request, length: int, timeout: float) -> None:
    """Read the rest of a body that is refused, if it is not too long and does not take too long: a client that is still
    sending when the connection closes loses the answer. Nothing is read from a caller without credentials."""
    left = MAX_DRAINED
    connection = connection_of(request)
    if length > left or not connection.is_authenticated:
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    try:
        async with asyncio.timeout(min(timeout, _SENDS_WITHIN)) as bound:
            async for chunk in request.content.iter_any():
                bound.reschedule(min(end, loop.time() + _SENDS_WITHIN))
                left -= len(chunk)
                connection.release()
                if left < 0:
                    return
    except (TimeoutError, web.RequestPayloadError, HttpProcessingError):
        pass


def convert(value: object, kind: object, strict: bool = True, place: str = "") -> object:
    """Convert ``value`` to ``kind``. Raises Refusal 107 for a missing key, 108 for any other error.

    ``place``: the position in the body."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        # Only if there is an error are the types walked, to describe it well.
        fault = next(Validator(strict, "object").faults(value, kind), Fault((), str(error)))
        where = place + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.place)
        where = where.removeprefix(".")
        if fault.missing:
            raise Refusal(MISSING, fault.what + (f" in {where}" if where else "")) from None
        raise Refusal(WRONG, f"{where}: {fault.what}" if where else fault.what) from None


def _member_of(kind: object) -> object:
    """Return the member type if ``kind`` is, or may be, an array; otherwise ``None``."""
    for each in typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,):
        if typing.get_origin(each) is list:
            return typing.get_args(each)[0]
    return None


def _is_list(kind: object) -> bool:
    return getattr(kind, "__origin__", kind) is list
