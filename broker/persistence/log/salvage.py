"""Salvage: recover the intact batches of a damaged file without relying on its structure.

Every row carries a CRC32 over its number, its ``low`` and its data, so a row proves its own integrity on whatever page
of the file or of its write-ahead log it is found. Pages are read as the SQLite file format describes them
(sqlite.org/fileformat.html, sections 1.6 and 2.1). ``low`` is the number of the oldest batch at the time when the row
was written; rows below the highest ``low`` had been deleted on purpose and are not restored."""

import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .files import replace_file, sync_directory

PAGE: Final = 4096
WAL_HEAD: Final = 32
FRAME_HEAD: Final = 24
_LOCAL_MAX: Final = PAGE - 35
_LOCAL_MIN: Final = (PAGE - 12) * 32 // 255 - 23
_LEAF: Final = b"\x0d"
_INT_SIZE: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}

Image = Callable[[int], bytes]
Row = tuple[int, int, bytes]


@dataclass(slots=True)
class SalvageReport:
    """The damage that was found, and what was done about it."""

    reason: str
    set_aside: Path | None = None
    kept: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of missing batch numbers, each with its first and last number. Batches after the last intact one cannot be
    known."""

    def __str__(self) -> str:
        gone = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in self.missing[:10])
        gone += f" and {len(self.missing) - 10} more runs" if len(self.missing) > 10 else ""
        aside = f"; set aside as {self.set_aside.name}, {self.kept} sound batches kept" if self.set_aside else ""
        return f"the store is damaged: {self.reason}{aside}; lost batches: {gone or 'none known'}"


def checksum(seq: int, low: int, data: bytes) -> int:
    """Return the checksum that is stored with a row, to detect damage later."""
    return zlib.crc32(data) ^ own_part(seq, low)


def own_part(seq: int, low: int) -> int:
    """Return the part of the checksum that does not depend on the data."""
    return zlib.crc32(b"%d,%d" % (seq, low))


def crc_of_data(seq: int, low: int, crc: int) -> int:
    """Return the CRC32 of a row's data from the checksum of the row."""
    return (crc ^ own_part(seq, low)) & 0xFFFFFFFF


def beside(path: Path, ending: str) -> Path:
    """``store.db`` -> ``store.db-wal``."""
    return path.with_name(path.name + ending)


def put_in_place(path: Path) -> None:
    """Finish a salvage that a crash may have interrupted.

    A file named ``.salvaged-<time>`` is complete. It replaces the damaged file in several steps, and a crash may happen
    after each of them."""
    for ending in ("", "-wal", "-journal"):
        beside(path, ".salvaging" + ending).unlink(missing_ok=True)
    for ready in sorted(path.parent.glob(path.name + ".salvaged-*"))[-1:]:
        aside = damaged_name(path, ready.name.rpartition("-")[2])
        for ending in ("-wal", "-journal", ""):
            old = beside(path, ending)
            if old.exists():
                old.replace(beside(aside, ending))
        sync_directory(path)
        replace_file(ready, path)


def damaged_name(path: Path, when: str) -> Path:
    """Return the name under which a damaged file is kept."""
    return beside(path, f".damaged-{when}")


