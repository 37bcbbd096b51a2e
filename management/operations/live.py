"""Live: what happens now, as events for who watches. Nothing of it is computed while nobody does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from taipan.broker.server import Server

from ..history.history import History
from ..history.point import FIGURES, Point
from ..settings import ManagementSettings
from .node_calls import NodeCalls
from .refusal import RPC_ERROR, Refusal

logger = logging.getLogger(__name__)

REMOTE_EVERY: Final = 1.0
"""Seconds between two questions to another node, at least."""
_END_WITHIN: Final = 1.0
"""Seconds that streams have to end when the node stops."""

LiveEvent = tuple[str, object]
"""Its name and its data."""


class LiveQuery(msgspec.Struct, kw_only=True):
    """What is watched. ``every``: milliseconds between two looks at it; ``node``: the one that is asked.

    ``figures``: the columns of ``/monitor`` since the last look, and what was dropped or refused a second by reason.
    ``alarms``: those that are active, whenever that changes.
    """

    node: str | None = None
    every: Annotated[int, Meta(ge=250, le=10_000)] = 1000
    figures: bool = False
    alarms: bool = False


Source = Callable[[], Awaitable[LiveEvent | None]]
"""One look at what is watched; ``None``: there is nothing to tell."""


class Live:
    """The streams of this node. At most ``management.max_live_streams``."""

    def __init__(self, server: Server, settings: ManagementSettings, calls: NodeCalls, history: History) -> None:
        self.server = server
        self.settings = settings
        self.calls = calls
        self.history = history
        self._streams: set[LiveStream] = set()
        self._stopping = False
        calls.serve(self.figures_here, self.alarms_here)

    def open(self, query: LiveQuery) -> "LiveStream":
        """Raises Refusal: there is no such node, or too many watch."""
        if query.node is not None:
            self.calls.check(query.node)
        most = self.settings.max_live_streams
        if len(self._streams) >= most or self._stopping:
            self.server.metrics.refusals.add("live_streams")
            logger.warning("live_stream_refused streams=%s setting=management.max_live_streams", len(self._streams))
            raise Refusal(RPC_ERROR, f"{most} streams are open already (setting management.max_live_streams)")
        stream = LiveStream(self, query)
        self._streams.add(stream)
        return stream

    @property
    def count(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    def closed(self, stream: "LiveStream") -> None:
        self._streams.discard(stream)

    async def stop(self) -> None:
        """End all of them. Bounded in time."""
        self._stopping = True
        tasks = [stream.end("node_stops") for stream in self._streams]
        running = {task for task in tasks if task is not None}
        if running:
            _, late = await asyncio.wait(running, timeout=_END_WITHIN)
            for task in late:
                task.cancel()

    # ------------------------------------------------- what other nodes may ask

    def figures_here(self) -> Point | None:
        """Those of the last second."""
        return self.history.latest

    def alarms_here(self) -> list[dict[str, Any]]:
        """Those that are active, the latest first."""
        alarms = self.server.alarms
        now = self.server.clock.now()
        skew = self.server.clock.skew
        return [each.record(now, skew) for each in reversed(alarms.active.values())]


class LiveStream:
    """One who watches. ``hello``, then ``next`` again and again, ``close`` in any case."""

    def __init__(self, live: Live, query: LiveQuery) -> None:
        self._live = live
        self._query = query
        self._node = query.node or live.calls.name
        self._here = self._node == live.calls.name
        self.every = query.every / 1000 if self._here else max(query.every / 1000, REMOTE_EVERY)
        self._task: asyncio.Task[object] | None = None
        self._ended = asyncio.Event()
        self._why = ""
        self._sources = self._sources_of(query)

    def hello(self) -> LiveEvent:
        """The first event. From here on the stream belongs to the running task."""
        self._task = asyncio.current_task()
        server = self._live.server
        return "hello", {
            "node": self._node,
            "version": server.version,
            "at": round(server.clock.wall() * 1000),
            "every": round(self.every * 1000),
        }

    async def wait(self) -> str:
        """Until the next look is due; why the stream is to end, or nothing."""
        if not self._why:
            try:
                async with asyncio.timeout(self.every):
                    await self._ended.wait()
            except TimeoutError:
                pass
        return self._why

    async def look(self) -> list[LiveEvent]:
        """What there is to tell now. Raises Refusal where the node does not answer."""
        found = [await source() for source in self._sources]
        return [event for event in found if event is not None]

    def end(self, why: str) -> asyncio.Task[object] | None:
        """Have it end at once; the task that does it."""
        self._why = why
        self._ended.set()
        return self._task

    def close(self) -> None:
        self._live.closed(self)

    def _sources_of(self, query: LiveQuery) -> list[Source]:
        sources: list[Source] = []
        if query.figures:
            sources.append(self._figures())
        if query.alarms:
            sources.append(self._alarms())
        return sources

    def _figures(self) -> Source:
        live = self._live
        reader = live.history.reader() if self._here else None
        told: Point | None = None

        async def look() -> LiveEvent | None:
            nonlocal told
            if reader is not None:
                point: Point | None = reader.read()
                at = round(live.server.clock.wall() * 1000)
            else:
                point = await live.calls.on(self._node, live.figures_here)
                if point is None or point == told:
                    return None
                at = point.at * 1000
                told = point
            assert point is not None
            return "figures", {"at": at, **dict(zip(FIGURES, point.figures, strict=True)), "drops": point.drops}

        return look

    def _alarms(self) -> Source:
        told: list[dict[str, Any]] | None = None

        async def look() -> LiveEvent | None:
            nonlocal told
            active = await self._live.calls.on(self._node, self._live.alarms_here)
            lasting = [{key: each[key] for key in each if key != "duration"} for each in active]
            if lasting == told:
                return None
            told = lasting
            return "alarms", {"active": active}

        return look
