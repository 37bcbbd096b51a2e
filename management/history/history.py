"""History: one point per second of the last hour, per minute of the last two days, per ten minutes of the last
30 days."""

import asyncio
import logging
from array import array
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.loop.timers import Timer
from taipan.broker.server import Server

from ..configuration.settings import HistorySettings
from .disk_space import DiskSpace
from .disk_thread import DiskThread
from .figures import FigureReader
from .point import Point, Resolution, Sum, with_fewer_reasons
from .ring_file import MAX_POINT, RingFile

logger = logging.getLogger(__name__)

STEPS: Final[dict[Resolution, int]] = {"second": 1, "minute": 60, "ten_minutes": 600}
"""Seconds from one point to the next."""
KEPT: Final[dict[Resolution, int]] = {"second": 3600, "minute": 2880, "ten_minutes": 4320}
"""Number of points that are kept. Two days of minutes: yesterday can be compared with today."""

PARTS: Final[dict[Resolution, int]] = {"second": 0, "minute": 1, "ten_minutes": 2}
"""The parts of the file."""
COARSER: Final[dict[Resolution, Resolution]] = {"second": "minute", "minute": "ten_minutes"}
"""The resolution whose points are computed from the points of this one."""
FILE: Final = "taipan.history"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Point).decode


class Ring:
    """The latest points of one resolution, each at a position determined by its time. They are kept encoded: about a
    hundred bytes each, and no objects for the garbage collector."""

    def __init__(self, resolution: Resolution) -> None:
        self.step = STEPS[resolution]
        self.size = KEPT[resolution]
        self._times = array("q", [0]) * self.size
        self._points: list[bytes] = [b""] * self.size

    def place(self, at: int) -> int:
        return at // self.step % self.size

    def put(self, at: int, encoded: bytes) -> None:
        place = self.place(at)
        self._times[place] = at
        self._points[place] = encoded

    def between(self, start: int, end: int, now: int) -> list[bytes]:
        """Return the points from ``start`` to ``end``, in order, as far as they are kept at ``now``; Unix seconds."""
        step, size = self.step, self.size
        last = min(end, now)
        first = max(start, now - step * size + 1)
        found = []
        for at in range(-(-first // step) * step, last + 1, step):
            place = self.place(at)
            if self._times[place] == at:
                found.append(self._points[place])
        return found


class History:
    """``start`` when the server runs, ``stop`` before it stops. ``latest``: the point of the last second."""

    def __init__(self, server: Server, settings: HistorySettings) -> None:
        self._server = server
        self.settings = settings
        self._directory = Path(server.settings.node.data_dir)
        self.disk = DiskSpace(self._directory)
        self.latest: Point | None = None
        self._rings: dict[Resolution, Ring] = {resolution: Ring(resolution) for resolution in PARTS}
        self._sums: dict[Resolution, Sum] = {}
        self._timer: Timer | None = None
        self._reader: FigureReader
        self._thread: DiskThread | None = None

    async def start(self) -> None:
        """Read the points on disk and continue. No content of the file, or its absence, prevents the start."""
        await asyncio.to_thread(self.disk.look)
        file = await asyncio.to_thread(self._open) if self.settings.enabled else None
        self._thread = DiskThread(self.disk, file)
        self._thread.start()
        # For an incomplete interval, only the points that it consists of are stored. The longest comes first, because
        # the seconds complete minutes that are part of it.
        for finer, coarser in reversed(COARSER.items()):
            for encoded in self.between(finer, self._last(coarser) + 1, self.now):
                self._add(coarser, _decode(encoded))
        self._reader = self.reader()
        self._wait()

    def _open(self) -> RingFile | None:
        file = RingFile(self._directory / FILE, tuple(ring.size for ring in self._rings.values()))
        rings = list(self._rings.values())
        try:
            parts = file.open()
        except OSError as error:
            why = error.strerror or str(error)
            logger.error("history_not_written file=%s error=%s setting=node.data_dir", file.path, why)
            return None
        now = self.now
        for ring, points in zip(rings, parts, strict=True):
            for point in points:
                # Older points have been overwritten since, or there was no other point for their second.
                if now - ring.step * ring.size < point.at <= now:
                    ring.put(point.at, _encode(point))
        return file

    def _last(self, resolution: Resolution) -> int:
        """Return the time of the latest point; 0 if there is none."""
        points = self.between(resolution, 0, self.now)
        return _decode(points[-1]).at if points else 0

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)
            self._thread = None

    def reader(self) -> FigureReader:
        """Return a reader for other intervals than these."""
        return FigureReader(self._server, self.disk)

    def between(self, resolution: Resolution, start: int, end: int) -> list[bytes]:
        """Return points for ``decoded``; ``start`` and ``end`` in Unix seconds."""
        return self._rings[resolution].between(start, end, self.now)

    @property
    def now(self) -> int:
        """The time in Unix seconds."""
        return int(self._server.clock.wall())

    def _wait(self) -> None:
        timers = self._server.wall_timers
        self._timer = timers.at(int(timers.now()) + 1, self._sample)

    def _sample(self) -> None:
        self._wait()
        point = self.latest = self._reader.read()
        if self._thread is not None:
            self._thread.look()
        if self.settings.enabled:
            self._keep("second", point)

    def _add(self, resolution: Resolution, point: Point) -> None:
        """Add a point to the sum of its interval, which includes the points after the end of the previous interval up
        to its own."""
        step = STEPS[resolution]
        end = -(-point.at // step) * step
        before = self._sums.get(resolution)
        if before is not None and before.end != end:
            self._complete(resolution, before)
        self._sums.setdefault(resolution, Sum(end)).add(point)
        if point.at == end:
            self._complete(resolution, self._sums[resolution])

    def _complete(self, resolution: Resolution, complete: Sum) -> None:
        del self._sums[resolution]
        self._keep(resolution, complete.point())

    def _keep(self, resolution: Resolution, point: Point) -> None:
        """Keep a point, and add it to the next longer interval."""
        ring = self._rings[resolution]
        encoded = _fitting(point)
        ring.put(point.at, encoded)
        if self._thread is not None:
            self._thread.put(PARTS[resolution], ring.place(point.at), encoded)
        coarser = COARSER.get(resolution)
        if coarser is not None:
            self._add(coarser, point)


def _fitting(point: Point) -> bytes:
    """Return the point encoded so that it fits into its slot: if there are many reasons, the rarest are counted as
    ``other``."""
    encoded = _encode(point)
    most = len(point.drops)
    while len(encoded) > MAX_POINT:
        most -= 1
        encoded = _encode(with_fewer_reasons(point, most))
    return encoded


def decoded(encoded: bytes) -> Point:
    return _decode(encoded)
