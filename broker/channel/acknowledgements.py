"""PUBACK, PUBREC, PUBREL and PUBCOMP from the client. Acknowledgements of the client's own PUBLISHes are in
``publish``."""

from ..mqtt import encoder, reason_codes
from ..mqtt.constants import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from ..mqtt.errors import ProtocolError
from ..mqtt.packets import Ack
from ..session import inbound_qos2
from ..session.client_info import PacketInHand
from ..session.outbound_acks import completion_of, note_completion, puback, puback_run, pubcomp, pubrec
from .channel import CLOSED, Channel


def on_acks(channel: Channel, kind: int, packet_ids: list[int], now: float) -> None:
    """Process plain acknowledgements of one kind that arrived together."""
    if kind == PUBACK:
        on_puback(channel, packet_ids, now)
    elif kind == PUBREC:
        on_pubrec(channel, packet_ids, 0, now)
    elif kind == PUBREL:
        on_pubrel(channel, packet_ids)
    else:
        on_pubcomp(channel, packet_ids, now)


def on_puback(channel: Channel, packet_ids: list[int], now: float) -> None:
    """The client has received QoS 1 messages."""
    context = channel.context
    metrics = context.metrics
    metrics.packets_puback_received += len(packet_ids)
    session = channel.session
    assert session is not None
    hooks = context.hooks
    in_flight = len(session.inflight)
    try:
        if hooks.message_acked or hooks.delivery_completed:
            acknowledged = 0
            for packet_id in packet_ids:
                for delivery in puback(session, packet_id):
                    acknowledged += 1
                    hooks.message_acked(channel.client, delivery.message)
                    hooks.delivery_completed(channel.client, delivery.message, delivery.message.timestamp)
                if channel.state == CLOSED:  # by a hook
                    metrics.messages_acked += acknowledged
                    return
        else:
            acknowledged = len(puback_run(session, packet_ids))
    except ProtocolError:
        metrics.messages_acked += in_flight - len(session.inflight)
        metrics.packets_puback_inuse += 1
        raise
    metrics.messages_acked += acknowledged
    metrics.packets_puback_missed += len(packet_ids) - acknowledged
    if session.busy:
        session.advance(now)


def on_pubrec(channel: Channel, packet_ids: list[int], code: int, now: float) -> None:
    """The client has received QoS 2 messages, or refuses them."""
    context = channel.context
    metrics = context.metrics
    hooks = context.hooks
    session = channel.session
    assert session is not None
    failed = code >= 0x80
    heard = bool(hooks.message_acked or hooks.delivery_completed)
    for packet_id in packet_ids:
        metrics.packets_pubrec_received += 1
        channel.save_log_position()
        known, delivery = pubrec(session, packet_id, failed)
        if not known:
            metrics.packets_pubrec_missed += 1
        elif delivery is None:
            metrics.packets_pubrec_inuse += 1
        elif not failed:
            metrics.messages_acked += 1
            if heard:
                if hooks.message_acked:
                    hooks.message_acked(channel.client, delivery.message)
                if hooks.delivery_completed:
                    note_completion(session, packet_id, delivery.message)
                if channel.state == CLOSED:  # by a hook
                    return
        if failed:
            continue
        metrics.packets_pubrel_sent += 1
        if known or channel.version != V5:
            if delivery is None:
                channel.log_position = -1
            channel.send_when_durable(encoder.ack(PUBREL, packet_id))  # [MQTT-4.3.3-4]
        else:
            channel.send_packet_when_durable(Ack(PUBREL, packet_id, reason_codes.PACKET_IDENTIFIER_NOT_FOUND))
    if failed:
        session.advance(now)  # [MQTT-4.4.0-2] the exchange has ended, so its place is free


def on_pubrel(channel: Channel, packet_ids: list[int]) -> None:
    """The client releases QoS 2 identifiers; there is always an answer [MQTT-4.3.3-11]."""
    metrics = channel.context.metrics
    session = channel.session
    assert session is not None
    for packet_id in packet_ids:
        metrics.packets_pubrel_received += 1
        channel.save_log_position()
        known = inbound_qos2.release(session, packet_id)
        if not known:
            channel.log_position = -1
            metrics.packets_pubrel_missed += 1
        metrics.packets_pubcomp_sent += 1
        if known or channel.version != V5:
            channel.send_when_durable(encoder.ack(PUBCOMP, packet_id))
        else:
            channel.send_packet_when_durable(Ack(PUBCOMP, packet_id, reason_codes.PACKET_IDENTIFIER_NOT_FOUND))


def on_pubcomp(channel: Channel, packet_ids: list[int], now: float) -> None:
    """QoS 2 deliveries are complete."""
    context = channel.context
    metrics = context.metrics
    session = channel.session
    assert session is not None
    completed = context.hooks.delivery_completed
    try:
        for packet_id in packet_ids:
            metrics.packets_pubcomp_received += 1
            if not pubcomp(session, packet_id):
                metrics.packets_pubcomp_missed += 1
            elif completed:
                message = completion_of(session, packet_id)
                if message is not None:
                    completed(channel.client, message, message.timestamp)
                    if channel.state == CLOSED:  # by a hook
                        return
    except ProtocolError:
        metrics.packets_pubcomp_inuse += 1
        raise
    if session.busy:
        session.advance(now)


def on_ack(channel: Channel, ack: Ack, now: float) -> None:
    """Process an acknowledgement with a Reason Code or properties."""
    kind = ack.type
    with PacketInHand(channel.client, ack.properties):
        if kind == PUBACK:
            on_puback(channel, [ack.packet_id], now)
        elif kind == PUBREC:
            on_pubrec(channel, [ack.packet_id], ack.reason_code, now)
        elif kind == PUBREL:
            on_pubrel(channel, [ack.packet_id])
        else:
            on_pubcomp(channel, [ack.packet_id], now)
