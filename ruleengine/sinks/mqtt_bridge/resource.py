"""The resource type ``bridge_mqtt``: another MQTT broker to which messages are sent and from which they are
received."""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from taipan.broker.core.delayed_topic import reserved
from taipan.broker.core.inspection import STOPPING
from taipan.broker.core.outcome import BRIDGE, Outcome
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.constants import V3, V4, V5
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import TopicFilter
from taipan.broker.mqtt.topics import has_wildcard, matches, valid_name
from taipan.broker.observability.throttle import Throttle
from taipan.broker.session.memory_account import SLOWING

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...events.hops import hops_of, with_hops
from ...mqtt_client.client import ClientOptions, MqttClient
from ...mqtt_client.connection import BrokerUnreachable
from ...mqtt_client.stream import Address
from ...network.allowed_networks import NOT_TRIED, Networks
from ...network.tls import asked_name, client_context, tls_params
from ...params import Param, ParamError, Text, read_duration
from ...resources.resource import ResourceError, ResourceType
from ...resources.sink import Sink, SinkContext, SinkReport, SinkRequest, buffered
from .ingress import Ingress, read_ingress

logger = logging.getLogger(__name__)

_WINDOW: Final = 32
_MOST_UNINSPECTED: Final = 100
"""Received messages of which the answer of a program outside is waited for; then nothing more is read."""
_VERSIONS: Final = {"mqttv3": V3, "mqttv4": V4, "mqttv5": V5}
_SHOWN: Final = 256
"""Seconds between two log lines about messages that a bridge does not accept."""
_NAMESPACE: Final = uuid.UUID("8a1f8dd4-6c0b-4c5e-9a3e-0d5f8f2f7c11")
_CONNECT_TIMEOUT: Final = 10.0
_SHORT_OF_MEMORY: Final = 0.1
"""Seconds between two checks whether memory is still too short to receive messages."""
_SCHEMES: Final = {"ws": 80, "wss": 443}
_PATH: Final = "/mqtt"
# Codes after which the other broker may accept the message later; it will never accept it after any other code from
# 0x80 on.
_LATER: Final = frozenset({reason_codes.QUOTA_EXCEEDED, reason_codes.PACKET_IDENTIFIER_IN_USE})


