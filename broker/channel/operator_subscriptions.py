"""OperatorSubscriptions: subscribes the clients of this node for the operator, at any time after CONNACK."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ..core.operator_subscriptions import subscribe_for_operator
from ..core.outcome import CLIENT_GONE, FILTER_INVALID, STORE_TROUBLE, Outcome
from ..core.subscription_plan import FilterPlan, plan_filter
from ..loop.cooperative_slice import CooperativeSlice
from ..mqtt import reason_codes
from ..mqtt.packets import TopicFilter
from ..session.session import Session
from .context import ChannelContext

_BAD_QOS: Final = Outcome(reason_codes.TOPIC_FILTER_INVALID, "mqtt_sub", "expected the QoS 0, 1 or 2")


class OperatorSubscriptions:
    """Access rules do not apply, as for proxy subscriptions."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context

    def connected(self, client_id: str) -> bool:
        """Return whether the client is connected to this node."""
        return self._session(client_id) is not None

    async def subscribe(self, client_id: str, filters: Sequence[tuple[object, object]]) -> list[tuple[str, Outcome]]:
        """Subscribe a client that is connected to this node to filters with their QoS, which another system has named.
        Return those that were refused. Each is logged and counted, unless the client has gone."""
        broker = self._context.broker
        refused: list[tuple[str, Outcome]] = []
        work = CooperativeSlice()
        for given, qos in filters:
            await work.checkpoint()
            text = given if isinstance(given, str) else repr(given)
            refusal: Outcome | None = FILTER_INVALID
            if isinstance(given, str):
                refusal = _BAD_QOS if qos not in (0, 1, 2) else await self._subscribe(client_id, TopicFilter(text, qos))
            if refusal is CLIENT_GONE:
                break
            if refusal is not None:
                broker.note_refusal("subscribe_refused", client_id, text, refusal, self._context.clock.now())
                refused.append((text, refusal))
        session = self._session(client_id)
        if session is not None:
            self.send_retained(session)
        return refused

    async def _subscribe(self, client_id: str, entry: TopicFilter) -> Outcome | None:
        """Return why the client was not subscribed."""
        session = self._session(client_id)
        if session is None:
            return CLIENT_GONE
        broker = self._context.broker
        if session.durable and broker.store_in_trouble:
            return STORE_TROUBLE
        plan = plan_filter(entry, session.client, broker.rewriting)
        async with self.claimed(session, [plan]):
            if self._session(client_id) is not session:
                return CLIENT_GONE
            return subscribe_for_operator(broker, session, plan)

    @asynccontextmanager
    async def claimed(self, session: Session, plans: Sequence[FilterPlan]) -> AsyncIterator[None]:
        """Claim the exclusive filters of these plans for a session on all nodes, while it is subscribed."""
        exclusive = [plan.mounted for plan in plans if plan.exclusive and plan.refusal is None]
        claims = self._context.broker.exclusive.claims if exclusive else None
        if claims is None:
            yield
            return
        try:
            await claims.claim(session, exclusive)
            yield
        finally:
            claims.settle(exclusive)

    def send_retained(self, session: Session) -> None:
        """Send the retained messages of new subscriptions; if packets wait for the disk, they follow these."""
        channel = self._context.channels.get(session.client_id)
        if channel is not None and channel.session is session and channel.writer.held_packets is None:
            session.advance(self._context.clock.now())

    def _session(self, client_id: str) -> Session | None:
        session = self._context.broker.sessions.get(client_id)
        return session if session is not None and session.connected else None
