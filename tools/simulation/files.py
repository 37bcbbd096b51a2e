"""The disk of a simulated node as a directory with the real files of its store and of its copies. Only the threads that
write them are simulated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any, Final
from unittest.mock import patch

import apsw

from taipan.broker.cluster.replicas import copies
from taipan.broker.persistence.log import write_ahead_log
from taipan.broker.persistence.log.log_writer import Append, Job, LogWriter

from .disk import SimulatedDisk
from .loop import Life, life


class Disk:
    """The disk of a node from one start to the end of that process. ``speed``: draws how long a job takes.
    ``on_append`` is called before each batch."""

    def __init__(self, speed: SimulatedDisk) -> None:
        self.speed = speed
        self.writers: list[SimulatedWriter] = []
        self.connections: list[apsw.Connection] = []
        self.on_append: Callable[[], None] = lambda: None

    def crash(self) -> None:
        """Carry out some of the waiting jobs, then close all files as the end of the process would."""
        for writer in self.writers:
            writer.crash()
        self.writers.clear()
        for connection in self.connections:  # those of logs that have no writer yet, too
            connection.close(True)
        self.connections.clear()


_disks: Final[dict[Life, Disk]] = {}


class SimulatedWriter(LogWriter):
    """A ``LogWriter`` on the virtual loop: each job takes some time, in order, and is then done at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        owner = life.get()
        assert owner is not None
        self._disk = _disks[owner]
        self._disk.writers.append(self)
        self._busy = False
        self.post = self._accept  # type: ignore[misc]

    def start(self) -> None:
        """Do nothing: there is no thread."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing: there is no thread."""

    def _accept(self, job: Job) -> None:
        self._jobs.put(job)
        self._wake()
        if isinstance(job, Append):
            self._disk.on_append()

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self._loop.call_later(self._disk.speed.seconds(), self._turn)

    def _turn(self) -> None:
        self._busy = False
        job = self._next()
        if job is None or self._stopping:
            return
        self.work(job)
        if self._stopping:
            self.finish()
            self._disk.writers.remove(self)
        elif self._later or not self._jobs.empty():
            self._wake()

    def _next(self) -> Job | None:
        if self._later:
            return self._later.popleft()
        try:
            return self._jobs.get_nowait()
        except Empty:
            return None

    def crash(self) -> None:
        while not self._stopping and self._disk.speed.rng.random() < 0.5:
            job = self._next()
            if job is None:
                break
            self.work(job)


def _opened(connection: apsw.Connection) -> None:
    """Note the node that has opened a file."""
    owner = life.get()
    if owner is not None and owner in _disks:
        _disks[owner].connections.append(connection)


@contextmanager
def simulated_writers() -> Iterator[None]:
    """Give every store that is opened within this context a ``SimulatedWriter``."""
    with (
        patch.object(apsw, "connection_hooks", [*apsw.connection_hooks, _opened]),
        patch.object(write_ahead_log, "LogWriter", SimulatedWriter),
        patch.object(copies, "LogWriter", SimulatedWriter),
    ):
        try:
            yield
        finally:
            _disks.clear()


def mount(owner: Life, speed: SimulatedDisk) -> Disk:
    """Return the disk of this life of a node."""
    disk = _disks[owner] = Disk(speed)
    return disk
