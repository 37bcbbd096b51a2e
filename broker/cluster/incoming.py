"""IncomingSessions: the sessions that come here from other nodes (``handover``), each with a row that lets it go on
after a restart; and what nodes keep for sessions that are here (``outgoing``), which comes in the same way."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from ..session.session import Session
from ..session.subscription import Subscription
from .context import ClusterContext
from .session_transfer import Keeper
from .turns import kept_name

TABLE: Final = "handover"
TABLE_DOUBTS: Final = "handover_doubts"

# Where a session that comes stands (``HandoverRow.state``).
ADOPTED: Final = 0
"""It is here, and the key may be another node's still."""
FETCHING: Final = 1
FINISHED: Final = 2
"""All of it is here; the other node is to forget it."""


class HandoverRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover``, by ``Incoming.key``. ``taken``: the number of the last piece, ``doubt`` which messages
    it had. ``rest``: nothing but the queue of a session that was begun anew here, or was here already. ``late``: nodes
    that may still send to the other one what is for this session. ``epoch``: of the key here; with ``keep`` the other
    node goes on to take what those send. Of what is kept: of the key when the session had gone from there, and by
    ``order`` what the session was at first is lower."""

    node: str
    move: str
    state: int
    taken: int = 0
    doubt: list[tuple[int, str]] = []
    rest: bool = False
    late: list[str] = []
    epoch: int = 0
    keep: bool = False
    order: int = 0


class DoubtRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_doubts``, by Client Identifier: as ``Prepared.doubts``, of nodes that a session which is
    here was at before the node that it has come from."""

    messages: dict[str, list[tuple[int, str]]]


class Incoming:
    """One session that comes, or, where ``keeper`` is its node, what that keeps for a session that is here."""

    def __init__(self, key: str, row: HandoverRow) -> None:
        self.key = key
        self.client_id, _, kept = key.partition("\0")
        self.keeper = kept.partition("\0")[0]
        self.row = row
        self.session: Session | None = None
        self.staging: Session | None = None
        # All of the queue has come, and the other node knows.
        self.came = False
        self.told = False
        # When its delayed will is due, and filters whose retained messages were not all sent.
        self.will_due = 0.0
        self.replays: list[str] = []
        # Subscriptions that are over since it came: what the other node's queue has of them is dropped.
        self.ended: list[Subscription] = []
        # The node has started again since a piece was asked for: QoS 0 of that one may have gone to the client.
        self.restarted = False
        self.task: asyncio.Task[None] | None = None

    @property
    def at_sender(self) -> str:
        """What the other node knows it by."""
        return kept_name(self.client_id, self.row.epoch) if self.keeper else self.client_id


