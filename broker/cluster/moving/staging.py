"""Staging: a session is already here while its queue is still on another node.

New messages wait in a *staging session*, which has the subscriptions in place of the session. When the whole queue has
arrived, the new messages are delivered after it (``merge``), and the session has its subscriptions again. If the client
subscribes or unsubscribes in the meantime, the staging session follows.
"""

import msgspec

from ...session.client_info import ClientInfo
from ...session.session import Session
from ...session.subscription import Subscription
from ..context import ClusterContext
from ..wire import Mark
from .incoming import Incoming, IncomingSessions
from .mark_questions import MarkQuestions
from .session_nodes import SessionNodes
from .turns import Turns
from .waiting_messages import DeferredMessages


class Staging:
    """Begins and ends the staging of incoming sessions. ``Handover`` and ``Fetching`` call it."""

    def __init__(
        self,
        context: ClusterContext,
        incoming: IncomingSessions,
        waiting: DeferredMessages,
        turns: Turns,
        nodes: SessionNodes,
        marks: MarkQuestions,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._incoming = incoming
        self._waiting = waiting
        self._turns = turns
        self._nodes = nodes
        self._marks = marks
        self._watched = False

    def stage(self, incoming: Incoming, session: Session) -> None:
        """Make new messages wait in a staging session from now on."""
        client_id = session.client_id
        if incoming.staging is None:
            incoming.staging = self._waiting.open_staging(session)
        staging = incoming.staging
        before = self._turns.get(client_id)
        if before is None or before.session is not staging:
            place = self._nodes.place(client_id)
            epoch = 0 if place is None else place.revision
            filters = [each.filter for each in session.subscriptions.values() if each.group is None]
            self._turns.begin(client_id, staging, filters, epoch)
            self._incoming.put(incoming, msgspec.structs.replace(incoming.row, epoch=epoch))
            mark = Mark(client_id, self._context.node, epoch)
            self._turns.mark(mark, self._marks.nodes_of(client_id)[1:])
        self.watch()

    async def merge(self, incoming: Incoming, session: Session) -> None:
        """Deliver new messages to the session itself from now on, after those that waited."""
        staging = incoming.staging
        if staging is None:
            return

        def to() -> Session | None:
            is_so = self._incoming.has(incoming) and incoming.staging is staging
            return session if is_so else None

        await self._waiting.deliver_paged(staging, to)
        if to() is None:
            return
        self.join(incoming, staging, session)

    def join(self, incoming: Incoming, staging: Session, session: Session) -> None:
        """Let the session receive new messages itself, after those that are waiting in ``staging`` in memory."""
        router = self._broker.router
        for subscription in session.subscriptions.values():
            router.subscribe(subscription)  # before the others are deleted: so no change is reported to other nodes
        turn = self._turns.get(session.client_id)
        if turn is not None:
            self._turns.settle(turn, session)
        self._waiting.deliver(staging, session)
        self.end(incoming)

    def end(self, incoming: Incoming) -> None:
        """Delete the staging session, if there is one."""
        staging, incoming.staging = incoming.staging, None
        if staging is not None:
            self._broker.life.forget_session(staging)
            self._incoming.tell(incoming)

    # --------------------------------------------------------------- subscriptions of the client

    def unwatch(self) -> None:
        """Stop following subscriptions if nothing is incoming."""
        if self._watched and not self._incoming:
            self._watched = False
            self._broker.hooks.session_subscribed.remove(self._subscribed)
            self._broker.hooks.session_unsubscribed.remove(self._unsubscribed)

    def watch(self) -> None:
        """Start following the subscriptions of clients, because a session is incoming."""
        if self._incoming and not self._watched:
            self._watched = True
            broker = self._broker
            broker.hooks.session_subscribed.add(self._subscribed)
            broker.hooks.session_unsubscribed.add(self._unsubscribed)

    def _subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        session = subscription.session
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is session:
                incoming.ended = [each for each in incoming.ended if each.filter != subscription.filter]
                if incoming.staging is not None:
                    self._waiting.stage(incoming.staging, subscription)

    def _unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        session = subscription.session
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is not session:
                continue
            incoming.ended.append(subscription)
            if incoming.staging is not None:
                self._waiting.unstage(incoming.staging, subscription.filter)
        self._turns.unsubscribed(session.client_id, subscription.filter)
