"""Acceptance of a client: its session is taken over or created, CONNACK is sent, then the session's waiting
messages."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final

from ..access.decision import Decision
from ..access.token import Token
from ..config import ZoneSettings
from ..core.outcome import NO_MEMORY, REWRITTEN_INVALID, STORE_TROUBLE, Outcome
from ..mqtt import reason_codes
from ..mqtt.constants import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAX_PACKET_ID,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    REQUEST_RESPONSE_INFORMATION,
    RESPONSE_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    SHARED_SUBSCRIPTION_AVAILABLE,
    TOPIC_ALIAS_MAXIMUM,
    V5,
    WILDCARD_SUBSCRIPTION_AVAILABLE,
    WILL_DELAY_INTERVAL,
)
from ..mqtt.packets import NO_PROPERTIES, Connack, Connect, Properties, Will
from ..observability.log_lines import info
from ..session.session import Session
from .channel import AUTHENTICATING, CONNECTED, CONNECTING, Channel, Waiting
from .closing import (
    DISCARDED,
    NONE,
    TAKEOVERED,
    as_message,
    authorize_will,
    disconnect,
    end,
    refuse,
    token_expired,
)
from .external_check import ask
from .identity import (
    SESSION_OWNER,
    check_banned,
    check_mountpoint,
    check_owner,
    mountpoint_of,
    new_client_id,
    refuse_session_of_another,
)
from .review import NO_DECISIONS, SessionReview, unknown_filters, until_reviewed

logger = logging.getLogger(__name__)

_FILTERS_PER_SLICE: Final = 100


def accept(channel: Channel, connect: Connect, now: float, extra: Properties) -> Waiting:
    """Accept an authenticated client. A service may still have to be asked about its Will."""
    client = channel.client
    if not client.client_id:
        client.client_id = new_client_id(channel)
    if not check_mountpoint(channel):
        return None
    client.mountpoint = mountpoint_of(channel.zone.mountpoint, client.client_id, client.user)
    cluster = channel.context.broker.cluster
    if cluster.clustered:
        # A client that is refused affects no session, on any node.
        if _connack_properties_if_admitted(channel, connect, extra) is None:
            return None
        claim = cluster.claim(client, connect.clean_start, client.expiry_interval, partial(_waits, channel))
        if claim is not None:
            channel.state = AUTHENTICATING
            return _claim_first(channel, connect, claim, extra)
    return _accept_here(channel, connect, now, extra)


def _waits(channel: Channel) -> bool:
    """Return whether the client still waits for CONNACK."""
    return channel.state in (AUTHENTICATING, CONNECTING) and not channel.connection.disconnects


async def _claim_first(channel: Channel, connect: Connect, claim: Awaitable[Outcome | None], extra: Properties) -> None:
    """Claim the session first: another node has it, or all nodes must know that it begins here."""
    refusal = await claim
    if channel.state != AUTHENTICATING:
        return
    if refusal is not None:
        _refuse_claim(channel, refusal)
        return
    channel.state = CONNECTING
    waiting = _accept_here(channel, connect, channel.context.clock.now(), extra)
    if waiting is not None:
        await waiting


def _refuse_claim(channel: Channel, refusal: Outcome) -> None:
    if refusal.setting == SESSION_OWNER:
        refuse_session_of_another(channel, refusal.detail)
    else:
        refuse(channel, refusal.code, refusal.detail, refusal.setting)


def _accept_here(channel: Channel, connect: Connect, now: float, extra: Properties) -> Waiting:
    client = channel.client
    authorization = channel.context.authorization
    if connect.will is not None and not _rewrite_will(channel, connect.will):
        refuse(channel, REWRITTEN_INVALID.code, REWRITTEN_INVALID.detail, REWRITTEN_INVALID.setting)
        return None
    if authorization.asks:
        topic: str | None = None
        if connect.will is not None:
            asked = channel.context.broker.destination(connect.will.topic)
            if isinstance(asked, str) and authorization.authorize(client, "publish", asked, now) is None:
                topic = asked
        session = None if connect.clean_start else channel.context.broker.sessions.get(client.client_id)
        if topic is not None or (session is not None and session.subscriptions):
            if not check_owner(channel):
                return None
            channel.state = AUTHENTICATING
            return _ask_first(channel, connect, topic, session, extra)
    return _open(channel, connect, now, extra, NO_DECISIONS)


async def _ask_first(
    channel: Channel, connect: Connect, will: str | None, session: Session | None, extra: Properties
) -> None:
    """Ask about the client's Will, and about the subscriptions of the session that it resumes."""
    generation = channel.context.authorization.generation
    if will is not None:
        told = await ask(channel, "publish", [will])
        if channel.state != AUTHENTICATING or told is None:
            return
        channel.will_decision = told[0]
    decisions: dict[str, Decision] = {}
    if session is not None:
        unknown: dict[str, None] = {}
        for looked, topic_filter in enumerate(unknown_filters(channel, session, channel.context.clock.now()), 1):
            if topic_filter is not None:
                unknown[topic_filter] = None
            if looked % _FILTERS_PER_SLICE == 0:
                await asyncio.sleep(0)
        if unknown and channel.state == AUTHENTICATING:
            told = await ask(channel, "subscribe", list(unknown))
            if channel.state != AUTHENTICATING or told is None:
                return
            decisions = dict(zip(unknown, told, strict=True))
    if channel.state != AUTHENTICATING:
        return
    for decision in decisions.values():
        if not decision.allowed and not decision.lasting:
            # An unavailable service neither removes a client's subscriptions nor delivers messages that were not
            # allowed.
            detail = "no answer whether the client may read its subscriptions"
            refuse(channel, reason_codes.SERVER_UNAVAILABLE, detail, decision.setting)
            return
    if session is not None and generation != channel.context.authorization.generation:
        channel.context.reviews.add(session)  # by the rules at the time of the question
    channel.state = CONNECTING
    waiting = _open(channel, connect, channel.context.clock.now(), extra, decisions)
    if waiting is not None:
        await waiting