class Forward(msgspec.Struct, frozen=True, array_like=True):
    """One message for the other broker; ``topic`` is its full topic there, ``hops`` the number of its hops."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    hops: int = 0


class MqttBridge(Sink):
    """The broker of a ``bridge_mqtt``: ``pool_size`` connections that send, one for each lane, and one more that
    receives.

    Messages without an acknowledgement stay in the buffer on this node. The receiving connection has a persistent
    session on the other broker, which keeps messages while this node is disconnected."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self._carries_hops = config["proto_ver"] == "mqttv5"
        if self._carries_hops and config["bridge_mode"]:
            raise ParamError("bridge_mode", "MQTT 5.0 has no such level; it exists only in 3.1 and 3.1.1")
        node = context.node
        self._settings = node.settings
        self._networks = Networks(self._settings.refused_networks)
        self._clock = node.clock
        self._id = context.id
        self._node = node
        self._refusals = node.metrics.refusals
        self._throttle = Throttle()
        self._noticed = context.noticed
        self._options = _client_options(config)
        self.mountpoint = str(config["mountpoint"]).replace("${node}", node.node)
        if self.mountpoint and not valid_name(self.mountpoint):
            raise ParamError("mountpoint", "expected the beginning of a topic, without wildcards")
        if reserved(f"{self.mountpoint}x"):
            raise ParamError("mountpoint", "$SYS is reserved for the other broker's own messages")
        self.bridge_mode: bool = config["bridge_mode"]
        self.ingress: list[Ingress] = read_ingress(config.get("ingress") or [])
        self.received = 0
        self.refused = 0
        base = str(config["clientid"])
        if config["append"]:
            # The same after a restart, so that the persistent session is found again.
            base = f"{base}:{uuid.uuid5(_NAMESPACE, f'{node.node} {context.id}').hex}"
        self._client_id = base
        self._senders = [self._client(f"{base}:{number}") for number in range(1, config["pool_size"] + 1)]
        self._fetching: MqttClient | None = None
        # Received messages about which a program outside is asked (``core.inspection``).
        self._uninspected: set[asyncio.Future[None]] = set()
        if self.ingress:
            filters = [TopicFilter(each.remote_topic, each.qos, retain_as_published=True) for each in self.ingress]
            self._fetching = MqttClient(
                f"{base}:in", self._options, self._networks, node.rng, self._noticed, filters, self
            )

    @property
    def report(self) -> SinkReport:
        clients = self._clients()
        connected = sum(each.connected for each in clients)
        details = {"connections": connected, "received": self.received, "received_refused": self.refused}
        # In a pool, some may still be disconnected: see ``connections``.
        return SinkReport(connected > 0, "" if connected else _reason(clients), details)

    async def connect(self) -> None:
        for each in self._clients():
            each.start()

    async def test(self) -> None:
        """Test with a separate client ID, so that no connected client is disconnected."""
        client_id = f"{self._client_id}:{uuid.uuid4().hex[:8]}"
        try:
            await self._client(client_id).try_once()
        except BrokerUnreachable as error:
            raise ResourceError(str(error)) from None

    async def stop_receiving(self) -> None:
        if self._fetching is not None:
            await self._fetching.close()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._senders))

    def comes_back(self, topic: str) -> str | None:
        """Return the ingress filter that would receive a message sent to this topic; None: it does not come back."""
        if self.bridge_mode:  # the other broker does not send a bridge its own messages
            return None
        return next((each.remote_topic for each in self.ingress if matches(each.remote_topic, topic)), None)

    def request_of(self, message: Forward, key: str) -> SinkRequest:
        """Return a request for a message; messages with the same key are sent in order."""
        return SinkRequest(msgspec.msgpack.encode(message), key, max_batch=_WINDOW)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        client = self._senders[lane]
        return await asyncio.gather(*(self._write(client, each) for each in rows))

    async def _write(self, client: MqttClient, row: BufferedRow) -> DeliveryOutcome:
        forward = msgspec.msgpack.decode(row.request, type=Forward)
        properties = with_hops({}, forward.hops if self._carries_hops else 0)
        message = Message(forward.topic, forward.payload, forward.qos, forward.retain, properties)
        try:
            code = await client.publish(row, message)
        except BrokerUnreachable as error:
            return DeliveryOutcome(str(error), retry=True, unreachable=True)
        if code < reason_codes.UNSPECIFIED_ERROR:
            return DELIVERED
        later = code in _LATER
        return DeliveryOutcome(f"{forward.topic}: {reason_codes.name(code)}", retry=later, unreachable=later)

    # ---------------------------------------------------------------- receiving

    async def ready(self) -> None:
        """Receive no messages while memory is so short that publishers are slowed down."""
        while self._node.account.level >= SLOWING:
            await asyncio.sleep(_SHORT_OF_MEMORY)
        while len(self._uninspected) >= _MOST_UNINSPECTED:
            await asyncio.wait(self._uninspected, return_when=asyncio.FIRST_COMPLETED)

    async def stored(self) -> bool:
        if self._uninspected:
            await asyncio.wait(set(self._uninspected))
        return await self._node.tables.stored()

    def take(self, message: Message) -> None:
        """Publish a received message on this node; one that cannot be published now could not be published later
        either."""
        topic, qos = message.topic, message.qos
        found = next((each for each in self.ingress if matches(each.remote_topic, topic)), None)
        local = "" if found is None else found.local(topic, qos, message.retain)
        if found is None or not valid_name(local) or has_wildcard(local):
            self._refuse(topic, local, reason_codes.TOPIC_NAME_INVALID)
            return
        keep = message.retain if found.retain is None else found.retain
        made = Message(local, message.payload, min(qos, found.qos), keep, timestamp=self._clock.now())
        if self._carries_hops:
            hops = hops_of(message.properties)
            if hops >= self._settings.max_hops:
                self._refuse(topic, local, reason_codes.QUOTA_EXCEEDED, "ruleengine.max_hops")
                return
            made.hops = hops + 1
            made.properties = with_hops(made.properties, made.hops)
        inspection = self._node.broker.inspection
        if inspection is None:
            self._accepted(topic, local, self._node.accept(made, BRIDGE))
            return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._uninspected.add(answer)

        def accepted(outcome: Outcome) -> None:
            if outcome is STOPPING:
                return  # it is not acknowledged
            self._uninspected.discard(answer)
            if not answer.done():
                answer.set_result(None)
            self._accepted(topic, local, outcome)

        # ``ready`` limits what waits.
        inspection.accept_later(made, BRIDGE, accepted, self._id, patient=made.qos > 0, limited=False)

    def _accepted(self, topic: str, local: str, outcome: Outcome) -> None:
        if outcome.refused:
            self._refuse(
                topic, local, outcome.code, "ingress.local_topic" if outcome.setting == "-" else outcome.setting
            )
        else:
            self.received += 1

    def _refuse(self, topic: str, local: str, code: int, setting: str = "ingress.local_topic") -> None:
        self.refused += 1
        name = reason_codes.name(code)
        self._refusals.add(f"bridge_{name}")
        if self._throttle.due(self._clock.now()):
            logger.warning(
                "bridge_message_refused resource=%s topic=%r local_topic=%r reason=%s setting=%s refused=%s",
                self._id,
                topic[:_SHOWN],
                local[:_SHOWN],
                name,
                setting,
                self.refused,
            )

    def _client(self, client_id: str) -> MqttClient:
        return MqttClient(client_id, self._options, self._networks, self._node.rng, self._noticed)

    def _clients(self) -> list[MqttClient]:
        return self._senders if self._fetching is None else [*self._senders, self._fetching]


