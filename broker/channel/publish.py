"""PUBLISH from the client.

The steps of a PUBLISH: Topic Alias, limits, duplicate of a QoS 2 identifier, admission (topic and access), routing,
acknowledgement. ``admitted`` remembers the admitted topics of each client, so that the common case is one dict
lookup."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from ..access.decision import Decision
from ..core.delayed_topic import with_mountpoint, without_mountpoint
from ..core.outcome import (
    CLIENT,
    LINK_FULL,
    NO_MEMORY_FOR_QUEUES,
    NO_SUBSCRIBERS,
    QUEUE_FULL,
    REFUSED,
    RETAINED_ALONE,
    REWRITTEN_INVALID,
    STORE_TROUBLE,
    Outcome,
)
from ..core.runs import affordable, common_route, route_run
from ..mqtt import encoder, reason_codes
from ..mqtt.constants import MAX_STRING, PUBACK, PUBREC, REASON_STRING, V5
from ..mqtt.errors import ProtocolError
from ..mqtt.message import Message
from ..mqtt.packets import NO_PROPERTIES, Ack
from ..mqtt.run import Run
from ..routing.router import Route
from ..session import inbound_qos2
from ..session.inbound_qos2 import DUPLICATE, FULL
from ..session.memory_account import ALIAS_BYTES
from ..session.session import Session
from .authorization import apply_decision, authorize
from .channel import CLOSED, Channel, Quota, Waiting
from .closing import disconnect
from .external_check import Asked, ask
from .inspected_publish import inspect_and_publish
from .packet_refusal import (
    IN_USE,
    MOUNTED_TOO_LONG,
    NEEDS_EXTERNAL_CHECK,
    OVER_QUOTA,
    TOO_DEEP,
    TOO_MANY_QOS2,
    UNANSWERED,
    drop,
    note_refusal,
)
from .undecided import Undecided

# Maximum number of admitted topics of a client, and their total length in characters: 1 MiB at most, if none were
# shared.
_MAX_ADMITTED: Final = 1024
_MAX_ADMITTED_TOPIC: Final = 256
# Maximum total length of the Topic Names of a client's Topic Aliases: 65,535 long ones would use 4 GiB.
_MAX_ALIAS_CHARACTERS: Final = 4_194_304
_MAX_ALIAS_CHARACTERS_WHEN_SHORT: Final = 65_536  # when memory is short
_RETRY_AFTER: Final = 0.05
_MAX_WAIT: Final = 60.0
_FOR_NOW: Final = (QUEUE_FULL, LINK_FULL, NO_MEMORY_FOR_QUEUES, STORE_TROUBLE, RETAINED_ALONE)
"""Why a message cannot be accepted at present: a 3.x client, which cannot be informed, waits."""
_CHECK_CLIENT_EVERY: Final = 5.0
_PUBACK: Final = b"\x40\x02"


def on_publish(channel: Channel, message: Message, now: float) -> Waiting:
    """Process one PUBLISH."""
    context = channel.context
    metrics = context.metrics
    if message.has_alias:
        _resolve_alias(channel, message)
    named = message.topic
    if context.broker.rewriting is not None and not _rewrite(channel, message, now):
        return None
    qos = message.qos
    if qos:
        channel.save_log_position()
        durability = context.broker.durability
        if durability is not None and durability.commit.trouble is not None and _needs_disk(channel, message):
            # Here and not only in ``Broker.accept``: for QoS 2, the identifier would have to be stored before.
            told = _refuse_for_now(channel, message, STORE_TROUBLE, now)
            return None if told else _wait_for_store(channel, message, named)
    if qos > channel.zone.max_qos:
        raise ProtocolError("QoS above the announced Maximum QoS", reason_codes.QOS_NOT_SUPPORTED)
    if message.retain and not channel.zone.retain_available:
        raise ProtocolError("RETAIN is set, but retained messages are not available", reason_codes.RETAIN_NOT_SUPPORTED)
    message.publisher = channel.client
    message.timestamp = now
    if qos:
        session = channel.session
        assert session is not None
        if qos == 1:
            if channel.version == V5:
                awaiting = session.awaiting_rel
                if awaiting is not None and message.packet_id in awaiting:
                    metrics.packets_publish_inuse += 1
                    _refuse(channel, message, IN_USE)
                    return None
        elif not _note_qos2(channel, session, message, now):
            return None
    admitted = channel.admitted
    until = None if admitted is None else admitted.get(message.topic)
    if until is not None and now < until and channel.admitted_generation == context.authorization.generation:
        metrics.client_acl_cache_hit += 1
        metrics.client_acl_allow += 1
    else:
        return _publish_if_admitted(channel, message, now)
    inspection = context.broker.inspection
    if inspection is not None and inspection.inspects(message.topic):
        return inspect_and_publish(channel, inspection, message, _authorize_again, _answer)
    outcome = context.broker.accept(message, CLIENT)
    return None if not qos and outcome.code < REFUSED else _answer(channel, message, outcome, now)


def publish_run(channel: Channel, run: Run, now: float) -> int:
    """Process the PUBLISHes of a run: they are rewritten, checked, routed and acknowledged together.

    Return how many, from the first one on, the budget of the iteration allows; the others are removed from ``run``.
    0: ``on_publish`` has to process each one."""
    broker = channel.context.broker
    topic = run.topic
    if broker.rewriting is not None:
        topic = broker.rewriting.published(topic, channel.client)
    route = _common_route(channel, run, topic, now)
    if route is None:
        return 0
    metrics = channel.context.metrics
    client = channel.client
    if run.qos:
        channel.save_log_position()
    most = affordable(broker, route)
    if most < len(run.messages):
        run.keep(most)
    if topic != run.topic:
        run.readdress(topic)
    for message in run.messages:
        message.publisher = client
        message.timestamp = now
    route_run(broker, run, route)
    taken = len(run.messages)
    metrics.client_acl_cache_hit += taken
    metrics.client_acl_allow += taken
    if run.qos:
        channel.received1 += taken
        metrics.packets_puback_sent += taken
        channel.send_pubacks_when_durable([message.packet_id for message in run.messages])  # [MQTT-4.3.2-4]
    return taken


def _common_route(channel: Channel, run: Run, topic: str, now: float) -> Route | None:
    """Return the route of a run to ``topic``, which is its own topic after rewriting, if each message would only be
    routed by ``on_publish``, without other effects. None: this is not certain for each message."""
    session = channel.session
    admitted = channel.admitted
    until = None if admitted is None else admitted.get(topic)
    if (
        until is None
        or now >= until
        or channel.admitted_generation != channel.context.authorization.generation
        or run.qos > channel.zone.max_qos
        or channel.undecided is not None
        or session is None
        or (run.qos and channel.version == V5 and session.awaiting_rel is not None)
    ):
        return None
    return common_route(channel.context.broker, run, topic)


def _publish_if_admitted(channel: Channel, message: Message, now: float, asked: Decision | None = None) -> Waiting:
    """``asked``: the decision, if an external service was asked."""
    refusal = _admit(channel, message, now, asked)
    if refusal is NEEDS_EXTERNAL_CHECK:
        return _ask_and_publish(channel, message)
    if refusal is not None:
        _refuse(channel, message, refusal)
        return None
    broker = channel.context.broker
    if broker.inspection is not None and broker.inspection.inspects(message.topic):
        return inspect_and_publish(channel, broker.inspection, message, _authorize_again, _answer)
    return _answer(channel, message, broker.accept(message, CLIENT), now)


def _ask_and_publish(channel: Channel, message: Message) -> Awaitable[None]:
    """Ask an external service about a PUBLISH, then continue with it."""
    context = channel.context
    session = channel.session
    assert session is not None
    if message.qos == 2:
        # If the client disconnects in the meantime, the message that it sends again is not a duplicate.
        inbound_qos2.release(session, message.packet_id)
    topic = context.broker.destination(message.topic)
    assert isinstance(topic, str)
    return _publish_when_answered(channel, session, message, ask(channel, "publish", [topic]))


async def _publish_when_answered(channel: Channel, session: Session, message: Message, asked: Asked) -> None:
    decisions = await asked
    now = channel.context.clock.now()
    if decisions is None or channel.state == CLOSED:
        drop(channel, message, UNANSWERED, now)
        return
    if message.qos:
        channel.save_log_position()
        if message.qos == 2:
            inbound_qos2.receive(session, message.packet_id, now)
    waiting = _publish_if_admitted(channel, message, now, decisions[0])
    if waiting is not None:
        await waiting


def _answer(
    channel: Channel, message: Message, outcome: Outcome, now: float, published: Message | None = None
) -> Waiting:
    """Acknowledge a PUBLISH, or refuse it. ``outcome``: the result of ``Broker.accept`` for ``published``, None: the
    message itself."""
    if outcome.code >= REFUSED:
        return _refused(channel, message, outcome, now, message if published is None else published)
    if not message.qos:
        return None
    if channel.undecided is not None or channel.context.broker.undecided is not None:
        return _acknowledge_when_decided(channel, message, outcome)
    matched = outcome is not NO_SUBSCRIBERS
    if message.qos == 1:
        channel.context.metrics.packets_puback_sent += 1
        if matched or channel.version != V5:
            channel.send_when_durable(_PUBACK + encoder.PACKET_ID[message.packet_id])  # [MQTT-4.3.2-4]
        else:
            channel.send_packet_when_durable(Ack(PUBACK, message.packet_id, reason_codes.NO_MATCHING_SUBSCRIBERS))
        return None
    channel.context.metrics.packets_pubrec_sent += 1
    if matched or channel.version != V5:
        channel.send_when_durable(encoder.ack(PUBREC, message.packet_id))  # [MQTT-4.3.3-8]
    else:
        channel.send_packet_when_durable(Ack(PUBREC, message.packet_id, reason_codes.NO_MATCHING_SUBSCRIBERS))
    return None


def _acknowledge_when_decided(channel: Channel, message: Message, outcome: Outcome) -> Waiting:
    """Acknowledge after the nodes of the cluster have agreed about the retained message of this or an earlier
    PUBLISH."""
    metrics = channel.context.metrics
    kind = PUBACK if message.qos == 1 else PUBREC
    if kind == PUBACK:
        metrics.packets_puback_sent += 1
    else:
        metrics.packets_pubrec_sent += 1
    data = encoder.ack(kind, message.packet_id)
    if channel.version == V5 and outcome is NO_SUBSCRIBERS:
        data = channel.encoded(Ack(kind, message.packet_id, reason_codes.NO_MATCHING_SUBSCRIBERS)) or data
    return _hold(channel, message, data, channel.context.broker.undecided)


def _hold(channel: Channel, message: Message, data: bytes, decision: asyncio.Future[None] | None) -> Waiting:
    """``data``: an acknowledgement, which waits for ``decision`` and for earlier acknowledgements."""
    undecided = channel.undecided
    if undecided is None:
        undecided = channel.undecided = Undecided(channel)
    if decision is None:
        undecided.follow(data, channel.batch_in_hand)
    else:
        refusal = b""
        if channel.version == V5:
            refusal = _encoded_refusal(channel, message, RETAINED_ALONE.code) or b""
        undecided.hold(data, channel.batch_in_hand, message, decision, refusal)
    return undecided.wait_for_room() if undecided.full else None


def _resolve_alias(channel: Channel, message: Message) -> None:
    # [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.3.2-12]
    alias = message.take_alias()
    if alias > channel.zone.max_topic_alias:
        detail = "Topic Alias above the announced Topic Alias Maximum"
        raise ProtocolError(detail, reason_codes.TOPIC_ALIAS_INVALID, "max_topic_alias")
    aliases = channel.aliases
    if message.topic:
        if aliases is None:
            aliases = channel.aliases = {}
        more = len(message.topic) - len(aliases.get(alias, ""))
        channel.alias_characters += more
        account = channel.context.broker.account
        account.aliases += more if alias in aliases else more + ALIAS_BYTES
        aliases[alias] = message.topic
        if channel.alias_characters > _MAX_ALIAS_CHARACTERS:
            raise ProtocolError("the Topic Aliases are longer than the node can keep", reason_codes.QUOTA_EXCEEDED)
        if account.level and channel.alias_characters > _MAX_ALIAS_CHARACTERS_WHEN_SHORT:
            raise ProtocolError("no memory for more Topic Aliases", reason_codes.QUOTA_EXCEEDED, "limits.memory")
        return
    topic = aliases.get(alias) if aliases is not None else None
    if topic is None:
        raise ProtocolError("unknown Topic Alias")  # section 3.3.4: no Topic Name, and none for the alias
    message.topic = topic


def _rewrite(channel: Channel, message: Message, now: float) -> bool:
    """Rewrite the topic, before access to it is checked. Return False if the message is refused."""
    rewriting = channel.context.broker.rewriting
    assert rewriting is not None
    topic = rewriting.published(message.topic, channel.client)
    if not topic:
        message.timestamp = now
        _refuse(channel, message, REWRITTEN_INVALID)
        return False
    if topic != message.topic:
        message.readdress(topic)
    return True


def _note_qos2(channel: Channel, session: Session, message: Message, now: float) -> bool:
    """Return whether this QoS 2 PUBLISH is a new message that may be published."""
    metrics = channel.context.metrics
    awaiting = session.awaiting_rel
    if channel.version == V5 and (awaiting is None or message.packet_id not in awaiting):
        # [MQTT-3.3.4-7] QoS 1 is limited in another way: reading stops while too much waits for its PUBACK
        if awaiting is not None and len(awaiting) >= channel.zone.receive_maximum:
            metrics.packets_publish_dropped += 1
            raise ProtocolError("more unfinished messages than Receive Maximum", reason_codes.RECEIVE_MAXIMUM_EXCEEDED)
    outcome = inbound_qos2.receive(session, message.packet_id, now)
    if outcome == DUPLICATE:
        # [MQTT-4.3.3-10] the same message: it is acknowledged each time, but published once
        metrics.packets_publish_inuse += 1
        metrics.packets_pubrec_sent += 1
        channel.log_position = -1  # the first one may not be on disk yet
        broker = channel.context.broker
        changes = broker.retaining.changes
        decision = None
        if changes is not None and message.retain:
            if broker.inspection is not None:
                decision = broker.inspection.undecided(channel.client.client_id, message.packet_id)
            decision = decision or changes.undecided(channel.client.mountpoint + message.topic)
        if decision is not None or channel.undecided is not None:
            _hold(channel, message, encoder.ack(PUBREC, message.packet_id), decision)
        else:
            channel.send_when_durable(encoder.ack(PUBREC, message.packet_id))
        return False
    if outcome == FULL:
        metrics.packets_publish_dropped += 1
        channel.refused_messages += 1
        note_refusal(channel, TOO_MANY_QOS2, "publish_refused", message.topic, now)
        if channel.version == V5:
            _negative(channel, message, reason_codes.QUOTA_EXCEEDED)
        # 3.x has no way to report this: no PUBREC, no promise; the client repeats it when it reconnects
        return False
    return True


def _admit(channel: Channel, message: Message, now: float, asked: Decision | None) -> Outcome | None:
    """Return why this client may not publish to this topic, if it may not; add the mount point.

    ``NEEDS_EXTERNAL_CHECK``: an external service must be asked for ``asked``."""
    context = channel.context
    zone = channel.zone
    client = channel.client
    topic = message.topic
    if zone.max_topic_levels and topic.count("/") >= zone.max_topic_levels:
        return TOO_DEEP
    real = context.broker.destination(topic)
    if isinstance(real, Outcome):
        return real
    decision = _decide(channel, real, now, asked)
    if decision is None:
        return NEEDS_EXTERNAL_CHECK
    if not decision.allowed:
        return _not_authorized(decision)
    if channel.quota is not None and not _within_quota(channel, channel.quota, client.mountpoint + topic, now):
        return OVER_QUOTA
    if client.mountpoint:
        mounted = with_mountpoint(topic, client.mountpoint)
        if len(mounted.encode()) > MAX_STRING:
            return MOUNTED_TOO_LONG  # no PUBLISH could carry it to any client
        message.readdress(mounted)
    elif (
        real == topic  # delayed topics are not remembered
        and channel.quota is None
        and context.authorization.settings.cache
        and len(topic) <= _MAX_ADMITTED_TOPIC
        and decision.lasting
    ):
        admitted = channel.admitted
        generation = context.authorization.generation
        if admitted is None or channel.admitted_generation != generation or len(admitted) >= _MAX_ADMITTED:
            admitted = channel.admitted = {}
            channel.admitted_generation = generation
        admitted[topic] = now + context.authorization.settings.cache_ttl
    return None


async def _authorize_again(channel: Channel, message: Message) -> Outcome | None:
    """Return why this client may not publish an admitted message any more, if it may not."""
    topic = channel.context.broker.destination(without_mountpoint(message.topic, channel.client.mountpoint))
    if isinstance(topic, Outcome):
        return topic
    now = channel.context.clock.now()
    decision = _decide(channel, topic, now, None)
    if decision is None:
        decisions = await ask(channel, "publish", [topic])
        if decisions is None or channel.state == CLOSED:
            return None
        decision = _decide(channel, topic, now, decisions[0])
        assert decision is not None
    return None if decision.allowed else _not_authorized(decision)


def _decide(channel: Channel, topic: str, now: float, asked: Decision | None) -> Decision | None:
    """Return whether this client may publish to this topic now; ``None``: an external service must be asked for
    ``asked``."""
    if asked is None:
        return authorize(channel, "publish", topic, now)
    return apply_decision(channel, "publish", topic, asked)


def _not_authorized(decision: Decision) -> Outcome:
    return Outcome(reason_codes.NOT_AUTHORIZED, decision.setting)


def _within_quota(channel: Channel, quota: Quota, topic: str, now: float) -> bool:
    """Return whether the quota allows another message; then charge this one, and one more for each subscription that it
    reaches."""
    if quota.consume(0, now) > 0:
        return False
    route = channel.context.broker.router.match(topic)
    quota.consume(1 + len(route.targets) + len(route.groups), now)
    return True


def _refuse(channel: Channel, message: Message, refusal: Outcome) -> None:
    """Drop a PUBLISH, with the negative acknowledgement for its version and QoS [3.1.1 MQTT-3.3.5-2]."""
    metrics = channel.context.metrics
    code = refusal.code
    denied = code == reason_codes.NOT_AUTHORIZED
    channel.refused_messages += 1
    if denied:
        metrics.packets_publish_auth_error += 1
    else:
        metrics.packets_publish_error += 1
    note_refusal(channel, refusal, "publish_refused", message.topic, message.timestamp)
    if denied and channel.zone.acl_deny_action == "disconnect":
        if message.qos == 2 and channel.session is not None:
            # It was not accepted, so it is not a duplicate when it arrives again.
            inbound_qos2.release(channel.session, message.packet_id)
        detail = "not authorized to publish to this topic"
        disconnect(channel, code, detail, reason_codes.name(code), refusal.setting)
    elif message.qos:
        _negative(channel, message, code, refusal.detail)


def _negative(channel: Channel, message: Message, code: int, detail: str = "") -> None:
    kind = PUBACK if message.qos == 1 else PUBREC
    session = channel.session
    metrics = channel.context.metrics
    if kind == PUBACK:
        metrics.packets_puback_sent += 1
    else:
        metrics.packets_pubrec_sent += 1
    if channel.version != V5:
        channel.acknowledge_when_durable(encoder.ack(kind, message.packet_id))
        return
    if kind == PUBREC and session is not None:
        inbound_qos2.release(session, message.packet_id)  # [MQTT-4.3.3-9] free immediately
    data = _encoded_refusal(channel, message, code, detail)
    if data is not None:
        channel.acknowledge_when_durable(data)


def _encoded_refusal(channel: Channel, message: Message, code: int, detail: str = "") -> bytes | None:
    """Encode the PUBACK or PUBREC with the reason for a 5.0 client; None: it exceeds the client's Maximum Packet
    Size."""
    properties = NO_PROPERTIES
    if channel.problem_information:
        name = reason_codes.name(code)
        properties = {REASON_STRING: f"{name}: {detail}" if detail else name}
    return channel.encoded(Ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id, code, properties))


def drop_unprocessed(channel: Channel, message: Message, why: Outcome, now: float) -> None:
    """Drop a message that waits and is not processed, because the client has disconnected."""
    channel.context.metrics.packets_publish_received += 1
    drop(channel, message, why, now)


def _refused(channel: Channel, message: Message, outcome: Outcome, now: float, published: Message) -> Waiting:
    """Handle a message that ``Broker.accept`` has not accepted."""
    if outcome not in _FOR_NOW or not message.qos:
        _refuse(channel, message, outcome)
        return None
    if _refuse_for_now(channel, message, outcome, now):
        return None
    session = channel.session
    assert session is not None
    # If the client disconnects in the meantime, the message that it sends again is not a duplicate.
    inbound_qos2.release(session, message.packet_id)
    return _wait_until_taken(channel, session, message, published)


def _refuse_for_now(channel: Channel, message: Message, refusal: Outcome, now: float) -> bool:
    """Inform a 5.0 client that nothing can be stored, or that a queue is full with ``queue_full = "refuse"``: 0x97.

    Return False for a 3.x client, from which nothing is read until the message can be accepted."""
    channel.context.metrics.packets_publish_dropped += 1
    if channel.version == V5 or refusal is STORE_TROUBLE:
        note_refusal(channel, refusal, "publish_refused", message.topic, now)
    if channel.version == V5:
        channel.refused_messages += 1
        _negative(channel, message, refusal.code)
        return True
    return False


async def _wait_until_taken(channel: Channel, session: Session, message: Message, published: Message) -> None:
    """Publish ``published`` when it can be accepted, if the client is then still allowed to publish ``message``."""
    context = channel.context
    broker = context.broker
    durability = context.broker.durability
    topic = broker.destination(without_mountpoint(message.topic, channel.client.mountpoint))
    assert isinstance(topic, str)
    asked: Decision | None = None
    give_up = context.clock.now() + _MAX_WAIT
    while channel.state != CLOSED:
        refusal = broker.refusal(published, CLIENT)
        if refusal is None:
            now = context.clock.now()
            decision = _decide(channel, topic, now, asked)
            if decision is None:
                decisions = await ask(channel, "publish", [topic])
                if decisions is None:
                    return
                asked = decisions[0]
                continue
            channel.save_log_position()
            if message.qos == 2:
                inbound_qos2.receive(session, message.packet_id, now)
            outcome = broker.accept(published, CLIENT) if decision.allowed else _not_authorized(decision)
            waiting = _answer(channel, message, outcome, now, published)
            if waiting is not None:
                await waiting
            return
        asked = None
        if refusal is STORE_TROUBLE and durability is not None:
            await durability.commit.wait_for_recovery(_CHECK_CLIENT_EVERY)
            give_up = context.clock.now() + _MAX_WAIT
            continue
        if context.clock.now() > give_up:
            # Nothing is read, so the client could have disconnected long ago. If not, it reconnects and sends
            # unacknowledged messages again.
            disconnect(
                channel,
                reason_codes.QUOTA_EXCEEDED,
                refusal.detail or "queue_full = refuse, and the queue was full for too long",
                "quota_exceeded",
                refusal.setting,
            )
            return
        await asyncio.sleep(_RETRY_AFTER)


def _needs_disk(channel: Channel, message: Message) -> bool:
    """Return whether the acknowledgement would have to wait for the disk. A duplicate is acknowledged like the first
    one."""
    context = channel.context
    session = channel.session
    assert session is not None
    if message.qos == 2 and session.durable:
        return session.awaiting_rel is None or message.packet_id not in session.awaiting_rel
    return context.broker.cannot_store(channel.client.mountpoint + message.topic, message.retain)


async def _wait_for_store(channel: Channel, message: Message, named: str) -> None:
    """``named``: the topic before it was rewritten."""
    context = channel.context
    durability = context.broker.durability
    assert durability is not None
    while durability.commit.trouble is not None and channel.state != CLOSED:
        await durability.commit.wait_for_recovery(_CHECK_CLIENT_EVERY)
    if channel.state != CLOSED:
        message.topic = named
        waiting = on_publish(channel, message, context.clock.now())
        if waiting is not None:
            await waiting