def _open(
    channel: Channel, connect: Connect, now: float, extra: Properties, decisions: Mapping[str, Decision]
) -> Waiting:
    """After all checks: take the session over, review its subscriptions, and answer when that is on disk.

    ``decisions``: those of an external service, by Topic Filter."""
    properties = _connack_properties_if_admitted(
        channel, connect, extra
    )  # again, because a service may have taken seconds
    if properties is None:
        return None
    context = channel.context
    broker = context.broker
    client = channel.client
    expiry = client.expiry_interval
    channel.connect = None
    client.connected_at = now
    old = context.channels.get(client.client_id)
    if old is not None:
        take_over(old, connect.clean_start)  # [MQTT-3.1.4-3]: disconnected before the answer is sent
    channel.save_log_position()
    session, present = broker.life.open_session(client, connect.clean_start, expiry, channel.limits, now)
    channel.session = session
    channel.will = connect.will
    channel.state = CONNECTED
    context.channels[client.client_id] = channel
    token = client.token
    if isinstance(token, Token) and token.expires is not None:
        channel.token_timer = context.wall_timers.at(token.expires, partial(token_expired, channel, token.setting))
    if present and session.subscriptions:
        review = SessionReview(context, session, decisions)
        if not review.go_on():
            return _answer_when_reviewed(channel, connect, properties, review)
        if review.undecided:
            context.reviews.add(session)
    return _answer_connect(channel, connect, session, present, properties, now)


def _connack_properties_if_admitted(channel: Channel, connect: Connect, extra: Properties) -> Properties | None:
    """Return the properties of CONNACK if the client may have its session and there is room for it; otherwise refuse it
    here."""
    if not (check_banned(channel) and check_owner(channel)):
        return None
    context = channel.context
    broker = context.broker
    client = channel.client
    client.keep_alive = _keep_alive(channel, connect)
    client.expiry_interval = expiry = _expiry(channel, connect)
    properties: Properties = {}
    if connect.version == V5:
        properties = {**extra, **_connack_properties(channel, connect, client.keep_alive, expiry)}
    if properties and not channel.fits(Connack(reason_codes.SUCCESS, False, properties)):
        end(channel, "packet_too_large", "the client's Maximum Packet Size leaves no room for a CONNACK", NONE)
        return None
    durability = context.broker.durability
    if durability is not None and durability.commit.trouble is not None and _needs_disk(channel, connect, expiry):
        refuse(channel, STORE_TROUBLE.code, STORE_TROUBLE.detail, STORE_TROUBLE.setting)
        return None
    if broker.short_of_memory and client.client_id not in broker.sessions:
        refuse(channel, NO_MEMORY.code, NO_MEMORY.detail, NO_MEMORY.setting)
        return None
    return properties


async def _answer_when_reviewed(
    channel: Channel, connect: Connect, properties: Properties, review: SessionReview
) -> None:
    if not await until_reviewed(channel, review):
        return
    if review.undecided:
        channel.context.reviews.add(review.session)
    waiting = _answer_connect(channel, connect, review.session, True, properties, channel.context.clock.now())
    if waiting is not None:
        await waiting