def sound_rows(path: Path) -> Iterator[Row]:
    """Yield every intact row as number, low and data, in no particular order. Deleted rows whose bytes are still in the
    file are included, and a row may appear again with a higher low."""
    wal = wal_frames(beside(path, "-wal"))
    latest = dict(wal)
    seen: dict[int, int] = {}
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            yield from _rows_on((frame for _, frame in wal), (lambda number: latest.get(number, b""),), seen)
            return
        with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as view:

            def in_file(number: int) -> bytes:
                return view[(number - 1) * PAGE : number * PAGE] if number > 0 else b""

            def newest(number: int) -> bytes:
                return latest.get(number) or in_file(number)

            views: tuple[Image, ...] = (newest, in_file) if latest else (in_file,)
            yield from _rows_on((frame for _, frame in reversed(wal)), views, seen)
            yield from _rows_on((in_file(number) for number in range(1, size // PAGE + 1)), views, seen)


def rows_in_wal(path: Path) -> Iterator[Row]:
    """Yield the intact rows that are entirely in the write-ahead log of ``path``, even if SQLite considers its frames
    invalid."""
    wal = wal_frames(beside(path, "-wal"))
    latest = dict(wal)
    return _rows_on((frame for _, frame in wal), (lambda number: latest.get(number, b""),), {})


def wal_frames(wal: Path) -> list[tuple[int, bytes]]:
    """Yield page number and page of all frames in order, valid or not."""
    try:
        data = wal.read_bytes()
    except FileNotFoundError:
        return []
    step = FRAME_HEAD + PAGE
    return [
        (int.from_bytes(data[at : at + 4], "big"), data[at + FRAME_HEAD : at + step])
        for at in range(WAL_HEAD, len(data) - step + 1, step)
    ]


def _rows_on(pages: Iterator[bytes], views: tuple[Image, ...], seen: dict[int, int]) -> Iterator[Row]:
    for page in pages:
        # Only leaf pages of the table are read. Overflow pages contain bytes as a client sent them, and could look like
        # anything; but such a page begins with the number of the next one, which is far below. And no more cells are
        # read than the page header counts: after their pointers there may be older bytes.
        if page[:1] != _LEAF:
            continue
        for at in range(8, min(8 + 2 * int.from_bytes(page[3:5], "big"), PAGE - 4), 2):
            cell = int.from_bytes(page[at : at + 2], "big")
            if not at + 2 <= cell <= PAGE - 4:
                break
            size, begin = _varint(page, cell)
            seq, begin = _varint(page, begin)
            for view in views:
                row = _row(page, begin, size, seq, view, seen.get(seq, -1))
                if row is not None:
                    seen[seq] = row[1]
                    yield row
                    break


def _row(page: bytes, begin: int, size: int, seq: int, view: Image, known: int) -> Row | None:
    """Return the row whose payload of ``size`` bytes starts at ``begin``; None if it is not a row of the log, is
    damaged, or its ``low`` is not above the ``known`` one."""
    head, at = _varint(page, begin)
    if not 5 <= head <= 20:
        return None
    kinds = []
    while at < begin + head:
        kind, at = _varint(page, at)
        kinds.append(kind)
    if len(kinds) != 4 or kinds[0] or kinds[1] not in _INT_SIZE or kinds[2] not in _INT_SIZE:
        return None
    if kinds[3] < 12 or kinds[3] & 1 or at != begin + head:
        return None
    first, second, length = _INT_SIZE[kinds[1]], _INT_SIZE[kinds[2]], (kinds[3] - 12) // 2
    if head + first + second + length != size:
        return None
    low = kinds[1] - 8 if kinds[1] >= 8 else int.from_bytes(page[at : at + first], "big", signed=True)
    if low <= known:
        return None
    at += first
    crc = kinds[2] - 8 if kinds[2] >= 8 else int.from_bytes(page[at : at + second], "big", signed=True)
    at += second
    local = size
    if size > _LOCAL_MAX:
        local = _LOCAL_MIN + (size - _LOCAL_MIN) % (PAGE - 4)
        if local > _LOCAL_MAX:
            local = _LOCAL_MIN
    end = begin + local
    parts = [page[at:end]]
    left = size - local
    number = int.from_bytes(page[end : end + 4], "big")
    while left > 0:
        more = view(number)
        if len(more) != PAGE:
            return None
        parts.append(more[4 : 4 + left])
        left -= PAGE - 4
        number = int.from_bytes(more[:4], "big")
    data = b"".join(parts)
    return (seq, low, data) if len(data) == length and checksum(seq, low, data) == crc else None


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length integer of SQLite; return it and its end. Bytes beyond the end of the page are zeros."""
    value = 0
    for index in range(at, at + 8):
        byte = page[index] if index < len(page) else 0
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, index + 1
    return value << 8 | (page[at + 8] if at + 8 < len(page) else 0), at + 9
