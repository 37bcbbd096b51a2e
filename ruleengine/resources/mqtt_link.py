"""MqttLink: one MQTT connection to another broker, in the client's role, which comes back by itself."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter  # type: ignore[import-untyped]
from amqtt.client import ClientContext  # type: ignore[import-untyped]
from amqtt.contexts import ClientConfig  # type: ignore[import-untyped]
from amqtt.errors import AMQTTError, MQTTError, NoDataError, ProtocolHandlerError  # type: ignore[import-untyped]
from amqtt.mqtt.connect import ConnectPacket  # type: ignore[import-untyped]
from amqtt.mqtt.protocol.client_handler import ClientProtocolHandler  # type: ignore[import-untyped]
from amqtt.mqtt.puback import PubackPacket  # type: ignore[import-untyped]
from amqtt.mqtt.pubcomp import PubcompPacket  # type: ignore[import-untyped]
from amqtt.mqtt.publish import PublishPacket  # type: ignore[import-untyped]
from amqtt.mqtt.pubrec import PubrecPacket  # type: ignore[import-untyped]
from amqtt.mqtt.pubrel import PubrelPacket  # type: ignore[import-untyped]
from amqtt.plugins.manager import PluginManager  # type: ignore[import-untyped]
from amqtt.session import Session  # type: ignore[import-untyped]

from taipan.broker.mqtt.constants import V4, V5
from taipan.broker.mqtt.packets import Connect

from ..networks import Networks, reason_of
from .liveness import NOT_TRIED
from .mqtt5_protocol import OnMessage, Protocol5
from .resource import ResourceError

logger = logging.getLogger(__name__)

_BRIDGE: Final = 0x80
_REFUSALS: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
_PROTOCOL_ERRORS: Final = (OSError, AMQTTError, MQTTError, NoDataError, ProtocolHandlerError)


class LinkOptions(NamedTuple):
    """How to connect. Times are seconds; ``bridge_mode``: say so in CONNECT, as Mosquitto's bridges do."""

    host: str
    port: int
    username: str
    password: str
    keep_alive: int
    connect_timeout: float
    reconnect_interval: float
    acknowledge_timeout: float
    bridge_mode: bool
    tls: ssl.SSLContext | None
    server_hostname: str | None
    version: int = V4


