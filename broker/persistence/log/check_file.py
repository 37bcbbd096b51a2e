"""CheckFile: a small file next to the log that records what the log must contain.

The file contains the number of the last stored batch, and digests of the rows of access control. SQLite treats a
missing, empty or truncated write-ahead log as complete; this file reveals the loss.

It has four blocks, each with its own checksum. Two blocks alternate for the number, which is written after each batch
without a flush: an older number is not a false alarm. Two blocks alternate for the digests. Before a batch that
changes rows of access control is stored, the digests before and after the change are flushed here; after it is stored,
only the new digests remain. So a crash in between neither looks like a loss nor hides one.
"""

import contextlib
import logging
import os
import zlib
from pathlib import Path
from typing import Final, Protocol

import msgspec

from .errors import StoreError, WriteTrouble, describe
from .files import replace_file

logger = logging.getLogger(__name__)

BLOCK: Final = 4096
SIZE: Final = 4 * BLOCK
_MAGIC: Final = b"taipan check 1\n"
_HEAD: Final = len(_MAGIC) + 8

Digests = dict[str, tuple[int, bytes]]
"""Table -> number of its rows, and their digest."""


class Expected(msgspec.Struct, array_like=True, frozen=True):
    """The rows have the digests ``after``, or, if there is a ``before``, the digests from before a batch that was being
    written."""

    generation: int
    before: Digests | None
    after: Digests


class File(Protocol):
    """A file to which a ``CheckFile`` writes."""

    def write(self, offset: int, data: bytes) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Files(Protocol):
    """Access to files: on disk, or a replacement for tests."""

    def read(self, path: Path) -> bytes | None:
        """Return the whole content; ``None`` if the file does not exist."""
        ...

    def open(self, path: Path) -> File: ...

    def create(self, path: Path, content: bytes) -> File:
        """Create the file atomically: after a failure, the disk has all of it or nothing."""
        ...


class OsFile:
    """A file of the operating system."""

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, offset: int, data: bytes) -> None:
        while data:
            written = os.pwrite(self._number, data, offset)
            offset += written
            data = data[written:]

    def sync(self) -> None:
        os.fsync(self._number)

    def close(self) -> None:
        os.close(self._number)


