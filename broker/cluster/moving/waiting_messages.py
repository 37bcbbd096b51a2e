"""DeferredMessages: messages that a session from another node (``handover``) may not receive yet.

They wait in internal sessions of this node, which are as durable as that session:

- ``staging``: new messages, until the whole queue has arrived. Until then, it has the session's subscriptions.
- ``held``: messages of a node while another node keeps earlier ones of it (``turns``, ``outgoing``). There is one such
  session for each sending node.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from ...mqtt.message import Delivery
from ...mqtt.topics import matches
from ...persistence.log import records
from ...persistence.record_mapping import body_of
from ...persistence.stored_message import StoredMessage, stored_of
from ...routing.router import Router
from ...session.client_info import ClientInfo
from ...session.protocols import NO_LOCAL, UNREADABLE
from ...session.session import Session
from ...session.subscription import Subscription
from ..context import ClusterContext
from .session_transfer import SessionReceiver, moved_delivery, with_qos0
from .turns import copy_for

_STAGING: Final = "\0staging:"
_HELD: Final = "\0held:"


class DeferredMessages:
    """Stores the waiting messages in internal sessions, by client ID. ``Staging`` and ``HeldMessages`` decide when
    messages wait."""

    def __init__(self, context: ClusterContext, receiver: SessionReceiver) -> None:
        self._context = context
        self._broker = context.broker
        self._receiver = receiver
        # For each client ID and sending node, the session with that node's messages.
        self._held: dict[str, dict[str, Session]] = {}

    def load(self) -> None:
        """Read the held sessions after the node has restored its sessions."""
        for name, session in self._broker.sessions.internal.items():
            if name.startswith(_HELD):
                node, _, client_id = name.removeprefix(_HELD).partition("\0")
                self._held.setdefault(client_id, {})[node] = session

    # ------------------------------------------------------------------- sessions

    def staging(self, client_id: str) -> Session | None:
        """Return the staging session that existed before the restart."""
        return self._broker.sessions.internal.get(_STAGING + client_id)

    def stagings(self) -> list[tuple[str, Session]]:
        """Return all staging sessions that existed before the restart, with their client IDs."""
        internal = self._broker.sessions.internal.items()
        return [(name.removeprefix(_STAGING), each) for name, each in internal if name.startswith(_STAGING)]

    def held(self, client_id: str) -> dict[str, Session]:
        """Return the held sessions, by the node that sent their messages."""
        return self._held.get(client_id, {})

    def held_clients(self) -> list[str]:
        return list(self._held)

    def open_staging(self, session: Session) -> Session:
        """Open the staging session of a session, which gets the new messages from now on."""
        staging = self._open(_STAGING, session)
        staging.clear_subscriptions()
        for subscription in session.subscriptions.values():
            self.stage(staging, subscription)
        return staging

    def open_held(self, session: Session, node: str) -> Session:
        """Return the session that holds the messages of this node; create it if necessary."""
        held = self._held.setdefault(session.client_id, {})
        if node not in held:
            held[node] = self._open(f"{_HELD}{node}\0", session)
        return held[node]

    def end_held(self, client_id: str, node: str, session: Session | None) -> None:
        """Stop holding messages of the node, and deliver them to this session, if there is one."""
        found = self._held[client_id]
        held = found.pop(node)
        if not found:
            del self._held[client_id]
        if session is not None:
            self.deliver(held, session)
        self._broker.life.forget_session(held)

    def _open(self, prefix: str, session: Session) -> Session:
        client = ClientInfo(self._broker.node, session.client.zone, client_id=prefix + session.client_id)
        return self._broker.life.open_internal(client, with_qos0(session.limits), self._context.clock.now())

    def stage(self, staging: Session, subscription: Subscription) -> None:
        """Subscribe the staging session in place of the session."""
        staged = copy_for(staging, subscription)
        staging.put_subscription(staged)
        _subscribe_in_place(self._broker.router, subscription, staged)

    def unstage(self, staging: Session, filter: str) -> None:
        """Delete the staging session's subscription, because the client has unsubscribed."""
        staged = staging.pop_subscription(filter)
        if staged is not None:
            self._broker.router.unsubscribe(staged)

    # ------------------------------------------------------------------- messages

    def deliver(self, waiting: Session, session: Session) -> None:
        """Deliver all waiting messages now."""
        for delivery in waiting.queue or ():
            self._deliver_one(session, delivery)

    async def deliver_paged(self, waiting: Session, to: Callable[[], Session | None]) -> None:
        """Deliver waiting messages in pieces, until none is left that is only on disk. ``to``: returns the session, or
        ``None`` if it no longer exists. If messages keep arriving, the pieces grow."""
        durability = self._broker.durability
        if durability is None:
            return
        most = self._context.piece_messages
        pieces = 2 + 2 * waiting.queued // most
        while any(each.message.paged for each in waiting.queue or ()):
            if not pieces:
                most = min(2 * most, 1 + waiting.queued)
            pieces = max(0, pieces - 1)
            piece = list(islice(waiting.queue or (), most))
            bodies: dict[int, records.StoredBody] = {}

            def take(stored: StoredMessage, bodies: dict[int, records.StoredBody] = bodies) -> None:
                bodies[stored.number] = body_of(stored.message, -self._context.clock.now())

            found = [stored_of(each.message) for each in piece]
            await durability.paging.load([each for each in found if each is not None], take)
            # In the meantime, the first message may have been dropped, and a new one may be in front of it.
            for _ in piece:
                session, queue = to(), waiting.queue
                if session is None:
                    return
                delivery = next(iter(queue or ()), None)
                if queue is None or delivery is None:
                    break
                stored = stored_of(delivery.message)
                body = None if stored is None else bodies.get(stored.number)
                if delivery.message.paged and body is None and (stored is None or not stored.lost):
                    break
                queue.pop()
                self._deliver_one(session, delivery, body)
                if waiting.journal is not None and delivery.qos:
                    waiting.journal.done(waiting, (delivery,))

    def _deliver_one(self, session: Session, delivery: Delivery, body: records.StoredBody | None = None) -> None:
        """Deliver one message. A message that arrived while others were being fetched is stored again, after those: a
        restart restores a queue in the order in which its messages were stored. ``body`` is passed for a message that
        may have left memory; without it, the message stays in the store as it is."""
        session.now = now = self._context.clock.now()
        message = delivery.message
        stored = stored_of(message)
        if stored is not None and stored.lost:
            self._broker.delivery_dropped(session, delivery, UNREADABLE)
            return
        if message.publisher is not None and message.publisher.client_id == session.client_id:
            if not delivery.group and _only_others(session, message.topic):
                self._broker.delivery_dropped(session, delivery, NO_LOCAL)
                return
        if not self._broker.may_read(session, delivery):
            return
        if message.paged and body is None:
            session.deliver_shared(_copy(delivery))
        else:
            session.deliver_shared(self._receiver.delivery(moved_delivery(delivery, now, body)))


def _copy(delivery: Delivery) -> Delivery:
    return Delivery(delivery.message, delivery.qos, delivery.retain, delivery.identifiers, delivery.group)


def _subscribe_in_place(router: Router, old: Subscription, new: Subscription) -> None:
    """Replace a subscription without leaving the filter without a subscriber, so that no change is reported to other
    nodes."""
    router.subscribe(new)
    router.unsubscribe(old)


def _only_others(session: Session, topic: str) -> bool:
    """Return whether all subscriptions that match this topic have No Local, so that the client does not get its own
    messages."""
    found = [each for each in session.subscriptions.values() if not each.group and matches(each.topic_filter, topic)]
    return bool(found) and all(each.no_local for each in found)
