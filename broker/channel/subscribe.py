"""SUBSCRIBE and UNSUBSCRIBE: each filter is decided separately, with one Reason Code each, in order."""

import asyncio
from typing import Final

from ..access.decision import Decision
from ..core.exclusive import ExclusiveClaims
from ..core.outcome import STORE_TROUBLE, Outcome
from ..core.subscription_plan import mounted_filter, no_room, plan_filter, rewritten
from ..mqtt import reason_codes
from ..mqtt.constants import SUBSCRIPTION_IDENTIFIER, V5
from ..mqtt.errors import ProtocolError
from ..mqtt.packets import Suback, Subscribe, TopicFilter, Unsuback, Unsubscribe
from ..mqtt.topics import is_exclusive, parse_shared, valid_filter
from ..session.client_info import PacketInHand
from ..session.session import Session
from ..session.subscription import Subscription
from .authorization import apply_decision, authorize
from .channel import CONNECTED, Channel, Waiting
from .closing import NONE, disconnect
from .external_check import Asked, ask, until_answered
from .judging import may_be_judged, set_judged
from .packet_refusal import note_refusal
from .review import end_subscription

FILTERS_PER_ITERATION: Final = 256
"""Number of filters of one SUBSCRIBE or UNSUBSCRIBE that are processed before other clients' packets: some
milliseconds."""
DELIVERIES_PER_FILTER: Final = 8
"""Number of deliveries in the loop budget that a filter counts as."""

Decisions = dict[str, Decision]
"""By Topic Filter without ``$share/...``."""


def on_subscribe(channel: Channel, packet: Subscribe, now: float) -> Waiting:
    """Send one SUBACK with a Reason Code per filter [MQTT-3.8.4-1] [MQTT-3.8.4-6]; retained messages follow it."""
    context = channel.context
    metrics = context.metrics
    metrics.packets_subscribe_received += 1
    metrics.client_subscribe += 1
    session = channel.session
    assert session is not None
    filters = packet.filters
    if context.hooks.client_subscribe:
        filters = context.hooks.client_subscribe(filters, channel.client, packet.properties)
    _check_answer(channel, Suback(packet.packet_id, [0] * len(filters)))
    if not context.authorization.asks:
        return _subscribe_all(channel, packet, filters, now, {})
    decided, unknown = _decide(channel, filters, now)
    if unknown:
        asked = ask(channel, "subscribe", unknown)
        return _subscribe_when_answered(channel, packet, filters, decided, unknown, asked)
    return _subscribe_all(channel, packet, filters, now, decided)


def _check_answer(channel: Channel, answer: Suback | Unsuback) -> None:
    """Do nothing if the answer would be too large for the client: its size is known from the request."""
    if not channel.fits(answer):
        detail = f"the answer to {len(answer.reason_codes)} Topic Filters is above the client's Maximum Packet Size"
        raise ProtocolError(detail, reason_codes.PACKET_TOO_LARGE, NONE)  # [MQTT-3.1.2-24]


def _decide(channel: Channel, filters: list[TopicFilter], now: float) -> tuple[Decisions, list[str]]:
    """Return the immediate decisions, and the filters for which an external service must be asked."""
    decided: Decisions = {}
    unknown: dict[str, None] = {}
    for entry in filters:
        plan = plan_filter(entry, channel.client, channel.context.broker.rewriting)
        topic_filter = plan.topic_filter
        if plan.refusal is not None or topic_filter in decided or topic_filter in unknown:
            continue
        decision = authorize(channel, "subscribe", topic_filter, now)
        if decision is None:
            unknown[topic_filter] = None
        else:
            decided[topic_filter] = decision
    return decided, list(unknown)


async def _subscribe_when_answered(
    channel: Channel,
    packet: Subscribe,
    filters: list[TopicFilter],
    decided: Decisions,
    unknown: list[str],
    asked: Asked,
) -> None:
    generation = channel.context.authorization.generation
    decisions = await asked
    if decisions is None or channel.state != CONNECTED:
        return
    if generation != channel.context.authorization.generation and channel.session is not None:
        channel.context.reviews.add(channel.session)  # by the rules at the time of the question
    for topic_filter, decision in zip(unknown, decisions, strict=True):
        decided[topic_filter] = apply_decision(channel, "subscribe", topic_filter, decision)
    waiting = _subscribe_all(channel, packet, filters, channel.context.clock.now(), decided)
    if waiting is not None:
        await waiting


