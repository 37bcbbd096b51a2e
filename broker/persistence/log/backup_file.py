"""A backup of a store: one file with every batch of the log, the check file, and a digest of everything.

The file consists of a line of magic, a line of JSON (``BackupHead``), and records that begin with their kind in one
byte: ``b`` is a row of the log, ``c`` the check file, ``e`` the end, with the number of the oldest batch that is still
needed. The last 32 bytes are the SHA-256 of all bytes before them, so that a flipped bit is noticed anywhere."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from .salvage import checksum

MAGIC: Final = b"taipan backup 1\n"
_MAX_HEAD: Final = 65_536
_ROW: Final = struct.Struct(">QQIQ")
_NUMBER: Final = struct.Struct(">Q")
_DIGEST: Final = 32

LogRow = tuple[int, int, int, bytes]
"""Number, ``low``, checksum and data, as in ``SqliteLog``."""


class BackupDamaged(Exception):
    """The file is not a backup, or has changed since it was written. The message is one line."""


class BackupHead(msgspec.Struct):
    """``schema``: the schema of the log. ``created_at``: Unix seconds."""

    node: str
    version: str
    schema: int
    created_at: int


class BackupSummary(msgspec.Struct):
    """The contents of a backup. ``first`` and ``last``: numbers of batches; ``damaged``: batches that were damaged on
    disk when the backup was created."""

    head: BackupHead
    batches: int
    first: int
    last: int
    size: int
    check: bytes
    damaged: list[int]


class BackupWriter:
    """Builds a backup, piece by piece."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def _add(self, data: bytes) -> bytes:
        self._digest.update(data)
        return data

    def head(self, head: BackupHead) -> bytes:
        return self._add(MAGIC + msgspec.json.encode(head) + b"\n")

    def rows(self, rows: list[LogRow]) -> bytes:
        return self._add(b"".join(b"b" + _ROW.pack(seq, low, crc, len(data)) + data for seq, low, crc, data in rows))

    def end(self, first: int, check: bytes) -> bytes:
        data = self._add(b"c" + _NUMBER.pack(len(check)) + check + b"e" + _NUMBER.pack(first))
        return data + self._digest.digest()


class _Reader:
    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self.size = file.seek(0, 2)
        self._left = self.size - _DIGEST
        self.digest = hashlib.sha256()
        file.seek(0)

    def take(self, size: int) -> bytes:
        data = b"" if size > self._left else self._file.read(size)
        if len(data) != size:
            raise self.wrong("it ends too early, or a length in it is wrong")
        self._left -= size
        self.digest.update(data)
        return data

    def line(self) -> bytes:
        data = self._file.readline(min(_MAX_HEAD, max(self._left, 0)))
        if not data.endswith(b"\n"):
            raise self.wrong("the end of its header is missing")
        self._left -= len(data)
        self.digest.update(data)
        return data

    def finish(self) -> None:
        if self._left:
            raise self.wrong("data follows its end")
        if self._file.read(_DIGEST) != self.digest.digest():
            raise self.wrong("its contents have changed: the checksum differs")

    def wrong(self, why: str) -> BackupDamaged:
        return BackupDamaged(f"{self._name} is damaged: {why}")


def read_backup(path: Path, take: Callable[[LogRow], None], newest_schema: int) -> BackupSummary:
    """Read the whole backup and pass each row to ``take``; the rows are valid only after this function has returned.

    Raises BackupDamaged, and OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        reader = _Reader(file, path.name)
        if reader.size < len(MAGIC) + _DIGEST or reader.take(len(MAGIC)) != MAGIC:
            raise BackupDamaged(f"{path.name} is not a store backup, or its first bytes are damaged")
        try:
            head = msgspec.json.decode(reader.line(), type=BackupHead)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise reader.wrong("its header cannot be read") from None
        if head.schema > newest_schema:
            raise BackupDamaged(
                f"{path.name} was created by a newer version, {head.version}"
                f" (schema {head.schema}, this one knows up to {newest_schema})"
            )
        summary = BackupSummary(head, 0, 0, 0, reader.size, b"", [])
        while (kind := reader.take(1)) != b"e":
            if kind == b"c":
                (size,) = _NUMBER.unpack(reader.take(_NUMBER.size))
                summary.check = reader.take(size)
            elif kind == b"b":
                seq, low, crc, size = _ROW.unpack(reader.take(_ROW.size))
                data = reader.take(size)
                if seq <= summary.last or seq >> 63 or low >> 63:
                    raise reader.wrong("its batches are out of order")
                summary.batches += 1
                summary.last = seq
                if checksum(seq, low, data) != crc:
                    summary.damaged.append(seq)
                take((seq, low, crc, data))
            else:
                raise reader.wrong("a record of an unknown kind")
        (summary.first,) = _NUMBER.unpack(reader.take(_NUMBER.size))
        reader.finish()
        return summary
