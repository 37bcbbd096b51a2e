"""RetainedStore: the last retained Application Message of each topic, asked by Topic Filter."""

from collections.abc import Iterator
from typing import Any, Final

from ..mqtt.message import Message
from ..mqtt.packets import NO_PROPERTIES
from ..mqtt.topics import has_wildcard
from .deadlines import Deadlines

STORED: Final = 0
REPLACED: Final = 1
CLEARED: Final = 2
ABSENT: Final = 3
FULL: Final = 4
TOO_LARGE: Final = 5
FULL_BYTES: Final = 6

WIDE: Final = 1024  # children from which on a node keeps them in a list too, to be walked bit by bit

# As in ``Trie`` a node is a plain dict: ``level`` leads to the node below, ``level + "/"`` says that a topic ends
# there. The value of the latter is its slot in the node's ``_Order``, if the node is wide.
_Node = dict[str, Any]
_ORDER: Final = "//"  # no level and no level + "/": a wide node's _Order
_SLOT: Final = "//slot"  # the slot that a node has in the _Order of its parent
_OVERHEAD: Final = 600  # bytes that a message takes beside topic and payload, about


class _Order:
    """The keys of a wide node in slots that do not move, so that a walk can go on after changes."""

    __slots__ = ("free", "keys")

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.free: list[int] = []

    def add(self, key: str) -> int:
        while self.free:
            slot = self.free.pop()
            if slot < len(self.keys) and self.keys[slot] is None:
                self.keys[slot] = key
                return slot
        self.keys.append(key)
        return len(self.keys) - 1

    def remove(self, slot: int) -> None:
        if slot < len(self.keys) - 1:
            self.keys[slot] = None
            self.free.append(slot)
            return
        self.keys.pop()
        while self.keys and self.keys[-1] is None:
            self.keys.pop()


