"""The data directory: one node at a time."""

import fcntl
import os
from pathlib import Path


class DataDirError(Exception):
    """The directory cannot be used; the text is one line and names the setting."""


class DataDir:
    """Made where it is missing (mode 0700), and held by a lock for as long as the process lives."""

    def __init__(self, path: str) -> None:
        """Raises DataDirError: not a directory, no permission, or another process has it."""
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirError(f"node.data_dir {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._lock, 32).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise DataDirError(
                f"node.data_dir {path}: in use by process {owner or 'unknown'}; each node needs its own"
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)
