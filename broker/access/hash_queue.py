"""HashQueue: passwords that wait for a hash thread: their order, their limit, and what happens if a client disconnects.

Known clients come first, then other clients, then new hashes for operators; each kind has its share of the threads, so
that none waits indefinitely. Within a kind, addresses take turns, and for each address its usernames."""

import asyncio
import heapq
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from .password_hash import ScryptHash

logger = logging.getLogger(__name__)

KNOWN: Final = 0
OTHER: Final = 1
NEW: Final = 2

# Of eight consecutive hashes; if a kind has nothing to do, the next kind takes its turn.
_TURNS: Final = (KNOWN, KNOWN, OTHER, KNOWN, KNOWN, OTHER, KNOWN, NEW)
_ASSUMED_SECONDS: Final = 0.05
"""Assumed seconds of a hash, until one was measured."""
_MIN_LIMIT: Final = 16
"""Number of jobs that may always wait, however long a hash takes."""
SPACING: Final = 0.1
"""Seconds between two passwords of an address that is slowed down because of its guesses."""


Result = bool | ScryptHash | bytes
"""Whether a password is correct, a new hash, or the proof of a password."""


class HashingBusy(Exception):
    """The password has waited too long, or would have to."""


class Job:
    """One password to be hashed, and the number of clients that wait for the result. ``earliest``: not before this time
    of the loop. ``paced``: its address is slowed down."""

    __slots__ = (
        "address",
        "arrived",
        "earliest",
        "future",
        "key",
        "kind",
        "name",
        "paced",
        "run",
        "waiters",
        "waiting",
    )

    def __init__(self, key: bytes, kind: int, address: str, name: bytes, run: Callable[[], Result]) -> None:
        self.key = key
        self.kind = kind
        self.address = address
        self.name = name
        self.run = run
        self.paced = False
        self.arrived = 0.0
        self.earliest = 0.0
        self.waiters = 0
        self.waiting = False  # in a line or delayed; no thread has it
        self.future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()


_ByName = OrderedDict[bytes, OrderedDict[bytes, Job]]


class _Line:
    """Jobs of one kind: address -> username -> jobs by key. Addresses and usernames take turns."""

    __slots__ = ("addresses",)

    def __init__(self) -> None:
        self.addresses: OrderedDict[str, _ByName] = OrderedDict()

    def add(self, job: Job) -> None:
        self.addresses.setdefault(job.address, OrderedDict()).setdefault(job.name, OrderedDict())[job.key] = job

    def remove(self, job: Job) -> None:
        names = self.addresses.get(job.address)
        jobs = names.get(job.name) if names is not None else None
        if names is None or jobs is None or jobs.pop(job.key, None) is None:
            return
        if not jobs:
            del names[job.name]
            if not names:
                del self.addresses[job.address]

    def take(self, now: float, pauses: dict[str, float]) -> Job | None:
        """Remove and return the next job; ``paced`` jobs of addresses in ``pauses`` wait until the time given there."""
        for address, names in self.addresses.items():
            name, jobs = next(iter(names.items()))
            job = next(iter(jobs.values()))
            if job.paced and pauses.get(address, 0.0) > now:
                continue
            self.addresses.move_to_end(address)
            names.move_to_end(name)
            self.remove(job)
            return job
        return None


