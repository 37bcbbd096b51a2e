"""Compression: gzip, raw deflate (`zip`) and zlib (`zip_compress`), with limits for input and output."""

from __future__ import annotations

import zlib
from typing import Final

from .function import BYTES, FunctionContext, register

MAX_PLAIN: Final = 512 * 1024
"""Maximum size of data to compress, and of unpacked data."""
BYTES_PER_STEP: Final = 48
"""Bytes of data to compress that cost one step: this takes more than a microsecond."""

_GZIP: Final = 31
_RAW: Final = -15
_ZLIB: Final = 15


def _deflate(context: FunctionContext, data: bytes, form: int) -> bytes:
    if len(data) > MAX_PLAIN:
        raise ValueError(f"{len(data)} bytes are more than the {MAX_PLAIN} that are compressed at once")
    context.budget.step(len(data) // BYTES_PER_STEP)
    compressor = zlib.compressobj(wbits=form)
    return compressor.compress(data) + compressor.flush()


def _inflate(context: FunctionContext, data: bytes, form: int) -> bytes:
    """Unpack data; the limit is checked while unpacking."""
    limit = min(MAX_PLAIN, context.budget.bytes_left)
    found = b""
    while True:
        context.budget.step()
        unpacker = zlib.decompressobj(wbits=form)
        try:
            found += unpacker.decompress(data, limit - len(found) + 1)
        except zlib.error as error:
            raise ValueError(f"the data cannot be unpacked: {error}") from error
        if len(found) > limit:
            raise ValueError(f"the data unpacks to more than {limit} bytes")
        if not unpacker.eof:
            raise ValueError("the data ends too early")
        data = unpacker.unused_data
        if not data:
            return found
        if form != _GZIP:
            raise ValueError(f"{len(data)} bytes follow the end of the data")


@register("gzip", BYTES, context=True)
def gzip(context: FunctionContext, data: bytes) -> bytes:
    """Compress the string to a gzip file."""
    return _deflate(context, data, _GZIP)


@register("gunzip", BYTES, context=True)
def gunzip(context: FunctionContext, data: bytes) -> str | bytes:
    """Unpack a gzip file."""
    return _inflate(context, data, _GZIP)


@register("zip", BYTES, context=True)
def deflate(context: FunctionContext, data: bytes) -> bytes:
    """Compress the string to raw deflate data."""
    return _deflate(context, data, _RAW)


@register("unzip", BYTES, context=True)
def inflate(context: FunctionContext, data: bytes) -> str | bytes:
    """Unpack raw deflate data."""
    return _inflate(context, data, _RAW)


@register("zip_compress", BYTES, context=True)
def compress(context: FunctionContext, data: bytes) -> bytes:
    """Compress the string to zlib data."""
    return _deflate(context, data, _ZLIB)


@register("zip_uncompress", BYTES, context=True)
def uncompress(context: FunctionContext, data: bytes) -> str | bytes:
    """Unpack zlib data."""
    return _inflate(context, data, _ZLIB)