class RetainedStore:
    """Retained Messages by topic.

    ``max_messages``, ``max_payload_size`` and ``max_bytes`` (of ``bytes``) are bounds, 0 for none. ``expiry_interval``:
    seconds after which any message goes, whatever it says itself; 0 for never. ``bytes`` is about what all take in
    memory, properties not counted.
    """

    __slots__ = (
        "_deadlines",
        "_expiry_interval",
        "_max_bytes",
        "_max_messages",
        "_max_payload_size",
        "_messages",
        "_root",
        "_steps",
        "bytes",
    )

    def __init__(
        self, max_messages: int = 0, max_payload_size: int = 0, expiry_interval: float = 0.0, max_bytes: int = 0
    ) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_payload_size = max_payload_size
        self._expiry_interval = expiry_interval
        self._messages: dict[str, Message] = {}
        self._root: _Node = {}
        self._deadlines = Deadlines()
        self._steps = 0  # of all walks that pause, since one of them did
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def resize(
        self, max_messages: int, max_payload_size: int, expiry_interval: float = 0.0, max_bytes: int = 0
    ) -> None:
        """Set other bounds. They hold for what is put from now on."""
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._max_payload_size = max_payload_size
        self._expiry_interval = expiry_interval

    def put(self, message: Message, agreed: bool = False) -> int:
        """Store a message in place of its topic's earlier one, or clear the topic if the payload is empty.

        Returns STORED, REPLACED, CLEARED, ABSENT (nothing to clear), FULL (of messages), FULL_BYTES or TOO_LARGE; the
        last three change nothing. ``agreed``: all nodes of a cluster have it, and so a bound may be passed a little.
        """
        topic = message.topic
        size = message.payload_size
        if size == 0:
            # An empty payload removes, and is not stored itself [MQTT-3.3.1-6] [MQTT-3.3.1-7]
            # [3.1.1 MQTT-3.3.1-10] [3.1.1 MQTT-3.3.1-11].
            return CLEARED if self.delete(topic) else ABSENT
        refused = self.refusal(message, agreed)
        if refused:
            return refused
        old = self._messages.get(topic)
        stored = _kept(message, topic if old is None else old.topic)
        # Of any QoS, in place of the one before [MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-7].
        self._messages[stored.topic] = stored
        self.bytes += _size(stored)
        deadline = self.deadline(stored)
        if deadline is not None:
            self._deadlines.set(stored.topic, deadline, stored.timestamp)
        elif old is not None:
            self._deadlines.remove(topic)
        if old is not None:
            self.bytes -= _size(old)
            return REPLACED
        self._insert(topic)
        return STORED

    def refusal(self, message: Message, agreed: bool = False) -> int:
        """Why ``put`` would not store this: TOO_LARGE, FULL or FULL_BYTES; 0: it would."""
        size = message.payload_size
        if size == 0:
            return 0
        if 0 < self._max_payload_size < size:
            return TOO_LARGE
        # What nodes take at the same moment goes a little beyond what each may have, and they all take it.
        most = self._max_messages + (self._max_messages // 10 + 16 if agreed else 0)
        if self._max_messages > 0 and most <= len(self._messages) and message.topic not in self._messages:
            return FULL
        most = self._max_bytes + (self._max_bytes // 10 if agreed else 0)
        if self._max_bytes and self.bytes + self.grows_by(message) > most:
            return FULL_BYTES
        return 0

    def grows_by(self, message: Message) -> int:
        """By how much ``bytes`` grows, or shrinks, when this is put."""
        old = self._messages.get(message.topic)
        before = 0 if old is None else _size(old)
        return (_size(message) if message.payload_size else 0) - before

    def get(self, topic: str) -> Message | None:
        """The message of a topic. It may have expired (``expired``) and wait for ``sweep``."""
        return self._messages.get(topic)

    def topics(self) -> Iterator[str]:
        """Every topic that has one. Take a copy before anything changes."""
        return iter(self._messages)

    def deadline(self, message: Message) -> float | None:
        """When a stored message goes (unix seconds), ``None`` for never."""
        expires_at = message.expires_at
        if self._expiry_interval <= 0:
            return expires_at
        limit = message.timestamp + self._expiry_interval
        return limit if expires_at is None else min(limit, expires_at)

    def expired(self, message: Message, now: float) -> bool:
        """Whether a stored message must not be delivered any more [MQTT-3.3.2-5]."""
        deadline = self.deadline(message)
        return deadline is not None and now >= deadline

    def delete(self, topic: str) -> bool:
        """Remove the message of a topic; ``False`` if it has none."""
        message = self._messages.pop(topic, None)
        if message is None:
            return False
        self.bytes -= _size(message)
        self._deadlines.remove(topic)
        self._prune(topic)
        return True

    def sweep(self, now: float, budget: int) -> int:
        """Remove expired messages, in about ``budget`` steps; returns how many went."""
        topics = self._deadlines.pop(now, budget)
        for topic in topics:
            self.delete(topic)
        return len(topics)

    def walk(self, filter: str, pause: int = 0) -> Iterator[str]:
        """The topics that match a (valid) Topic Filter, one at a time and in no order.

        The store may change meanwhile: each topic that is there from beginning to end comes exactly once, and none
        comes that has no message at that moment. Whoever wants to stop now and then gives ``pause``: after so many
        steps without a topic, in this walk and those before it, an empty string comes instead.
        """
        if not has_wildcard(filter):
            if filter in self._messages:
                yield filter
            return
        levels = filter.split("/")
        open_ended = levels[-1] == "#"
        if open_ended:
            levels.pop()
        # A topic may end at this depth or, if open-ended, deeper: a/# matches a.
        last = len(levels) - 1
        # A wildcard in the first level does not match a Topic Name beginning with $ [MQTT-4.7.2-1].
        hides = last < 0 or levels[0] == "+"
        path: list[str] = []
        nodes: list[_Node] = [self._root]
        branches: list[list[str | None]] = [_branches(self._root, levels, 0)]
        positions: list[int] = [0]
        while nodes:
            depth = len(path)
            position = positions[-1]
            if position >= len(branches[-1]):
                nodes.pop()
                branches.pop()
                positions.pop()
                if path:
                    path.pop()
                continue
            positions[-1] = position + 1
            key = branches[-1][position]
            if pause:
                self._steps += 1
                if self._steps >= pause:
                    self._steps = 0
                    yield ""
            if key is None or key.startswith("//") or (hides and depth == 0 and key.startswith("$")):
                continue
            if key.endswith("/"):
                if depth >= last and key in nodes[-1]:
                    self._steps = 0
                    path.append(key[:-1])
                    topic = "/".join(path)
                    path.pop()
                    yield topic
            elif depth < last or open_ended:
                below: _Node | None = nodes[-1].get(key)
                if below is not None:
                    path.append(key)
                    nodes.append(below)
                    branches.append(_branches(below, levels, depth + 1))
                    positions.append(0)

    def _insert(self, topic: str) -> None:
        levels = topic.split("/")
        key = levels.pop() + "/"
        node = self._root
        for level in levels:
            below: _Node | None = node.get(level)
            if below is None:
                below = node[level] = {}
                _list(node, level)
            node = below
        node[key] = 0
        _list(node, key)

    def _prune(self, topic: str) -> None:
        levels = topic.split("/")
        key = levels.pop() + "/"
        node = self._root
        path: list[_Node] = []
        for level in levels:
            path.append(node)
            node = node[level]
        _remove(node, key)
        while path and len(node) == (_ORDER in node) + (_SLOT in node):
            node = path.pop()
            _remove(node, levels[len(path)])


def _branches(node: _Node, levels: list[str], depth: int) -> list[str | None]:
    """The keys of a node to look at for this level of a filter: of a wide node the living list, else a copy."""
    if depth < len(levels) and levels[depth] != "+":
        return [levels[depth] + "/", levels[depth]]
    order: _Order | None = node.get(_ORDER)
    return list(node) if order is None else order.keys


def _list(node: _Node, key: str) -> None:
    """Give a new child its slot, if its node is a wide one or has just become one."""
    order: _Order | None = node.get(_ORDER)
    if order is not None:
        _set_slot(node, key, order.add(key))
    elif len(node) > WIDE:
        order = _Order()
        for each in node:
            if not each.startswith("//"):
                _set_slot(node, each, order.add(each))
        node[_ORDER] = order


def _set_slot(node: _Node, key: str, slot: int) -> None:
    if key.endswith("/"):
        node[key] = slot
    else:
        node[key][_SLOT] = slot


def _remove(node: _Node, key: str) -> None:
    child = node.pop(key)
    order: _Order | None = node.get(_ORDER)
    if order is not None:
        order.remove(child if key.endswith("/") else child[_SLOT])


def _kept(message: Message, topic: str) -> Message:
    """What is stored of a message: nothing of the packet it came in, so that no buffer stays in memory."""
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
    return message.payload_size + len(message.topic) + _OVERHEAD
