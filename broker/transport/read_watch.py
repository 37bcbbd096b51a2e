"""ReadWatch: a thread that ends a read of TLS which does not return.

OpenSSL processes all key updates of a client within one read, and keeps the event loop until a record with data comes.
The thread takes some bytes of such a client from its socket: the next record is damaged then, and the read fails."""

import os
import threading
import time
from typing import Final, Protocol

INTERVAL: Final = 0.1  # seconds
PROCESSOR_TIME: Final = 0.05
"""Seconds of processor time that a read may use; one record of 16 KB needs about 20 microseconds."""
_TAKEN: Final = 7
"""In bytes, less than the smallest record: what follows no longer begins with the header of a record."""


class Reads(Protocol):
    """The current read. ``reading``: the number of its socket, or -1 if there is none. ``reads``: all reads so far."""

    @property
    def reading(self) -> int: ...

    @property
    def reads(self) -> int: ...


class ReadWatch:
    """Watches the reads of the thread that creates it."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taipan-tls-reads", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        reads = self._reads
        seen = -1
        begun = 0.0
        while not self._stop.wait(INTERVAL):
            now = time.clock_gettime(self._clock)
            fd, number = reads.reading, reads.reads
            if fd < 0 or number != seen:
                seen, begun = number, now
            elif now - begun > PROCESSOR_TIME:
                # If the read has returned at this very moment, the same client loses its connection.
                try:
                    os.read(fd, _TAKEN)
                except OSError:
                    pass  # there is nothing to take at the moment
