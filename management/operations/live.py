"""Live: current data as events for its readers. Nothing is computed while there are no readers."""

import asyncio
import logging
from itertools import count
from typing import Annotated, Final, NoReturn

import msgspec
from msgspec import Meta

from taipan.broker.mqtt.topics import valid_name
from taipan.broker.observability.throttle import Throttle
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine

from ..configuration.settings import ManagementSettings
from ..history.history import History
from .clients import Clients
from .live_answers import LiveAnswers
from .live_sources import LiveEvent, Source, Sources
from .node_calls import NodeCalls
from .refusal import Busy, not_found, wrong
from .topic_tree import start_of
from .tracing import Traces

logger = logging.getLogger(__name__)

REMOTE_EVERY: Final = 1.0
"""Minimum seconds between two requests to another node."""
_END_WITHIN: Final = 1.0
"""Seconds within which streams end when the node stops."""
_YES: Final = ("1", "true")
_NO: Final = ("0", "false", "")


class LiveQuery(msgspec.Struct, kw_only=True):
    """The data that a reader requests. ``every``: milliseconds between two updates. ``node``: the node to ask.

    ``figures``: the columns of ``/monitor`` since the last update, and drops and refusals per second by reason.
    ``alarms``: the active alarms, at each change. ``client``: the client with this ID. ``rules``: ``1`` for all, or
    identifiers separated by commas. ``topics``: the levels below this prefix; empty: the first levels.
    ``topics_below``, instead of ``topics``: the text that their topics begin with, which ends in ``/``. ``trace``: new
    lines of the file of this trace. ``events``: a topic filter, or an event as FROM names it. ``messages``: a topic
    filter; as many of its messages are sent as possible.
    """

    node: str | None = None
    every: Annotated[int, Meta(ge=250, le=10_000)] = 1000
    figures: bool = False
    alarms: bool = False
    client: str | None = None
    rules: str | None = None
    topics: str | None = None
    topics_below: str | None = None
    trace: str | None = None
    events: str | None = None
    messages: str | None = None


class Live:
    """The streams of this node. At most ``management.max_live_streams``."""

    def __init__(
        self,
        server: Server,
        settings: ManagementSettings,
        calls: NodeCalls,
        history: History,
        engine: RuleEngine,
        clients: Clients,
        traces: Traces,
    ) -> None:
        self.server = server
        self.calls = calls
        self.answers = LiveAnswers(server, engine, history, calls)
        self._most = settings.max_live_streams
        self._history = history
        self._clients = clients
        self._traces = traces
        self._streams: set[LiveStream] = set()
        self._numbers = count(1)
        self._throttle = Throttle()
        self._stopping = False

    def open(self, query: LiveQuery) -> "LiveStream":
        """Open a stream. Raises Refusal if the requested object does not exist, or if too many streams are open."""
        if query.node is not None:
            self.calls.check(query.node)
        start = _start_of(query)
        if start and not valid_name(start):
            raise wrong("topics", "expected the beginning of a topic, without wildcards")
        if query.trace is not None and self.server.tracing.get(query.trace) is None:
            raise not_found("trace", query.trace)
        if self._stopping:
            raise Busy("the node is stopping")
        if len(self._streams) >= self._most:
            self._refuse()
        stream = LiveStream(self, query, next(self._numbers))
        self._streams.add(stream)
        return stream

    def _refuse(self) -> NoReturn:
        self.server.metrics.refusals.add("live_streams")
        if self._throttle.due(self.server.clock.now()):
            logger.warning("live_stream_refused streams=%s setting=management.max_live_streams", len(self._streams))
        raise Busy(f"{self._most} streams are already open (setting management.max_live_streams)")

    @property
    def count(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def sources(self, node: str, who: str) -> Sources:
        return Sources(node, who, self.server, self.calls, self.answers, self._history, self._clients, self._traces)

    def closed(self, stream: "LiveStream") -> None:
        self._streams.discard(stream)

    async def stop(self) -> None:
        """End all streams, within a limited time."""
        self._stopping = True
        tasks = [stream.end("node_stops") for stream in self._streams]
        running = {task for task in tasks if task is not None}
        if running:
            _, late = await asyncio.wait(running, timeout=_END_WITHIN)
            for task in late:
                task.cancel()
        self.answers.close()


class LiveStream:
    """The stream of one reader. Call ``hello``, then ``wait`` and ``look`` repeatedly, and always ``close``."""

    def __init__(self, live: Live, query: LiveQuery, number: int) -> None:
        """Raises Refusal for a query that is not possible."""
        self._live = live
        self._query = query
        self._node = query.node or live.calls.name
        self._here = self._node == live.calls.name
        self._who = f"{live.calls.name} {number}"
        self.every = query.every / 1000 if self._here else max(query.every / 1000, REMOTE_EVERY)
        self._task: asyncio.Task[object] | None = None
        self._ended = asyncio.Event()
        self._why = ""
        self._sources = self._sources_of(query)
        if query.events is not None and self._here:
            live.answers.events(query.events, 0, self._who)
        if query.messages is not None and self._here:
            live.answers.message_watches.hold(query.messages, self._who)

    def hello(self) -> LiveEvent:
        """Return the first event. From now on the stream belongs to the running task."""
        self._task = asyncio.current_task()
        server = self._live.server
        return "hello", {
            "node": self._node,
            "version": server.version,
            "at": round(server.clock.wall() * 1000),
            "every": round(self.every * 1000),
        }

    async def wait(self, seconds: float) -> str:
        """Wait this long, or until the stream has to end; return the reason for its end, or an empty text."""
        if not self._why:
            try:
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
            except TimeoutError:
                pass
        return self._why

    async def look(self) -> list[LiveEvent]:
        """Return the next event, if there is one. Raises Refusal if the node does not answer."""
        found = [await source() for source in self._sources]
        return [event for event in found if event is not None]

    def end(self, why: str) -> asyncio.Task[object] | None:
        """End the stream immediately; return its task."""
        self._why = why
        self._ended.set()
        return self._task

    def close(self) -> None:
        """Close the stream once. Data without other readers is no longer observed."""
        self._live.closed(self)
        if self._here:
            self._live.answers.leave(_start_of(self._query), self._query.events, self._query.messages, self._who)

    def _sources_of(self, query: LiveQuery) -> list[Source]:
        made = self._live.sources(self._node, self._who)
        sources: list[Source] = []
        if query.figures:
            sources.append(made.figures())
        if query.alarms:
            sources.append(made.alarms())
        if query.client is not None:
            sources.append(made.client(query.client))
        if query.rules is not None and query.rules not in _NO:
            ids = [] if query.rules in _YES else query.rules.split(",")
            sources.append(made.rules(ids))
        start = _start_of(query)
        if start is not None:
            sources.append(made.topics(start))
        if query.trace is not None:
            sources.append(made.trace(query.trace))
        if query.events is not None:
            sources.append(made.events(query.events))
        if query.messages is not None:
            sources.append(made.messages(query.messages))
        return sources


def _start_of(query: LiveQuery) -> str | None:
    """Return the text with which the observed topics begin; ``None`` if no topics are requested."""
    if query.topics is None and query.topics_below is None:
        return None
    return start_of(query.topics or "", query.topics_below or "")
