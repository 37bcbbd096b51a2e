"""MessageQueue: messages of one session that wait for its send window, or for its client to reconnect.

     push                                 pop
──────────────►  [ 255 ][ ... ][ 0 ]  ──────────────►  in flight
   full: the oldest of the lowest             ▲
   priority makes room                        └── push_front: it could not go after all
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ..mqtt.message import OVERHEAD, Delivery
from ..mqtt.topics import has_wildcard, matches
from .memory_account import UNACCOUNTED, MemoryAccount
from .protocols import EXPIRED

if TYPE_CHECKING:
    from .session import Session

MAX_TOPICS: Final = 256
"""Maximum number of topics in a queue that are counted separately: a larger dict would use more memory than the
messages."""
EXPIRY_SLICE: Final = 5000
"""Maximum number of messages that one search for expired messages checks, which takes a millisecond or two."""


class MessageQueue:
    """First in, first out within a priority; higher priorities first.

    ``max_messages`` and ``max_bytes`` (of ``Delivery.size``) are limits, 0 for none. ``priorities`` maps Topic Filters
    to 1..255. An exact filter takes precedence over wildcards, and the highest matching priority is used; a topic
    without a match has ``default_priority``. All messages of a topic have the same priority, so that their order is
    kept [MQTT-4.6.0-5]. Sessions share the mapping, so it is not copied."""

    __slots__ = (
        "_account",
        "_active",
        "_count",
        "_default",
        "_durable",
        "_expiry",
        "_found",
        "_keep",
        "_lanes",
        "_looked",
        "_max_bytes",
        "_max_messages",
        "_only",
        "_priorities",
        "_topics",
        "_wildcards",
        "size",
    )

    def __init__(
        self,
        max_messages: int = 0,
        max_bytes: int = 0,
        priorities: Mapping[str, int] | None = None,
        default_priority: int = 0,
        keep: bool = False,
        account: MemoryAccount = UNACCOUNTED,
        durable: bool = False,
    ) -> None:
        """``keep``: queued messages are never dropped to make room (``queue_full = "refuse"``).

        ``account`` is updated when messages are added or removed; ``durable``: the journal accounts for messages of QoS
        1 and 2."""
        self._keep = keep
        self._account = account
        self._durable = durable
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._default = default_priority
        self._priorities = priorities if priorities else None
        self._wildcards = [each for each in priorities if has_wildcard(each)] if priorities else None
        # Without priorities all messages are in ``_only``; with them there is a lane for each priority in use,
        # ``_active`` in ascending order.
        self._only: deque[Delivery] = deque()
        self._lanes: dict[int, deque[Delivery]] | None = {} if priorities else None
        self._active: list[int] | None = [] if priorities else None
        # Topic -> number of waiting messages; None: too many topics, until the queue is empty.
        self._topics: dict[str, int] | None = {}
        self._count = 0
        self._expiry: float | None = None  # no message expires before this time
        # Of an unfinished search for expired messages: how many it has checked, and the earliest expiry among them.
        self._looked = 0
        self._found: float | None = None
        self.size = 0

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[Delivery]:
        """Iterate in the order of delivery."""
        for lane in reversed(self._ascending()):
            yield from lane

    def holds(self, topic: str) -> bool:
        """Return whether a message of this topic waits; a later one must not overtake it [MQTT-4.6.0-6].

        With more than ``MAX_TOPICS`` topics, the answer is True for every topic."""
        topics = self._topics
        return self._count > 0 if topics is None else topic in topics

    def full_for(self, size: int) -> bool:
        """Return whether a message of ``size`` bytes cannot be added without dropping something."""
        return (self._max_messages > 0 and self._count >= self._max_messages) or (
            self._max_bytes > 0 and self.size + size > self._max_bytes
        )

    def resize(self, max_messages: int, max_bytes: int, keep: bool = False) -> None:
        """Set other limits. Messages beyond them stay until the next ``push``, which drops them."""
        self._keep = keep
        self._max_messages = max_messages
        self._max_bytes = max_bytes

    def push(self, delivery: Delivery) -> list[Delivery] | None:
        """Append a delivery; return the deliveries that were dropped for it, ``None`` if there are none.

        The oldest delivery of the lowest priority is dropped first. If the new delivery alone exceeds ``max_bytes``, or
        only higher priorities could make room, only the new one is dropped.

        A queue with ``keep`` drops a new delivery of QoS 0 and accepts any other: a publisher that can be informed was
        refused before (``full_for``), and a Will, a delayed or a shared message was already promised."""
        size = delivery.size
        priority = self._priority(delivery.message.topic) if self._priorities is not None else 0
        dropped: list[Delivery] | None = None
        if (self._max_messages and self._count >= self._max_messages) or (
            self._max_bytes and self.size + size > self._max_bytes
        ):
            if self._keep:
                if delivery.qos == 0:
                    return [delivery]
            else:
                dropped = self._make_room(size, priority)
                if dropped is None:
                    return [delivery]
        if self._lanes is None:
            self._only.append(delivery)
        else:
            self._lane(priority).append(delivery)
        self._added(delivery, size)
        return dropped

    def push_front(self, delivery: Delivery) -> None:
        """Put a delivery that ``pop`` returned back at the head of its priority. Limits do not apply, because it was
        already in the queue."""
        priority = self._priority(delivery.message.topic) if self._priorities is not None else 0
        self._lane(priority).appendleft(delivery)
        self._added(delivery, delivery.size)

    def pop(self) -> Delivery | None:
        """Remove and return the next delivery; ``None`` if there is none."""
        if self._count == 0:
            return None
        if self._active is None:
            delivery = self._only.popleft()
        else:
            delivery = self._take(self._active[-1])
        self._removed(delivery)
        return delivery

    def pop_run(self, most: int) -> list[Delivery]:
        """Remove and return the next deliveries, at most ``most``, as long as they have QoS 1, are in memory and never
        expire.

        The result is empty if the next delivery is of another kind, or if the queue has priorities."""
        run: list[Delivery] = []
        lane = self._only
        account = self._account
        durable = self._durable
        size = 0
        last = ""  # topic of the previous messages, and the number of consecutive messages with it
        same = 0
        for delivery in lane:
            message = delivery.message
            if len(run) == most or delivery.qos != 1 or message.payload_at < 0 or message.expires:
                break
            run.append(delivery)
            topic = message.topic
            size += len(message.frame) + len(topic)
            if delivery.identifiers or delivery.retain or delivery.group:
                account.apart -= 1
            if not durable:
                message.waiting -= 1
                if not message.waiting:
                    account.message_bytes -= delivery.size
            if topic is not last:
                self._fewer(last, same)
                last = topic
                same = 0
            same += 1
        self._fewer(last, same)
        for _ in run:
            lane.popleft()
        account.entries -= len(run)
        self._count -= len(run)
        if self._topics is None and not self._count:
            self._topics = {}
        self._looked = max(0, self._looked - len(run))
        self.size -= size + len(run) * OVERHEAD
        return run

    def shed(self, most: int) -> list[Delivery]:
        """Remove at most ``most`` deliveries: the oldest of the lowest priority, as ``push`` does to make room."""
        gone: list[Delivery] = []
        for lane in self._ascending():
            while lane and len(gone) < most:
                gone.append(lane.popleft())
        for delivery in gone:
            self._removed(delivery)
        if self._lanes is not None:
            self._lanes = {priority: lane for priority, lane in self._lanes.items() if lane}
            self._active = sorted(self._lanes)
        return gone

    def drop_expired(self, now: float) -> list[Delivery]:
        """Remove deliveries whose Message Expiry Interval has passed [MQTT-3.3.2-5].

        The search runs only if one can be due, and checks at most ``EXPIRY_SLICE`` deliveries: the next call continues
        there."""
        if self._expiry is None or now < self._expiry:
            return []
        if self._lanes is None and self._count > EXPIRY_SLICE:
            return self._drop_slice(now)
        expired: list[Delivery] = []
        self._expiry = self._found = None
        self._looked = 0
        for lane in self._ascending():
            for _ in range(len(lane)):
                delivery = lane.popleft()
                expires_at = delivery.message.expires_at
                if expires_at is not None and expires_at <= now:
                    expired.append(delivery)
                    continue
                lane.append(delivery)
                if expires_at is not None and (self._expiry is None or expires_at < self._expiry):
                    self._expiry = expires_at
        for delivery in expired:
            self._removed(delivery)
        if self._lanes is not None:
            self._drop_empty_lanes(self._lanes)
        return expired

    def _drop_slice(self, now: float) -> list[Delivery]:
        """Continue a search that is too long for one call."""
        lane = self._only
        start = self._looked
        end = min(start + EXPIRY_SLICE, len(lane))
        found = self._found
        expired: list[Delivery] = []
        lane.rotate(-start)
        for _ in range(start, end):
            delivery = lane.popleft()
            expires_at = delivery.message.expires_at
            if expires_at is not None and expires_at <= now:
                expired.append(delivery)
                continue
            lane.append(delivery)
            if expires_at is not None and (found is None or expires_at < found):
                found = expires_at
        lane.rotate(end - len(expired))
        for delivery in expired:
            self._removed(delivery)
        self._looked = end - len(expired)
        self._found = found
        if self._looked >= len(lane):
            self._expiry = found
            self._looked = 0
            self._found = None
        return expired

    def topics(self) -> list[str]:
        """Return the topics of the waiting messages, each once."""
        if self._topics is None:
            return list({delivery.message.topic for delivery in self})
        return list(self._topics)

    def take(self, topics: set[str], groups: set[str]) -> list[Delivery]:
        """Remove and return the deliveries that are on one of these topics and not from a shared subscription, and
        those from one of these groups."""
        taken: list[Delivery] = []
        for lane in self._ascending():
            for _ in range(len(lane)):
                delivery = lane.popleft()
                if (delivery.group in groups) if delivery.group else (delivery.message.topic in topics):
                    taken.append(delivery)
                else:
                    lane.append(delivery)
        self._looked = 0
        self._found = None
        for delivery in taken:
            self._removed(delivery)
        if self._lanes is not None:
            self._drop_empty_lanes(self._lanes)
        return taken

    def _drop_empty_lanes(self, lanes: dict[int, deque[Delivery]]) -> None:
        self._lanes = {priority: lane for priority, lane in lanes.items() if lane}
        self._active = sorted(self._lanes)

    def clear(self) -> list[Delivery]:
        """Remove and return all deliveries, in the order of delivery."""
        left = list(self)
        for delivery in left:
            self._leaves(delivery)
        self._only.clear()
        if self._lanes is not None:
            self._lanes = {}
            self._active = []
        self._topics = {}
        self._count = 0
        self._expiry = self._found = None
        self._looked = 0
        self.size = 0
        return left

    def _ascending(self) -> list[deque[Delivery]]:
        """Return the lanes, lowest priority first."""
        if self._lanes is None or self._active is None:
            return [self._only]
        return [self._lanes[priority] for priority in self._active]

    def _priority(self, topic: str) -> int:
        priorities = self._priorities
        if priorities is None:
            return 0
        exact = priorities.get(topic)
        if exact is not None:
            return exact
        best = -1
        for each in self._wildcards or ():
            if priorities[each] > best and matches(each, topic):
                best = priorities[each]
        return self._default if best < 0 else best

    def _lane(self, priority: int) -> deque[Delivery]:
        if self._lanes is None or self._active is None:
            return self._only
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            insort(self._active, priority)
        return lane

    def _take(self, priority: int) -> Delivery:
        """Remove and return the oldest delivery of a priority that has some."""
        if self._lanes is None or self._active is None:
            return self._only.popleft()
        lane = self._lanes[priority]
        delivery = lane.popleft()
        if not lane:
            del self._lanes[priority]
            self._active.remove(priority)
        return delivery

    def _make_room(self, size: int, priority: int) -> list[Delivery] | None:
        """Drop as many deliveries as necessary for one of ``size`` bytes at ``priority``.

        Return ``None``, and drop nothing, if that is not possible."""
        if self._max_bytes and size > self._max_bytes:
            return None
        messages = self._count + 1 - self._max_messages if self._max_messages else 0
        excess = self.size + size - self._max_bytes if self._max_bytes else 0
        going: list[int] = []  # the priority of each delivery that is dropped
        for at, lane in zip(self._active or (priority,), self._ascending(), strict=True):
            if at > priority:
                break
            for delivery in lane:
                if len(going) >= messages and excess <= 0:
                    break
                going.append(at)
                excess -= delivery.size
        if len(going) < messages or excess > 0:
            return None
        dropped = [self._take(at) for at in going]
        for delivery in dropped:
            self._removed(delivery)
        return dropped

    def _added(self, delivery: Delivery, size: int) -> None:
        message = delivery.message
        topic = message.topic
        topics = self._topics
        if topics is not None:
            before = topics.get(topic, 0)
            if before or len(topics) < MAX_TOPICS:
                topics[topic] = before + 1
            else:
                self._topics = None
        self._count += 1
        self.size += size
        account = self._account
        account.entries += 1
        if delivery.identifiers or delivery.retain or delivery.group:
            account.apart += 1
        if not self._durable or delivery.qos == 0:
            if not message.waiting:
                account.message_bytes += size
            message.waiting += 1
        if message.expires:
            expires_at = message.expires_at
            if expires_at is not None:
                if self._expiry is None or expires_at < self._expiry:
                    self._expiry = expires_at
                if self._looked and (self._found is None or expires_at < self._found):
                    self._found = expires_at

    def _fewer(self, topic: str, count: int) -> None:
        """Note that this number of messages of the topic no longer waits."""
        topics = self._topics
        if topics is not None and count:
            left = topics[topic] - count
            if left:
                topics[topic] = left
            else:
                del topics[topic]

    def _leaves(self, delivery: Delivery) -> None:
        account = self._account
        account.entries -= 1
        if delivery.identifiers or delivery.retain or delivery.group:
            account.apart -= 1
        if not self._durable or delivery.qos == 0:
            message = delivery.message
            message.waiting -= 1
            if not message.waiting:
                account.message_bytes -= delivery.size

    def _removed(self, delivery: Delivery) -> None:
        self._leaves(delivery)
        self._count -= 1
        if self._topics is not None:
            self._fewer(delivery.message.topic, 1)
        elif not self._count:
            self._topics = {}
        self.size -= delivery.size
        if self._looked:
            self._looked -= 1


def expire_queued(session: "Session", now: float) -> None:
    """Drop queued messages whose Message Expiry Interval has passed."""
    queue = session.queue
    if queue is not None:
        for delivery in queue.drop_expired(now):
            session.done(delivery)
            session.observer.delivery_dropped(session, delivery, EXPIRED)
        session.leave_empty_queue()


def shed_queued(session: "Session", most: int, reason: str) -> int:
    """Drop at most ``most`` queued messages because memory is short; return how many."""
    queue = session.queue
    if queue is None:
        return 0
    dropped = queue.shed(most)
    session.leave_empty_queue()
    session.mqueue_dropped += len(dropped)
    if session.journal is not None:
        session.journal.done(session, [each for each in dropped if each.qos])
    for delivery in dropped:
        session.observer.delivery_dropped(session, delivery, reason)
    return len(dropped)


def take_queued(session: "Session", topics: set[str], groups: set[str]) -> list[Delivery]:
    """Remove deliveries from the queue as ``MessageQueue.take`` does; the session still holds them until the journal is
    informed."""
    taken = [] if session.queue is None else session.queue.take(topics, groups)
    session.leave_empty_queue()
    return taken