def _answer_connect(
    channel: Channel, connect: Connect, session: Session, present: bool, properties: Properties, now: float
) -> Waiting:
    """Answer when everything that has to be on disk has been written."""
    client = channel.client
    broker = channel.context.broker
    if broker.auto_subscribe is not None:
        broker.auto_subscribe(session)  # on disk with the session, before the client knows of either
    durability = broker.durability
    if durability is not None:
        # That the client is back must also be on disk; otherwise, after a crash, its earlier absence could end the
        # session.
        due = (
            durability.commit.batch_since(channel.log_position)
            if durability.commit.trouble is None
            else durability.sessions.unconfirmed(session)
        )
        due = due or durability.sessions.ending(client.client_id)
        if connect.will is not None:
            session.will_number = durability.node.will_stored(
                as_message(channel, connect.will, now),
                _delay_of(connect.will),
                approved=authorize_will(channel, connect.will.topic, now) is None,
            )
        if due:
            return _answer_when_stored(channel, connect, Connack(reason_codes.SUCCESS, present, properties), due)
    _answer(channel, connect, Connack(reason_codes.SUCCESS, present, properties), now)
    return None


async def _answer_when_stored(channel: Channel, connect: Connect, connack: Connack, batch: int) -> None:
    durability = channel.context.broker.durability
    assert durability is not None
    stored = await durability.commit.wait_until_durable(batch)
    session = channel.session
    if channel.state != CONNECTED or session is None:
        return
    # An existing session continues during trouble, even if no CONNACK has reported it.
    is_there = connack.session_present or (session.durable and not connect.clean_start)
    if stored or (is_there and not durability.sessions.unconfirmed(session)):
        _answer(channel, connect, connack, channel.context.clock.now())
        return
    # The client was not informed about this session: it ends.
    session.expiry_interval = 0
    channel.will = None
    refuse(channel, STORE_TROUBLE.code, STORE_TROUBLE.detail, STORE_TROUBLE.setting)


def _needs_disk(channel: Channel, connect: Connect, expiry: int) -> bool:
    """Return whether the answer to a CONNECT would have to wait for the disk: a durable session begins or is
    discarded."""
    session = channel.context.broker.sessions.get(channel.client.client_id)
    if session is None or not session.durable:
        durability = channel.context.broker.durability
        return expiry > 0 or (durability is not None and durability.sessions.ending(channel.client.client_id) > 0)
    resumed = not connect.clean_start and (session.expiry_interval > 0 or not session.connected)
    return not resumed


def _answer(channel: Channel, connect: Connect, connack: Connack, now: float) -> None:
    """Send CONNACK, then the session's waiting messages [MQTT-3.2.0-1]."""
    context = channel.context
    client = channel.client
    zone = channel.zone
    session = channel.session
    assert session is not None
    window = zone.max_inflight or MAX_PACKET_ID
    if connect.version == V5:
        window = min(window, int(connect.properties.get(RECEIVE_MAXIMUM, MAX_PACKET_ID)))  # [MQTT-3.3.4-9]
    writer = channel.writer
    writer.commit = None if context.broker.durability is None else context.broker.durability.commit
    writer.open(session, client.mountpoint)
    session.attach(writer, window, channel.limits, now, packets=writer)
    channel.send_connack(connack)  # [MQTT-3.2.2-2] [MQTT-3.2.2-3]
    context.metrics.client_connected += 1
    context.broker.throttled_log.events.add(
        client.client_id, now, "client_connected", "session_present" if connack.session_present else "new_session", "-"
    )
    info(
        logger,
        "client_connected client_id=%s username=%s peer=%s listener=%s proto_ver=%s clean_start=%s "
        "session_present=%s keep_alive=%s expiry_interval=%s",
        client.client_id,
        client.username,
        client.peer,
        channel.listener.name,
        client.proto_ver,
        client.clean_start,
        connack.session_present,
        client.keep_alive,
        client.expiry_interval,
    )
    if connect.will is not None:
        context.broker.cluster.will_changed(client.client_id)
    # 0.0 is one object for all clients, a product is not.
    channel.connection.accepted(client.keep_alive * zone.keep_alive_multiplier if client.keep_alive else 0.0)
    if context.hooks.client_connected:
        context.hooks.client_connected(client)
    client.packet_properties = NO_PROPERTIES
    session.advance(now)


def take_over(old: Channel, clean_start: bool, node: str = "") -> None:
    """Disconnect this client because another connection with its client ID was accepted, on another ``node`` or here.
    The session may stay."""
    metrics = old.context.metrics
    hooks = old.context.hooks
    session = old.session
    if session is not None:
        if clean_start:
            # The session ends here, so its Will is published immediately, whatever its delay.
            session.expiry_interval = 0
            metrics.session_discarded += 1
            if hooks.session_discarded:
                hooks.session_discarded(old.client, session)
        else:
            metrics.session_takeovered += 1
            if hooks.session_takeovered:
                hooks.session_takeovered(old.client, session)
    reason = DISCARDED if clean_start else TAKEOVERED
    disconnect(old, reason_codes.SESSION_TAKEN_OVER, f"connected to {node}" if node else "", reason, tell=False)


