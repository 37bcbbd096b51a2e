"""FakeDisk: files that remember what was flushed, so that a power cut can be played at any moment of a run.

It stands between SQLite and the real files (a VFS of APSW). Every write, truncation, flush and removal is an event;
``after(n)`` tells what may be on the disk had the power failed after event ``n``. A call can be made to fail.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw

SECTOR = 512
Event = tuple[str, str, int, bytes]
"""What happened, the name of the file, offset or size or number, data."""


class FakeFile(apsw.VFSFile):
    def __init__(self, disk: "FakeDisk", name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._file = Path(path).name
        disk.call("open", self._file)
        super().__init__("", name, flags)  # type: ignore[arg-type]

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.call("write", self._file)
        super().xWrite(data, offset)
        self._disk.events.append(("write", self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        self._disk.call("truncate", self._file)
        super().xTruncate(newsize)
        self._disk.events.append(("truncate", self._file, newsize, b""))

    def xSync(self, flags: int) -> None:
        try:
            self._disk.call("sync", self._file)
        except apsw.IOError:
            # What a failed flush leaves: pages that read well, count as clean, and never reach the disk.
            self._disk.events.append(("lost", self._file, 0, b""))
            raise
        self._disk.events.append(("sync", self._file, 0, b""))


class FakeDisk(apsw.VFS):
    """Registered under ``name`` as long as it lives. ``fail(kind, number)`` may return an error for a call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.calls = 0
        self.fail: Callable[[str, int], Exception | None] = lambda _kind, _number: None
        super().__init__(name, "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> FakeFile:
        return FakeFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.call("delete", Path(filename).name)
        super().xDelete(filename, syncdir)
        self.events.append(("delete", Path(filename).name, 0, b""))

    def call(self, kind: str, _file: str) -> None:
        self.calls += 1
        error = self.fail(kind, self.calls)
        if error is not None:
            raise error

    def check_files(self) -> "FakeFiles":
        """Where a ``CheckFile`` lies that is on this disk."""
        return FakeFiles(self)

    def note(self, number: int) -> None:
        """The program was told that ``number`` is durable."""
        self.events.append(("durable", "", number, b""))


class FakePlainFile:
    """A file that is written without SQLite: ``persistence.log.check_file.File``."""

    def __init__(self, disk: FakeDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def write(self, offset: int, data: bytes) -> None:
        self.call("write")
        event = ("write", self._path.name, offset, bytes(data))
        if isinstance(self._disk, MemoryDisk):
            apply(self._disk.files[self._path.name], event)
        else:
            content = bytearray(self._path.read_bytes())
            apply(content, event)
            self._path.write_bytes(content)
        self._disk.events.append(event)

    def sync(self) -> None:
        try:
            self.call("sync")
        except OSError:
            self._disk.events.append(("lost", self._path.name, 0, b""))
            raise
        self._disk.events.append(("sync", self._path.name, 0, b""))

    def close(self) -> None:
        pass

    def call(self, kind: str) -> None:
        try:
            self._disk.call(kind, self._path.name)
        except apsw.FullError:
            raise OSError(errno.ENOSPC, "no space") from None
        except apsw.Error as error:
            raise OSError(errno.EIO, f"{kind} failed") from error


class FakeFiles:
    """``persistence.log.check_file.Files`` on a ``FakeDisk``."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk

    def read(self, path: Path) -> bytes | None:
        if isinstance(self._disk, MemoryDisk):
            content = self._disk.files.get(path.name)
            return None if content is None else bytes(content)
        return path.read_bytes() if path.exists() else None

    def open(self, path: Path) -> FakePlainFile:
        return FakePlainFile(self._disk, path)

    def create(self, path: Path, content: bytes) -> FakePlainFile:
        file = FakePlainFile(self._disk, path)
        for kind in ("write", "sync", "rename"):
            file.call(kind)
        if isinstance(self._disk, MemoryDisk):
            self._disk.files[path.name] = bytearray(content)
        else:
            path.write_bytes(content)
        self._disk.events.append(("create", path.name, 0, content))
        return file


class MemoryFile:
    """A file of a ``MemoryDisk``: what programs read of it, be it flushed or not."""

    def __init__(self, disk: "MemoryDisk", name: str, content: bytearray) -> None:
        self._disk = disk
        self._name = name
        self._content = content

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._do(("write", self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        self._do(("truncate", self._name, newsize, b""))

    def xSync(self, flags: int) -> None:
        try:
            self._disk.call("sync", self._name)
        except apsw.IOError:
            self._disk.events.append(("lost", self._name, 0, b""))
            raise
        self._disk.events.append(("sync", self._name, 0, b""))

    def _do(self, event: Event) -> None:
        self._disk.call(event[0], self._name)
        apply(self._content, event)
        self._disk.events.append(event)

    def xFileSize(self) -> int:
        return len(self._content)

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xClose(self) -> None:
        pass


class MemoryDisk(FakeDisk):
    """A ``FakeDisk`` without files beneath it: a process that forks has a disk of its own from then on."""

    def __init__(self, name: str) -> None:
        self.files: dict[str, bytearray] = {}
        super().__init__(name)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> MemoryFile:  # type: ignore[override]
        file = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name)).name
        self.call("open", file)
        flags[1] = flags[0]
        return MemoryFile(self, file, self.files.setdefault(file, bytearray()))

    def xAccess(self, pathname: str, flags: int) -> bool:
        return Path(pathname).name in self.files

    def xFullPathname(self, name: str) -> str:
        return name

    def xDelete(self, filename: str, syncdir: bool) -> None:
        file = Path(filename).name
        self.call("delete", file)
        self.files.pop(file, None)
        self.events.append(("delete", file, 0, b""))

    @property
    def octets(self) -> int:
        """Of all files."""
        return sum(map(len, self.files.values()))


def full(_kind: str = "") -> apsw.Error:
    return apsw.FullError("disk full")


def broken(kind: str) -> apsw.Error:
    codes = {"sync": apsw.SQLITE_IOERR_FSYNC, "truncate": apsw.SQLITE_IOERR_TRUNCATE, "write": apsw.SQLITE_IOERR_WRITE}
    error: apsw.Error = apsw.IOError(f"{kind} failed")
    error.extendedresult = codes.get(kind, apsw.SQLITE_IOERR)  # type: ignore[attr-defined]
    return error


class Platter:
    """Replays events one by one; knows for each file what is flushed and what waits in the cache."""

    def __init__(self) -> None:
        self.flushed: dict[str, bytearray] = {}
        self.waiting: dict[str, list[Event]] = {}
        self.durable = 0

    def play(self, event: Event) -> None:
        kind, name, number, _ = event
        if kind == "durable":
            self.durable = number
        elif kind == "delete":
            self.flushed.pop(name, None)
            self.waiting.pop(name, None)
        elif kind == "create":
            self.flushed[name] = bytearray(event[3])
            self.waiting.pop(name, None)
        elif kind == "sync":
            for each in self.waiting.pop(name, []):
                apply(self.flushed.setdefault(name, bytearray()), each)
        elif kind == "lost":
            self.waiting.pop(name, None)
        else:
            self.waiting.setdefault(name, []).append(event)

    def power_cut(self, directory: Path, random: Random | None) -> None:
        """Write into ``directory`` what is left. Without ``random`` nothing that was not flushed, else some of it in no
        order, sectors of a write torn apart."""
        for name in {*self.flushed, *self.waiting}:
            image = bytearray(self.flushed.get(name, b""))
            for event in self.waiting.get(name, []):
                if random is not None and random.random() < 0.7:
                    apply(image, torn(event, random) if random.random() < 0.3 else event)
            (directory / name).write_bytes(image)


def apply(image: bytearray, event: Event) -> None:
    kind, _, number, data = event
    if kind == "truncate":
        del image[number:]
        return
    if len(image) < number:
        image.extend(bytes(number - len(image)))
    image[number : number + len(data)] = data


def torn(event: Event, random: Random) -> Event:
    kind, name, number, data = event
    return (kind, name, number, data[: random.randrange(0, len(data) + SECTOR, SECTOR)] if data else data)
