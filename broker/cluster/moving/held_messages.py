"""HeldMessages: messages of a sender that wait here while another node keeps earlier messages of that sender.

C was away while ``pump-7`` moved from A to B. A keeps m1 and m2, which C had sent there. C is back, and sends m3 to B::

    m3 arrives at B      A may have earlier messages of C: m3 is held
    B fetches m1, m2     from A, which has nothing left of C now
    release              m3 is delivered after them
"""

from collections.abc import Callable

from ...session.session import Session
from ..context import ClusterContext
from .incoming import IncomingSessions
from .turns import Turn
from .waiting_messages import DeferredMessages


class HeldMessages:
    """Decides when messages are held and when they are delivered. ``DeferredMessages`` stores them. ``leaves`` returns
    whether a session is moving to another node."""

    def __init__(
        self,
        context: ClusterContext,
        incoming: IncomingSessions,
        waiting: DeferredMessages,
        leaves: Callable[[str], bool],
    ) -> None:
        self._broker = context.broker
        self._incoming = incoming
        self._waiting = waiting
        self._leaves = leaves

    def attend(self, turn: Turn) -> None:
        """Make a node's messages wait while earlier ones wait or are still at a keeper."""
        client_id = turn.client_id

        def held(node: str) -> Session:
            session = self._broker.sessions.get(client_id)
            assert session is not None
            return self._waiting.open_held(session, node)

        def waiting(node: str) -> bool:
            late = turn.marked(node) and node in self._incoming.late_of(client_id)
            return late or node in self._waiting.held(client_id)

        turn.waiting = waiting
        turn.held = held

    def of(self, client_id: str) -> dict[str, Session]:
        """Return the held messages of a client's session, by the node that sent them."""
        return self._waiting.held(client_id)

    async def release(self, client_id: str) -> None:
        """Deliver the waiting messages of each node whose earlier messages have all arrived from their keepers."""

        def to() -> Session | None:
            if self._leaves(client_id):
                return None
            incoming = self._incoming.get(client_id)
            staging = None if incoming is None else incoming.staging
            return staging or self._broker.sessions.get(client_id)

        await self.release_to(client_id, to, False)

    async def release_to(self, client_id: str, to: Callable[[], Session | None], late: bool) -> bool:
        """Deliver held messages, and return whether there were any. ``to`` returns the session that gets them, or
        ``None`` if it no longer exists. ``late``: deliver messages of a sender even if a keeper still has earlier
        ones."""
        released = False
        for node, held in list(self._waiting.held(client_id).items()):

            def still_to(node: str = node, held: Session = held) -> Session | None:
                waits = self._waiting.held(client_id).get(node) is held
                return to() if waits and (late or node not in self._incoming.late_of(client_id)) else None

            if still_to() is None:
                continue
            released = True
            await self._waiting.deliver_paged(held, still_to)
            session = still_to()
            if session is not None:
                self._waiting.end_held(client_id, node, session)
        return released

    def end(self, client_id: str, session: Session | None) -> None:
        """Stop holding messages of a client: deliver them to ``session``, or delete them if it is ``None``."""
        for node in list(self._waiting.held(client_id)):
            self._waiting.end_held(client_id, node, session)