def _subscribe_all(
    channel: Channel, packet: Subscribe, filters: list[TopicFilter], now: float, decided: Decisions
) -> Waiting:
    claims = channel.context.broker.exclusive.claims
    if claims is not None and any(is_exclusive(entry.filter) for entry in filters):
        return _subscribe_when_claimed(channel, claims, packet, filters, decided)
    return _subscribe_now(channel, packet, filters, now, decided)


async def _subscribe_when_claimed(
    channel: Channel, claims: ExclusiveClaims, packet: Subscribe, filters: list[TopicFilter], decided: Decisions
) -> None:
    """Claim the exclusive filters that access rules allow, on all nodes, and then subscribe."""
    session = channel.session
    assert session is not None
    wanted = _to_claim(channel, filters, decided)
    try:
        await until_answered(channel, claims.claim(session, wanted))
        if channel.state == CONNECTED and channel.session is session:
            waiting = _subscribe_now(channel, packet, filters, channel.context.clock.now(), decided)
            if waiting is not None:
                await waiting
    finally:
        claims.settle(wanted)


def _to_claim(channel: Channel, filters: list[TopicFilter], decided: Decisions) -> list[str]:
    """Return the exclusive filters that the client may have, and add the decisions to ``decided``."""
    context = channel.context
    now = context.clock.now()
    wanted: list[str] = []
    for entry in filters:
        plan = plan_filter(entry, channel.client, context.broker.rewriting)
        if plan.refusal is not None or not plan.exclusive:
            continue
        decision = decided.get(plan.topic_filter) or authorize(channel, "subscribe", plan.topic_filter, now)
        if decision is not None:
            decided[plan.topic_filter] = decision
            if decision.allowed or may_be_judged(context, channel.client, plan.topic_filter, decision):
                wanted.append(plan.mounted)
    return wanted


def _subscribe_now(
    channel: Channel, packet: Subscribe, filters: list[TopicFilter], now: float, decided: Decisions
) -> Waiting:
    context = channel.context
    session = channel.session
    assert session is not None
    channel.save_log_position()
    identifier = packet.properties.get(SUBSCRIPTION_IDENTIFIER)
    identifiers = (identifier,) if identifier is not None else ()
    durability = context.broker.durability
    if in_use(session, channel.version, packet.packet_id):
        codes = [reason_codes.PACKET_IDENTIFIER_IN_USE] * len(packet.filters)
    elif durability is not None and durability.commit.trouble is not None and session.durable:
        codes = [STORE_TROUBLE.code] * len(filters)
        note_refusal(channel, STORE_TROUBLE, "subscribe_refused", filters[0].filter if filters else "", now)
        _answer(channel, session, Suback(packet.packet_id, codes), now, at_once=True)
        return None
    elif len(filters) > FILTERS_PER_ITERATION:
        return until_answered(channel, _subscribe_in_slices(channel, session, packet, filters, identifiers, decided))
    else:
        codes = _subscribe_some(channel, session, packet, filters, identifiers, now, decided)
        if context.broker.cluster.strict_subscribe and channel.state == CONNECTED:
            return until_answered(channel, _answer_when_known(channel, session, packet, filters, codes))
    _answer(channel, session, Suback(packet.packet_id, codes), now)
    return None


async def _answer_when_known(
    channel: Channel, session: Session, packet: Subscribe, filters: list[TopicFilter], codes: list[int]
) -> None:
    """Send SUBACK when all nodes know the granted subscriptions."""
    pairs = zip(filters, codes, strict=True)
    broker = channel.context.broker
    granted = [plan_filter(entry, channel.client, broker.rewriting).filter for entry, code in pairs if code < 0x80]
    await broker.cluster.subscribed(channel.client.client_id, granted)
    if channel.state == CONNECTED and channel.session is session:
        channel.log_position = -1  # the records may have reached the disk in the meantime
        _answer(channel, session, Suback(packet.packet_id, codes), channel.context.clock.now())