class IncomingSessions:
    """By client; what is kept for a session by client, node and epoch, too."""

    def __init__(self, context: ClusterContext) -> None:
        self._rows = context.tables.open(TABLE, HandoverRow)
        self._doubts = context.tables.open(TABLE_DOUBTS, DoubtRow)
        self._coming: dict[str, Incoming] = {}
        # Of these, what is kept somewhere, by client.
        self._kept: dict[str, list[Incoming]] = {}
        self._keepers = 0

    def load(self) -> None:
        """As the last life has left them."""
        for key, row in self._rows.items():
            incoming = Incoming(key, row)
            incoming.restarted = True
            self._add(incoming)

    def __len__(self) -> int:
        return len(self._coming)

    @property
    def sessions(self) -> int:
        """How many come themselves."""
        return len(self._coming) - self._keepers

    def all(self) -> list[Incoming]:
        return list(self._coming.values())

    def get(self, client_id: str) -> Incoming | None:
        """The session itself, where it comes."""
        return self._coming.get(client_id)

    def has(self, incoming: Incoming) -> bool:
        """Whether it is not over, and no other one has its place."""
        return self._coming.get(incoming.key) is incoming

    def of(self, client_id: str) -> list[Incoming]:
        """All that comes for a client's session."""
        main = self._coming.get(client_id)
        return [*([] if main is None else [main]), *self._kept.get(client_id, ())]

    def keepers_of(self, client_id: str) -> list[Incoming]:
        """Those that still keep something, in the order in which the session was there."""
        found = [each for each in self._kept.get(client_id, ()) if each.row.state == FETCHING]
        return sorted(found, key=lambda each: each.row.order)

    def keepers(self, client_id: str) -> list[Keeper]:
        """The session goes to another node: who keeps what for it."""
        rows = [each.row for each in self.keepers_of(client_id)]
        return [Keeper(row.node, row.taken, row.doubt, row.late, row.epoch) for row in rows]

    def late_of(self, client_id: str) -> set[str]:
        """Nodes of whose messages some are with a keeper, or may still come there."""
        return {name for each in self.keepers_of(client_id) for name in each.row.late}

    def doubts(self, client_id: str) -> dict[str, list[tuple[int, str]]]:
        """As ``Prepared.doubts``, of a session that goes to another node."""
        row = self._doubts.get(client_id)
        found = {} if row is None else dict(row.messages)
        main = self._coming.get(client_id)
        if main is not None and main.row.state == FETCHING and main.row.doubt:
            found[main.row.node] = main.row.doubt
        return found

    def doubt_of(self, client_id: str, node: str) -> list[tuple[int, str]]:
        """The messages of a node's store that its earlier session had given away last."""
        row = self._doubts.get(client_id)
        return [] if row is None else row.messages.get(node, [])

    def is_early(self, keeper: Incoming) -> bool:
        """Whether what it keeps comes after something that is still to come from elsewhere: from the node where the
        session was last, or from one where it was before this one, and that keeps messages of the same nodes."""
        main = self._coming.get(keeper.client_id)
        if main is not None:
            if main.row.state == ADOPTED or (main.staging is not None and not main.came):
                return True
            if (main.row.node, main.row.epoch) == (keeper.row.node, keeper.row.epoch) and not main.told:
                return True  # it does not keep it yet
        late = set(keeper.row.late)
        before = [each for each in self.keepers_of(keeper.client_id) if each.row.order < keeper.row.order]
        return any(not late.isdisjoint(each.row.late) for each in before)

    # ------------------------------------------------------------------- changes

    def begin(self, client_id: str, row: HandoverRow, session: Session) -> Incoming:
        """A session comes."""
        incoming = Incoming(client_id, row)
        incoming.session = session
        self._add(incoming)
        self._rows.put(client_id, row)
        return incoming

    def keep(self, client_id: str, row: HandoverRow, session: Session) -> None:
        """The row's node keeps something for a session."""
        key = f"{client_id}\0{row.node}\0{row.epoch}"
        before = self._coming.get(key)
        if before is not None:
            self.remove(before)
        keeper = Incoming(key, row)
        keeper.session = session
        self._add(keeper)
        self._rows.put(key, row)

    def keep_all(self, client_id: str, keepers: Iterable[Keeper], session: Session) -> None:
        """They came with a session, in their order."""
        for order, each in enumerate(keepers, 1):
            row = HandoverRow(
                each.node, "", FETCHING, each.taken, each.doubt, True, each.late, epoch=each.epoch, order=order
            )
            self.keep(client_id, row, session)

    def note_doubts(self, client_id: str, doubts: dict[str, list[tuple[int, str]]]) -> None:
        """They came with a session; empty: they are over."""
        if doubts:
            self._doubts.put(client_id, DoubtRow(doubts))
        elif self._doubts.get(client_id) is not None:
            self._doubts.remove(client_id)

    def put(self, incoming: Incoming, row: HandoverRow) -> None:
        """It stands somewhere else."""
        incoming.row = row
        self._rows.put(incoming.key, row)

    def remove(self, incoming: Incoming) -> None:
        """It is over."""
        if self._coming.get(incoming.key) is not incoming:
            return
        del self._coming[incoming.key]
        self._rows.remove(incoming.key)
        kept = self._kept.get(incoming.client_id)
        if kept is not None and incoming in kept:
            kept.remove(incoming)
            self._keepers -= 1
            if not kept:
                del self._kept[incoming.client_id]

    def _add(self, incoming: Incoming) -> None:
        self._coming[incoming.key] = incoming
        if incoming.keeper:
            self._keepers += 1
            self._kept.setdefault(incoming.client_id, []).append(incoming)
