"""LiveAnswers: the data of a node for live streams, of this node and of other nodes."""

from typing import Any, Final

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.mqtt.topics import valid_filter
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.rules.event_watch import A_SECOND, KEPT, EventWatch

from ..history.history import History
from ..history.point import Point
from .node_calls import NodeCalls
from .refusal import engine_refusals, wrong
from .rules import RuleFigures
from .topic_watch import TopicRows, TopicWatch
from .watches import Watches

MAX_RULES: Final = 1000
MESSAGES_KEPT: Final = 500
MESSAGES_A_SECOND: Final = 500


class EventsSeen(msgspec.Struct):
    """``events``: each event as JSON; ``last``: the number of the last event."""

    last: int
    events: list[str]


class _Watch:
    """An ``EventWatch``, open until it is closed."""

    def __init__(self, engine: RuleEngine, source: str, kept: int = KEPT, a_second: int = A_SECOND) -> None:
        self._engine = engine
        with engine_refusals():
            self.events: EventWatch = engine.watch(source, kept, a_second)

    def close(self) -> None:
        self._engine.unwatch(self.events)


class LiveAnswers:
    """``who`` identifies a stream among the streams of all nodes."""

    def __init__(self, server: Server, engine: RuleEngine, history: History, calls: NodeCalls) -> None:
        self._server = server
        self._engine = engine
        self._history = history
        self._name = calls.name
        self.topic_watches = Watches(
            lambda start: TopicWatch(start, server.hooks, server.clock), server.timers, "topics"
        )
        self.event_watches = Watches(lambda source: _Watch(engine, source), server.timers, "events")
        self.message_watches = Watches(
            lambda source: _Watch(engine, source, MESSAGES_KEPT, MESSAGES_A_SECOND), server.timers, "topic filters"
        )
        calls.serve(self.figures, self.alarms, self.rules, self.topics, self.events, self.messages)

    def close(self) -> None:
        self.topic_watches.close()
        self.event_watches.close()
        self.message_watches.close()

    def figures(self) -> Point | None:
        """Return the metrics of the last second."""
        return self._history.latest

    def alarms(self) -> list[dict[str, Any]]:
        """Return the active alarms, the latest first."""
        alarms = self._server.alarms
        now = self._server.clock.now()
        skew = self._server.clock.skew
        return [each.record(now, skew) for each in reversed(alarms.active.values())]

    async def rules(self, ids: list[str]) -> dict[str, RuleFigures]:
        """Return the metrics of these rules and their actions, or of the oldest ``MAX_RULES`` of all rules."""
        rules = self._engine.rules
        wanted = [rules.get(each) for each in ids if each in rules] if ids else rules.all()
        found: dict[str, RuleFigures] = {}
        work = CooperativeSlice()
        for rule in wanted[:MAX_RULES]:
            found[rule.stored.id] = RuleFigures.of(rule, self._name)
            await work.checkpoint()
        return found

    def topics(self, start: str, who: str) -> TopicRows:
        """Return the topic rows. Raises Refusal if too many topics are observed."""
        return self.topic_watches.ask(start, who).rows()

    def events(self, source: str, after: int, who: str) -> EventsSeen:
        """Return the events after the one with this number. Raises Refusal."""
        return EventsSeen(*self.event_watches.ask(source, who).events.since(after))

    def messages(self, source: str, after: int, who: str) -> EventsSeen:
        """Messages after the one with this number, as ``events``. Raises Refusal."""
        if not valid_filter(source) or source.startswith(("$events/", "$share/")):
            raise wrong("messages", "expected a topic filter of messages")
        if source.startswith("$SYS") and self._engine.runtime.settings.ignore_sys_message:
            what = "rules see no messages below $SYS (setting ruleengine.ignore_sys_message); subscribe to them"
            raise wrong("messages", what)
        return EventsSeen(*self.message_watches.ask(source, who).events.since(after))

    def leave(self, topics: str | None, events: str | None, messages: str | None, who: str) -> None:
        """Note that ``who`` no longer reads these."""
        if topics is not None:
            self.topic_watches.leave(topics, who)
        if events is not None:
            self.event_watches.leave(events, who)
        if messages is not None:
            self.message_watches.leave(messages, who)
