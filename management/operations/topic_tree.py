"""Topic tree: the levels below a topic, with the filters that have subscribers on any node, and with retained messages.

No such tree is stored. Each answer walks through all filters or messages twice: for the names on the page, then for its
numbers. Its memory grows with the rows up to the end of the page, not with the number of topics."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.mqtt.constants import MAX_STRING
from taipan.broker.mqtt.topics import has_wildcard
from taipan.broker.server import Server

from .listing import FILTERED, Listing, PageQuery, offset_of
from .refusal import wrong

Record = TypeVar("Record")

MAX_ROWS: Final = 100_000
"""Maximum number of rows before and on a page. For rows beyond, use a longer prefix or ``level``."""
MAX_CHILDREN: Final = 10_000
"""Maximum number of children of one row that are counted."""
_PAUSE: Final = 2000
_STEPS: Final = 100


class TreeQuery(PageQuery, kw_only=True):
    """``prefix``: the topic whose child levels are requested; empty or absent: the first levels. ``below``, instead of
    ``prefix``: the text with which their topics begin, ending in ``/``; so ``/`` requests the levels below an empty
    first level. ``level``: only levels that start with this text."""

    prefix: str = ""
    below: str = ""
    level: str = ""


def start_of(prefix: str, below: str) -> str:
    """Return the text with which the topics below begin. Raises Refusal."""
    if not below:
        return prefix + "/" if prefix else ""
    if prefix:
        raise wrong("below", "cannot be combined with a prefix")
    if not below.endswith("/"):
        raise wrong("below", "expected the beginning of a topic, up to a /")
    return below


class TopicLevel(msgspec.Struct):
    """``level``, and the ``topic`` of prefix and level. At this topic and below: ``topics`` (Topic Filters with
    subscribers, and topics with a retained message), ``retained`` messages, and ``subscribers``: subscriptions of this
    node, and one for each other node that has any. ``children``: number of different levels directly below, up to
    10,000."""

    level: str
    topic: str
    children: int
    topics: int
    retained: int
    subscribers: int


class RetainedLevel(msgspec.Struct):
    """``messages``: number of retained messages at this topic and below."""

    level: str
    topic: str
    children: int
    messages: int


class _Cut(Listing[Record]):
    """One page whose rows are already selected; ``more``: there are further rows."""

    def __init__(
        self,
        rows: list[TopicLevel],
        page: int,
        limit: int,
        record: Callable[[TopicLevel], Record],
        count: int,
        more: bool,
    ) -> None:
        super().__init__(rows, page, limit, record, count, offset=0)
        self._more = more

    def __iter__(self) -> Iterator[Record | None]:
        yield from super().__iter__()
        self.has_next = self._more


class _Names:
    """The smallest ``most`` of the names that are added; ``complete``: there are no other names."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()
        self._last: str | None = None
        self.complete = True

    def add(self, name: str) -> None:
        if self._last is not None and name > self._last:
            return
        self._names.add(name)
        if len(self._names) > 2 * self._most + _PAUSE:
            self._prune()

    def _prune(self) -> None:
        kept = sorted(self._names)
        if len(kept) > self._most:
            self.complete = False
            del kept[self._most :]
            self._last = kept[-1] if kept else ""
        self._names = set(kept)

    def sorted(self) -> list[str]:
        self._prune()
        return sorted(self._names)


class TopicTree:
    """The topic tree, computed on this node, which knows the routes of all nodes and has all retained messages."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def levels(self, query: TreeQuery, max_rows: int) -> Listing[TopicLevel]:
        """Return one page, ordered by name. Raises Refusal."""
        return await self._listing(query, max_rows, True, _same)

    async def retained(self, query: TreeQuery, max_rows: int) -> Listing[RetainedLevel]:
        """Return the same for retained messages only."""
        return await self._listing(query, max_rows, False, _retained)

    async def _listing(
        self, query: TreeQuery, max_rows: int, filters: bool, record: Callable[[TopicLevel], Record]
    ) -> Listing[Record]:
        page, limit = query.page, query.rows(max_rows)
        skip = offset_of(page, limit)
        before = start_of(query.prefix, query.below)
        if len(before.encode("utf-8", "surrogatepass")) > MAX_STRING + 1:
            raise wrong("prefix", "longer than a topic can be")
        if skip + limit > MAX_ROWS:
            raise wrong("_page", f"beyond row {MAX_ROWS}: use a longer prefix, or level")
        work = CooperativeSlice()
        names = _Names(skip + limit + 1)
        for found in self._below(before, filters):
            if found is None:
                await work.checkpoint()
            else:
                level = found[0][len(before) :].partition("/")[0]
                if level.startswith(query.level):
                    names.add(level)
        levels = names.sorted()
        shown = levels[skip : skip + limit]
        rows = {level: TopicLevel(level, before + level, 0, 0, 0, 0) for level in shown}
        children: dict[str, set[str]] = {level: set() for level in shown}
        for found in self._below(before, filters) if rows else ():
            if found is None:
                await work.checkpoint()
                continue
            topic, retained = found
            level, slash, rest = topic[len(before) :].partition("/")
            row = rows.get(level)
            if row is not None:
                self._count(row, topic, retained, filters)
                if slash and len(children[level]) < MAX_CHILDREN:
                    children[level].add(rest.partition("/")[0])
        for level, row in rows.items():
            row.children = len(children[level])
        # The number is known only without conditions and if all names were kept.
        count = len(levels) if names.complete and len(levels) <= skip + limit else FILTERED
        return _Cut(list(rows.values()), page, limit, record, count, len(levels) > skip + limit)

    def _count(self, row: TopicLevel, topic: str, retained: bool, filters: bool) -> None:
        router = self._server.broker.router
        if not retained:
            row.topics += 1
            row.subscribers += router.subscriber_count(topic)
            return
        row.retained += 1
        row.topics += not (filters and router.knows(topic))

    def _below(self, before: str, filters: bool) -> Iterator[tuple[str, bool] | None]:
        """Yield each topic and filter that is longer than the prefix, and whether it belongs to a retained message;
        ``None`` from time to time: pause here."""
        broker = self._server.broker
        looked = 0
        for topic in broker.router.known_filters() if filters else ():
            looked += 1
            if looked % _STEPS == 0:
                yield None
            if topic.startswith(before):
                yield topic, False
        store, now = broker.retained, self._server.clock.now()
        if has_wildcard(before):
            return
        for topic in store.walk(before + "#", _PAUSE) if before else list(store.topics()):
            looked += 1
            if looked % _STEPS == 0 or not topic:
                yield None
            message = store.get(topic) if topic.startswith(before) else None
            if message is not None and not store.expired(message, now):
                yield topic, True


def _same(row: TopicLevel) -> TopicLevel:
    return row


def _retained(row: TopicLevel) -> RetainedLevel:
    return RetainedLevel(row.level, row.topic, row.children, row.retained)
