"""RetainedStore: the last retained message of each topic, searched by Topic Filter."""

from collections.abc import Iterator
from typing import Any, Final

from ..mqtt.message import Message
from ..mqtt.packets import NO_PROPERTIES
from ..mqtt.properties import memory_size
from ..mqtt.topics import has_wildcard
from .deadlines import Deadlines

STORED: Final = 0
REPLACED: Final = 1
CLEARED: Final = 2
ABSENT: Final = 3
FULL: Final = 4
TOO_LARGE: Final = 5
FULL_BYTES: Final = 6

WIDE: Final = 1024  # number of children from which on a node also keeps them in a list, to be walked in steps

# As in ``Trie``, a node is a plain dict: ``level`` leads to the node below, ``level + "/"`` to the entry of a topic
# that ends there. The values of a node can be walked without its keys.
_Node = dict[str, Any]
_ORDER: Final = "//"  # neither a level nor a level + "/": the _Order of a wide node
_SLOT: Final = "//slot"  # the slot that a node has in the _Order of its parent
_OVERHEAD: Final = 650  # approximate size of a message without topic, payload and properties
_NAMES: Final = 256  # characters of its publisher's names that are included in this


class _Entry:
    """A topic with a message. ``message`` is None when the message was removed: the entry is not used again."""

    __slots__ = ("message", "slot")

    def __init__(self, message: Message) -> None:
        self.message: Message | None = message
        self.slot = 0  # in the _Order of a wide node


