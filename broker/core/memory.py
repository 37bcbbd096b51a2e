"""Memory: the node's budget, its use, and the memory level.

The node counts the memory of its objects when they change. The resident size of the process shows memory that this
misses: a resident size above everything that was ever counted is treated as used as well. The levels are similar to
RabbitMQ's watermarks::

    0.80  REFUSING  no new sessions and subscriptions, no QoS 0 for slow readers, all queues to disk
    0.90  SLOWING   the clients that send most are not read
    1.00  SHEDDING  closes connections that use the memory, then drops messages of the largest queues

Queues are only shed for the memory that they use themselves. For unexplained memory, the allocator first returns freed
memory to the system; memory that remains unexplained is gradually attributed to the process itself, and then no queue
is shed for it."""

import gc
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

from ..loop.control_groups import CGROUPS, PROC, limits
from ..session.memory_account import REFUSING, SHEDDING, SLOWING, MemoryAccount

logger = logging.getLogger(__name__)

# The beginning and the end of each level, as parts of the limit.
BEGINS: Final = {REFUSING: 0.80, SLOWING: 0.90, SHEDDING: 1.00}
ENDS: Final = {REFUSING: 0.75, SLOWING: 0.85, SHEDDING: 0.93}

MIN_BUDGET: Final = 67_108_864
_MIN_HEADROOM: Final = 33_554_432
"""In bytes: minimum of the budget, and of the part that remains beyond the process itself."""

SHEDDABLE: Final = ("queues", "messages")
"""Sources whose memory shrinks when queues of this node are shed."""
_DOUBT: Final = 4
"""A fraction of the counted memory of queues by which their real memory may be larger, and for which they are shed."""
_SINKS_IN: Final = 60.0
"""Seconds in which two thirds of constant unexplained memory are no longer counted."""
_SINKS_TO: Final = 4
"""A fraction of the limit: at most that much is no longer counted."""
_TRIM_FROM: Final = 16
"""A fraction of the limit: freed memory is returned to the system when unexplained memory has grown by this much since
the last time."""
_TRIM_COSTS: Final = 20.0
"""Returning freed memory takes at most one part in this many of the time: a twentieth."""
_CHECK_INTERVAL: Final = 0.25  # seconds between two checks of the resident size
_BYTES: Final = re.compile(r"[0-9]{2,18}")
_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return the resident size of this process in bytes; 0 if the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def trim() -> None:
    """Free young objects that only the garbage collector finds, because checking all objects may take seconds; then
    make the C library return freed memory to the system. Only glibc can do this; other libraries do it automatically or
    never."""
    global _trim
    gc.collect(1)
    if _trim is None:
        try:
            import ctypes

            _trim = ctypes.CDLL(None).malloc_trim
        except (ImportError, OSError, AttributeError):
            _trim = _nothing
    _trim(0)


def _nothing(_: int) -> int:
    return 0


_trim: Callable[[int], int] | None = None