async def _subscribe_in_slices(
    channel: Channel,
    session: Session,
    packet: Subscribe,
    filters: list[TopicFilter],
    identifiers: tuple[int, ...],
    decided: Decisions,
) -> None:
    """Process very many filters in slices, with other clients' packets in between; the client's next packet waits for
    the answer."""
    generation = channel.context.authorization.generation
    codes: list[int] = []
    for at in range(0, len(filters), FILTERS_PER_ITERATION):
        if at:
            await asyncio.sleep(0)
        if channel.state != CONNECTED or channel.session is not session:
            return
        now = channel.context.clock.now()
        some = filters[at : at + FILTERS_PER_ITERATION]
        codes += _subscribe_some(channel, session, packet, some, identifiers, now, decided)
    if decided and generation != channel.context.authorization.generation:
        channel.context.reviews.add(session)  # as in _subscribe_when_answered
    if channel.context.broker.cluster.strict_subscribe and channel.state == CONNECTED:
        await _answer_when_known(channel, session, packet, filters, codes)
        return
    _answer(channel, session, Suback(packet.packet_id, codes), channel.context.clock.now())


def _subscribe_some(
    channel: Channel,
    session: Session,
    packet: Subscribe,
    filters: list[TopicFilter],
    identifiers: tuple[int, ...],
    now: float,
    decided: Decisions,
) -> list[int]:
    context = channel.context
    codes: list[int] = []
    ended: list[Subscription] = []
    with PacketInHand(channel.client, packet.properties):
        for entry in filters:
            codes.append(_subscribe(channel, session, entry, identifiers, now, decided, ended))
            if channel.state != CONNECTED:
                break  # acl_deny_action = "disconnect": the session may have ended with the client
    context.broker.budget.deliveries += DELIVERIES_PER_FILTER * len(filters)
    if ended:
        context.reviews.clear_queue(session, ended)
    return codes


def _answer(channel: Channel, session: Session, suback: Suback, now: float, at_once: bool = False) -> None:
    """``at_once``: do not wait for packets that wait for the disk."""
    metrics = channel.context.metrics
    if any(code >= 0x80 for code in suback.reason_codes):
        metrics.packets_subscribe_error += 1
        if channel.state != CONNECTED:
            return  # acl_deny_action = "disconnect"
    if at_once:
        channel.send(suback)
    else:
        channel.send_packet_when_durable(suback)
    metrics.packets_suback_sent += 1
    if channel.writer.held_packets is None:
        session.advance(now)


def in_use(session: Session, version: int, packet_id: int) -> bool:
    """Return whether a 5.0 client uses an identifier that is still used by its own QoS 2 PUBLISH [MQTT-2.2.1-3]."""
    return version == V5 and session.awaiting_rel is not None and packet_id in session.awaiting_rel


def _subscribe(
    channel: Channel,
    session: Session,
    entry: TopicFilter,
    identifiers: tuple[int, ...],
    now: float,
    decided: Decisions,
    ended: list[Subscription],
) -> int:
    """Process one entry; return the granted QoS or the refusal. An existing subscription that is refused now ends, and
    is added to ``ended``."""
    context = channel.context
    zone = channel.zone
    client = channel.client
    # [MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT-4.7.1-1] [MQTT-4.7.1-2]
    plan = plan_filter(entry, client, context.broker.rewriting)
    if plan.group is not None and entry.no_local:
        raise ProtocolError("No Local on a shared subscription")  # [MQTT-3.8.3-4]
    if plan.refusal is not None:
        return _refused(channel, entry, plan.refusal)
    topic_filter = plan.topic_filter
    decision = decided.get(topic_filter) or authorize(channel, "subscribe", topic_filter, now)
    if decision is None:  # a service that was configured during the SUBSCRIBE
        decision = Decision(False, context.authorization.unasked_setting)
    judged = not decision.allowed and may_be_judged(context, client, topic_filter, decision)
    if not decision.allowed and not judged:
        there = session.subscriptions.get(plan.filter)
        if there is not None and not there.by_operator:
            end_subscription(context, session, there, topic_filter, decision.setting)
            ended.append(there)
        context.metrics.packets_subscribe_auth_error += 1
        code = zone.suback_denied_code
        setting = decision.setting
        detail = "" if code == reason_codes.NOT_AUTHORIZED else f"answered 0x{code:02x} by suback_denied_code"
        _refused(channel, entry, Outcome(reason_codes.NOT_AUTHORIZED, setting, detail))
        if zone.acl_deny_action == "disconnect":
            detail = "not authorized to subscribe"
            disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "not_authorized", setting)
        return code
    if plan.exclusive:
        taken = context.broker.exclusive.refusal(session, plan.mounted)
        if taken is not None:
            return _refused(channel, entry, taken)
    if plan.filter not in session.subscriptions:
        setting = no_room(session, (plan.filter,), context.broker.short_of_memory)
        if setting:
            return _refused(channel, entry, Outcome(reason_codes.QUOTA_EXCEEDED, setting))
    subscription = plan.subscription(session, client, identifiers)
    if judged:
        set_judged(context, subscription, True)
    context.broker.subscribe(session, subscription)
    return subscription.qos