def _rewrite_will(channel: Channel, will: Will) -> bool:
    """Rewrite the topic of a Will, before access to it is checked. Return False if the new one is not valid."""
    rewriting = channel.context.broker.rewriting
    if rewriting is not None:
        topic = rewriting.published(will.topic, channel.client)
        if not topic:
            return False
        will.topic = topic
    return True


def will_refusal(zone: ZoneSettings, will: Will) -> Outcome | None:
    """Return why no client of this zone may have such a Will; None: one may."""
    if will.qos > zone.max_qos:
        return Outcome(reason_codes.QOS_NOT_SUPPORTED, "", "will QoS above max_qos")  # [MQTT-3.2.2-12]
    if will.retain and not zone.retain_available:
        detail = "will RETAIN with retain_available off"  # [MQTT-3.2.2-13]
        return Outcome(reason_codes.RETAIN_NOT_SUPPORTED, "", detail)
    if zone.max_topic_levels and will.topic.count("/") >= zone.max_topic_levels:
        detail = "will topic with more than max_topic_levels"
        return Outcome(reason_codes.TOPIC_NAME_INVALID, "max_topic_levels", detail)
    return None


def change_will(channel: Channel, will: Will | None) -> int:
    """Replace the Will of a connected client; None deletes it. Return a Reason Code: from 0x80 on, the old Will stays,
    because the client may not have this one."""
    session = channel.session
    if channel.state != CONNECTED or session is None:
        return reason_codes.UNSPECIFIED_ERROR
    context = channel.context
    now = context.clock.now()
    if will is not None:
        refusal = will_refusal(channel.zone, will)
        if refusal is None and not _rewrite_will(channel, will):
            refusal = REWRITTEN_INVALID
        if refusal is None and (channel.will is None or channel.will.topic != will.topic):
            decision, channel.will_decision = channel.will_decision, None
            refusal = authorize_will(channel, will.topic, now)
            if refusal is not None:
                channel.will_decision = decision
        if refusal is not None:
            return refusal.code
    channel.will = will
    durability = context.broker.durability
    if durability is not None:
        if will is not None:
            message = as_message(channel, will, now)
            session.will_number = durability.node.will_stored(message, _delay_of(will), number=session.will_number)
        elif session.will_number:
            durability.node.will_gone(session.will_number)
            session.will_number = 0
    context.broker.cluster.will_changed(channel.client.client_id)
    return reason_codes.SUCCESS


def _delay_of(will: Will) -> int:
    return int(will.properties.get(WILL_DELAY_INTERVAL, 0))


def _keep_alive(channel: Channel, connect: Connect) -> int:
    zone = channel.zone
    most = zone.server_keep_alive
    if most and (connect.version == V5 or zone.server_keep_alive_v3):
        # 0 requests no Keep Alive, which is more than the maximum
        return most if connect.keep_alive == 0 or connect.keep_alive > most else connect.keep_alive
    return connect.keep_alive


def _expiry(channel: Channel, connect: Connect) -> int:
    most = channel.zone.session_expiry_interval
    if connect.version == V5:
        return min(int(connect.properties.get(SESSION_EXPIRY_INTERVAL, 0)), most)
    return 0 if connect.clean_start else most


def _connack_properties(channel: Channel, connect: Connect, keep_alive: int, expiry: int) -> Properties:
    """Return the server's limits for a 5.0 client; an absent property means the standard's default."""
    zone = channel.zone
    properties: Properties = {}
    if not connect.client_id:  # assigned by the broker, or the username
        properties[ASSIGNED_CLIENT_IDENTIFIER] = channel.client.client_id  # [MQTT-3.2.2-16]
    if keep_alive != connect.keep_alive:
        properties[SERVER_KEEP_ALIVE] = keep_alive  # [MQTT-3.2.2-21]
    if expiry != connect.properties.get(SESSION_EXPIRY_INTERVAL, 0):
        properties[SESSION_EXPIRY_INTERVAL] = expiry
    if zone.receive_maximum < MAX_PACKET_ID:
        properties[RECEIVE_MAXIMUM] = zone.receive_maximum
    if zone.max_qos < 2:
        properties[MAXIMUM_QOS] = zone.max_qos  # [MQTT-3.2.2-9]
    if not zone.retain_available:
        properties[RETAIN_AVAILABLE] = 0
    properties[MAXIMUM_PACKET_SIZE] = zone.max_packet_size
    if zone.max_topic_alias:
        properties[TOPIC_ALIAS_MAXIMUM] = zone.max_topic_alias
    if not zone.wildcard_subscription:
        properties[WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
    if not zone.shared_subscription:
        properties[SHARED_SUBSCRIPTION_AVAILABLE] = 0
    if zone.response_information and connect.properties.get(REQUEST_RESPONSE_INFORMATION) == 1:
        properties[RESPONSE_INFORMATION] = zone.response_information  # [MQTT-3.1.2-28]
    return properties
