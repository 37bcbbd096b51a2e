"""IncomingSessions: the sessions that move to this node (``handover``), and messages that other nodes keep for sessions
here (``outgoing``), which are received in the same way. Each has a row, so that the move continues after a restart."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from ...session.session import Session
from ...session.subscription import Subscription
from ..changes import Changes
from ..context import ClusterContext
from .session_transfer import Keeper
from .turns import kept_name

TABLE: Final = "handover"
TABLE_DOUBTS: Final = "handover_doubts"

# The state of an incoming session (``HandoverRow.state``).
ADOPTED: Final = 0
"""The session is here, but its key may still belong to another node."""
FETCHING: Final = 1
FINISHED: Final = 2
"""The whole session is here; the other node still has to forget it."""


class HandoverRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover``, by ``Incoming.key``: what this node fetches from ``node``, and how much of it has
    arrived.

    ``taken`` is the number of the last piece that is on disk, and ``doubt`` its messages. ``rest`` is set if only the
    queue is fetched, for a session that was already here. ``late`` names the senders whose messages may still arrive at
    ``node``. ``epoch`` is the epoch of the stay here; for a keeper, the epoch with which the stay at ``node`` ended.
    ``keep`` is set if ``node`` keeps a stay for late senders after the move. ``order`` is the position of a keeper:
    messages at a keeper with a lower number are earlier.
    """

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
    """A row of the table ``handover_doubts``, by Client Identifier: the doubts of ``Prepared.doubts``, for a session
    that is here, from nodes that had it before the node it arrived from."""

    messages: dict[str, list[tuple[int, str]]]


class Incoming:
    """One session that is arriving, or the messages that another node keeps for a session here.

    For a session, ``keeper`` is empty and ``staging`` is the session in which new messages wait. For kept messages,
    ``keeper`` is the node that has them.
    """

    def __init__(self, key: str, row: HandoverRow) -> None:
        self.key = key
        self.client_id, _, kept = key.partition("\0")
        self.keeper = kept.partition("\0")[0]
        self.row = row
        self.session: Session | None = None
        self.staging: Session | None = None
        # The whole queue has arrived, and the other node knows it: set by ``IncomingSessions``.
        self.came = False
        self.told = False
        # Of this incoming session, and of all that is incoming for its client.
        self.changes = Changes()
        # When its delayed Will is due, and filters whose retained messages were not all sent.
        self.will_due = 0.0
        self.replays: list[str] = []
        # Subscriptions that have ended since its arrival: their messages in the other node's queue are dropped.
        self.ended: list[Subscription] = []
        # The node has restarted since a piece was requested: QoS 0 messages of that piece may have been sent to the
        # client.
        self.restarted = False
        self.task: asyncio.Task[None] | None = None

    @property
    def goes_by_marks(self) -> bool:
        """Whether the other node accepts messages until their senders' marks: its queue is complete when all running
        nodes have sent their marks."""
        return self.staging is not None or (not self.keeper and self.row.epoch > 0)

    @property
    def at_sender(self) -> str:
        """The client ID under which the other node knows the incoming session."""
        return kept_name(self.client_id, self.row.epoch) if self.keeper else self.client_id


