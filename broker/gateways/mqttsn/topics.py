"""The topic ids of one client, with limits. They end with its connection; a sleeping client keeps them."""

from collections.abc import Mapping
from secrets import randbelow
from typing import Final

from ...mqtt.topics import valid_name
from . import codec as sn
from .settings import Predefined, short_name

MAX_TOPICS: Final = 1000
"""Maximum number of topics that one client registers or subscribes to by name, and as many that the node registers
for what it delivers."""
MAX_CHARACTERS: Final = 65_536
"""Maximum total length of the names of each kind."""
_LAST: Final = 0x7FFF
"""The greatest topic id that is given: some clients read it as a signed number, such as Python's mqttsn12."""


class Topics:
    """``of_name`` and ``of_id`` are one table in both directions.

    The client's own topics stay until the connection ends: it relies on them. Topics that the node has registered for
    deliveries are replaced by others, the oldest first, because a subscriber to ``#`` may receive any number of topics.
    A given-up id is not used again before all others have been. The first one is random: a REGACK proves the address of
    the client by its topic id and its MsgId (``deliveries``). A predefined id is never assigned: some clients send it
    as a normal one."""

    __slots__ = ("_characters", "_last", "_lent", "_lent_characters", "_predefined", "of_id", "of_name")

    def __init__(self, predefined: Mapping[int, str]) -> None:
        self._predefined = predefined
        self.of_id: dict[int, str] = {}
        self.of_name: dict[str, int] = {}
        self._characters = 0
        self._lent: dict[int, None] = {}  # ids of the node's own registrations, the oldest first
        self._lent_characters = 0
        self._last = randbelow(_LAST)

    def register(self, topic: str) -> int:
        """Return the id of a topic that the client registers; 0: the client has too many topics."""
        found = self.of_name.get(topic)
        if found is not None:
            if found in self._lent:
                if not self._room(topic):
                    return 0
                del self._lent[found]
                self._lent_characters -= len(topic)
                self._characters += len(topic)
            return found
        if not self._room(topic):
            return 0
        self._characters += len(topic)
        return self._add(topic)

    def _room(self, topic: str) -> bool:
        own = len(self.of_id) - len(self._lent)
        return own < MAX_TOPICS and self._characters + len(topic) <= MAX_CHARACTERS

    def lend(self, topic: str) -> int:
        """Return an id for a topic that is delivered to the client; older ones may lose theirs."""
        while self._lent and (
            len(self._lent) >= MAX_TOPICS or self._lent_characters + len(topic) > MAX_CHARACTERS
        ):  # fmt: skip
            self.forget(next(iter(self._lent)))
        topic_id = self._add(topic)
        self._lent[topic_id] = None
        self._lent_characters += len(topic)
        return topic_id

    def forget(self, topic_id: int) -> None:
        """Remove an id, because the client does not know it."""
        topic = self.of_id.pop(topic_id, None)
        if topic is None:
            return
        del self.of_name[topic]
        if topic_id in self._lent:
            del self._lent[topic_id]
            self._lent_characters -= len(topic)
        else:
            self._characters -= len(topic)

    def _add(self, topic: str) -> int:
        assert topic not in self.of_name
        while True:
            self._last = self._last + 1 if self._last < _LAST else 1
            if self._last not in self.of_id and self._last not in self._predefined:
                self.of_id[self._last] = topic
                self.of_name[topic] = self._last
                return self._last


def name_of(topics: Topics | None, predefined: Predefined, topic_id: int, id_type: int) -> str | None:
    """Return the topic name that a client means by an id; None: the id is not known."""
    if id_type == sn.SHORT:
        try:
            topic = topic_id.to_bytes(2).decode()
        except UnicodeDecodeError:
            return None
        return topic if valid_name(topic) else None
    if id_type == sn.NORMAL and topics is not None:
        found = topics.of_id.get(topic_id)
        if found is not None:
            return found
    # Of an unknown normal id, too: clients of Paho do so, and EMQX understands it.
    return predefined.of_id.get(topic_id)


def known_id(topics: Topics, predefined: Predefined, topic: str) -> tuple[int, int] | None:
    """Return an id that the client knows for a topic name, and its type; None: it has to be registered."""
    found = predefined.of_name.get(topic)
    if found is not None:
        return found, sn.PREDEFINED
    found = topics.of_name.get(topic)
    if found is not None:
        return found, sn.NORMAL
    found = short_name(topic)
    return None if found is None else (found, sn.SHORT)


def needs_register(topics: Topics, predefined: Predefined, topic: str) -> bool:
    """Return whether an id has to be registered at the client before it understands a topic."""
    return known_id(topics, predefined, topic) is None
