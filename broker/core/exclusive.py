"""Exclusive subscriptions, as in EMQX: ``$exclusive/<filter>`` is a subscription to ``<filter>`` that one session at a
time may have."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ..mqtt.topics import EXCLUSIVE_PREFIX
from ..session.session import Session
from ..session.subscription import Subscription
from .outcome import EXCLUSIVE_TAKEN, Outcome


class ExclusiveClaims(Protocol):
    """Claims of the nodes of a cluster to exclusive subscriptions: ``cluster.exclusive``."""

    def claim(self, session: Session, topic_filters: Iterable[str]) -> Awaitable[None]:
        """Try to make these filters the session's on all nodes; ``settle`` must follow."""

    def settle(self, topic_filters: Iterable[str]) -> None:
        """Release those of the claimed filters that the session has not subscribed to."""

    def refusal(self, session: Session, topic_filter: str) -> Outcome | None:
        """Return why the session may not have the filter."""

    def released(self, session: Session, topic_filter: str) -> None:
        """Report that a session of this node no longer has the filter."""

    def contested(self, session: Session, topic_filter: str) -> None:
        """Report that a session has arrived with a filter that another session of this node has."""

    def holder(self, topic_filter: str) -> str:
        """Return the client ID whose session has this filter on any node; empty: there is none."""


class ExclusiveSubscriptions:
    """Decides who may have an exclusive subscription. ``holders``: those of this node, filter -> session; ``claims``,
    ``None`` without a cluster, knows those of all nodes. Filters are without ``$exclusive/``, with the mount point."""

    def __init__(self) -> None:
        self.holders: dict[str, Session] = {}
        self.claims: ExclusiveClaims | None = None

    def refusal(self, session: Session, topic_filter: str) -> Outcome | None:
        """Return why the session may not have this filter. In a cluster, the filter must be claimed before."""
        if self.claims is not None:
            return self.claims.refusal(session, topic_filter)
        there = self.holders.get(topic_filter)
        return None if there is None or there is session else EXCLUSIVE_TAKEN

    def holder(self, topic_filter: str) -> str:
        """Return the client ID of the session that has this filter; empty: there is none."""
        if self.claims is not None:
            return self.claims.holder(topic_filter)
        there = self.holders.get(topic_filter)
        return "" if there is None else there.client_id

    def replace(self, subscription: Subscription, unsubscribe: Callable[[Session, str], bool]) -> None:
        """Note a new subscription. Of ``t`` and ``$exclusive/t``, a session has one: end the other one."""
        session, topic_filter = subscription.session, subscription.topic_filter
        if subscription.exclusive:
            unsubscribe(session, topic_filter)
            self.took(subscription)
        elif self.holders and subscription.group is None and self.holders.get(topic_filter) is session:
            unsubscribe(session, EXCLUSIVE_PREFIX + topic_filter)

    def add(self, session: Session) -> None:
        """Note the exclusive subscriptions of a session that was restored, or has moved here."""
        for subscription in session.subscriptions.values():
            if not subscription.exclusive:
                continue
            there = self.holders.get(subscription.topic_filter)
            if self.claims is None or there is None or there.client_id == session.client_id:
                self.took(subscription)
            else:
                self.claims.contested(session, subscription.topic_filter)

    def took(self, subscription: Subscription) -> None:
        """Note that a session has this exclusive subscription now."""
        if not subscription.session.internal:
            self.holders[subscription.topic_filter] = subscription.session

    def remove(self, session: Session, moved: bool = False) -> None:
        """Note that a session is no longer here, before its subscriptions are forgotten. ``moved``: another node has
        it, with its subscriptions."""
        if self.holders:
            for subscription in session.subscriptions.values():
                self.gave_up(subscription, moved)

    def gave_up(self, subscription: Subscription, moved: bool = False) -> None:
        """Note that a session no longer has this subscription, which may be an exclusive one."""
        session, topic_filter = subscription.session, subscription.topic_filter
        if subscription.exclusive and self.holders.get(topic_filter) is session:
            del self.holders[topic_filter]
            if self.claims is not None and not moved:
                self.claims.released(session, topic_filter)