class HashQueue:
    """``run`` of a job is called in one of ``threads`` threads; it has to release the GIL.

    ``patience``: seconds that a password may wait for its turn. The maximum number of waiting passwords is computed
    from the time of a hash. ``seconds``: the average of the latest hashes."""

    def __init__(self, threads: int | None, patience: float) -> None:
        self.seconds = _ASSUMED_SECONDS
        self.patience = patience
        self.closed = False
        self._jobs: dict[bytes, Job] = {}
        self._waiting: OrderedDict[bytes, Job] = OrderedDict()  # KNOWN and OTHER, in the order of arrival
        self._held: list[tuple[float, int, Job]] = []  # a heap, by the earliest time of each job
        self._sequence = 0
        self._counts: dict[str, int] = {}  # number of waiting jobs by address
        self._lines = (_Line(), _Line(), _Line())
        self._pauses: dict[str, float] = {}
        self._turn = 0
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self.threads = processors() if threads is None else threads
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="taipan-hash")

    def resize(self, threads: int | None) -> None:
        """Change the number of threads; ``None``: one for each processor."""
        count = processors() if threads is None else threads
        if count != self.threads:
            self._pool.shutdown(wait=False)  # its waiting jobs are completed there
            self.threads = count
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="taipan-hash")

    @property
    def limit(self) -> int:
        """The maximum number of waiting jobs."""
        return max(_MIN_LIMIT, int(self.patience * self.threads / self.seconds))

    def __len__(self) -> int:
        """The number of clients' passwords that wait for a thread."""
        return len(self._waiting)

    def find(self, key: bytes) -> Job | None:
        """Return the unfinished job with this key."""
        return self._jobs.get(key)

    def add(self, job: Job, delay: float = 0.0) -> None:
        """Add a job. ``delay``: seconds before it may begin. Raises HashingBusy if too many jobs are already
        waiting."""
        now = time.monotonic()
        if job.kind != NEW:
            self._make_room(job)
            self._waiting[job.key] = job
            self._counts[job.address] = self._counts.get(job.address, 0) + 1
        self._jobs[job.key] = job
        job.arrived = now
        job.waiting = True
        job.earliest = now + delay
        job.paced = delay > 0
        if delay > 0:
            self._sequence += 1
            heapq.heappush(self._held, (job.earliest, self._sequence, job))
        else:
            self._lines[job.kind].add(job)
        self._dispatch()

    def leave(self, job: Job) -> None:
        """Note that a client no longer waits for a job. After the last one, the job is removed, unless a thread has
        it."""
        job.waiters -= 1
        if job.waiters <= 0 and job.waiting:
            self._drop(job)

    async def result(self, job: Job) -> Result:
        """Wait for the result of a job, for one of its clients. Raises HashingBusy."""
        job.waiters += 1
        try:
            # Shielded, so that a client that disconnects does not cancel the result for others.
            return await asyncio.shield(job.future)
        finally:
            self.leave(job)

    def close(self) -> None:
        """Start no more jobs; the futures of waiting jobs are cancelled."""
        self.closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for job in list(self._jobs.values()):
            if job.waiting:
                job.waiting = False
                job.future.cancel()
        self._jobs.clear()
        self._waiting.clear()
        self._counts.clear()
        self._held.clear()
        self._lines = (_Line(), _Line(), _Line())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self, job: Job) -> None:
        """Make room if the limit is reached: the address with the most waiting jobs loses one, unknown clients
        first."""
        limit = self.limit
        if len(self._waiting) < limit:
            return
        address = job.address
        share = limit // (len(self._counts) + (address not in self._counts))
        if self._counts.get(address, 0) >= share:
            victim = self._newest(address, OTHER) if job.kind == KNOWN else None
            if victim is None:
                raise HashingBusy
        else:
            longest = max(self._counts, key=self._counts.__getitem__)
            victim = self._newest(longest, OTHER) or self._newest(longest, KNOWN)
        if victim is not None:
            self._refuse(victim)

    def _newest(self, address: str, kind: int) -> Job | None:
        for job in reversed(self._waiting.values()):
            if job.address == address and job.kind == kind:
                return job
        return None

    def _refuse(self, job: Job) -> None:
        self._drop(job)
        if not job.future.done():
            job.future.set_exception(HashingBusy())
            job.future.exception()  # read here, because all clients of the job may have disconnected

    def _drop(self, job: Job) -> None:
        self._no_longer_waits(job)
        self._jobs.pop(job.key, None)
        self._lines[job.kind].remove(job)

    def _no_longer_waits(self, job: Job) -> None:
        job.waiting = False
        if self._waiting.pop(job.key, None) is not None:
            left = self._counts[job.address] - 1
            if left:
                self._counts[job.address] = left
            else:
                del self._counts[job.address]

    def _dispatch(self) -> None:
        """Give the threads enough jobs to stay busy: one job each, and one more that is ready when the first job is
        done."""
        if self.closed:
            return
        now = time.monotonic()
        while self._held and (self._held[0][0] <= now or not self._held[0][2].waiting):
            job = heapq.heappop(self._held)[2]
            if job.waiting:
                self._lines[job.kind].add(job)
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if now - oldest.arrived < self.patience:
                break
            self._refuse(oldest)
        while self._running <= self.threads:
            found = self._next(now)
            if found is None:
                break
            self._no_longer_waits(found)
            if found.paced:
                self._pause(found.address, now)
            self._running += 1
            future = asyncio.get_running_loop().run_in_executor(self._pool, _timed, found.run)
            future.add_done_callback(partial(self._finished, found))
        self._wake_later(now)

    def _next(self, now: float) -> Job | None:
        first = _TURNS[self._turn % len(_TURNS)]
        for kind in (first, KNOWN, OTHER, NEW):
            job = self._lines[kind].take(now, self._pauses)
            if job is not None:
                self._turn += 1
                return job
        return None

    def _pause(self, address: str, now: float) -> None:
        if len(self._pauses) > 1000:
            self._pauses = {each: until for each, until in self._pauses.items() if until > now}
        self._pauses[address] = now + SPACING

    def _wake_later(self, now: float) -> None:
        """Schedule a call if nothing else would cause one: threads are idle, and a job has to wait for a time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running or not (self._waiting or self._held):
            return
        due = [self._held[0][0]] if self._held else []
        if any(line.addresses for line in self._lines):
            due.append(now + SPACING)
        if due:
            self._timer = asyncio.get_running_loop().call_later(max(min(due) - now, 0.001), self._dispatch)

    def _finished(self, job: Job, done: "asyncio.Future[tuple[Result, float]]") -> None:
        self._running -= 1
        self._jobs.pop(job.key, None)
        future = job.future
        error = None if done.cancelled() else done.exception()
        if done.cancelled():
            future.cancel()
        elif error is not None:
            if not future.done():
                future.set_exception(error)
                future.exception()
        else:
            result, seconds = done.result()
            if job.run is not nothing:
                self.seconds += (seconds - self.seconds) / 16
            if not future.done():
                future.set_result(result)
        self._dispatch()


def nothing() -> bool:
    """The work of a job that only has to wait for its turn."""
    return True


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _timed(run: Callable[[], Result]) -> tuple[Result, float]:
    begun = time.perf_counter()
    return run(), time.perf_counter() - begun