class MqttLink:
    """Connects, and connects again. ``clean_session`` False with ``subscriptions``: the other side keeps what comes
    while we are away.
    """

    def __init__(
        self,
        client_id: str,
        options: LinkOptions,
        networks: Networks,
        on_change: Callable[[], None],
        subscriptions: list[tuple[str, int]] | None = None,
        on_message: OnMessage | None = None,
    ) -> None:
        self.client_id = client_id
        self.reason = NOT_TRIED
        self._options = options
        self._networks = networks
        self._on_change = on_change
        self._subscriptions = subscriptions or []
        self._on_message = on_message
        self._protocol: _Protocol | Protocol5 | None = None
        # Identifiers of QoS 2 messages that were taken and not released; they outlive a connection.
        self._unreleased: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._protocol is not None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def try_once(self) -> None:
        """Connect and disconnect. Raises ResourceError."""
        try:
            protocol = await self._connect()
        except _PROTOCOL_ERRORS as error:
            raise ResourceError(reason_of(error)) from None
        await protocol.leave()

    async def publish(self, topic: str, payload: bytes, qos: int, retain: bool, hops: int = 0) -> None:
        """Until the other side has acknowledged it (QoS 0: until it is sent). Raises ResourceError; NotTaken where it
        will never be."""
        if self._protocol is None:
            raise ResourceError(f"not connected: {self.reason}")
        try:
            await self._protocol.publish(topic, payload, qos, retain, self._options.acknowledge_timeout, hops)
        except _PROTOCOL_ERRORS as error:
            raise ResourceError(reason_of(error)) from None

    async def _run(self) -> None:
        while True:
            try:
                protocol = await self._connect()
            except (*_PROTOCOL_ERRORS, ResourceError) as error:
                self.reason = reason_of(error)
                self._on_change()
                logger.info("bridge_refused client_id=%s reason=%s", self.client_id, self.reason)
            else:
                self._protocol = protocol
                self.reason = ""
                logger.info(
                    "bridge_connected client_id=%s host=%s port=%s",
                    self.client_id,
                    self._options.host,
                    self._options.port,
                )
                self._on_change()
                try:
                    await protocol.lost.wait()
                finally:
                    self._protocol = None
                    await protocol.leave()
                self.reason = "the connection was lost"
                logger.warning("bridge_disconnected client_id=%s", self.client_id)
                self._on_change()
            await asyncio.sleep(self._options.reconnect_interval)

    async def _connect(self) -> "_Protocol | Protocol5":
        options = self._options
        reader, writer = await self._networks.connect(
            options.host, options.port, options.connect_timeout, options.tls, options.server_hostname
        )
        if options.version == V5:
            return await self._connect5(reader, writer)
        session = Session()
        session.client_id = self.client_id
        session.clean_session = not self._subscriptions
        session.keep_alive = options.keep_alive
        session.username = options.username or None
        session.password = options.password or None
        protocol = _Protocol(writer, options.bridge_mode, self._unreleased, self._on_message)
        protocol.attach(session, StreamReaderAdapter(reader), StreamWriterAdapter(writer))
        # PINGREQ in time for the keep alive that CONNECT tells.
        protocol.keepalive_timeout = options.keep_alive * 0.75
        try:
            async with asyncio.timeout(options.connect_timeout):
                code = await protocol.mqtt_connect()
                if code != 0:
                    raise ResourceError(f"CONNACK: {_REFUSALS.get(code, code)}")
                await protocol.start()
                if self._subscriptions:
                    codes = await protocol.mqtt_subscribe(self._subscriptions, session.next_packet_id)
                    refused = [
                        topic for (topic, _), code in zip(self._subscriptions, codes, strict=False) if code == 0x80
                    ]
                    if refused:
                        raise ResourceError(f"SUBACK: refused {', '.join(refused)}")
        except BaseException:
            writer.transport.abort()
            await protocol.stop()
            raise
        return protocol

    async def _connect5(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Protocol5:
        options = self._options
        protocol = Protocol5(reader, writer, self._unreleased, self._on_message)
        connect = Connect(
            V5,
            self.client_id,
            not self._subscriptions,
            options.keep_alive,
            options.username or None,
            options.password.encode() if options.password else None,
        )
        try:
            async with asyncio.timeout(options.connect_timeout):
                await protocol.connect(connect, self._subscriptions)
        except BaseException:
            writer.transport.abort()
            await protocol.leave()
            raise
        return protocol


class _Protocol(ClientProtocolHandler):  # type: ignore[misc]
    """aMQTT's client protocol with waiters that are there before what they wait for is sent, and with our taking of
    messages: published here and on disk before they are acknowledged.
    """

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        bridge_mode: bool,
        unreleased: set[int],
        on_message: OnMessage | None,
    ) -> None:
        context = ClientContext()
        context.config = ClientConfig(plugins={})
        super().__init__(PluginManager("taipan.bridge", context))
        self.lost = asyncio.Event()
        self._stream = writer
        self._bridge_mode = bridge_mode
        self._unreleased = unreleased
        self._on_message = on_message

    async def leave(self) -> None:
        """Say goodbye if there is anybody left to hear it."""
        if not self.lost.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await self.mqtt_disconnect()
                    await self.stop()
                    return
            except _PROTOCOL_ERRORS as error:
                logger.debug("bridge_goodbye_failed reason=%s", reason_of(error))
        self._stream.transport.abort()
        await self.stop()

    async def publish(self, topic: str, payload: bytes, qos: int, retain: bool, timeout: float, hops: int) -> None:
        """``hops`` have no place in 3.1.1."""
        if self.session is None or self.lost.is_set():
            raise ConnectionResetError("the connection was lost")
        if qos == 0:
            await self._send_packet(PublishPacket.build(topic, payload, None, False, 0, retain))
            if self.lost.is_set():
                raise ConnectionResetError("the connection was lost")
            return
        packet_id = self.session.next_packet_id
        while (
            packet_id in self._puback_waiters or packet_id in self._pubrec_waiters or packet_id in self._pubcomp_waiters
        ):
            packet_id = self.session.next_packet_id
        packet = PublishPacket.build(topic, payload, packet_id, False, qos, retain)
        if qos == 1:
            await self._exchange(packet, self._puback_waiters, packet_id, timeout)
            return
        await self._exchange(packet, self._pubrec_waiters, packet_id, timeout)
        await self._exchange(PubrelPacket.build(packet_id), self._pubcomp_waiters, packet_id, timeout)

    async def _exchange(
        self, packet: Any, waiters: dict[int, asyncio.Future[Any]], packet_id: int, timeout: float
    ) -> None:
        waiter = waiters[packet_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send_packet(packet)
            if not self.lost.is_set():
                await asyncio.wait([waiter], timeout=timeout)
            if waiter.cancelled() or self.lost.is_set():
                raise ConnectionResetError("the connection was lost before the acknowledgement came")
            if not waiter.done():
                # [MQTT-4.4.0-1] nothing may be sent again but on a new connection
                self._stream.transport.abort()
                raise TimeoutError
        finally:
            waiters.pop(packet_id, None)

    def _build_connect_packet(self) -> ConnectPacket:
        packet = super()._build_connect_packet()
        if self._bridge_mode:
            packet.variable_header.proto_level |= _BRIDGE
        return packet

    async def handle_publish(self, publish_packet: PublishPacket) -> None:
        topic, data, qos = publish_packet.topic_name, publish_packet.data, publish_packet.qos
        if self._on_message is None or topic is None:
            return
        packet_id = publish_packet.packet_id
        if qos == 2 and packet_id in self._unreleased:
            await self._send_packet(PubrecPacket.build(packet_id))
            return
        if qos == 2:
            self._unreleased.add(packet_id)
        try:
            kept = await self._on_message(topic, bytes(data or b""), qos, publish_packet.retain_flag, 0)
        except Exception as error:
            logger.exception("bridge_message_failed topic=%s error=%s", topic, error)
            kept = False
        if not kept:
            # Not acknowledged, it comes again on the next connection.
            self._unreleased.discard(packet_id)
            if qos:
                self._stream.transport.abort()
        elif qos == 1:
            await self._send_packet(PubackPacket.build(packet_id))
        elif qos == 2:
            await self._send_packet(PubrecPacket.build(packet_id))

    async def handle_pubrel(self, pubrel: PubrelPacket) -> None:
        self._unreleased.discard(pubrel.packet_id)
        await self._send_packet(PubcompPacket.build(pubrel.packet_id))

    def handle_read_timeout(self) -> None:
        """Nothing came for a whole keep alive: ask; if that has been done already, nobody is there."""
        if self._ping_task is not None:
            self._stream.transport.abort()
        else:
            self.handle_write_timeout()

    async def handle_connection_closed(self) -> None:
        self.lost.set()
        await super().handle_connection_closed()
