"""The directory of backups. Its file names follow a strict pattern, all files are inside it, and each is written
completely or not at all."""

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.persistence.log.files import replace_file, sync_directory

from ..refusal import RPC_ERROR, WRONG, Refusal, not_found, wrong
from ..times import local_text

MAX_FILES: Final = 1000
"""Maximum number of files in the directory."""

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}\.json")
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class ExportRecord(msgspec.Struct):
    """``size`` in bytes; ``created_at``: local time, ``YYYY-MM-DD HH:mm:ss``."""

    filename: str
    size: int
    created_at: str
    node: str


class BackupFiles:
    """``<data_dir>/backup``. All methods access the disk: call them in a thread."""

    def __init__(self, data_dir: str, node: str) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.path = self.data_dir / "backup"
        self._node = node
        self._latest_name = ""

    def new_name(self, now: float) -> str:
        """Specification, Exported data file: ``broker-export-YYYY-MM-DD-HH-mm-SS.json``, local time.

        A second file within the same second gets the name of a later second, so that no file replaces another one."""
        at = now
        name = _export_name(at)
        while name == self._latest_name or (self.path / name).exists():
            at += 1
            name = _export_name(at)
        self._latest_name = name
        return name

    def place(self, name: str) -> Path:
        """Return the path of a file. Raises Refusal 102 if the name is not a valid one."""
        if not _NAME.fullmatch(name):
            raise not_found("file", name[:256])
        return self.path / name

    def new_place(self, name: str) -> Path:
        """Return the path for a new file of this name. Raises Refusal 108."""
        if not _NAME.fullmatch(name):
            raise wrong("filename", "expected 1 to 200 letters, digits, '.', '_' or '-' and .json, no path")
        return self.path / name

    def listing(self) -> list[ExportRecord]:
        """Return all files, oldest first."""
        rows: list[tuple[float, ExportRecord]] = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        rows.append((found.st_mtime, self.record(entry.name, found.st_size, found.st_mtime)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _trouble(self.path, error) from None
        rows.sort(key=lambda row: (row[0], row[1].filename))
        return [row for _, row in rows]

    def record(self, name: str, size: int, created_at: float) -> ExportRecord:
        return ExportRecord(name, size, local_text(created_at), self._node)

    def open(self, path: Path) -> tuple[int, int]:
        """Return a file descriptor for reading, and the size. Raises Refusal 102 if there is no regular file with this
        name."""
        try:
            opened = os.open(path, _READ | os.O_NOFOLLOW)
        except (OSError, ValueError):
            # The file does not exist, or is a link or a socket, or the name is invalid: for the caller it does not
            # exist.
            raise not_found("file", path.name) from None
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            os.close(opened)
            raise not_found("file", path.name)
        return opened, found.st_size

    def read(self, path: Path, most: int, setting: str) -> bytes:
        """Return the whole file. Raises Refusal if it does not exist or is longer than ``most`` bytes."""
        opened, _ = self.open(path)
        with os.fdopen(opened, "rb") as file:
            try:
                data = file.read(most + 1)
            except OSError as error:
                raise _trouble(path, error) from None
        if len(data) > most:
            raise Refusal(WRONG, f"{path.name} is longer than {most} bytes (setting management.{setting})")
        return data

    def inside(self, name: str) -> Path:
        """Return an absolute path inside the data directory. Raises Refusal 102 for another path."""
        path = Path(name)
        try:
            real = path.parent.resolve(strict=True) / path.name
            home = self.data_dir.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise not_found("file", name[:256]) from None
        if path.name in ("", "..") or not real.is_relative_to(home):
            raise not_found("file", f"{name[:256]} in the data directory")
        return real

    def delete(self, name: str) -> None:
        path = self.place(name)
        os.close(self.open(path)[0])
        try:
            path.unlink()
            sync_directory(path)
        except FileNotFoundError:
            raise not_found("file", name) from None
        except OSError as error:
            raise _trouble(path, error) from None

    def begin(self, path: Path) -> "NewFile":
        """Create a new file, which appears under its name after ``finish``. Raises Refusal."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.parent == self.path and not path.exists() and len(os.listdir(self.path)) >= MAX_FILES:
                raise Refusal(WRONG, f"{MAX_FILES} files are in {self.path}: delete some")
            return NewFile(path)
        except OSError as error:
            raise _trouble(path, error) from None


class NewFile:
    """Written to a temporary file in the same directory, then renamed; mode 0600."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.parent / f".{path.name[:200]}.{os.urandom(8).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb")
        self.size = 0

    def write(self, data: bytes) -> None:
        self._guard(lambda: self._file.write(data))
        self.size += len(data)

    def finish(self, now: float | None = None) -> None:
        """Make the file durable under its name. ``now``: its modification time."""

        def place() -> None:
            self._file.flush()
            if now is not None:
                os.utime(self._file.fileno(), (now, now))
            os.fsync(self._file.fileno())
            self._file.close()
            replace_file(self._temporary, self.path)

        self._guard(place)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        try:
            self._file.close()
        except OSError:
            pass  # The content of a file that is discarded need not be written.
        self._temporary.unlink(missing_ok=True)

    def _guard(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            self.abandon()
            raise _trouble(self.path, error) from None


def _trouble(path: Path, error: OSError) -> Refusal:
    return Refusal(RPC_ERROR, f"{path}: {error.strerror or error}")


def _export_name(at: float) -> str:
    return time.strftime("broker-export-%Y-%m-%d-%H-%M-%S.json", time.localtime(at))
