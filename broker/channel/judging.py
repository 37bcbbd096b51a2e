"""Judging: whether a client may read a topic that one of its subscriptions matches, if the rules deny a part of the
subscription.

With ``subscribe_check = "delivery"``, a filter that is wider than the rules is granted, and its subscription is
``judged``: the rules are checked for each topic. The result is cached with the route of the topic (``routing.router``),
and in the client's cache of decisions."""

from typing import TYPE_CHECKING

from ..access.decision import Decision
from ..session.client_info import ClientInfo
from ..session.subscription import Subscription

if TYPE_CHECKING:
    from .context import ChannelContext


def may_be_judged(context: "ChannelContext", client: ClientInfo, topic_filter: str, decision: Decision) -> bool:
    """Return whether a denied filter is granted nevertheless. ``decision``: the denial; the decision of a hook, or of a
    service that gave no answer, applies to the whole filter."""
    if client.zone.subscribe_check != "delivery" or decision.setting == "-" or not decision.lasting:
        return False
    return context.authorization.allows_some(client, topic_filter)


def set_judged(context: "ChannelContext", subscription: Subscription, judged: bool) -> None:
    """Set whether an existing subscription is judged."""
    router = context.broker.router
    if judged and router.judge is None:
        router.judge = lambda subscription, topic: may_read(context, subscription, topic)
    if judged or subscription.judged:
        subscription.judged = judged
        router.forget_judgements()


def may_read(context: "ChannelContext", subscription: Subscription, topic: str) -> bool:
    """Return whether the client of a judged subscription may read this topic now. If that can only be decided when the
    client is connected, the message is kept and judged then."""
    session = subscription.session
    channel = context.channels.get(session.client_id)
    here = channel is not None and channel.session is session
    client = channel.client if channel is not None and here else session.client
    mountpoint = client.mountpoint
    if mountpoint:
        if not topic.startswith(mountpoint):
            return False
        topic = topic[len(mountpoint) :]
    if here:
        decision = context.authorization.authorize(client, "subscribe", topic)
        return decision is not None and decision.allowed
    is_superuser = context.access.authentication.is_superuser(client)
    decision = context.authorization.authorize_absent(client, "subscribe", topic, is_superuser)
    return decision is None or decision.allowed
