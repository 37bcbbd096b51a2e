"""DiskThread: writes points and checks the free space, so that a disk cannot block the event loop."""

import logging
import threading
from queue import SimpleQueue

from .disk_space import DiskSpace
from .ring_file import RingFile

logger = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Maximum number of points that wait for a disk that does not answer: one hour of them."""
STOP_TIMEOUT = 2.0

Job = tuple[int, int, bytes]
"""Part, slot and point, for ``RingFile.write``."""


class DiskThread(threading.Thread):
    """``file``: open, or ``None`` if nothing is stored. A write error is logged once."""

    def __init__(self, disk: DiskSpace, file: RingFile | None) -> None:
        # A daemon: a disk that never answers must not keep the process from ending.
        super().__init__(name="history", daemon=True)
        self._disk = disk
        self._file = file
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._stopping = False
        self._failed = False
        self.lost = 0

    def put(self, part: int, slot: int, encoded: bytes) -> None:
        """Request that a point is written soon."""
        if self._file is None:
            return
        if self._jobs.qsize() >= MAX_WAITING:
            self._fail("the disk does not answer")
        else:
            self._jobs.put((part, slot, encoded))

    def look(self) -> None:
        """Request a check of the free space soon."""
        if self._jobs.empty():
            self._jobs.put(None)

    def stop(self) -> None:
        """Write the remaining points and close the file, within a limited time."""
        self._stopping = True
        self._jobs.put(None)
        self.join(STOP_TIMEOUT)

    def run(self) -> None:
        while not (self._stopping and self._jobs.empty()):
            job = self._jobs.get()
            if job is None:
                self._disk.look()
            elif self._file is not None:
                self._write(self._file, job)
        if self._file is not None:
            self._file.close()

    def _write(self, file: RingFile, job: Job) -> None:
        try:
            file.write(*job)
        except OSError as error:
            self._fail(error.strerror or str(error))
        else:
            if self._failed:
                self._failed = False
                logger.warning("history_written_again file=%s lost=%s", file.path, self.lost)
                self.lost = 0

    def _fail(self, why: str) -> None:
        self.lost += 1
        if not self._failed:
            self._failed = True
            assert self._file is not None
            logger.error("history_not_written file=%s error=%s setting=node.data_dir", self._file.path, why)
