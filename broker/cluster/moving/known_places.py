"""KnownPlaces: which node has each session, as far as bucket ``sessions`` has reported it to this node.

A place is the value of a key, reduced to what every node needs, since a node keeps the places of all sessions of the
cluster in memory. ``SessionKeys`` notes each value that it reads or writes, in any order: a value with a lower revision
than the known one is ignored.
"""

from ..context import ClusterContext
from ..nats.interface import BucketEntry
from ..wire import MALFORMED, Header, SessionKey, thing_key
from .session_nodes import SessionPlace


class KnownPlaces:
    """``by_key``: the places, by ``thing_key`` of the client ID. ``ours``: the keys of this node's sessions, with the
    client IDs. ``over``: the keys of sessions that no node has, with the client IDs; nodes that were away may still
    have copies of these."""

    def __init__(self, context: ClusterContext) -> None:
        self._node = context.node
        self._wire = context.wire
        self._refusals = context.refusals
        self._reader = context.wire.reader(SessionKey)
        self.by_key: dict[str, SessionPlace] = {}
        self.ours: dict[str, str] = {}
        self.over: dict[str, str] = {}
        # Names and uids of nodes, each once.
        self._texts: dict[str, str] = {}

    # ----------------------------------------------------------------- questions

    def place(self, client_id: str) -> SessionPlace | None:
        """Return which node has the session, as far as this node knows."""
        return self.by_key.get(thing_key(client_id))

    def node_of(self, client_id: str) -> str | None:
        """Return the other node that has this session."""
        place = self.place(client_id)
        return None if place is None or not place.node or place.node == self._node else place.node

    def is_ours(self, place: SessionPlace) -> bool:
        """Return whether this place names this node with its present data."""
        return place.node == self._node and place.uid == self._wire.uid

    def has(self, client_id: str, revision: int | None = None) -> bool:
        """Return whether, according to the bucket, this node has the session, with this revision of the key."""
        key = thing_key(client_id)
        return key in self.ours and revision in (None, self.by_key[key].revision)

    def is_old(self, key: str, revision: int) -> bool:
        """Return whether a later value of this key is known. If the first answers of a write were lost, the key may
        have changed in the meantime."""
        known = self.by_key.get(key)
        return known is not None and revision < known.revision

    def of_node(self, node: str) -> dict[str, SessionPlace]:
        """Return the places of a node's sessions, by key."""
        return {key: place for key, place in self.by_key.items() if place.node == node}

    # ------------------------------------------------------------------- changes

    def read(self, entry: BucketEntry | None) -> tuple[Header, SessionKey] | None:
        """Return the header and the value of an entry; ``None`` if it has no valid one."""
        found = None if entry is None or entry.value is None else self._reader.value(entry.value)
        if entry is not None and found is not None and thing_key(found[1].client_id) != entry.key:
            self._refusals.add(MALFORMED, found[0].node, "-")
            return None
        return found

    def value_of(self, data: bytes) -> SessionKey | None:
        """Decode bytes of the bucket; ``None`` if they are not readable."""
        found = self._reader.value(data)
        return None if found is None else found[1]

    def note(self, key: str, value: SessionKey, revision: int) -> SessionPlace:
        """Note the value of a key, and return the place."""
        place = SessionPlace(self._text(value.node), self._text(value.uid), revision, value.earlier or None)
        self.by_key[key] = place
        self.ours.pop(key, None)
        if self.is_ours(place):
            self.ours[key] = value.client_id
        elif not place.node:
            self.over[key] = value.client_id
        return place

    def note_deleted(self, key: str, revision: int) -> None:
        """Note that this node has deleted a key, until the watch reports the deletion: before that, it may report older
        values."""
        self.ours.pop(key, None)
        self.by_key[key] = SessionPlace("", "", revision)

    def note_unreadable(self, key: str, revision: int) -> None:
        """Note a key whose value this node cannot read, unless the node that has the session is known."""
        known = self.by_key.get(key)
        if known is None or not known.node:
            self.by_key[key] = SessionPlace("", "", revision)

    def forget(self, key: str) -> str | None:
        """Forget a key that was deleted, and return the client ID if the session was this node's."""
        self.by_key.pop(key, None)
        return self.ours.pop(key, None)

    def clear(self) -> None:
        """Forget all places, because the bucket is empty."""
        self.by_key.clear()
        self.ours.clear()

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)
