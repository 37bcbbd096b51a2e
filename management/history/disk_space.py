"""DiskSpace: how much room there is where the node's data lies."""

import os
from pathlib import Path


class DiskSpace:
    """``free`` and ``used``: bytes of the file system, as ``look`` found them; 0 before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.free = 0
        self.used = 0

    def look(self) -> None:
        """Ask the system: not on the event loop, for a disk may not answer."""
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return
        self.free = found.f_bavail * found.f_frsize
        self.used = (found.f_blocks - found.f_bfree) * found.f_frsize
