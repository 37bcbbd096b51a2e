"""SUBSCRIBE and UNSUBSCRIBE: each filter judged on its own, one Reason Code each, in order."""

from ..mqtt import reason_codes
from ..mqtt.constants import SUBSCRIPTION_IDENTIFIER, V5
from ..mqtt.errors import ProtocolError
from ..mqtt.packets import NO_PROPERTIES, Suback, Subscribe, TopicFilter, Unsuback, Unsubscribe
from ..mqtt.topics import has_wildcard, parse_shared, valid_filter
from ..session.session import Session
from ..session.subscription import Subscription
from .asking import Asked, ask
from .authorization import authorize, judge
from .closing import disconnect
from .refusal import STORE_TROUBLE, Refusal
from .state import CONNECTED, ChannelState, Waiting

Decisions = dict[str, tuple[bool, str]]
"""By Topic Filter without ``$share/...``: whether it may be subscribed to, and the setting behind that."""


def on_subscribe(channel: ChannelState, packet: Subscribe, now: float) -> Waiting:
    """One SUBACK with a Reason Code per filter [MQTT-3.8.4-1] [MQTT-3.8.4-6]; retained messages follow it."""
    context = channel.context
    metrics = context.metrics
    metrics.packets_subscribe_received += 1
    metrics.client_subscribe += 1
    session = channel.session
    assert session is not None
    filters = packet.filters
    if context.hooks.client_subscribe:
        filters = context.hooks.client_subscribe(filters, channel.client, packet.properties)
    if not context.access.asks:
        _subscribe_all(channel, packet, filters, now, {})
        return None
    decided, unknown = _decide(channel, filters, now)
    if unknown:
        asked = ask(channel, "subscribe", unknown)
        return _subscribe_when_answered(channel, packet, filters, decided, unknown, asked)
    _subscribe_all(channel, packet, filters, now, decided)
    return None


def _decide(channel: ChannelState, filters: list[TopicFilter], now: float) -> tuple[Decisions, list[str]]:
    """What can be decided at once, and the filters that somebody outside must be asked about."""
    decided: Decisions = {}
    unknown: dict[str, None] = {}
    for entry in filters:
        try:
            _, topic_filter = parse_shared(entry.filter)
        except ValueError:
            continue
        if not valid_filter(topic_filter) or topic_filter in decided or topic_filter in unknown:
            continue
        allowed = authorize(channel, "subscribe", topic_filter, now)
        if allowed is None:
            unknown[topic_filter] = None
        else:
            decided[topic_filter] = allowed, channel.context.access.setting
    return decided, list(unknown)


async def _subscribe_when_answered(
    channel: ChannelState,
    packet: Subscribe,
    filters: list[TopicFilter],
    decided: Decisions,
    unknown: list[str],
    asked: Asked,
) -> None:
    answers = await asked
    if answers is None or channel.state != CONNECTED:
        return
    for topic_filter, answer in zip(unknown, answers, strict=True):
        allowed = judge(channel, "subscribe", topic_filter, answer)
        decided[topic_filter] = allowed, channel.context.access.setting
    _subscribe_all(channel, packet, filters, channel.context.clock.now(), decided)


def _subscribe_all(
    channel: ChannelState, packet: Subscribe, filters: list[TopicFilter], now: float, decided: Decisions
) -> None:
    context = channel.context
    metrics = context.metrics
    session = channel.session
    assert session is not None
    channel.note()
    identifier = packet.properties.get(SUBSCRIPTION_IDENTIFIER)
    identifiers = (identifier,) if identifier is not None else ()
    answer = channel.answer_packet
    durability = context.durability
    if in_use(session, channel.version, packet.packet_id):
        codes = [reason_codes.PACKET_IDENTIFIER_IN_USE] * len(packet.filters)
    elif durability is not None and durability.trouble is not None and session.diary is not None:
        codes = [STORE_TROUBLE.code] * len(filters)
        answer = channel.send  # not behind what waits for the disk
        STORE_TROUBLE.note(channel, "subscribe_refused", filters[0].filter if filters else "", now)
    else:
        codes = []
        channel.client.packet_properties = packet.properties
        for entry in filters:
            codes.append(_subscribe(channel, session, entry, identifiers, now, decided))
            if channel.state != CONNECTED:
                break  # acl_deny_action = "disconnect": the session may have ended with it
        channel.client.packet_properties = NO_PROPERTIES
    if any(code >= 0x80 for code in codes):
        metrics.packets_subscribe_error += 1
        if channel.state != CONNECTED:
            return  # acl_deny_action = "disconnect"
    if answer(Suback(packet.packet_id, codes)):
        metrics.packets_suback_sent += 1
    if channel.outlet.held is None:
        session.advance(now)


def in_use(session: Session, version: int, packet_id: int) -> bool:
    """Whether a 5.0 client uses an identifier that its own QoS 2 PUBLISH still holds [MQTT-2.2.1-3]."""
    return version == V5 and session.awaiting_rel is not None and packet_id in session.awaiting_rel