def _refused(channel: Channel, entry: TopicFilter, refusal: Outcome) -> int:
    note_refusal(channel, refusal, "subscribe_refused", entry.filter, channel.context.clock.now())
    return refusal.code


def on_unsubscribe(channel: Channel, packet: Unsubscribe, now: float) -> Waiting:
    """Always send one UNSUBACK [MQTT-3.10.4-4] [MQTT-3.10.4-5]; exchanges that have begun continue [MQTT-3.10.4-3]."""
    context = channel.context
    metrics = context.metrics
    metrics.packets_unsubscribe_received += 1
    metrics.client_unsubscribe += 1
    session = channel.session
    assert session is not None
    filters = packet.filters
    channel.save_log_position()
    if context.hooks.client_unsubscribe:
        filters = context.hooks.client_unsubscribe(filters, channel.client, packet.properties)
    _check_answer(channel, Unsuback(packet.packet_id, [0] * len(filters)))
    if in_use(session, channel.version, packet.packet_id):
        metrics.packets_unsubscribe_error += 1
        codes = [reason_codes.PACKET_IDENTIFIER_IN_USE] * len(filters)
    elif len(filters) > FILTERS_PER_ITERATION:
        return until_answered(channel, _unsubscribe_in_slices(channel, session, packet, filters))
    else:
        codes = _unsubscribe_some(channel, session, packet, filters)
    channel.send_packet_when_durable(Unsuback(packet.packet_id, codes))
    metrics.packets_unsuback_sent += 1
    return None


async def _unsubscribe_in_slices(channel: Channel, session: Session, packet: Unsubscribe, filters: list[str]) -> None:
    codes: list[int] = []
    for at in range(0, len(filters), FILTERS_PER_ITERATION):
        if at:
            await asyncio.sleep(0)
        if channel.state != CONNECTED or channel.session is not session:
            return
        codes += _unsubscribe_some(channel, session, packet, filters[at : at + FILTERS_PER_ITERATION])
    channel.send_packet_when_durable(Unsuback(packet.packet_id, codes))
    channel.context.metrics.packets_unsuback_sent += 1


def _unsubscribe_some(channel: Channel, session: Session, packet: Unsubscribe, filters: list[str]) -> list[int]:
    with PacketInHand(channel.client, packet.properties):
        codes = [_unsubscribe(channel, session, entry) for entry in filters]
    channel.context.broker.budget.deliveries += DELIVERIES_PER_FILTER * len(filters)
    return codes


def _unsubscribe(channel: Channel, session: Session, entry: str) -> int:
    try:
        _, topic_filter = parse_shared(entry)
    except ValueError:
        return reason_codes.TOPIC_FILTER_INVALID
    client = channel.client
    broker = channel.context.broker
    if broker.rewriting is not None and valid_filter(topic_filter):
        entry, topic_filter = rewritten(entry, topic_filter, client, broker.rewriting)
    full, _ = mounted_filter(entry, topic_filter, client.mountpoint)
    if broker.unsubscribe(session, full):
        return reason_codes.SUCCESS
    # The same code as in SUBSCRIBE for an invalid Topic Filter.
    return reason_codes.NO_SUBSCRIPTION_EXISTED if valid_filter(topic_filter) else reason_codes.TOPIC_FILTER_INVALID
