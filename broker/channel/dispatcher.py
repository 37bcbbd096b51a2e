"""Dispatches the Control Packets of a client to their handlers, in order.

The connection calls ``receive`` with decoded packets and the time. The handlers are in ``connect``, ``authentication``,
``publish``, ``acknowledgements`` and ``subscribe``."""

from collections.abc import Awaitable
from typing import Final

from ..loop.budget import DELIVERIES_PER_ITERATION
from ..mqtt import encoder, reason_codes
from ..mqtt.constants import PINGRESP
from ..mqtt.decoder import Packet
from ..mqtt.errors import MqttError, ProtocolError
from ..mqtt.message import Message
from ..mqtt.packets import Ack, Auth, Connect, Disconnect, Pingreq, Pingresp, Subscribe, Unsubscribe
from ..mqtt.run import next_run
from . import closing
from .acknowledgements import on_ack, on_acks
from .authentication import on_auth
from .channel import AUTHENTICATING, CLOSED, CONNECTED, CONNECTING, Channel
from .connect import on_connect, on_disconnect
from .publish import on_publish, publish_run
from .subscribe import on_subscribe, on_unsubscribe

_PINGRESP: Final = encoder.encode(Pingresp(), 4)
assert _PINGRESP[0] >> 4 == PINGRESP


PUBLISHES_PER_ITERATION: Final = 512
"""Maximum number of PUBLISHes of one client in an iteration: less than a millisecond of QoS 0, for which other clients
wait."""


def receive(channel: Channel, packets: list[Packet], now: float) -> Awaitable[None] | bool:
    """Process packets in order.

    True: all were processed. False: the budget of the iteration is used up; the other packets are in ``rest``, for the
    next iteration. An awaitable: one packet must wait for it; the other packets are in ``rest``."""
    channel.rest = None
    waiting: Awaitable[None] | None = None
    published = 0
    qos1, qos2 = channel.received1, channel.received2
    budget = channel.context.broker.budget
    count = len(packets)
    at = 0
    runs = True
    try:
        while at < count:
            packet = packets[at]
            at += 1
            if isinstance(packet, Message):
                if channel.state != CONNECTED:
                    _out_of_place(channel)
                    return True
                if runs and at < count:
                    run = next_run(packets, at - 1, PUBLISHES_PER_ITERATION - published)
                    if run is not None:
                        taken = publish_run(channel, run, now)
                        if taken:
                            published += taken
                            at += taken - 1
                            if budget.deliveries > DELIVERIES_PER_ITERATION or published == PUBLISHES_PER_ITERATION:
                                channel.rest = packets[at:]
                                return not channel.rest
                            continue
                        runs = False
                published += 1
                if packet.qos:
                    if packet.qos == 1:
                        channel.received1 += 1
                    else:
                        channel.received2 += 1
                waiting = on_publish(channel, packet, now)
                if waiting is None and (
                    budget.deliveries > DELIVERIES_PER_ITERATION or published == PUBLISHES_PER_ITERATION
                ):
                    channel.rest = packets[at:]
                    return not channel.rest
            elif isinstance(packet, int) and channel.state == CONNECTED:
                kind = packet >> 16
                packet_ids = [packet & 0xFFFF]
                while at < count:
                    following = packets[at]
                    if not isinstance(following, int) or following >> 16 != kind:
                        break
                    packet_ids.append(following & 0xFFFF)
                    at += 1
                on_acks(channel, kind, packet_ids, now)
            else:
                waiting = _handle(channel, packet, now)
                if waiting is None and budget.deliveries > DELIVERIES_PER_ITERATION and channel.state != CLOSED:
                    channel.rest = packets[at:]
                    return not channel.rest
            if channel.state == CLOSED:
                return True
            if waiting is not None:
                channel.rest = packets[at:]
                return waiting
    except MqttError as error:
        closing.fail(channel, error)
    finally:
        if published:
            channel.received_messages += published
            metrics = channel.context.metrics
            qos1, qos2 = channel.received1 - qos1, channel.received2 - qos2
            metrics.packets_publish_received += published
            metrics.messages_qos0_received += published - qos1 - qos2
            metrics.messages_qos1_received += qos1
            metrics.messages_qos2_received += qos2
    return True


def _handle(channel: Channel, packet: Packet, now: float) -> Awaitable[None] | None:
    if isinstance(packet, MqttError):
        raise packet
    if isinstance(packet, Connect):
        if channel.state != CONNECTING:
            raise ProtocolError("a second CONNECT")  # [MQTT-3.1.0-2]
        return on_connect(channel, packet, now)
    if channel.state == AUTHENTICATING and isinstance(packet, Auth | Disconnect):
        if isinstance(packet, Auth):
            return on_auth(channel, packet, now)
        else:
            channel.context.metrics.packets_disconnect_received += 1
            closing.end(channel, closing.NORMAL)
        return None
    if channel.state != CONNECTED:
        _out_of_place(channel)
    elif isinstance(packet, Pingreq):
        metrics = channel.context.metrics
        metrics.packets_pingreq_received += 1
        metrics.packets_pingresp_sent += 1
        channel.writer.send(_PINGRESP)  # [MQTT-3.12.4-1]
    elif isinstance(packet, Ack):
        on_ack(channel, packet, now)
    elif isinstance(packet, Subscribe):
        return on_subscribe(channel, packet, now)
    elif isinstance(packet, Unsubscribe):
        return on_unsubscribe(channel, packet, now)
    elif isinstance(packet, Disconnect):
        on_disconnect(channel, packet, now)
    elif isinstance(packet, Auth):
        return on_auth(channel, packet, now)
    else:
        raise ProtocolError("a packet that only a Server sends")
    return None


def _out_of_place(channel: Channel) -> None:
    """Reject any packet except AUTH while CONNECT is not answered [MQTT-3.1.0-1]."""
    if channel.state == AUTHENTICATING and channel.auth_method is not None:
        closing.refuse(channel, reason_codes.PROTOCOL_ERROR, "expected AUTH")
    else:
        raise ProtocolError("expected CONNECT")
