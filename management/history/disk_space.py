"""DiskSpace: the free space of the file system with the node's data."""

import os
from pathlib import Path


class DiskSpace:
    """``free`` and ``used``: bytes of the file system, as ``look`` found them; 0 before the first call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.free = 0
        self.used = 0

    def look(self) -> None:
        """Ask the system. Not on the event loop, because a disk may not answer."""
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return
        self.free = found.f_bavail * found.f_frsize
        self.used = (found.f_blocks - found.f_bfree) * found.f_frsize
