"""History: one point a second of the last hour, one a minute of the last day."""

import asyncio
from array import array
from typing import Final

import msgspec

from taipan.broker.loop.timers import Timer
from taipan.broker.server import Server

from ..settings import HistorySettings
from .disk_space import DiskSpace
from .figures import FigureReader
from .point import Point, Resolution, Sum

STEPS: Final[dict[Resolution, int]] = {"second": 1, "minute": 60}
"""Seconds from one point to the next."""
KEPT: Final[dict[Resolution, int]] = {"second": 3600, "minute": 1440}
"""Points that are kept."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Point).decode


class Ring:
    """The latest points of one resolution, each at a place that its time gives it. They are kept encoded: some hundred
    bytes each, nothing that the collector looks at."""

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
        """Those at ``start`` to ``end``, in order, as far as they are kept at ``now``; unix seconds."""
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
        self.disk = DiskSpace(server.settings.node.data_dir)
        self.latest: Point | None = None
        self._rings: dict[Resolution, Ring] = {"second": Ring("second"), "minute": Ring("minute")}
        self._minute: Sum | None = None
        self._timer: Timer | None = None
        self._reader: FigureReader

    async def start(self) -> None:
        await asyncio.to_thread(self.disk.look)
        self._reader = self.reader()
        self._wait()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reader(self) -> FigureReader:
        """For who wants the figures of other times than these."""
        return FigureReader(self._server, self.disk)

    def between(self, resolution: Resolution, start: int, end: int) -> list[bytes]:
        """Points as ``decoded`` reads them; ``start`` and ``end`` in unix seconds."""
        return self._rings[resolution].between(start, end, self.now)

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self._server.clock.wall())

    def _wait(self) -> None:
        timers = self._server.wall_timers
        self._timer = timers.at(int(timers.now()) + 1, self._sample)

    def _sample(self) -> None:
        self._wait()
        point = self.latest = self._reader.read()
        if self.settings.enabled:
            self._keep("second", point)
            self._add(point)

    def _add(self, point: Point) -> None:
        """Into its minute, which has the points behind the whole minute before and up to its own."""
        end = -(-point.at // 60) * 60
        if self._minute is not None and self._minute.end != end:
            self._keep("minute", self._minute.point())
            self._minute = None
        if self._minute is None:
            self._minute = Sum(end)
        self._minute.add(point)
        if point.at == end:
            self._keep("minute", self._minute.point())
            self._minute = None

    def _keep(self, resolution: Resolution, point: Point) -> None:
        self._rings[resolution].put(point.at, _encode(point))


def decoded(encoded: bytes) -> Point:
    return _decode(encoded)