def _reason(clients: list[MqttClient]) -> str:
    """Return why no client is connected: the reason of one that has tried, if there is one."""
    reasons = [each.reason for each in clients if each.reason]
    return next((reason for reason in reasons if reason != NOT_TRIED), reasons[0] if reasons else "")


def _client_options(config: Mapping[str, Any]) -> ClientOptions:
    address, secure = _address(str(config["address"]), config["ssl"])
    version = _VERSIONS[config["proto_ver"]]
    for name in ("username", "password"):
        if len(str(config[name]).encode()) > 65_535:
            raise ParamError(name, "longer than 65535 bytes")
    if config["password"] and not config["username"] and version != V5:
        raise ParamError("username", "MQTT 3.1 and 3.1.1 accept no password without a username")
    return ClientOptions(
        address,
        version,
        str(config["username"]) or None,
        str(config["password"]) or None,
        max(int(read_duration("keepalive", config["keepalive"], 1, 65_535)), 1),
        _CONNECT_TIMEOUT,
        read_duration("reconnect_interval", config["reconnect_interval"]),
        read_duration("retry_interval", config["retry_interval"]),
        config["bridge_mode"],
        client_context(config) if secure else None,
        asked_name(config),
    )


def _address(text: str, ssl: bool) -> tuple[Address, bool]:
    """Return the address of the other broker, and whether it uses TLS. Raises ParamError."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
            raise ParamError("address", "expected host:port, or a URL that begins with ws:// or wss://")
        return Address(host, int(port)), ssl
    try:
        parts = urlsplit(text)
        port_or_none = parts.port
    except ValueError:
        raise ParamError("address", "not a URL") from None
    if scheme not in _SCHEMES or not parts.hostname or port_or_none == 0:
        raise ParamError("address", "expected host:port, or a URL that begins with ws:// or wss://")
    if "@" in parts.netloc or parts.fragment or not text.isascii() or not text.isprintable() or " " in text:
        raise ParamError(
            "address", "expected a URL of host, port and path only; username and password are separate parameters"
        )
    if ssl and scheme == "ws":
        raise ParamError("address", "ws:// does not use TLS; use wss:// for TLS")
    path = parts.path or _PATH
    query = f"?{parts.query}" if parts.query else ""
    return Address(parts.hostname, port_or_none or _SCHEMES[scheme], path + query), scheme == "wss"


TYPE: Final = ResourceType(
    "bridge_mqtt",
    Text("MQTT Bridge", "MQTT Bridge"),
    Text("Another MQTT broker, to forward messages to and fetch messages from",
         "另一个 MQTT 服务器，可向其转发消息，也可从其订阅消息"),
    buffered(MqttBridge),
    (
        Param("address", 1, "string", Text("Address", "地址"),
              Text("host:port of the other broker; over WebSocket a URL such as ws://host:8083/mqtt or "
                   "wss://host:8084/mqtt", "对端服务器的 host:port；WebSocket 则为 ws:// 或 wss:// 的 URL"),
              required=True, default="127.0.0.1:1883", parts=True),
        Param("pool_size", 2, "number", Text("Pool Size", "连接池大小"),
              Text("Connections that send", "用于发送的连接数"), required=True, default=8, range=(1, 64)),
        Param("clientid", 3, "string", Text("Client ID", "客户端 ID"),
              Text("Client ID on that broker; each connection appends its number", "客户端 ID，各连接会追加编号"),
              required=True, default="client", format=r"[^\x00-\x1f#+]{1,200}"),
        Param("append", 4, "boolean", Text("Append a GUID", "附加 GUID"),
              Text("Append an identifier of this node and resource to the client ID", "附加唯一标识"),
              default=True),
        Param("username", 5, "string", Text("Username", "用户名"),
              Text("Username on that broker", "连接对端的用户名"), default="", parts=True),
        Param("password", 6, "password", Text("Password", "密码"),
              Text("Password there", "连接对端的密码"), default=""),
        Param("mountpoint", 7, "string", Text("Mount Point", "挂载点"),
              Text("Prefix of every topic that is forwarded; ${node} is this node's name",
                   "转发时加在主题前的前缀，${node} 为本节点名"), default="bridge/aws/${node}/"),
        Param("disk_cache", 8, "string", Text("Disk Cache", "磁盘缓存"),
              Text("Keep the queue on disk if the node stores data on disk; off: in memory only",
                   "将等待转发的消息保存到磁盘；off 则仅在内存中"), default="on", enum=["on", "off"]),
        Param("proto_ver", 9, "string", Text("Protocol Version", "协议版本"),
              Text("MQTT 3.1 is mqttv3, 3.1.1 mqttv4, 5.0 mqttv5: with 5.0 a message carries the number "
                   "of brokers it has passed", "mqttv3 为 MQTT 3.1，mqttv4 为 3.1.1，mqttv5 为 5.0"),
              default="mqttv4", enum=["mqttv3", "mqttv4", "mqttv5"]),
        Param("keepalive", 10, "string", Text("Keep Alive", "心跳间隔"),
              Text("The keep alive of each connection", "各连接的心跳间隔"), default="60s"),
        Param("reconnect_interval", 11, "string", Text("Reconnect Interval", "重连间隔"),
              Text("The longest pause between two attempts to connect; the first pauses are shorter",
                   "两次连接尝试之间的最长间隔"), default="30s"),
        Param("retry_interval", 12, "string", Text("Retry Interval", "重传间隔"),
              Text("How long an acknowledgement may take; then the bridge reconnects and sends the message again",
                   "等待确认的最长时间，超时后重新连接并重发"), default="20s"),
        Param("bridge_mode", 13, "boolean", Text("Bridge Mode", "桥接模式"),
              Text("Mark the CONNECT as that of a bridge: a broker that supports this does not send a bridge's "
                   "own messages back to it",
                   "在 CONNECT 中声明为桥接，支持此模式的对端不会将消息送回"), default=False),
        Param("ssl", 14, "boolean", Text("TLS", "TLS"), Text("Connect by TLS", "使用 TLS 连接"), default=False),
        *tls_params(15, ciphers=True),
        Param("ingress", 21, "array", Text("Ingress", "订阅"),
              Text("Subscribe there and publish here: a list of objects with remote_topic, qos (0), local_topic "
                   "(${topic}), retain (that of the message) and remote_prefix (the prefix that is removed "
                   "from the remote topic before it becomes ${topic})",
                   "从对端订阅并在本地发布：对象含 remote_topic、qos、local_topic、retain、remote_prefix"),
              default=[], items={"type": "object", "schema": {}}),
    ),
    connection=("address", "clientid", "username", "password", "proto_ver", "bridge_mode", "ssl",
                *(param.name for param in tls_params(0, ciphers=True))),
    order=2,
)  # fmt: skip
RESOURCES: Final = (TYPE,)