class IncomingSessions:
    """The incoming sessions by client ID, and the kept messages by client ID, node and epoch."""

    def __init__(self, context: ClusterContext) -> None:
        self._rows = context.tables.open(TABLE, HandoverRow)
        self._doubts = context.tables.open(TABLE_DOUBTS, DoubtRow)
        self._coming: dict[str, Incoming] = {}
        # Of these, messages that are kept somewhere, by client.
        self._kept: dict[str, list[Incoming]] = {}
        self._keepers = 0

    def load(self) -> None:
        """Load the state that the previous process has stored."""
        for key, row in self._rows.items():
            incoming = Incoming(key, row)
            incoming.restarted = True
            self._add(incoming)

    def __len__(self) -> int:
        return len(self._coming)

    @property
    def sessions(self) -> int:
        """Return the number of incoming sessions, without kept messages."""
        return len(self._coming) - self._keepers

    def all(self) -> list[Incoming]:
        return list(self._coming.values())

    def get(self, client_id: str) -> Incoming | None:
        """Return the incoming session itself, if there is one."""
        return self._coming.get(client_id)

    def has(self, incoming: Incoming) -> bool:
        """Return whether this incoming session is still active: it has neither ended nor been replaced."""
        return self._coming.get(incoming.key) is incoming

    def of(self, client_id: str) -> list[Incoming]:
        """Return everything that is incoming for a client's session."""
        main = self._coming.get(client_id)
        return [*([] if main is None else [main]), *self._kept.get(client_id, ())]

    def keepers_of(self, client_id: str) -> list[Incoming]:
        """Return the keepers of a client's session, in the order in which they had it."""
        found = [each for each in self._kept.get(client_id, ()) if each.row.state == FETCHING]
        return sorted(found, key=lambda each: each.row.order)

    def keepers(self, client_id: str) -> list[Keeper]:
        """Return the keepers of a session that moves to another node, in the form of ``Prepared.keepers``."""
        rows = [each.row for each in self.keepers_of(client_id)]
        return [Keeper(row.node, row.taken, row.doubt, row.late, row.epoch) for row in rows]

    def late_of(self, client_id: str) -> set[str]:
        """Return the senders whose earlier messages are at a keeper or may still arrive there."""
        return {name for each in self.keepers_of(client_id) for name in each.row.late}

    def doubts(self, client_id: str) -> dict[str, list[tuple[int, str]]]:
        """Return ``Prepared.doubts`` for a session that moves to another node."""
        row = self._doubts.get(client_id)
        found = {} if row is None else dict(row.messages)
        main = self._coming.get(client_id)
        if main is not None and main.row.state == FETCHING and main.row.doubt:
            found[main.row.node] = main.row.doubt
        return found

    def doubt_of(self, client_id: str, node: str) -> list[tuple[int, str]]:
        """Return the messages in a node's store that may have arrived at an earlier node of this session already."""
        row = self._doubts.get(client_id)
        return [] if row is None else row.messages.get(node, [])

    def is_early(self, keeper: Incoming) -> bool:
        """Return whether a keeper's messages have to wait for earlier ones: those of the node that had the session
        last, or of an earlier keeper of messages from the same senders."""
        main = self._coming.get(keeper.client_id)
        if main is not None:
            if main.row.state == ADOPTED or (main.staging is not None and not main.came):
                return True
            if (main.row.node, main.row.epoch) == (keeper.row.node, keeper.row.epoch) and not main.told:
                return True  # it does not keep anything yet
        late = set(keeper.row.late)
        before = [each for each in self.keepers_of(keeper.client_id) if each.row.order < keeper.row.order]
        return any(not late.isdisjoint(each.row.late) for each in before)

    # ------------------------------------------------------------------- changes

    def begin(self, client_id: str, row: HandoverRow, session: Session) -> Incoming:
        """Add a session that is moving to this node."""
        incoming = Incoming(client_id, row)
        incoming.session = session
        self._add(incoming)
        self._rows.put(client_id, row)
        return incoming

    def keep(self, client_id: str, row: HandoverRow, session: Session) -> None:
        """Note that the node in this row keeps messages for a session."""
        key = f"{client_id}\0{row.node}\0{row.epoch}"
        before = self._coming.get(key)
        if before is not None:
            self.remove(before)
        keeper = Incoming(key, row)
        keeper.session = session
        self._add(keeper)
        self._rows.put(key, row)

    def keep_all(self, client_id: str, keepers: Iterable[Keeper], session: Session) -> None:
        """Add keepers that came with a session, in their order."""
        for order, each in enumerate(keepers, 1):
            row = HandoverRow(
                each.node, "", FETCHING, each.taken, each.doubt, True, each.late, epoch=each.epoch, order=order
            )
            self.keep(client_id, row, session)

    def note_doubts(self, client_id: str, doubts: dict[str, list[tuple[int, str]]]) -> None:
        """Store the doubts that came with a session; an empty dictionary: the doubts are resolved."""
        if doubts:
            self._doubts.put(client_id, DoubtRow(doubts))
        elif self._doubts.get(client_id) is not None:
            self._doubts.remove(client_id)

    def put(self, incoming: Incoming, row: HandoverRow) -> None:
        """Store the new state of an incoming session."""
        incoming.row = row
        self._rows.put(incoming.key, row)
        self.tell(incoming)

    def note_came(self, incoming: Incoming) -> None:
        """Note that the whole queue has arrived."""
        incoming.came = True
        self.tell(incoming)

    def note_told(self, incoming: Incoming) -> None:
        """Note that the other node knows that the whole queue has arrived."""
        incoming.told = True
        self.tell(incoming)

    def tell(self, incoming: Incoming) -> None:
        """Wake the tasks that wait for a change of this client's incoming sessions."""
        incoming.changes.tell()
        for each in self.of(incoming.client_id):
            if each is not incoming:
                each.changes.tell()

    def remove(self, incoming: Incoming) -> None:
        """Remove an incoming session that is complete."""
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
        self.tell(incoming)

    def _add(self, incoming: Incoming) -> None:
        self._coming[incoming.key] = incoming
        if incoming.keeper:
            self._keepers += 1
            self._kept.setdefault(incoming.client_id, []).append(incoming)
        self.tell(incoming)
