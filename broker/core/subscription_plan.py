"""How a Topic Filter is subscribed to, for clients and for operators on their behalf.

There is one intended difference: for an operator's subscription (``by_operator``), access rules are not checked, and if
one filter is refused, none of the operator's filters is subscribed to."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..config import AutoSubscribeTopic, ZoneSettings
from ..mqtt.constants import V5
from ..mqtt.packets import TopicFilter
from ..mqtt.topics import has_wildcard, is_exclusive, parse_filter, valid_filter
from ..session.client_info import ClientInfo
from ..session.session import Session
from ..session.subscription import Subscription
from .outcome import (
    FILTER_INVALID,
    FILTER_REWRITTEN_INVALID,
    FILTER_TOO_DEEP,
    FILTER_TOO_LONG,
    NO_EXCLUSIVE,
    NO_SHARED,
    NO_WILDCARDS,
    Outcome,
)
from .rewrite_rules import TopicRewriting


@dataclass(slots=True, eq=False)
class FilterPlan:
    """``filter``: the whole filter with the mount point; ``topic_filter`` and ``mounted``: the part after the group of
    a shared or exclusive filter, without and with the mount point. ``refusal``: why no client of this zone may have
    it."""

    entry: TopicFilter
    group: str | None
    topic_filter: str
    filter: str
    mounted: str
    refusal: Outcome | None

    @property
    def exclusive(self) -> bool:
        """Whether no other client may have an exclusive subscription to the same filter."""
        return is_exclusive(self.filter) and self.filter != self.mounted  # a mount point may begin like that, too

    def subscription(
        self, session: Session, client: ClientInfo, identifiers: tuple[int, ...] = (), by_operator: bool = False
    ) -> Subscription:
        """Return the subscription of the client to this filter."""
        entry = self.entry
        zone = client.zone
        # A 3.x bridge cannot request No Local and Retain As Published; its protocol level implies both
        unasked = client.is_bridge or (zone.ignore_loop_deliver and client.proto_ver != V5)
        return Subscription(
            session,
            self.filter,
            min(entry.qos, zone.max_qos),
            entry.no_local or (unasked and self.group is None),
            entry.retain_as_published or client.is_bridge,
            entry.retain_handling,
            identifiers,
            self.group,
            self.mounted,
            by_operator=by_operator,
        )


def plan_filter(entry: TopicFilter, client: ClientInfo, rewriting: TopicRewriting | None = None) -> FilterPlan:
    """Return everything about a filter that is known before access rules are checked, which apply to the rewritten
    filter."""
    text = entry.filter
    try:
        group, topic_filter = parse_filter(text)
    except ValueError:
        return FilterPlan(entry, None, text, text, text, FILTER_INVALID)
    if rewriting is not None:
        text, topic_filter = rewritten(text, topic_filter, client, rewriting)
        if not topic_filter:
            return FilterPlan(entry, group, text, text, text, FILTER_REWRITTEN_INVALID)
    full, mounted = mounted_filter(text, topic_filter, client.mountpoint)
    refusal = _zone_refusal(client.zone, group, topic_filter)
    if refusal is None and is_exclusive(text) and not client.zone.exclusive_subscription:
        refusal = NO_EXCLUSIVE
    if refusal is None and client.mountpoint and not valid_filter(mounted):
        refusal = FILTER_TOO_LONG
    return FilterPlan(entry, group, topic_filter, full, mounted, refusal)


def rewritten(text: str, topic_filter: str, client: ClientInfo, rewriting: TopicRewriting) -> tuple[str, str]:
    """Return the whole filter, and the part after the group of a shared filter, after rewriting. The part is empty if
    the new one is not valid."""
    new = rewriting.subscribed(topic_filter, client)
    return (text if new == topic_filter or not new else text[: len(text) - len(topic_filter)] + new), new


def mounted_filter(text: str, topic_filter: str, mountpoint: str) -> tuple[str, str]:
    """Return the whole filter with the mount point, and the part after the group of a shared filter."""
    if not mountpoint:
        return text, topic_filter
    mounted = mountpoint + topic_filter
    return text[: len(text) - len(topic_filter)] + mounted, mounted


def _zone_refusal(zone: ZoneSettings, group: str | None, topic_filter: str) -> Outcome | None:
    if zone.max_topic_levels and topic_filter.count("/") >= zone.max_topic_levels:
        return FILTER_TOO_DEEP
    if group is not None and not zone.shared_subscription:
        return NO_SHARED
    if not zone.wildcard_subscription and has_wildcard(topic_filter):
        return NO_WILDCARDS
    return None


def topic_faults(topic: AutoSubscribeTopic) -> Iterator[tuple[str, str]]:
    """Yield each key of a proxy subscription that is wrong, and why."""
    try:
        group, _ = parse_filter(topic.topic)
    except ValueError as error:
        yield "topic", str(error)
        return
    if is_exclusive(topic.topic):
        yield "topic", "only one client can have an exclusive subscription"
    if topic.nl and group is not None:
        yield "nl", "a shared subscription cannot have it"


def no_room(session: Session, filters: Collection[str], short_of_memory: bool) -> str:
    """Return the setting whose limit these new filters exceed; empty if there is room."""
    zone = session.client.zone
    if zone.max_subscriptions and len(session.subscriptions) + len(filters) > zone.max_subscriptions:
        return "max_subscriptions"
    most = zone.max_subscription_bytes
    if most and session.filter_bytes + sum([len(each) for each in filters]) > most:
        return "max_subscription_bytes"
    return "limits.memory" if short_of_memory else ""
