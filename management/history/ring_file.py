"""RingFile: the points on disk, in a file that never grows.

The time of a point determines its slot, which also contains a checksum. Writes are not flushed: if the process is
killed, nothing is lost; if the machine loses power, some seconds are. Reading never raises: a file of another kind, or
with other numbers of slots, is started again from empty, and a slot that cannot be read counts as empty."""

import contextlib
import errno
import logging
import os
import stat
import struct
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from .point import COLUMNS, FIGURES, Point

logger = logging.getLogger(__name__)

SLOT: Final = 1024
"""In bytes."""
_HEAD: Final = 4096
_MAGIC: Final = b"taipan history 1\n"
_PREFIX: Final = struct.Struct("<IH")
"""Checksum of the rest, and length of the point."""
MAX_POINT: Final = SLOT - _PREFIX.size

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_decode: Final = msgspec.msgpack.Decoder(Point).decode


class RingFile:
    """``sizes``: number of slots of each part. Only one thread may use the file at a time."""

    def __init__(self, path: Path, sizes: tuple[int, ...]) -> None:
        self.path = path
        self._sizes = sizes
        self._file = -1
        self._head = _head(sizes)
        self.size = _HEAD + SLOT * sum(sizes)

    def open(self) -> list[list[Point]]:
        """Return the points of each part. Raises OSError if the file cannot be created."""
        self._file = os.open(self.path, _FLAGS, 0o600)
        try:
            found = os.fstat(self._file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError("is not a file")
            content = _read(self._file, found.st_size) if found.st_size == self.size else b""
            if content.startswith(self._head) and len(content) == self.size:
                return self._points(content)
            if found.st_size:
                reason = "it is not a history file of this version" if content else f"it has {found.st_size} bytes"
                logger.warning(
                    "history_damaged file=%s reason=%s setting=history.enabled: started again", self.path, reason
                )
            self._begin()
        except BaseException:
            self.close()
            raise
        return [[] for _ in self._sizes]

    def write(self, part: int, slot: int, encoded: bytes) -> None:
        """Write an encoded point into a slot. Raises OSError."""
        length = _PREFIX.pack(0, len(encoded))[4:]
        data = _PREFIX.pack(crc32(length + encoded), len(encoded)) + encoded
        written = os.pwrite(self._file, data, _HEAD + SLOT * (sum(self._sizes[:part]) + slot))
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes were written")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        """Create empty slots, and reserve the space for all of them at once."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, self._head, 0)
        os.ftruncate(self._file, self.size)
        try:
            os.posix_fallocate(self._file, 0, self.size)
        except (AttributeError, OSError) as error:
            # If the system or the file system does not support this, space is reserved slot by slot.
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise

    def _points(self, content: bytes) -> list[list[Point]]:
        parts: list[list[Point]] = []
        damaged = 0
        place = _HEAD
        for size in self._sizes:
            points = []
            for _ in range(size):
                checksum, length = _PREFIX.unpack_from(content, place)
                if checksum or length:
                    point = _point(content[place : place + SLOT], checksum, length)
                    if point is None:
                        damaged += 1
                    else:
                        points.append(point)
                place += SLOT
            parts.append(points)
        if damaged:
            logger.warning("history_points_damaged file=%s points=%s: omitted", self.path, damaged)
        return parts


def _head(sizes: tuple[int, ...]) -> bytes:
    described = _MAGIC + f"{SLOT} {sizes} {' '.join(COLUMNS)}\n".encode()
    return (described + b"%08x\n" % crc32(described)).ljust(_HEAD, b"\0")


def _point(slot: bytes, checksum: int, length: int) -> Point | None:
    """Return the point in a slot; ``None`` if it is damaged."""
    end = _PREFIX.size + length
    if end <= SLOT and crc32(slot[4:end]) == checksum:
        with contextlib.suppress(msgspec.MsgspecError):
            point = _decode(slot[_PREFIX.size : end])
            if len(point.figures) == len(FIGURES):
                return point
    return None


def _read(file: int, size: int) -> bytes:
    pieces = []
    place = 0
    while place < size and (piece := os.pread(file, size - place, place)):
        pieces.append(piece)
        place += len(piece)
    return b"".join(pieces)
