"""TLV, the binary form of several values (LwM2M 1.0, 6.4.3). An entry is an instance of an object with resources, a
resource with a value, a resource with instances, or one of these instances. So there are at most three levels."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .paths import MAX_ID

OBJECT_INSTANCE: Final = 0
RESOURCE_INSTANCE: Final = 1
MULTIPLE_RESOURCE: Final = 2
RESOURCE: Final = 3

MAX_ENTRIES: Final = 4096
"""Maximum number of entries of all levels that are read."""
MAX_LENGTH: Final = 0xFFFFFF

_INSIDE: Final = {OBJECT_INSTANCE: (MULTIPLE_RESOURCE, RESOURCE), MULTIPLE_RESOURCE: (RESOURCE_INSTANCE,)}
"""The kinds of entries that contain other entries; all others have a value."""


class BadTlv(ValueError):
    """Bytes are not TLV, or entries cannot be encoded; the message says why."""


@dataclass(frozen=True, slots=True)
class Tlv:
    """``kind``: one of the four kinds; ``inner``: the entries of an instance or of a resource with instances; other
    entries have a ``value``."""

    kind: int
    id: int
    value: bytes = b""
    inner: tuple["Tlv", ...] = ()


def decode(data: bytes) -> list[Tlv]:
    """Return the entries. Raises BadTlv."""
    reader = _Reader()
    return reader.entries(data, (OBJECT_INSTANCE, RESOURCE_INSTANCE, MULTIPLE_RESOURCE, RESOURCE))


class _Reader:
    def __init__(self) -> None:
        self._left = MAX_ENTRIES

    def entries(self, data: bytes, allowed: tuple[int, ...]) -> list[Tlv]:
        found = []
        at = 0
        while at < len(data):
            kind, number, start, end = _head(data, at)
            if kind not in allowed:
                raise BadTlv(f"an entry of kind {kind} inside another one")
            self._left -= 1
            if self._left < 0:
                raise BadTlv(f"more than {MAX_ENTRIES} entries")
            value = data[start:end]
            inside = _INSIDE.get(kind)
            if inside is None:
                found.append(Tlv(kind, number, value))
            else:
                found.append(Tlv(kind, number, inner=tuple(self.entries(value, inside))))
            at = end
        return found


def _head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return kind, identifier, and the beginning and end of the value of the entry at ``at``."""
    first = data[at]
    id_size = 2 if first & 0x20 else 1
    length_size = first >> 3 & 3
    start = at + 1 + id_size + length_size
    if start > len(data):
        raise BadTlv("the header of an entry is incomplete")
    number = int.from_bytes(data[at + 1 : at + 1 + id_size])
    length = int.from_bytes(data[at + 1 + id_size : start]) if length_size else first & 7
    if start + length > len(data):
        raise BadTlv("the value of an entry is incomplete")
    return first >> 6, number, start, start + length


def encode(entries: Iterable[Tlv]) -> bytes:
    """Return the bytes of entries, in the shortest form. Raises BadTlv."""
    return b"".join([_encoded(entry) for entry in entries])


def _encoded(entry: Tlv) -> bytes:
    inside = _INSIDE.get(entry.kind)
    if any(inner.kind not in (inside or ()) for inner in entry.inner) or (inside and entry.value):
        raise BadTlv("an entry contains an entry of a kind that is not allowed there")
    value = encode(entry.inner) if inside else entry.value
    if not 0 <= entry.id <= MAX_ID or len(value) > MAX_LENGTH:
        raise BadTlv("an identifier or a value is too large")
    first = entry.kind << 6
    number = entry.id.to_bytes(1 if entry.id < 256 else 2)
    first |= 0x20 if len(number) == 2 else 0
    size = len(value)
    if size < 8:
        return bytes((first | size,)) + number + value
    length = size.to_bytes(1 if size < 1 << 8 else 2 if size < 1 << 16 else 3)
    return bytes((first | len(length) << 3,)) + number + length + value
