"""GatewayLayer: between a socket and its Connection, the requests of another protocol as MQTT packets."""

import asyncio
import logging
from typing import Final, cast

from ..channel.closing import fail, internal_error
from ..core.before_login import BeforeLogin
from ..gateway import Gateway, GatewayChannel, GatewayError
from ..mqtt.decoder import Decoder, TopicNames
from ..mqtt.encoder import Outgoing, encode
from ..mqtt.errors import MalformedPacket, MqttError, PacketTooLarge
from ..mqtt.message import Message
from ..mqtt.packets import NO_PROPERTIES, Ack, Connect, Properties
from .connection import Connection
from .layer import Layer
from .unread import unread

logger = logging.getLogger(__name__)

_TOPIC_NAMES: Final = TopicNames(False)
_LARGEST: Final = 268_435_460
"""Bytes of a packet: the standard has no larger ones. What is decoded here the broker has made."""


class GatewayLayer(Layer, asyncio.Protocol):
    """Carries one conversation. The Connection above reads and writes MQTT, whatever the client speaks.

    Packets that the gateway sends while the Connection writes wait until the loop's next callback: the Connection is
    never called back by what it calls.
    """

    reads_to_the_end = True

    __slots__ = (
        "_before_login", "_channel", "_connection", "_decoder", "_gateway", "_held", "_limit", "_loop", "_options",
        "_over", "_scheduled", "_taking", "_up", "_version",
    )  # fmt: skip

    def __init__(
        self, gateway: Gateway, options: object, connection: Connection, max_size: int, before_login: BeforeLogin
    ) -> None:
        """``max_size``: bytes of one request before the login; ``raise_packet_limit`` has those after it."""
        super().__init__()
        self._gateway = gateway
        self._options = options
        self._connection = connection
        self._limit = max_size
        self._before_login: BeforeLogin | None = before_login
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(_TOPIC_NAMES, _LARGEST, _LARGEST, server_side=False)
        self._version = 0
        self._channel: GatewayChannel | None = None
        self._held = b""  # the beginning of a request
        self._up: list[bytes] = []  # packets for the Connection
        self._taking = False
        self._scheduled = False
        self._over = False

    # Towards the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.below = cast(asyncio.Transport, transport)
        self._connection.connection_made(self)
        try:
            self._channel = self._gateway.channel(_Link(self), self._options)
        except Exception as error:
            self._broken(error)

    def connection_lost(self, exc: Exception | None) -> None:
        for data in unread(self.below, exc):
            self.data_received(data)
        self._hand_on()
        self._over = True
        self._held = b""
        self._logged_in()
        self._connection.connection_lost(exc)
        channel, self._channel = self._channel, None
        try:
            if channel is not None:
                channel.closed()
        except Exception:
            logger.exception("gateway_error gateway=%s", self._gateway.name)

    def data_received(self, data: bytes) -> None:
        if self._over or self._channel is None:
            return
        held = self._held + data if self._held else data
        self._taking = True
        try:
            self._held = held[self._channel.received(held) :]
        except GatewayError as error:
            self._refuse(MalformedPacket(str(error)))
        except Exception as error:
            self._broken(error)
        finally:
            self._taking = False
        if len(self._held) > self._limit:
            setting = "max_packet_size" if self._before_login is None else "max_connect_size"
            self._refuse(PacketTooLarge(f"more than {self._limit} bytes in a request", setting))
        if self._before_login is not None:
            self._before_login.hold(self, len(self._held))
        self._hand_on()

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # What the conversation asks for

    def send_up(self, packet: Outgoing) -> None:
        if self._over:
            return
        if isinstance(packet, Connect):
            self._version = self._decoder.version = packet.version
        self._up.append(encode(packet, self._version))
        if not self._taking and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._hand_on)

    @property
    def peer(self) -> tuple[str, int]:
        client = self._connection.channel.client
        return client.peer_host, client.peer_port

    def _hand_on(self) -> None:
        self._scheduled = False
        if self._up and not self._over:
            data, self._up = b"".join(self._up), []
            self._connection.data_received(data)

    # Towards the Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Packets for the client: not to the socket, but to the conversation, which writes what it makes of them."""
        channel = self._channel
        if not self._version or channel is None:
            return  # nobody has asked
        for packet in self._decoder.feed(bytes(data)):
            if isinstance(packet, MqttError):
                self._broken(packet)
                return
            try:
                channel.packet(Ack(packet >> 16, packet & 0xFFFF) if isinstance(packet, int) else packet)
            except Exception as error:
                self._broken(error)

    @property
    def held_bytes(self) -> int:
        return len(self._held) + sum(map(len, self._up))

    def raise_packet_limit(self, max_packet_size: int) -> None:
        self._limit = max_packet_size
        self._logged_in()

    # The end

    def evict(self) -> None:
        """See ``core.before_login.Newcomer``."""
        self._connection.evict()

    def _logged_in(self) -> None:
        if self._before_login is not None:
            self._before_login.leave(self)
            self._before_login = None

    def _refuse(self, error: MqttError) -> None:
        """End the connection. The conversation gets a DISCONNECT of 5.0, to say it in its protocol."""
        self._held = b""
        self._hand_on()
        if not self._over:
            self._over = True
            fail(self._connection.channel, error)

    def _broken(self, error: Exception) -> None:
        """The gateway has a fault: end the connection, and not within a call of the Connection's."""
        logger.error("gateway_error gateway=%s", self._gateway.name, exc_info=error)
        if not self._over:
            self._over = True
            self._held = b""
            self._loop.call_soon(internal_error, self._connection.channel)


class _Link:
    """See ``gateway.GatewayLink``."""

    __slots__ = ("_layer",)

    def __init__(self, layer: GatewayLayer) -> None:
        self._layer = layer

    def send(self, packet: Outgoing) -> None:
        self._layer.send_up(packet)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:  # fmt: skip
        self._layer.send_up(Message(topic, payload, qos, retain, properties, packet_id=packet_id))

    def write(self, data: bytes) -> None:
        self._layer.below.write(data)

    @property
    def peer(self) -> tuple[str, int]:
        return self._layer.peer
