"""NodeIdentity: the identity of this node, which consists of the uid of its data and the number of starts with them.

The row survives a restart, and moves with the data directory: a node that starts with an empty directory under the
same name gets a new uid, so that the other nodes notice that its sessions are missing.
"""

from typing import Final

import msgspec

from ..context import ClusterContext

TABLE: Final = "cluster"
SELF: Final = "node"
"""The key of the only row."""
_MOST_REFUSED: Final = 16
"""Maximum number of forced-out uids that are remembered for one name."""


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``cluster``: the uid of the data, how often it was started, and whether the node has left the
    cluster. ``refused_uids`` repeats ``MemberRecord.refused_uids``, in case the bucket has lost them. ``copied`` is set
    if other nodes may have copies of the data."""

    uid: str
    incarnation: int
    left: bool = False
    refused_uids: tuple[str, ...] = ()
    copied: bool = False


class NodeIdentity:
    """The identity of this node, on its disk. ``Members`` loads it at the start, and changes it when the node joins or
    leaves.

    ``new`` is set if this is the first start with the data: at level ``memory``, at each start. ``left`` is set while
    this node has left the cluster. ``copied`` is set if other nodes may have copies of its data. ``refused_uids`` are
    the uids of data that must not use this node's name, for example of a directory that was forced out.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._wire = context.wire
        self._table = context.tables.open(TABLE, Identity)
        self.new = True
        self.left = False
        self.copied = bool(context.settings.replicas)
        self.refused_uids: tuple[str, ...] = ()

    def load(self) -> None:
        """Set the uid of the data, and count this start. At level ``memory`` there is no data, and nothing to count."""
        row = self._table.get(SELF)
        if not self._context.tables.durable:
            self._wire.identify(self._new_uid(), round(self._context.clock.wall() * 1000))
        elif row is None:
            self._wire.identify(self._new_uid(), 1)
        else:
            self.new = False
            self._wire.identify(row.uid, row.incarnation + 1)
            self.refused_uids = row.refused_uids
            self.copied = self.copied or row.copied
            self.left = row.left
        self._store()

    def _new_uid(self) -> str:
        return f"{self._context.rng.getrandbits(128):032x}"

    def _store(self) -> None:
        wire = self._wire
        self._table.put(SELF, Identity(wire.uid, wire.incarnation, self.left, self.refused_uids, self.copied))

    def note_left(self, left: bool) -> None:
        """Store whether this node has left the cluster."""
        self.left = left
        self._store()

    def note_no_copies(self) -> None:
        """Store that no other node may use a copy of this node's data."""
        self.copied = False
        self._store()

    async def follow(self, incarnation: int) -> None:
        """Number this start after ``incarnation``, which an earlier start with the same data has used."""
        self._wire.identify(self._wire.uid, incarnation + 1)
        self._store()
        await self._context.tables.written()

    def refuse(self, uids: tuple[str, ...]) -> None:
        """Note the uid of data that must not use this node's name, for the record in this bucket and in any new one."""
        refused = self.refused_with(uids)
        if refused != self.refused_uids:
            self.refused_uids = refused
            self._store()

    def refused_with(self, uids: tuple[str, ...]) -> tuple[str, ...]:
        """Return the newest refused uids: the known ones, followed by these."""
        return tuple(dict.fromkeys((*self.refused_uids, *uids)))[-_MOST_REFUSED:]