def installed(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that this process may use: those of the machine, or the limit of its cgroup (v1 or v2) and the
    cgroups above it."""
    most = os.sysconf("SC_PHYS_PAGES") * _PAGE
    for text in limits("memory", "memory.limit_in_bytes", "memory.max", proc, cgroups):
        if text.isdigit() and int(text) > 0:  # "max": no limit
            most = min(most, int(text))
    return most


def parse_limit(text: int | str, whole: Callable[[], int] = installed) -> int:
    """Return ``limits.memory`` in bytes, from a number of bytes, or from ``"50%"`` or ``"0.5"`` of ``whole``. Raises
    ValueError."""
    if isinstance(text, str) and _BYTES.fullmatch(text) is not None:
        text = int(text)  # a number written as text
    if isinstance(text, int):
        if text < MIN_BUDGET:
            raise ValueError(f"expected at least {MIN_BUDGET} bytes")
        return text
    try:
        part = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        part = 0.0
    if not 0.0 < part <= 1.0:
        raise ValueError('expected bytes as a number without a unit, or a share of the machine memory: "50%" or "0.5"')
    return max(MIN_BUDGET, int(whole() * part))


class Memory:
    """``limit`` in bytes. ``look`` sets ``account.level``; ``changed`` is called with the previous level."""

    def __init__(
        self,
        limit: int,
        account: MemoryAccount,
        resident: Callable[[], int] = resident,
        trim: Callable[[], None] = trim,
    ) -> None:
        self.account = account
        self.changed: Callable[[int], None] = lambda _: None
        self.resized: Callable[[int], None] = lambda _: None
        self._resident = resident
        self._trim = trim
        self._trim_at = 0.0
        self._trimmed_to = 0
        self._sources: dict[str, Callable[[], int]] = {}
        # Of the sources, what shrinks when queues are shed.
        self._sheddable: dict[str, Callable[[], int]] = {}
        # Memory of the empty process, and how much of the rest was explained at most.
        self.base = resident()
        self._explained = 0
        self._missed = 0
        # Memory that was unexplained for so long that it is no longer counted.
        self._sunk = 0.0
        self._next = 0.0
        self.limit = limit
        self.resize(limit)

    def started(self) -> None:
        """Note that the node is complete: memory that is unexplained now belongs to the process itself."""
        unexplained = self._unexplained(self.counted)
        if unexplained > 0:
            self.base += unexplained
            self.resize(self.limit)

    def source(self, name: str, size: Callable[[], int], sheddable: Callable[[], int] | None = None) -> None:
        """Add the result of ``size``, in bytes, under this name. ``sheddable``: the part that shrinks when queues are
        shed; ``None``: all of a source in ``SHEDDABLE``, and nothing of others."""
        self._sources[name] = size
        if sheddable is None and name in SHEDDABLE:
            sheddable = size
        if sheddable is not None:
            self._sheddable[name] = sheddable

    def parts(self) -> dict[str, int]:
        """Return bytes by purpose; ``base`` is the process itself, ``other`` is not explained."""
        parts = {name: max(0, size()) for name, size in self._sources.items()}
        return {"base": self.base, **parts, "other": self._missed}

    @property
    def counted(self) -> int:
        """Return the bytes that the node has counted."""
        return sum([max(0, size()) for size in self._sources.values()])

    def counted_without(self, source: str) -> int:
        """Return ``counted`` without one of the sources."""
        return sum([max(0, size()) for name, size in self._sources.items() if name != source])

    @property
    def sheddable(self) -> int:
        """Return the bytes that shrink when queues are shed."""
        return sum([max(0, size()) for size in self._sheddable.values()])

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.base + self.counted + self._missed

    def look(self, now: float, restoring: bool = False) -> int:
        """Determine the memory level. ``restoring``: uncounted memory of the process will soon be freed."""
        counted = self.counted
        if counted > self._explained:
            self._explained = counted
        if now >= self._next and not restoring:
            elapsed = min(now - self._next + _CHECK_INTERVAL, _SINKS_IN) if self._next else 0.0
            self._next = now + _CHECK_INTERVAL
            unexplained = self._unexplained(counted)
            if unexplained - self._trimmed_to >= self.limit // _TRIM_FROM and now >= self._trim_at:
                unexplained = self._give_back(counted, now)
            self._trimmed_to = min(self._trimmed_to, unexplained)
            sunk = self._sunk + (unexplained - self._sunk) * elapsed / _SINKS_IN
            self._sunk = min(sunk, unexplained, self.limit / _SINKS_TO)
            self._missed = unexplained - int(self._sunk)
        part = self._part(counted, self._missed)
        before = self.account.level
        level = before
        for step in (REFUSING, SLOWING, SHEDDING):
            if part >= BEGINS[step]:
                level = max(level, step)
        while level and part < ENDS[level]:
            level -= 1
        if level != before:
            self.account.level = level
            logger.log(
                logging.WARNING if level > before else logging.INFO,
                "memory_level level=%s before=%s used=%s limit=%s setting=limits.memory parts=%s",
                ("normal", "refusing", "slowing", "shedding")[level],
                ("normal", "refusing", "slowing", "shedding")[before],
                self.base + counted + self._missed,
                self.limit,
                ",".join(f"{name}:{size >> 20}M" for name, size in self.parts().items() if size >> 20),
            )
            self.changed(before)
        return level

    def _give_back(self, counted: int, now: float) -> int:
        """Return freed memory to the system, but not so often that it takes much time; return the memory that is then
        unexplained."""
        began = perf_counter()
        self._trim()
        self._trim_at = now + (perf_counter() - began) * _TRIM_COSTS
        self._trimmed_to = self._unexplained(counted)
        return self._trimmed_to

    def _unexplained(self, counted: int) -> int:
        """Return the bytes of the process beyond everything that was ever counted."""
        beyond = max(0, self._resident() - self.base)
        # Memory that was returned to the system no longer explains anything.
        self._explained = max(counted, min(self._explained, beyond))
        return max(0, beyond - self._explained)

    def _part(self, counted: int, missed: int) -> float:
        return (self.base + counted + missed) / self.limit

    @property
    def shedding_helps(self) -> bool:
        """Return whether queues cause the shortage: without them, there would be enough memory."""
        counted = self.counted
        queued = self.sheddable
        least = int(self.limit * ENDS[SHEDDING])
        used = self.base + counted + min(self._missed, queued // _DOUBT)
        return used > least > self.base + counted - queued

    @property
    def excess(self) -> int:
        """Return the number of bytes that have to be freed to end SHEDDING; 0 or less: none."""
        return self.used - int(self.limit * ENDS[SHEDDING])

    def resize(self, limit: int) -> None:
        """Change the budget, from the next ``look`` on. It must have room for the process itself."""
        least = self.base + _MIN_HEADROOM
        if limit < least:
            logger.warning("memory_limit_raised asked=%s limit=%s setting=limits.memory", limit, least)
        self.limit = max(limit, least)
        self.resized(self.limit)
