"""Decides which change of a retained message is the later one when two nodes have changed it independently.

Node A retains "on" at 10:00:00.1, and node B clears the topic at 10:00:00.2. B has asked A before (``settling``), and
A's answer says that "on" is older than the clear: the topic is empty. Without an answer, the dates decide. The
functions here are pure; ``retained`` reads and writes the bucket.
"""

import asyncio
from typing import Final, NamedTuple

from .settling import BEFORE, Moment, Settled
from .shared_map import SharedChange

PROMPT: Final = 1.0
"""Seconds within which a clear is regarded as later than any change of a node that has not answered."""


class EntryOrigin(NamedTuple):
    """The origin of an entry of the bucket: its date, the node that wrote it, and the time at that node. ``until`` is
    that of ``retained_values.Deletion``, if the entry is a deletion."""

    date: float
    node: str
    uid: str = ""
    moment: Moment = BEFORE
    until: dict[str, Moment] = {}


class RetainedChange(SharedChange):
    """A topic whose retained message was changed here. ``ClusterRetained`` keeps it until the bucket has the change.

    ``at`` is the date of the last change and ``moment`` its moment; ``base`` is the revision up to which this node had
    read the bucket then. If the message has expired, ``at`` is 0 and ``expired`` is the date of the message. ``count``
    grows with each change, and ``sent`` is the count that was last sent together with other topics. ``restored``: the
    change was made before this node's start, and the node may have forgotten later changes. ``waiting`` has futures,
    each with the count of a change: they are done when the bucket has that change, or a later one. ``row`` is the row
    that has the change (``unwritten``). If the change is a clear, ``asking`` is the question that was sent before its
    message, and ``until`` has the answers so far (``Settled.until``).
    """

    __slots__ = (
        "asking",
        "at",
        "base",
        "count",
        "expired",
        "moment",
        "restored",
        "row",
        "sent",
        "topic",
        "until",
        "waiting",
    )

    def __init__(self, name: str, topic: str, base: int, at: float) -> None:
        super().__init__(name)
        self.topic = topic
        self.base = base
        self.at = at
        self.expired = 0.0
        self.count = self.sent = 0
        self.restored = False
        self.row = ""
        self.moment = BEFORE
        self.asking: asyncio.Task[dict[str, Settled]] | None = None
        self.until: dict[str, Moment] = {}
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
    """Return whether the bucket's value is later than this node's change, and therefore stays.

    ``node`` and ``uid`` are those of this node. ``clear`` is set if the change clears the topic; ``settled`` then has,
    by the uid of each node that has answered the question of this clear, the moment up to which its changes are older.
    ``now`` is the time by ``Clock.now``.

    The first rule that applies decides: a value that this node has written since its start is older. If the value is a
    deletion and this node has answered its question, that answer decides. If the value's node has answered the question
    of this clear, its answer decides. A clear that is written promptly is later. Otherwise the later date wins.
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
