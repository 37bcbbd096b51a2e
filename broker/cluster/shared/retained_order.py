"""Which change of a retained message is the later one, when two nodes have changed it without knowing of each other.

Node A retains "on" at 10:00:00.1, and node B clears the topic at 10:00:00.2. B has asked A before (``settling``), and
A's answer says that "on" is older than the clear: the topic is empty. Without an answer, the dates decide. Everything
here is decided from values; ``retained`` reads and writes the bucket.
"""

import asyncio
from typing import Final, NamedTuple

from .settling import BEFORE, Moment
from .shared_map import SharedChange

PROMPT: Final = 1.0
"""Seconds within which a clear is regarded as later than any change of a node that has not answered."""


class EntryOrigin(NamedTuple):
    """The date of an entry of the bucket, the node that wrote it, and its moment there. For a deletion, ``until`` is as
    in ``retained_values.Deletion``."""

    date: float
    node: str
    uid: str = ""
    moment: Moment = BEFORE
    until: dict[str, Moment] = {}


class RetainedChange(SharedChange):
    """A topic whose retained message was changed here.

    ``base``: how far this node had read at the time of the change. ``at``: its date; 0: the message has expired, and
    ``expired`` is the date of the message. ``moment``: of the last change. ``count`` grows with each change; ``sent``:
    the one that is written together with others. ``restored``: the change is from before this node's start; the node
    may have forgotten that it was written, and later changes. ``waiting``: futures that are done when the bucket has
    the change of that ``count``, or a later one.
    """

    __slots__ = ("at", "base", "count", "expired", "moment", "restored", "sent", "topic", "waiting")

    def __init__(self, name: str, topic: str, base: int, at: float) -> None:
        super().__init__(name)
        self.topic = topic
        self.base = base
        self.at = at
        self.expired = 0.0
        self.count = self.sent = 0
        self.restored = False
        self.moment = BEFORE
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def decision(self) -> asyncio.Future[None]:
        """Return a future that is done when the bucket has this change, as it is now, or a later one."""
        if not self.waiting or self.waiting[-1][0] != self.count:
            self.waiting.append((self.count, asyncio.get_running_loop().create_future()))
        return self.waiting[-1][1]

    def decided(self, count: int) -> None:
        """Note that the bucket has the change of this count, or a later one."""
        while self.waiting and self.waiting[0][0] <= count:
            future = self.waiting.pop(0)[1]
            if not future.done():
                future.set_result(None)


def is_later(
    there: EntryOrigin, change: RetainedChange, node: str, uid: str, clear: bool, settled: dict[str, Moment], now: float
) -> bool:
    """Return whether a value of the bucket stays, because it is later than a change of this node.

    ``node``, ``uid``: of this node. ``clear``: the change clears the topic. ``settled``: for the nodes that have
    answered the question of this clear, by their uids, up to which moment their changes are older. ``now``: by
    ``Clock.now``. If the value is a deletion whose question this node has answered, that answer decides. Values that
    this node has written since its start are older. Otherwise, dates decide, except for a clear that was not delayed.
    """
    if there.node == node and not change.restored:
        return False
    until = there.until.get(uid)
    if until is not None:
        return change.moment <= until
    until = settled.get(there.uid)
    if until is not None:
        return there.moment > until
    if clear and not change.late and not change.restored and now - change.moment[1] < PROMPT:
        return False
    return (there.date, there.node) > (change.at, node)
