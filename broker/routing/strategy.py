"""Strategy: selects the next member of a Shared Subscription, among this node's members or those of all nodes."""

import random
from typing import Final, Generic, TypeVar
from zlib import crc32

V = TypeVar("V")

RANDOM: Final = 0
ROUND_ROBIN: Final = 1
ROUND_ROBIN_PER_GROUP: Final = 2
STICKY: Final = 3
HASH_CLIENTID: Final = 4
HASH_TOPIC: Final = 5

STRATEGIES: Final[dict[str, int]] = {
    "random": RANDOM,
    "round_robin": ROUND_ROBIN,
    "round_robin_per_group": ROUND_ROBIN_PER_GROUP,
    "sticky": STICKY,
    "hash_clientid": HASH_CLIENTID,
    "hash_topic": HASH_TOPIC,
}

MAX_PUBLISHERS: Final = 8192  # maximum number of publishers that one group remembers


class PerPublisher(Generic[V]):
    """One value per publisher of a group, for at most ``MAX_PUBLISHERS`` publishers; the least recent are discarded.

    The values are in two halves. When the newer half is full, the older half is discarded as a whole, so that each call
    takes the same time."""

    __slots__ = ("_newer", "_older")

    def __init__(self) -> None:
        self._newer: dict[str, V] = {}
        self._older: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def get(self, publisher_id: str) -> V | None:
        value = self._newer.get(publisher_id)
        if value is None:
            value = self._older.pop(publisher_id, None)
            if value is not None:
                self.put(publisher_id, value)
        return value

    def put(self, publisher_id: str, value: V) -> None:
        if publisher_id not in self._newer and len(self._newer) >= MAX_PUBLISHERS // 2:
            self._older = self._newer
            self._newer = {}
        self._newer[publisher_id] = value


class Strategy:
    """Chooses one of ``count`` places for each message. ``kind`` is a value of ``STRATEGIES``:

    - random; - round robin, separately for each publisher with a random start; or one round for the whole group; -
    sticky: a publisher's messages stay with one member until that leaves or goes offline; - by hash of the publisher's
    Client Identifier, or of the Topic Name: the same place as long as the number of places stays the same.

    A place is a member of a group on this node, or a connected member on any node: a node has as many consecutive
    places as it has connected members. Members and nodes have names, which ``sticky`` remembers.

    ``hashed``: messages that belong together stay with one member, even if it is busy. ``remembers``: whether ``gave``
    must be called after each message. Its ``favourites`` are names; None: it has none.
    """

    __slots__ = ("_rng", "_turn", "favourites", "hashed", "kind", "remembers", "rounds")

    def __init__(self, kind: int, rng: random.Random) -> None:
        self.kind = kind
        self.hashed = kind in (HASH_TOPIC, HASH_CLIENTID)
        self.remembers = kind in (ROUND_ROBIN, ROUND_ROBIN_PER_GROUP, STICKY)
        self._rng = rng
        self._turn = -1  # the place that received the group's last message
        self.rounds: PerPublisher[int] | None = PerPublisher() if kind == ROUND_ROBIN else None
        self.favourites: PerPublisher[str] | None = PerPublisher() if kind == STICKY else None

    def place(self, publisher_id: str, topic: str, count: int) -> int:
        """Return which of ``count`` places, at least one, is next."""
        kind = self.kind
        if kind == ROUND_ROBIN_PER_GROUP:
            return (self._turn + 1) % count
        if kind == HASH_TOPIC:
            return _hash_of(topic) % count
        if kind == HASH_CLIENTID:
            return _hash_of(publisher_id) % count
        rounds = self.rounds
        if rounds is not None:
            turn = rounds.get(publisher_id)
            if turn is not None:
                return (turn + 1) % count
        return int(self._rng.random() * count)

    def favourite(self, publisher_id: str) -> str | None:
        """Return the name of the member that has this publisher's messages so far. None: no member has them yet, or the
        strategy has no favourites."""
        favourites = self.favourites
        return None if favourites is None else favourites.get(publisher_id)

    def gave(self, publisher_id: str, place: int, name: str) -> None:
        """Note that the message of this publisher went to ``place``, whose name is ``name``."""
        if self.rounds is not None:
            self.rounds.put(publisher_id, place)
        elif self.favourites is not None:
            self.favourites.put(publisher_id, name)
        else:
            self._turn = place


def _hash_of(text: str) -> int:
    # Not hash(), which differs between runs: a seeded run must be repeatable.
    return crc32(text.encode("utf-8", "replace"))
