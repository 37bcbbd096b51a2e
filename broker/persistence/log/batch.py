"""Batch: many records encoded together.

Layout, all numbers little-endian: byte 0 the version of the layout, bytes 1-3 zero, ``u32`` count, ``count`` times
``u32`` length, then the records one after the other. The lengths are together in one table because this is written five
times faster than a length before each record."""

import sys
from array import array
from collections.abc import Collection
from typing import Final

from .errors import StoreError

VERSION: Final = 1
HEAD: Final = 8
_SWAP: Final = sys.byteorder == "big"
_ZERO: Final = b"\0\0\0"


def encode(records: Collection[bytes]) -> bytes:
    """Encode a batch."""
    table = array("I", [len(records), *map(len, records)])
    if _SWAP:
        table.byteswap()
    return b"".join([bytes((VERSION,)), _ZERO, table.tobytes(), *records])


def first_offset(count: int) -> int:
    """Return the offset of the first of ``count`` records."""
    return HEAD + 4 * count


def decode(data: bytes) -> list[bytes]:
    """Decode the records of a batch. Raises StoreError if the layout is unknown or the lengths do not match."""
    if len(data) < HEAD or data[0] != VERSION:
        raise StoreError(f"a batch of unknown layout {data[:1].hex() or '(empty)'}")
    count = int.from_bytes(data[4:8], "little")
    begin = HEAD + 4 * count
    if begin > len(data):
        raise StoreError(f"a batch of {len(data)} bytes cannot hold {count} records")
    table = array("I")
    table.frombytes(data[HEAD:begin])
    if _SWAP:
        table.byteswap()
    records = []
    for size in table:
        records.append(data[begin : begin + size])
        begin += size
    if begin != len(data):
        raise StoreError("the lengths in a batch do not add up")
    return records
