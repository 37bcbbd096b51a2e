"""The plain frames of a WebSocket connection, all from one read; compiled, because every message passes them.

A plain frame is a binary frame in one piece that arrived completely, is masked, and has no extension. A client sends
hardly any others. Only the library judges other frames: nothing here raises or refuses."""

from types import FunctionType
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i16_le, read_i32_le, read_i64_le, write_i16_le, write_i32_le, write_i64_le

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without a C compiler
    from websockets.utils import apply_mask

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_HEADER: Final = 14
"""Size of the longest header, including the mask."""
_PLAIN: Final = 0x82
_MASKED: Final = 0x80
_SHORT: Final = [bytes((0x82, size)) for size in range(126)]
"""The headers of short frames that the server sends."""


def take_plain(raw: bytes, start: int, limit: int, most: int) -> tuple[bytes, int, int]:
    """Return the joined payload of the plain frames at ``start`` of ``raw``, their end, and their number.

    At most ``most`` of them, and none of more than ``limit`` or 65,535 bytes."""
    size: i64 = len(raw)
    position: i64 = start
    longest: i64 = limit
    left: i64 = most
    compiled = _COMPILED
    writer = BytesWriter()
    while left > 0 and size - position >= 6 and raw[position] == _PLAIN:
        length: i64 = raw[position + 1]
        length -= _MASKED
        data: i64 = position + 6
        if length == 126 and size - position >= 8:
            length = raw[position + 2] << 8 | raw[position + 3]
            data = position + 8
        elif length < 0 or length > 125:
            break
        end: i64 = data + length
        if length > longest or end > size:
            break
        if compiled:
            _unmask(writer, raw, data, end)
        else:
            writer.write(apply_mask(raw[data:end], raw[data - 4 : data]))
        position = end
        left -= 1
    return writer.getvalue(), position, most - left


def _unmask(writer: BytesWriter, raw: bytes, start: int, stop: int) -> None:
    """Write ``raw[start:stop]`` unmasked with the mask before it: eight bytes at a time, then the rest."""
    position: i64 = start
    end: i64 = stop
    mask = read_i32_le(raw, position - 4)
    as_int: int = mask
    words: i64 = as_int
    words = words << 32 | words & 0xFFFFFFFF
    while end - position >= 8:
        write_i64_le(writer, read_i64_le(raw, position) ^ words)
        position += 8
    if end - position >= 4:
        write_i32_le(writer, read_i32_le(raw, position) ^ mask)
        position += 4
    if end - position >= 2:
        write_i16_le(writer, read_i16_le(raw, position) ^ read_i16_le(raw, start - 4))
        position += 2
        if end > position:
            writer.append(raw[position] ^ raw[start - 2])
    elif end > position:
        writer.append(raw[position] ^ raw[start - 4])


_COMPILED: Final = not isinstance(_unmask, FunctionType)


def frame_size(head: bytes) -> int:
    """Return the size of the masked frame that begins with ``head``, including its header; 0: ``head`` is too short to
    know it."""
    if len(head) < 2:
        return 0
    length = head[1] & 0x7F
    if length < 126:
        return 6 + length
    size = 2 if length == 126 else 8
    if len(head) < 2 + size:
        return 0
    return 6 + size + int.from_bytes(head[2 : 2 + size], "big")


def framed(pieces: list[bytes], owed: int) -> tuple[list[bytes], int]:
    """Put a frame header before each Control Packet of an output.

    ``pieces``: the output in order. Each begins with a packet, whose fixed header is whole in it, or continues the
    packet of the piece before. ``owed``: bytes of a packet of an earlier output that come first. Return the bytes to
    write, and how many bytes of the last packet the next output owes."""
    written: list[bytes] = []
    left: i64 = owed
    for piece in pieces:
        size: i64 = len(piece)
        at: i64 = 0
        while at < size:
            if left == 0:
                # Remaining Length, section 2.1.4
                length: i64 = 0
                shift: i64 = 0
                behind: i64 = at + 1
                while behind < size:
                    byte: i64 = piece[behind]
                    behind += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                left = behind + length - at
                written.append(header(left))
            end: i64 = min(at + left, size)
            written.append(piece if end - at == size else piece[at:end])
            left -= end - at
            at = end
    return written, left


def size_of(pieces: list[bytes]) -> int:
    """Return the total size of these."""
    total: i64 = 0
    for piece in pieces:
        total += len(piece)
    return total


def header(size: int) -> bytes:
    """Return the header for ``size`` bytes from the server."""
    if size < 126:
        return _SHORT[size]
    if size < 65_536:
        return bytes((_PLAIN, 126, size >> 8, size & 0xFF))
    return bytes((_PLAIN, 127)) + size.to_bytes(8, "big")