class OsFiles:
    """The files of the operating system."""

    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def open(self, path: Path) -> OsFile:
        return OsFile(path)

    def create(self, path: Path, content: bytes) -> OsFile:
        new = path.with_name(path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        file = OsFile(new)
        try:
            file.write(0, content)
            file.sync()
            replace_file(new, path)
        except BaseException:
            file.close()
            raise
        return file


class CheckFile:
    """Call ``read`` first, then ``settle`` when the contents of the log are known; after that the log's thread uses
    the file.

    ``present``: the file exists. ``last``: the number of the last batch in the file, 0 if it has none. ``expected``:
    the expected digests, None if there are none to rely on and the file has to be created again. ``held``: rows may be
    lost and the loss is not accepted; the expectation remains unchanged.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files: Files = files or OsFiles()
        self._file: File | None = None
        self.present = False
        self.last = 0
        self.expected: Expected | None = None
        self.held = False
        self._generation = 0
        # Digests of the current rows of the log.
        self._actual: Digests = {}
        self._noted = 0
        # Both number blocks have to be written: one contains a number that is too high.
        self._both = False
        self._complained = False

    def read(self) -> None:
        """Read the file. Raises StoreError if it exists but cannot be read."""
        try:
            content = self._files.read(self.path)
            self.present = content is not None
            if content is None:
                self.last, self.expected, self._generation = 0, None, 0
                return
            self._take(content)
            if self.expected is not None:
                self._file = self._files.open(self.path)
        except OSError as error:
            raise StoreError(f"{self.path}: {describe(error)}") from None

    def _take(self, content: bytes) -> None:
        blocks = [_unpacked(content[at : at + BLOCK]) for at in range(0, SIZE, BLOCK)]
        numbers = [int.from_bytes(each, "little") for each in blocks[:2] if each is not None]
        self.last = max(numbers, default=0)
        found = [each for each in map(_expected, blocks[2:]) if each is not None]
        self.expected = max(found, key=lambda each: each.generation, default=None)
        self._generation = self.expected.generation if self.expected is not None else 0

    def settle(self, last: int, actual: Digests, held: bool) -> None:
        """Set the state of the log: it ends with batch ``last`` and has the rows ``actual``; ``held``: rows may be
        missing."""
        self.held = held
        self._actual = actual
        self._noted = last
        expected = self.expected
        if self._file is None or expected is None:
            return
        self._both = True
        try:
            self._write_number(last)
            if not held and (expected.before is not None or expected.after != actual):
                self._put(None, actual)
            else:
                self._file.sync()
        except OSError as error:
            # The content is correct; the next batch tries again.
            logger.warning("check_file_not_written file=%s error=%s", self.path, describe(error))

    def follow(self, last: int, actual: Digests | None) -> None:
        """Continue as the check file of a copy, whose log ends with batch ``last`` and has the rows ``actual``; None:
        they are not known, and what the file expects stays. Raises WriteTrouble."""
        self._noted = last
        self._both = True
        if actual is not None:
            self._flush(None, actual)
            self._actual = actual
        elif self.expected is not None:
            self._actual = self.expected.after
        if self._file is not None:
            try:
                self._write_number(last)
            except OSError as error:
                raise WriteTrouble(f"{self.path.name}: {describe(error)}") from error

    def prepare(self, after: Digests) -> None:
        """Announce the digests after the next batch. Raises WriteTrouble."""
        if not self.held:
            self._flush(self._actual if self._actual != after else None, after)

    def confirm(self, seq: int, after: Digests) -> None:
        """Confirm that the batch is stored. Raises WriteTrouble; then prepare and store it again."""
        self.note(seq)
        if not self.held:
            self._flush(None, after)
        self._actual = after

    def note(self, seq: int) -> None:
        """Record that batch ``seq`` is stored."""
        if self._file is None or seq == self._noted:
            return
        try:
            self._write_number(seq)
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.warning("check_file_not_written file=%s error=%s", self.path, describe(error))

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write_number(self, seq: int) -> None:
        assert self._file is not None
        block = _packed(seq.to_bytes(8, "little"))
        for place in (0, 1) if self._both else (seq & 1,):
            self._file.write(place * BLOCK, block)
        self._both = False
        self._noted = seq

    def _flush(self, before: Digests | None, after: Digests) -> None:
        try:
            if self._file is None:
                number = _packed(self._noted.to_bytes(8, "little")).ljust(BLOCK, b"\0")
                expected = _packed(msgspec.msgpack.encode(Expected(1, before, after))).ljust(BLOCK, b"\0")
                self._file = self._files.create(self.path, number + number + bytes(BLOCK) + expected)  # generation 1
                self._generation = 1
            else:
                self._put(before, after)
        except OSError as error:
            raise WriteTrouble(f"{self.path.name}: {describe(error)}") from error

    def _put(self, before: Digests | None, after: Digests) -> None:
        assert self._file is not None
        # Written over the older block. After a failure, use the same block again: the other one is intact.
        generation = self._generation + 1
        block = _packed(msgspec.msgpack.encode(Expected(generation, before, after)))
        if len(block) > BLOCK:
            raise OSError(f"digests of {len(after)} tables do not fit into the check file")
        self._file.write((2 + generation % 2) * BLOCK, block)
        self._file.sync()
        self._generation = generation


def _packed(payload: bytes) -> bytes:
    size = len(payload).to_bytes(4, "little")
    return _MAGIC + zlib.crc32(size + payload).to_bytes(4, "little") + size + payload


def _unpacked(block: bytes) -> bytes | None:
    """Return the content of a block; None if it is damaged."""
    size = block[_HEAD - 4 : _HEAD]
    payload = block[_HEAD : _HEAD + int.from_bytes(size, "little")]
    return payload if _packed(payload) == block[: _HEAD + len(payload)] else None


def _expected(payload: bytes | None) -> Expected | None:
    if payload is None:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=Expected)
    except msgspec.MsgspecError:
        return None
