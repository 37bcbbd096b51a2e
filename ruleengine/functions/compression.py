"""Compression: gzip, raw deflate (`zip`) and zlib (`zip_compress`), with bounds on what goes in and what comes out."""

from __future__ import annotations

import zlib
from typing import Final

from .function import OCTETS, Context, register

MAX_PLAIN: Final = 512 * 1024
"""What may be compressed at once, and what anything may unpack to."""
OCTETS_PER_STEP: Final = 48
"""Of what is compressed: so much takes more than a microsecond."""

_GZIP: Final = 31
_RAW: Final = -15
_ZLIB: Final = 15


def _deflate(context: Context, octets: bytes, form: int) -> bytes:
    if len(octets) > MAX_PLAIN:
        raise ValueError(f"{len(octets)} octets are more than the {MAX_PLAIN} that are compressed at once")
    context.budget.step(len(octets) // OCTETS_PER_STEP)
    compressor = zlib.compressobj(wbits=form)
    return compressor.compress(octets) + compressor.flush()


def _inflate(context: Context, octets: bytes, form: int) -> bytes:
    """Unpacks never more than the bound allows, and looks before it goes on: a small bomb stays small."""
    room = min(MAX_PLAIN, context.budget.octets_left)
    found = b""
    while True:
        context.budget.step()
        unpacker = zlib.decompressobj(wbits=form)
        try:
            found += unpacker.decompress(octets, room - len(found) + 1)
        except zlib.error as error:
            raise ValueError(f"the data cannot be unpacked: {error}") from error
        if len(found) > room:
            raise ValueError(f"the data unpacks to more than {room} octets")
        if not unpacker.eof:
            raise ValueError("the data ends too early")
        octets = unpacker.unused_data
        if not octets:
            return found
        if form != _GZIP:
            raise ValueError(f"{len(octets)} octets follow the end of the data")


@register("gzip", OCTETS, context=True)
def gzip(context: Context, octets: bytes) -> bytes:
    """The string as a gzip file."""
    return _deflate(context, octets, _GZIP)


@register("gunzip", OCTETS, context=True)
def gunzip(context: Context, octets: bytes) -> str | bytes:
    """What a gzip file holds."""
    return _inflate(context, octets, _GZIP)


@register("zip", OCTETS, context=True)
def deflate(context: Context, octets: bytes) -> bytes:
    """The string as raw deflate data."""
    return _deflate(context, octets, _RAW)


@register("unzip", OCTETS, context=True)
def inflate(context: Context, octets: bytes) -> str | bytes:
    """What raw deflate data holds."""
    return _inflate(context, octets, _RAW)


@register("zip_compress", OCTETS, context=True)
def compress(context: Context, octets: bytes) -> bytes:
    """The string as zlib data."""
    return _deflate(context, octets, _ZLIB)


@register("zip_uncompress", OCTETS, context=True)
def uncompress(context: Context, octets: bytes) -> str | bytes:
    """What zlib data holds."""
    return _inflate(context, octets, _ZLIB)