class _Order:
    """The values of a wide node, in slots that do not move, so that a walk can continue after changes."""

    __slots__ = ("free", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []  # an _Entry, a _Node, or None for a slot that is free
        self.free: list[int] = []

    def add(self, value: Any) -> None:
        slot = self._free_slot()
        if slot == len(self.values):
            self.values.append(value)
        else:
            self.values[slot] = value
        if isinstance(value, _Entry):
            value.slot = slot
        else:
            value[_SLOT] = slot

    def _free_slot(self) -> int:
        while self.free:
            slot = self.free.pop()
            if slot < len(self.values) and self.values[slot] is None:
                return slot
        return len(self.values)

    def remove(self, value: Any) -> None:
        slot: int = value.slot if isinstance(value, _Entry) else value[_SLOT]
        if slot < len(self.values) - 1:
            self.values[slot] = None
            self.free.append(slot)
            return
        self.values.pop()
        while self.values and self.values[-1] is None:
            self.values.pop()


class Walk:
    """The messages that match a (valid) Topic Filter, returned in steps and in no particular order.

    The store may change during the walk: for each topic that has a message from the beginning to the end, it returns
    exactly one, in its current state, and none for a topic without a message. ``done``: there are no more. ``steps``:
    number of steps of the last ``take`` that found nothing."""

    __slots__ = ("_branches", "_exact", "_last", "_levels", "_open_ended", "_positions", "_store", "done", "steps")

    def __init__(self, store: "RetainedStore", filter: str) -> None:
        self._store = store
        self._exact = "" if has_wildcard(filter) else filter
        self._levels = filter.split("/") if not self._exact else []
        self._open_ended = filter.endswith("#")
        if self._open_ended:
            self._levels.pop()
        # A topic may end at this depth or, if open-ended, deeper: a/# matches a.
        self._last = len(self._levels) - 1
        # The rest of each node on the path.
        self._branches: list[list[Any]] = []
        self._positions: list[int] = []
        self.done = False
        self.steps = 0
        if not self._exact:
            self._enter(store.root_of(filter))

    def _enter(self, node: _Node) -> None:
        """Return the values of a node that have to be visited: the live list of a wide node, otherwise a copy."""
        depth = len(self._branches)
        levels = self._levels
        branch: list[Any]
        if depth < len(levels) and levels[depth] != "+":
            branch = [node.get(levels[depth] + "/"), node.get(levels[depth])]
        else:
            order: _Order | None = node.get(_ORDER)
            branch = list(node.values()) if order is None else order.values
        self._branches.append(branch)
        self._positions.append(0)

    def take(self, most: int, most_bytes: int = 0, most_steps: int = 0) -> list[Message]:
        """Return the next messages: about ``most``, or with ``most_bytes`` of payload, or fewer after ``most_steps``
        steps without a result. 0: no limit."""
        found: list[Message] = []
        self.steps = 0
        if self._exact:
            message = self._store.get(self._exact)
            if message is not None:
                found.append(message)
            self.done = True
            return found
        branches = self._branches
        positions = self._positions
        last = self._last
        open_ended = self._open_ended
        steps = 0
        size = 0
        while branches:
            branch = branches[-1]
            position = positions[-1]
            depth = len(branches) - 1
            ends = depth >= last
            below = depth < last or open_ended
            entered: _Node | None = None
            while position < len(branch):
                value = branch[position]
                position += 1
                if isinstance(value, _Entry):
                    message = value.message
                    if ends and message is not None:
                        found.append(message)
                        size += message.payload_size
                        if len(found) == most or 0 < most_bytes <= size:
                            positions[-1] = position
                            self.steps = steps
                            return found
                        continue
                elif below and isinstance(value, dict):
                    entered = value
                    break
                steps += 1
                if steps == most_steps:
                    positions[-1] = position
                    self.steps = steps
                    return found
            if entered is None:
                branches.pop()
                positions.pop()
            else:
                positions[-1] = position
                steps += 1
                self._enter(entered)
                if steps == most_steps:
                    self.steps = steps
                    return found
        self.steps = steps
        self.done = True
        return found


class RetainedStore:
    """Retained messages by topic.

    ``max_messages``, ``max_payload_size`` and ``max_bytes`` (of ``bytes``) are limits, 0 for none. ``expiry_interval``:
    seconds after which any message expires, regardless of its own interval; 0: never. ``bytes``: approximate memory of
    all messages."""

    __slots__ = (
        "_deadlines",
        "_entries",
        "_expiry_interval",
        "_max_bytes",
        "_max_messages",
        "_max_payload_size",
        "_roots",
        "bytes",
    )

    def __init__(
        self, max_messages: int = 0, max_payload_size: int = 0, expiry_interval: float = 0.0, max_bytes: int = 0
    ) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_payload_size = max_payload_size
        self._expiry_interval = expiry_interval
        self._entries: dict[str, _Entry] = {}
        # Topics that begin with $ are in the second one: a wildcard in the first level does not match them
        # [MQTT-4.7.2-1].
        self._roots: tuple[_Node, _Node] = ({}, {})
        self._deadlines = Deadlines()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def resize(
        self, max_messages: int, max_payload_size: int, expiry_interval: float = 0.0, max_bytes: int = 0
    ) -> None:
        """Set other limits, for messages that are stored from now on."""
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._max_payload_size = max_payload_size
        self._expiry_interval = expiry_interval

    def put(self, message: Message, agreed: bool = False) -> int:
        """Store a message, replacing an earlier one of its topic, or clear the topic if the payload is empty.

        Returns STORED, REPLACED, CLEARED, ABSENT (nothing to clear), FULL (of messages), FULL_BYTES or TOO_LARGE; the
        last three change nothing. ``agreed``: all nodes of a cluster store it, so a limit may be exceeded slightly."""
        topic = message.topic
        size = message.payload_size
        if size == 0:
            # An empty payload deletes, and is not stored itself [MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-10]
            # [3.1.1 MQTT-3.3.1-11].
            return CLEARED if self.delete(topic) else ABSENT
        grows = self.grows_by(message, topic)
        refused = self._refusal(message, topic, grows, agreed)
        if refused:
            return refused
        entry = self._entries.get(topic)
        old = None if entry is None else entry.message
        stored = _kept(message, topic if old is None else old.topic)
        self.bytes += grows
        deadline = self.deadline(stored)
        if deadline is not None:
            self._deadlines.set(stored.topic, deadline, stored.timestamp)
        elif old is not None:
            self._deadlines.remove(topic)
        if entry is not None and old is not None:
            # For any QoS, replacing the earlier message [MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-7].
            entry.message = stored
            return REPLACED
        entry = self._entries[stored.topic] = _Entry(stored)
        self._insert(topic, entry)
        return STORED

    def refusal(self, message: Message, topic: str) -> int:
        """Return why ``put`` would not store this message at ``topic``: TOO_LARGE, FULL or FULL_BYTES; 0: it would."""
        return self._refusal(message, topic, self.grows_by(message, topic), False)

    def _refusal(self, message: Message, topic: str, grows: int, agreed: bool) -> int:
        size = message.payload_size
        if size == 0:
            return 0
        if 0 < self._max_payload_size < size:
            return TOO_LARGE
        # Messages that several nodes accept at the same moment may exceed the limit slightly, and all nodes store them.
        most = self._max_messages + (self._max_messages // 10 + 16 if agreed else 0)
        if self._max_messages > 0 and most <= len(self._entries) and topic not in self._entries:
            return FULL
        most = self._max_bytes + (self._max_bytes // 10 if agreed else 0)
        if self._max_bytes and self.bytes + grows > most:
            return FULL_BYTES
        return 0

    def grows_by(self, message: Message, topic: str) -> int:
        """Return by how much ``bytes`` would grow, or shrink, if this message were stored at ``topic``."""
        old = self.get(topic)
        before = 0 if old is None else _size(old)
        return (_size(message) if message.payload_size else 0) - before

    def get(self, topic: str) -> Message | None:
        """Return the message of a topic. It may have expired (``expired``) and wait for ``sweep``."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.message

    def topics(self) -> Iterator[str]:
        """Return every topic that has a message. Copy the result before anything changes."""
        return iter(self._entries)

    def deadline(self, message: Message) -> float | None:
        """Return when a stored message expires (Unix seconds), ``None`` for never."""
        expires_at = message.expires_at
        if self._expiry_interval <= 0:
            return expires_at
        limit = message.timestamp + self._expiry_interval
        return limit if expires_at is None else min(limit, expires_at)

    def expired(self, message: Message, now: float) -> bool:
        """Return whether a stored message must no longer be delivered [MQTT-3.3.2-5]."""
        deadline = self.deadline(message)
        return deadline is not None and now >= deadline

    def delete(self, topic: str) -> bool:
        """Delete the message of a topic; return ``False`` if it has none."""
        entry = self._entries.pop(topic, None)
        if entry is None or entry.message is None:
            return False
        self.bytes -= _size(entry.message)
        entry.message = None
        self._deadlines.remove(topic)
        self._prune(topic)
        return True

    def sweep(self, now: float, budget: int) -> int:
        """Remove expired messages, in about ``budget`` steps; return how many."""
        topics = self._deadlines.pop(now, budget)
        for topic in topics:
            self.delete(topic)
        return len(topics)

    def walk(self, filter: str, pause: int = 0) -> Iterator[str]:
        """Yield the topics of a ``Walk`` one by one. For a caller that wants to pause: after ``pause`` steps without a
        topic, yield an empty string."""
        walk = Walk(self, filter)
        while not walk.done:
            found = walk.take(1, 0, pause)
            if found:
                yield found[0].topic
            elif not walk.done:
                yield ""

    def root_of(self, topic: str) -> _Node:
        """Return the tree that contains this topic, or the topics that this Topic Filter matches."""
        return self._roots[1 if topic.startswith("$") else 0]

    def _insert(self, topic: str, entry: _Entry) -> None:
        levels = topic.split("/")
        key = levels.pop() + "/"
        node = self.root_of(topic)
        for level in levels:
            below: _Node | None = node.get(level)
            if below is None:
                below = {}
                _put(node, level, below)
            node = below
        _put(node, key, entry)

    def _prune(self, topic: str) -> None:
        levels = topic.split("/")
        key = levels.pop() + "/"
        node = self.root_of(topic)
        path: list[_Node] = []
        for level in levels:
            path.append(node)
            node = node[level]
        _remove(node, key)
        while path and len(node) == (_ORDER in node) + (_SLOT in node):
            node = path.pop()
            _remove(node, levels[len(path)])


def _put(node: _Node, key: str, value: Any) -> None:
    """Add a child to a node, with a slot if the node is a wide one or has just become one."""
    node[key] = value
    order: _Order | None = node.get(_ORDER)
    if order is not None:
        order.add(value)
    elif len(node) > WIDE:
        order = _Order()
        for each in node:
            if not each.startswith("//"):
                order.add(node[each])
        node[_ORDER] = order


def _remove(node: _Node, key: str) -> None:
    child = node.pop(key)
    order: _Order | None = node.get(_ORDER)
    if order is not None:
        order.remove(child)


def _kept(message: Message, topic: str) -> Message:
    """Return the message to store: without its packet, so that no buffer stays in memory."""
    stored = Message(
        topic,
        message.payload,
        message.qos,
        True,
        message.properties if message.has_properties else NO_PROPERTIES,
        message.publisher,
        message.timestamp,
    )
    stored.id = message.id
    stored.hops = message.hops
    return stored


def _size(message: Message) -> int:
    size = message.payload_size + len(message.topic) + _OVERHEAD
    if message.has_properties:
        size += memory_size(message.properties)
    publisher = message.publisher
    if publisher is not None:  # it stays in memory as long as the message, however long its names are
        size += max(0, len(publisher.client_id) + len(publisher.username or "") - _NAMES)
    return size
