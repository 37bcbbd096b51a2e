"""The data directory: only one node uses it at a time, and only the node's user has access."""

import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_STRANGERS: Final = stat.S_IRWXO
LOCK: Final = "lock"
DATABASE: Final = "taipan.db"
NATS_DIRECTORY: Final = "worker-nats"
"""The data of the NATS server that the supervisor of workers runs. Other programs have no directory of this name."""
LOST_AND_FOUND: Final = "lost+found"
"""In the root of every file system of the ext family."""


class DataDirError(Exception):
    """The directory cannot be used; the message is one line with the setting."""


class DataDir:
    """Created if missing (mode 0700), and locked while the process lives.

    Access by other users is removed; if that is not possible, the directory is not used."""

    def __init__(self, path: str, config: str | None = None, of: str = "") -> None:
        """``config``: the node's configuration file, by which ``taipan-ctl`` finds the directory. ``of``: the data
        directory that errors name, if ``path`` is a directory in it.

        Raises DataDirError if this is not a directory, access is denied, other users have access, or another process
        uses it."""
        self.path = Path(path)
        named = of or path
        try:
            if of:
                Path(of).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_own(self.path):
                _close_to_others(self.path)
            self._lock = _open_lock(self.path / LOCK)
        except OSError as error:
            raise DataDirError(f"node.data_dir {named}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._lock, 32).partition(b"\n")[0].decode("ascii", "replace").strip()
            os.close(self._lock)
            raise DataDirError(
                f"node.data_dir {named}: in use by process {owner or 'unknown'}; each node needs its own"
            ) from None
        os.ftruncate(self._lock, 0)
        configuration = "" if config is None else os.path.realpath(config)
        os.write(self._lock, f"{os.getpid()}\n".encode() + os.fsencode(configuration) + b"\n")

    def close(self) -> None:
        """Release the directory for another process."""
        os.close(self._lock)


class Holder(NamedTuple):
    """The user of a data directory: its process, and the configuration file that it runs with, empty if there is
    none."""

    process: int
    config: str


def holder(directory: Path) -> Holder | None:
    """Return the holder without changing anything. Raises OSError if the lock cannot be read."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        number, _, rest = os.read(lock, 8192).partition(b"\n")
        process = int(number) if number.isdigit() else 0
        if process and not _runs(process):
            return None  # this check does not block a node that starts now
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Holder(process, os.fsdecode(rest.partition(b"\n")[0]))
        return None
    finally:
        os.close(lock)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def open_to_others(directory: Path) -> Iterator[tuple[Path, int]]:
    """Return the directory and its files that other users can access, with the mode."""
    for path in (directory, *_inside(directory)):
        mode = path.stat(follow_symlinks=path == directory).st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            yield path, mode


def is_own(directory: Path) -> bool:
    """Return whether the directory contains only a node's data: access by others is not removed in /tmp, /etc or a
    user's home. Raises DataDirError if others have access to such a directory, and OSError."""
    mode = directory.stat().st_mode
    names = {each.name for each in directory.iterdir()} - {LOST_AND_FOUND}
    own = not names or not names.isdisjoint({LOCK, DATABASE, NATS_DIRECTORY})
    if mode & stat.S_ISVTX or (mode & _STRANGERS and not own):
        what = f"other programs may use this directory; choose a separate one, such as {directory / 'taipan'}"
        raise DataDirError(f"node.data_dir {directory}: {what}")
    return own


def _open_lock(path: Path) -> int:
    """Open the lock. Raises OSError, and DataDirError if the file is not the node's own, because its contents would be
    overwritten."""
    if path.is_symlink():
        raise DataDirError(f"node.data_dir {path}: is a link, and the node would write to its target; remove it")
    # It may have become a link in the meantime; and opening a pipe would wait.
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(lock)
        raise DataDirError(f"node.data_dir {path}: is not a regular file, or has other hard links; remove it")
    return lock


def _close_to_others(directory: Path) -> None:
    """Remove other users' access: the directory contains users, password hashes, messages and secrets of resources.
    Raises DataDirError and OSError."""
    repaired, lent = 0, 0
    for path, mode in open_to_others(directory):
        try:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
        except OSError as error:
            if mode & _STRANGERS:
                what = f"others may access it, and the permissions cannot be changed ({error.strerror})"
                raise DataDirError(f"node.data_dir {path}: {what}; chmod 700 the directory and 600 its files") from None
            lent += 1
            continue
        repaired += 1
        if path.stat().st_mode & _STRANGERS:
            # A file system without permissions: any user who may mount it may read it.
            logger.warning("data_dir_without_permissions path=%s setting=node.data_dir", path)
            return
    if lent:
        # A directory whose owner shares it with us by a group: a volume of Kubernetes with an fsGroup.
        logger.warning("data_dir_shared_with_group path=%s shared=%s setting=node.data_dir", directory, lent)
    if repaired:
        logger.warning(
            "data_dir_repaired path=%s repaired=%s setting=node.data_dir: others could read or write it",
            directory,
            repaired,
        )


def _inside(directory: Path) -> Iterator[Path]:
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            yield Path(parent) / name
