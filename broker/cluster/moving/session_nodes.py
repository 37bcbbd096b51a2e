"""Which node has a session: the interfaces between ``session_keys`` and the files that move a session.

``Handover`` creates ``SessionKeys``, and hands it to the parts of a move as ``SessionNodes``. ``SessionKeys`` knows
only ``Moves``. Thus no file imports the file that creates its objects.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...session.client_info import ClientInfo
from ...session.session import Session
from .session_transfer import MovedSession, Prepared


class SessionPlace(NamedTuple):
    """The node that has a session; ``node`` is empty if no node has it. ``revision`` is the revision of the key, which
    only grows. ``earlier`` is that of ``wire.SessionKey``."""

    node: str
    uid: str
    revision: int
    earlier: dict[str, bool] | None = None


class SessionNodes(Protocol):
    """The node of each session, as the parts of a move see it. ``SessionKeys`` implements it."""

    async def known(self) -> None:
        """Wait until the bucket has reported which node has each session."""

    def node_of(self, client_id: str) -> str | None:
        """Return the other node that has this session."""

    def place(self, client_id: str) -> SessionPlace | None:
        """Return which node has the session, as far as this node knows."""

    def is_ours(self, place: SessionPlace) -> bool:
        """Return whether this place names this node with its present data."""

    def has(self, client_id: str, revision: int | None = None) -> bool:
        """Return whether this node has the session, with this revision of the key."""

    def is_unknown(self, client_id: str) -> bool:
        """Return whether a copy of the session exists here, and this node has not learned yet which node owns it."""

    def busy(self, client_id: str) -> bool:
        """Return whether a task is working on the key of this session, or is about to."""

    async def keep(self, session: Session) -> bool:
        """Write once more that this node has a session. Return False if another node has it."""

    def key_may_go(self, client_id: str) -> None:
        """Note that the key may change, now or later."""

    def may_be_taken(self, client_id: str) -> bool:
        """Return whether the key may still be changed by another node, as far as this node knows."""

    def key_is_certain(self, client_id: str) -> None:
        """Note that the key has changed, or certainly will not."""

    def settle_soon(self, client_id: str) -> None:
        """Check the key of a client soon."""

    async def settle_earlier_life(self, client_id: str, node: str) -> None:
        """Wait until a write from before this node's start can no longer be applied."""


class Moves(Protocol):
    """The moves of this node, as ``SessionKeys`` and ``Claims`` see them. ``Handover`` implements it."""

    @property
    def checks_owner(self) -> bool:
        """Return whether a session of another owner is refused."""

    def is_undecided(self, client_id: str) -> bool:
        """Return whether this node has adopted a session, but does not know yet whether the key names this node."""

    async def decided(self, client_id: str, timeout: float) -> None:
        """Wait until the session is no longer undecided, for at most ``timeout`` seconds."""

    def leaves(self, client_id: str) -> bool:
        """Return whether this session is moving to another node."""

    async def left(self, client_id: str, timeout: float) -> None:
        """Wait until the other node has the session or no longer needs it."""

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know yet that the whole session has arrived here."""

    def giver(self, client_id: str) -> str:
        """Return the node from which a session is still arriving, or an empty string if all of it is here."""

    async def prepare(
        self,
        node: str,
        revision: int,
        client: ClientInfo,
        move: str,
        clean_start: bool,
        waits: Callable[[], bool],
        timeout: float,
        absent: bool = False,
    ) -> Prepared:
        """Ask a node for a session whose key has this revision."""

    def adopt(self, client_id: str, node: str, move: str, moved: MovedSession, prepared: Prepared) -> None:
        """Create the session here. Its subscriptions do not apply yet."""

    def begin(self, client_id: str) -> None:
        """Continue the session here, because this node has it, and fetch the rest."""

    def drop(self, client_id: str) -> None:
        """Delete the adopted session, because the other node keeps it."""

    def cancel(self, client_id: str) -> None:
        """Inform the other node that it does not have to wait any longer."""

    def returned(self, client_id: str) -> None:
        """Note that another node has returned a session: its key names this node again."""

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """Offer the rest of a session to another node, because the key names that node."""

    def went_on_without(self, client_id: str, nodes: list[str]) -> None:
        """Note that this node has a session that continued without these nodes."""

    def session_ended(self, session: Session) -> None:
        """Note that a session of this node has ended."""


class SessionsHere(Protocol):
    """The sessions of this node, as ``Outgoing`` sees them. ``Handover`` implements it."""

    def is_coming(self, client_id: str) -> bool:
        """Return whether a session cannot move on to another node yet."""

    def arrives(self, client_id: str) -> bool:
        """Return whether a session that is here is still arriving from another node."""

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know yet that the whole session is here, in the form of
        ``wire.SessionKey.earlier``."""

    def leaving(self, client_id: str) -> None:
        """Note that a session may leave."""

    def kept(self, client_id: str) -> None:
        """Note that a session stays."""

    def gone(self, client_id: str, moved: bool) -> None:
        """Note that a session has left. ``moved``: its keepers have moved with it."""
