"""Channel: one client's conversation, from its CONNECT to its end.

It is driven by the connection with decoded packets and the time, and holds no socket. Which handler takes which packet
stands in ``receive`` and ``_handle``; the handlers live in ``connect``, ``authentication``, ``publish``,
``acknowledgements`` and ``subscribe``.
"""

from collections.abc import Awaitable
from typing import Final

from ..mqtt import encoder, reason_codes
from ..mqtt.constants import PINGRESP, PUBACK, PUBREC, PUBREL
from ..mqtt.decoder import Packet
from ..mqtt.errors import MqttError, ProtocolError
from ..mqtt.message import Message
from ..mqtt.packets import Ack, Auth, Connect, Disconnect, Pingreq, Pingresp, Subscribe, Unsubscribe
from . import closing
from .acknowledgements import on_ack, on_puback, on_pubcomp, on_pubrec, on_pubrel
from .authentication import on_auth
from .connect import on_connect, on_disconnect
from .publish import on_publish
from .state import AUTHENTICATING, CLOSED, CONNECTED, CONNECTING, ChannelState
from .subscribe import on_subscribe, on_unsubscribe

_PINGRESP: Final = encoder.encode(Pingresp(), 4)
assert _PINGRESP[0] >> 4 == PINGRESP

DELIVERIES_PER_ITERATION: Final = 4096
"""After so many deliveries in one loop turn a publisher's remaining packets wait for the next, so that output is
flushed and other clients are heard in between."""

PUBLISHES_PER_ITERATION: Final = 512
"""After so many of one client the same: under a millisecond of QoS 0, for which others wait behind a flood."""


