"""Topic metrics: the topics that are counted, kept across restarts, and their counts since the start."""

import msgspec

from taipan.broker.extensions.topic_metrics import MAX_TOPICS, TopicMetrics
from taipan.broker.server import Server

from .durable_answer import check_store_writable, wait_until_stored
from .node_calls import NodeCalls
from .refusal import EXISTS, WRONG, Refusal, not_found
from .topic_checks import checked_name

Values = dict[str, int | float]


class CountedTopic(msgspec.Struct, array_like=True, frozen=True):
    """The key of the row is the topic; ``since``: Unix seconds."""

    since: float


class TopicMetricsRecord(msgspec.Struct):
    """``metrics``: ``messages.in``, ``messages.qos0.out`` and so on, each with ``.count`` and ``.rate`` (a second)."""

    topic: str
    metrics: dict[str, int | float]


class TopicCounts:
    """The topics whose messages an operator counts; ``module`` counts them."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.counted)
        self.module = TopicMetrics(server.hooks, server.timers, server.clock)
        self._table = server.tables.open("topic_metrics", CountedTopic, shared=True)
        self._table.on_taken.append(self._taken)
        server.on_recovered.append(self._start_counting)

    def _start_counting(self) -> None:
        for topic, _ in list(self._table.items())[:MAX_TOPICS]:
            self.module.add(topic)

    def _taken(self, topic: str, old: CountedTopic | None, new: CountedTopic | None) -> None:
        """Handle that another node has added or removed a topic; each node counts the messages that pass it."""
        if new is None and topic in self.module:
            self.module.remove(topic)
        elif new is not None and topic not in self.module and len(self.module) < MAX_TOPICS:
            self.module.add(topic)

    async def records(self) -> tuple[list[TopicMetricsRecord], list[str]]:
        """Return the counts of all nodes, in the order in which the topics were added; and the nodes that did not
        answer."""
        topics = list(self.module.topics())
        found, missing = await self._calls.everywhere(self.counted, topics)
        records = [TopicMetricsRecord(topic, _sum([values.get(topic, {}) for _, values in found])) for topic in topics]
        return records, self._calls.may_lack(missing)

    async def get(self, topic: str) -> tuple[Values, list[str]]:
        """Return the metrics of one topic in the same form. Raises Refusal."""
        self._check(topic)
        found, missing = await self._calls.everywhere(self.counted, [topic])
        return _sum([values.get(topic, {}) for _, values in found]), self._calls.may_lack(missing)

    def counted(self, topics: list[str]) -> dict[str, Values]:
        """Return this node's counts for each of these topics that it counts."""
        return {topic: self.module.snapshot(topic) for topic in topics if topic in self.module}

    async def add(self, topic: str) -> None:
        """Start to count a topic. Raises Refusal."""
        checked_name("topic", topic)
        if not self.module.active:
            raise Refusal(WRONG, f"module_not_loaded: {self.module.name}; PUT /modules/{self.module.name}/load")
        if topic in self.module:
            raise Refusal(EXISTS, f"{topic} is already counted")
        if len(self.module) >= MAX_TOPICS:
            raise Refusal(WRONG, f"topic: {MAX_TOPICS} topics are counted, which is the limit")
        check_store_writable(self._server.tables)
        self.module.add(topic)
        self._table.put(topic, CountedTopic(self._server.clock.wall()))
        await wait_until_stored(self._server.tables)

    async def remove(self, topic: str) -> None:
        """Stop counting a topic. Raises Refusal."""
        self._check(topic)
        check_store_writable(self._server.tables)
        self.module.remove(topic)
        self._table.remove(topic)
        await wait_until_stored(self._server.tables)

    async def clear(self) -> None:
        """Stop counting all topics."""
        check_store_writable(self._server.tables)
        for topic in list(self.module.topics()):
            self.module.remove(topic)
            self._table.remove(topic)
        await wait_until_stored(self._server.tables)

    def _check(self, topic: str) -> None:
        checked_name("topic", topic)
        if topic not in self.module:
            raise not_found("counted topic", topic)


def _sum(counted: list[Values]) -> Values:
    """Return the sum of counts and rates of several nodes."""
    names = dict.fromkeys(name for values in counted for name in values)
    return {name: round(sum(values.get(name, 0) for values in counted), 2) for name in names}