def _subscribe(
    channel: ChannelState,
    session: Session,
    entry: TopicFilter,
    identifiers: tuple[int, ...],
    now: float,
    decided: Decisions,
) -> int:
    """Carry out one entry; the granted QoS or why not."""
    context = channel.context
    zone = channel.zone
    client = channel.client
    try:
        group, topic_filter = parse_shared(entry.filter)  # [MQTT-4.8.2-1] [MQTT-4.8.2-2]
    except ValueError:
        return _refused(channel, entry, reason_codes.TOPIC_FILTER_INVALID, "-")
    if not valid_filter(topic_filter):
        return _refused(channel, entry, reason_codes.TOPIC_FILTER_INVALID, "-")  # [MQTT-4.7.1-1] [MQTT-4.7.1-2]
    if zone.max_topic_levels and topic_filter.count("/") >= zone.max_topic_levels:
        return _refused(channel, entry, reason_codes.TOPIC_FILTER_INVALID, "max_topic_levels")
    if group is not None:
        if not zone.shared_subscription:
            code = reason_codes.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            return _refused(channel, entry, code, "shared_subscription")
        if entry.no_local:
            raise ProtocolError("No Local on a shared subscription")  # [MQTT-3.8.3-4]
    if not zone.wildcard_subscription and has_wildcard(topic_filter):
        return _refused(channel, entry, reason_codes.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "wildcard_subscription")
    known = decided.get(topic_filter)
    if known is not None:
        allowed, context.access.setting = known
    else:
        allowed = bool(authorize(channel, "subscribe", topic_filter, now))
    if not allowed:
        context.metrics.packets_subscribe_auth_error += 1
        code = zone.suback_denied_code
        setting = context.access.setting
        detail = "" if code == reason_codes.NOT_AUTHORIZED else f"answered 0x{code:02x} by suback_denied_code"
        _refused(channel, entry, reason_codes.NOT_AUTHORIZED, setting, detail)
        if zone.acl_deny_action == "disconnect":
            detail = "not authorized to subscribe"
            disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "not_authorized", setting)
        return code
    mountpoint = client.mountpoint
    mounted = mountpoint + topic_filter
    full = entry.filter if not mountpoint else entry.filter[: len(entry.filter) - len(topic_filter)] + mounted
    most = zone.max_subscriptions
    if most and full not in session.subscriptions and len(session.subscriptions) >= most:
        return _refused(channel, entry, reason_codes.QUOTA_EXCEEDED, "max_subscriptions")
    qos = min(entry.qos, zone.max_qos)
    # A bridge of 3.x cannot ask for No Local and Retain As Published; its protocol level asks for both
    unasked = client.is_bridge or (zone.ignore_loop_deliver and channel.version != V5)
    no_local = entry.no_local or (unasked and group is None)
    context.broker.subscribe(
        session,
        Subscription(
            session,
            full,
            qos,
            no_local,
            entry.retain_as_published or client.is_bridge,
            entry.retain_handling,
            identifiers,
            group,
            mounted,
        ),
    )
    return qos


def _refused(channel: ChannelState, entry: TopicFilter, code: int, setting: str, detail: str = "") -> int:
    Refusal(code, setting, detail).note(channel, "subscribe_refused", entry.filter, channel.context.clock.now())
    return code


def on_unsubscribe(channel: ChannelState, packet: Unsubscribe, now: float) -> None:
    """One UNSUBACK always [MQTT-3.10.4-4] [MQTT-3.10.4-5]; what was begun goes on [MQTT-3.10.4-3]."""
    context = channel.context
    metrics = context.metrics
    metrics.packets_unsubscribe_received += 1
    metrics.client_unsubscribe += 1
    session = channel.session
    assert session is not None
    filters = packet.filters
    channel.note()
    if context.hooks.client_unsubscribe:
        filters = context.hooks.client_unsubscribe(filters, channel.client, packet.properties)
    if in_use(session, channel.version, packet.packet_id):
        metrics.packets_unsubscribe_error += 1
        codes = [reason_codes.PACKET_IDENTIFIER_IN_USE] * len(filters)
    else:
        channel.client.packet_properties = packet.properties
        codes = [_unsubscribe(channel, session, entry) for entry in filters]
        channel.client.packet_properties = NO_PROPERTIES
    if channel.answer_packet(Unsuback(packet.packet_id, codes)):
        metrics.packets_unsuback_sent += 1


def _unsubscribe(channel: ChannelState, session: Session, entry: str) -> int:
    full = entry
    mountpoint = channel.client.mountpoint
    if mountpoint:
        try:
            _, topic_filter = parse_shared(entry)
        except ValueError:
            return reason_codes.TOPIC_FILTER_INVALID
        full = entry[: len(entry) - len(topic_filter)] + mountpoint + topic_filter
    if channel.context.broker.unsubscribe(session, full):
        return reason_codes.SUCCESS
    return reason_codes.NO_SUBSCRIPTION_EXISTED