class Channel(ChannelState):
    """See ``ChannelState`` for what it knows."""

    __slots__ = ("rest",)

    rest: list[Packet] | None

    def receive(self, packets: list[Packet], now: float) -> Awaitable[None] | bool:
        """Take packets in order.

        True: all taken. False: a turn's budget is used up; the others are in ``rest``, for the next turn. An awaitable:
        one packet must wait for it; the others are in ``rest``.
        """
        self.rest = None
        waiting: Awaitable[None] | None = None
        published = 0
        turn = self.context.broker.turn
        remaining = iter(packets)
        # Identifiers of PUBACKs in a row: together they make room for as many messages.
        pubacks: list[int] = []
        try:
            for packet in remaining:
                kind = type(packet)
                if kind is int and packet >> 16 == PUBACK and self.state == CONNECTED:  # type: ignore[operator]
                    pubacks.append(packet & 0xFFFF)  # type: ignore[operator]
                    continue
                if pubacks:
                    acknowledged, pubacks = pubacks, []
                    on_puback(self, acknowledged, now)
                    if self.state == CLOSED:
                        return True
                if kind is Message:
                    if self.state != CONNECTED:
                        self._out_of_place()
                        return True
                    published += 1
                    if packet.qos:  # type: ignore[union-attr]
                        if packet.qos == 1:  # type: ignore[union-attr]
                            self.received1 += 1
                        else:
                            self.received2 += 1
                    waiting = on_publish(self, packet, now)  # type: ignore[arg-type]
                    if waiting is None and (
                        turn.deliveries > DELIVERIES_PER_ITERATION or published == PUBLISHES_PER_ITERATION
                    ):
                        self.rest = list(remaining)
                        return not self.rest
                elif kind is int and self.state == CONNECTED:
                    packet_id = packet & 0xFFFF  # type: ignore[operator]
                    kind_of_ack = packet >> 16  # type: ignore[operator]
                    if kind_of_ack == PUBREC:
                        on_pubrec(self, packet_id, 0, now)
                    elif kind_of_ack == PUBREL:
                        on_pubrel(self, packet_id)
                    else:
                        on_pubcomp(self, packet_id, now)
                else:
                    waiting = self._handle(packet, now)
                    if waiting is None and turn.deliveries > DELIVERIES_PER_ITERATION and self.state != CLOSED:
                        self.rest = list(remaining)
                        return not self.rest
                if self.state == CLOSED:
                    return True
                if waiting is not None:
                    self.rest = list(remaining)
                    return waiting
            if pubacks:
                on_puback(self, pubacks, now)
        except MqttError as error:
            closing.fail(self, error)
        finally:
            if published:
                self.received_messages += published
                self.context.metrics.packets_publish_received += published
        return True

    def _handle(self, packet: Packet, now: float) -> Awaitable[None] | None:
        if isinstance(packet, MqttError):
            raise packet
        if isinstance(packet, Connect):
            if self.state != CONNECTING:
                raise ProtocolError("a second CONNECT")  # [MQTT-3.1.0-2]
            return on_connect(self, packet, now)
        if self.state == AUTHENTICATING and isinstance(packet, Auth | Disconnect):
            if isinstance(packet, Auth):
                return on_auth(self, packet, now)
            else:
                self.context.metrics.packets_disconnect_received += 1
                closing.end(self, closing.NORMAL)
            return None
        if self.state != CONNECTED:
            self._out_of_place()
        elif isinstance(packet, Pingreq):
            metrics = self.context.metrics
            metrics.packets_pingreq_received += 1
            metrics.packets_pingresp_sent += 1
            self.writer.send(_PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, Ack):
            on_ack(self, packet, now)
        elif isinstance(packet, Subscribe):
            return on_subscribe(self, packet, now)
        elif isinstance(packet, Unsubscribe):
            return on_unsubscribe(self, packet, now)
        elif isinstance(packet, Disconnect):
            on_disconnect(self, packet, now)
        elif isinstance(packet, Auth):
            return on_auth(self, packet, now)
        else:
            raise ProtocolError("a packet that only a Server sends")
        return None

    def _out_of_place(self) -> None:
        """Anything but AUTH while CONNECT is not answered [MQTT-3.1.0-1]."""
        if self.state == AUTHENTICATING and self.auth_method is not None:
            closing.refuse(self, reason_codes.PROTOCOL_ERROR, "expected AUTH")
        else:
            raise ProtocolError("expected CONNECT")

    # What others order: operators, the keep alive, the transport

    def kick(self, reason_code: int = reason_codes.ADMINISTRATIVE_ACTION) -> None:
        """An operator's order: the connection ends, and so does the session."""
        if self.session is not None:
            self.session.expiry_interval = 0
        closing.disconnect(self, reason_code, "", closing.KICKED)

    def shut_down(self, keep_will: bool = False) -> None:
        """The node stops; the will goes out [MQTT-3.1.2-8]. ``keep_will``: it stays in the store for the next start."""
        if self.session is None or self.writer.session is None:
            self.will = None  # nobody was told that it is in force
        elif keep_will and self.will is not None:
            self.will = None
            self.session.will_number = 0
        if self.state == CONNECTED:
            closing.disconnect(self, reason_codes.SERVER_SHUTTING_DOWN, "", closing.SHUTTING_DOWN)
        else:
            closing.end(self, closing.SHUTTING_DOWN)

    def keep_alive_timeout(self) -> None:
        """Nothing came for 1.5 times the Keep Alive [MQTT-3.1.2-22]."""
        closing.disconnect(
            self, reason_codes.KEEP_ALIVE_TIMEOUT, "no packet within 1.5 times Keep Alive", closing.KEEP_ALIVE_TIMEOUT
        )

    def too_busy(self) -> None:
        """Too much of others waits to be let in already."""
        if self.state == AUTHENTICATING:
            detail = "too much waits to be let in"
            closing.refuse(self, reason_codes.SERVER_BUSY, detail, "access.hash_wait", tell=False)

    def idle_timeout(self) -> None:
        """No complete CONNECT, or no AUTH, in time."""
        what = "no complete CONNECT in time" if self.state == CONNECTING else "no AUTH in time"
        closing.end(self, closing.IDLE_TIMEOUT, what)

    def slow_reader(self) -> None:
        """The client's socket took nothing for too long."""
        closing.end(self, closing.SLOW_READER, "the client reads nothing")

    def too_much_memory(self) -> None:
        """The node's memory is used up, and what waits for this client takes much of it."""
        closing.end(self, closing.MEMORY, "much waits for a client that reads slowly, and memory is short")

    def internal_error(self) -> None:
        """The broker failed on one of this client's packets."""
        closing.disconnect(self, reason_codes.UNSPECIFIED_ERROR, "", closing.INTERNAL_ERROR)

    def connection_lost(self, reason: str) -> None:
        """The network connection is gone without a DISCONNECT."""
        closing.end(self, closing.SOCKET_CLOSED, reason)
