"""What becomes of a Topic Filter that is to be subscribed to: for clients and for operators who do it in their place.

Of the two only this differs, on purpose: access rules are not asked about an operator's (``by_operator``), and of his
filters none is carried out where one is refused.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ..config import ZoneSettings
from ..mqtt.constants import V5
from ..mqtt.packets import TopicFilter
from ..mqtt.topics import has_wildcard, parse_filter, valid_filter
from ..session.client_info import ClientInfo
from ..session.session import Session
from ..session.subscription import Subscription
from .outcome import FILTER_INVALID, FILTER_TOO_DEEP, FILTER_TOO_LONG, NO_SHARED, NO_WILDCARDS, Outcome


@dataclass(slots=True, eq=False)
class FilterPlan:
    """``filter``: the whole of it with the mount point; ``topic_filter`` and ``mounted``: what follows the group of a
    shared one, without the mount point and with it. ``refusal``: why no client of this zone has it."""

    entry: TopicFilter
    group: str | None
    topic_filter: str
    filter: str
    mounted: str
    refusal: Outcome | None

    def subscription(
        self, session: Session, client: ClientInfo, identifiers: tuple[int, ...] = (), by_operator: bool = False
    ) -> Subscription:
        """What the client has of it."""
        entry = self.entry
        zone = client.zone
        # A bridge of 3.x cannot ask for No Local and Retain As Published; its protocol level asks for both
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


def plan_filter(entry: TopicFilter, client: ClientInfo) -> FilterPlan:
    """What can be known of a filter before access rules are asked about it."""
    text = entry.filter
    try:
        group, topic_filter = parse_filter(text)
    except ValueError:
        return FilterPlan(entry, None, text, text, text, FILTER_INVALID)
    full, mounted = mounted_filter(text, topic_filter, client.mountpoint)
    refusal = _zone_refusal(client.zone, group, topic_filter)
    if refusal is None and client.mountpoint and not valid_filter(mounted):
        refusal = FILTER_TOO_LONG
    return FilterPlan(entry, group, topic_filter, full, mounted, refusal)


def mounted_filter(text: str, topic_filter: str, mountpoint: str) -> tuple[str, str]:
    """A filter with the mount point: all of it, and what follows the group of a shared one."""
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


def no_room(session: Session, filters: Collection[str], short_of_memory: bool) -> str:
    """The setting that leaves no room for these, which the session does not have; empty: there is room."""
    zone = session.client.zone
    if zone.max_subscriptions and len(session.subscriptions) + len(filters) > zone.max_subscriptions:
        return "max_subscriptions"
    most = zone.max_subscription_bytes
    if most and session.filter_bytes + sum([len(each) for each in filters]) > most:
        return "max_subscription_bytes"
    return "limits.memory" if short_of_memory else ""
