"""Sources of a live stream: each is a function that returns the next event, or nothing.

A source asks the observed node, and remembers which data it has sent."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from taipan.broker.server import Server

from ..history.history import History
from ..history.point import FIGURES, Point
from .clients import Clients
from .live_answers import LiveAnswers
from .node_calls import NodeCalls
from .rules import RuleFigures
from .tracing import Traces

LiveEvent = tuple[str, object]
"""Name and data of an event."""
Source = Callable[[], Awaitable[LiveEvent | None]]

SHORTEST: Final = 0.2
"""Shortest time in seconds for which a rate is meaningful."""
TRACE_BEFORE: Final = 16_384
"""Number of bytes at the end of a trace's file that are sent at first."""
TRACE_AT_ONCE: Final = 65_536
_RATES: Final = ("recv_msg", "recv_oct", "send_msg", "send_oct")


class Sources:
    """The sources of one stream. They observe ``node``, where ``who`` identifies the stream."""

    def __init__(
        self,
        node: str,
        who: str,
        server: Server,
        calls: NodeCalls,
        answers: LiveAnswers,
        history: History,
        clients: Clients,
        traces: Traces,
    ) -> None:
        self._node = node
        self._who = who
        self._server = server
        self._calls = calls
        self._answers = answers
        self._history = history
        self._clients = clients
        self._traces = traces

    def figures(self) -> Source:
        reader = self._history.reader() if self._node == self._calls.name else None
        told: Point | None = None

        async def look() -> LiveEvent | None:
            nonlocal told
            if reader is not None:
                if reader.seconds < SHORTEST:
                    return None
                point: Point | None = reader.read()
                at = round(self._server.clock.wall() * 1000)
            else:
                point = await self._calls.on(self._node, self._answers.figures)
                if point is None or point == told:
                    return None
                at = point.at * 1000
                told = point
            assert point is not None
            return "figures", {"at": at, **dict(zip(FIGURES, point.figures, strict=True)), "drops": point.drops}

        return look

    def alarms(self) -> Source:
        told: list[dict[str, Any]] | None = None

        async def look() -> LiveEvent | None:
            nonlocal told
            active = await self._calls.on(self._node, self._answers.alarms)
            lasting = [{key: each[key] for key in each if key != "duration"} for each in active]
            if lasting == told:
                return None
            told = lasting
            return "alarms", {"active": active}

        return look

    def client(self, client_id: str) -> Source:
        """Ask the node that has the client, among all nodes, at most once a second."""
        before: dict[str, int] = {}
        looked_at = 0.0

        async def look() -> LiveEvent | None:
            nonlocal before, looked_at
            now = time.monotonic()
            if self._calls.clustered and now - looked_at < 0.9:
                return None
            seconds, looked_at = now - looked_at, now
            found, _ = await self._clients.find(client_id)
            if not found:
                before = {}
                return "client", {"clientid": client_id, "connected": False}
            record = msgspec.to_builtins(found[0])
            totals = {name: record[name] for name in _RATES}
            # The counters of a new connection start again from 0.
            rates = {name: round(max(0, totals[name] - before.get(name, totals[name])) / seconds, 2) for name in _RATES}
            before = totals
            return "client", {**record, "rates": rates}

        return look

    def rules(self, ids: list[str]) -> Source:
        told: dict[str, RuleFigures] = {}

        async def look() -> LiveEvent | None:
            nonlocal told
            counted: dict[str, RuleFigures] = await self._calls.on(self._node, self._answers.rules, ids)
            changed: dict[str, RuleFigures | None] = {
                each: figures for each, figures in counted.items() if told.get(each) != figures
            }
            changed.update(dict.fromkeys(told.keys() - counted.keys()))
            told = counted
            return ("rules", changed) if changed else None

        return look

    def topics(self, start: str) -> Source:
        async def look() -> LiveEvent | None:
            return "topics", await self._calls.on(self._node, self._answers.topics, start, self._who)

        return look

    def trace(self, name: str) -> Source:
        position = -1
        rest = ""

        async def look() -> LiveEvent | None:
            nonlocal position, rest
            if position < 0:
                _, end = await self._traces.log(name, 1 << 62, 1, self._node)
                position = max(0, end - TRACE_BEFORE)
                if position:
                    # Start with a complete line.
                    text, position = await self._traces.log(name, position, TRACE_BEFORE, self._node)
                    rest = text.partition("\n")[2]
            text, position = await self._traces.log(name, position, TRACE_AT_ONCE, self._node)
            *lines, rest = (rest + text).split("\n")
            return ("trace", {"lines": lines}) if lines else None

        return look

    def events(self, source: str) -> Source:
        last = 0

        async def look() -> LiveEvent | None:
            nonlocal last
            seen = await self._calls.on(self._node, self._answers.events, source, last, self._who)
            last = seen.last
            if not seen.events:
                return None
            return "events", {"events": [msgspec.Raw(each.encode()) for each in seen.events]}

        return look

    def messages(self, source: str) -> Source:
        """Return messages that arrive from now on. Raises Refusal."""
        here = self._node == self._calls.name
        last = self._answers.messages(source, 0, self._who).last if here else -1

        async def look() -> LiveEvent | None:
            nonlocal last
            seen = await self._calls.on(self._node, self._answers.messages, source, max(0, last), self._who)
            before, last = last, seen.last
            if before < 0:
                return None
            left_out = last - (before if before <= last else 0) - len(seen.events)
            if not seen.events and not left_out:
                return None
            return "messages", {
                "messages": [msgspec.Raw(each.encode()) for each in seen.events], "left_out": left_out,
            }  # fmt: skip

        return look
