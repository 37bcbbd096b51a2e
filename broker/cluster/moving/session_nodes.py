"""Which node has a session: what the files of a move ask ``session_keys``, and what that asks of them.

``Handover`` creates ``SessionKeys``, and hands it to the parts of a move as ``SessionNodes``. ``SessionKeys`` knows
only ``Moves``. Thus no file needs the file that creates it.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...session.client_info import ClientInfo
from ...session.session import Session
from .session_transfer import Keeper, MovedSession, Prepared


class SessionPlace(NamedTuple):
    """The node that has a session; ``node`` is empty if no node has it. ``revision`` is the revision of the key, which
    only grows. ``earlier`` is that of ``wire.SessionKey``."""

    node: str
    uid: str
    revision: int
    earlier: dict[str, bool] | None = None


class SessionNodes(Protocol):
    """What the parts of a move ask about the node of a session. ``SessionKeys`` implements it."""

    async def known(self) -> None:
        """Wait until the bucket has reported which node has each session."""

    def node_of(self, client_id: str) -> str | None:
        """Return the other node that has this session."""

    def place(self, client_id: str) -> SessionPlace | None:
        """Return which node has the session, as far as this node knows."""

    def is_ours(self, place: SessionPlace) -> bool:
        """Return whether this is the place of this node, with its present data."""

    def has(self, client_id: str, revision: int | None = None) -> bool:
        """Return whether this node has the session, with this revision of the key."""

    def is_unknown(self, client_id: str) -> bool:
        """Return whether a session exists here, and this node has not learned yet which node has it."""

    def busy(self, client_id: str) -> bool:
        """Return whether a task works on the key of this session, or has to."""

    async def keep(self, session: Session) -> bool:
        """Write once more that this node has a session. Return False if another node has it."""

    def key_may_go(self, client_id: str) -> None:
        """Note that the key may change, now or later."""

    def may_be_taken(self, client_id: str) -> bool:
        """Return whether the key may still change in this way, as far as this node knows."""

    def key_is_certain(self, client_id: str) -> None:
        """Note that the key has changed, or will not."""

    def settle_soon(self, client_id: str) -> None:
        """Check the key of a client soon."""

    async def settle_earlier_life(self, client_id: str, node: str) -> None:
        """Wait until a write of an earlier life of this node cannot be applied any more."""


class Moves(Protocol):
    """What ``SessionKeys`` and ``Claims`` ask the moves of this node. ``Handover`` implements it."""

    @property
    def checks_owner(self) -> bool:
        """Return whether a session of another owner is refused."""

    def is_undecided(self, client_id: str) -> bool:
        """Return whether this node holds a session and does not know yet whether it has taken it."""

    async def decided(self, client_id: str, timeout: float) -> None:
        """Wait until that is known, but no longer than ``timeout`` seconds."""

    def leaves(self, client_id: str) -> bool:
        """Return whether this session is moving to another node."""

    async def left(self, client_id: str, timeout: float) -> None:
        """Wait until the other node has the session, or no longer needs it."""

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know yet that a whole session has arrived here."""

    def giver(self, client_id: str) -> str:
        """Return the node that a session comes from until all of it has arrived; empty: none."""

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
        """Create the session here; its subscriptions do not apply yet."""

    def begin(self, client_id: str) -> None:
        """Continue the session here, because this node has it, and fetch the rest."""

    def drop(self, client_id: str) -> None:
        """Delete the adopted session, because it stays where it was."""

    def cancel(self, client_id: str) -> None:
        """Inform the other node that it need not wait any longer."""

    def returned(self, client_id: str) -> None:
        """Note that another node has written that this node has a session."""

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """Offer the rest of a session to another node, because the key names that node."""

    def went_on_without(self, client_id: str, nodes: list[str]) -> None:
        """Note that a session is this node's, and continued without these nodes."""

    def session_ended(self, session: Session) -> None:
        """Note that a session of this node has ended."""


class SessionsHere(Protocol):
    """What ``Outgoing`` asks about the sessions that are at this node. ``Handover`` implements it."""

    def is_coming(self, client_id: str) -> bool:
        """Return whether a session cannot move on to another node yet."""

    def arrives(self, client_id: str) -> bool:
        """Return whether a session that is here is still arriving from another node."""

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know that a whole session is here, as ``wire.SessionKey.earlier``."""

    def keepers(self, client_id: str) -> list[Keeper]:
        """Return what other nodes keep for a session, as ``Prepared.keepers``."""

    def doubts(self, client_id: str) -> dict[str, list[tuple[int, str]]]:
        """Return the same as ``Prepared.doubts``."""

    def held(self, client_id: str) -> dict[str, Session]:
        """Return the messages that wait for those of keepers, by sending node."""

    async def release_held(self, client_id: str, to: Callable[[], Session | None], late: bool) -> bool:
        """Deliver waiting messages to a session, and return whether there were any."""

    def end_held(self, client_id: str, session: Session | None) -> None:
        """Let messages wait no longer."""

    def leaving(self, client_id: str) -> None:
        """Note that a session may leave."""

    def kept(self, client_id: str) -> None:
        """Note that a session stays."""

    def gone(self, client_id: str, moved: bool) -> None:
        """Note that a session has left. ``moved``: in order."""
