"""The events that rules can select from: one table of kinds with their columns, and examples for tests.

Names of topics, events, columns and reasons are those of EMQX 4.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from taipan.broker.mqtt import properties as mqtt_properties
from taipan.broker.mqtt.constants import RECEIVE_MAXIMUM, USER_PROPERTY, V5
from taipan.broker.mqtt.message import Message, Publisher
from taipan.broker.mqtt.packets import Properties
from taipan.broker.session.client_info import ClientInfo, authority, protocol_of

from ..event import Event as Event
from ..event import EventKind, Maker
from ..functions.undefined import UNDEFINED
from ..params import Text

_Who = TypeVar("_Who", bound=Publisher)

PUBLISH_TOPIC: Final = "$events/message_publish"
"""The name in ``GET /rule_events`` for messages that rules select by plain topics and filters; FROM does not accept
it."""


def message_id(event: Event) -> str:
    """Return the identifier of the message, 32 upper-case hexadecimal digits; it is assigned at the first use."""
    message = _message(event)
    if not message.id:
        message.id = f"{event.environment.rng.getrandbits(128):032X}"
    return message.id


def present_properties(properties: Properties) -> dict[str, object]:
    """Return the properties under their names in the standard; binary as text if it is UTF-8, user properties in two
    forms."""
    presented: dict[str, object] = {}
    for identifier, value in properties.items():
        if identifier == USER_PROPERTY:
            presented["User-Property"] = dict(value)
            presented["User-Property-Pairs"] = [{"key": key, "value": each} for key, each in value]
        elif isinstance(value, bytes):
            presented[mqtt_properties.TABLE[identifier].name] = _text_of(value)
        else:
            presented[mqtt_properties.TABLE[identifier].name] = list(value) if isinstance(value, list) else value
    return presented


def _text_of(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _message(event: Event) -> Message:
    assert event.message is not None
    return event.message


def _publisher(event: Event) -> Publisher | None:
    message = event.message
    return None if message is None else message.publisher


def _receiver(event: Event) -> ClientInfo | None:
    return event.client


def _connected_at(event: Event) -> object:
    client = _receiver(event)
    return UNDEFINED if client is None else _milliseconds(client.connected_at + event.environment.skew())


def _of(whose: Callable[[Event], _Who | None], read: Callable[[_Who], object]) -> Maker:
    """Return a column about a client; undefined if there is no client, or it has no such value."""

    def make(event: Event) -> object:
        client = whose(event)
        if client is None:
            return UNDEFINED
        value = read(client)
        return UNDEFINED if value is None else value

    return make


def _fact(name: str) -> Maker:
    return lambda event: event.facts[name]


def _client_id(client: Publisher) -> str | None:
    return client.client_id or None


def _username(client: Publisher) -> str | None:
    return client.username


def _peer_host(client: Publisher) -> str | None:
    return client.peer_host or None


def _receive_maximum(client: ClientInfo) -> int:
    announced: int = client.packet_properties.get(RECEIVE_MAXIMUM, 65_535) if client.proto_ver == V5 else 65_535
    return min(announced, client.zone.max_inflight or 65_535)


def _headers(event: Event) -> dict[str, object]:
    publisher = _publisher(event)
    if publisher is None or not publisher.peer_host:
        return {}
    headers: dict[str, object] = {
        "peerhost": publisher.peer_host, "protocol": protocol_of(publisher), "proto_ver": publisher.proto_ver
    }  # fmt: skip
    if publisher.username is not None:
        headers["username"] = publisher.username
    return headers


def _payload(event: Event) -> object:
    """Return the payload; undefined if it is only on disk, because the message was dropped from a paged queue."""
    message = _message(event)
    return UNDEFINED if message.paged else _text_of(message.payload)


_ALWAYS: Final[dict[str, Maker]] = {
    "event": lambda event: event.kind.name,
    "timestamp": lambda event: _milliseconds(event.at),
    "node": lambda event: event.environment.node,
}
_MESSAGE: Final[dict[str, Maker]] = {
    "id": message_id,
    "payload": _payload,
    "topic": lambda event: _message(event).topic,
    "qos": lambda event: _message(event).qos,
    "flags": lambda event: {"retain": _message(event).retain, "dup": _message(event).dup},
    "headers": _headers,
    "pub_props": lambda event: present_properties(_message(event).properties),
    "publish_received_at": lambda event: _milliseconds(_message(event).timestamp + event.environment.skew()),
}
_FROM: Final[dict[str, Maker]] = {
    "clientid": _of(_publisher, _client_id),
    "username": _of(_publisher, _username),
    "peerhost": _of(_publisher, _peer_host),
}
_TO: Final[dict[str, Maker]] = {
    "from_clientid": _of(_publisher, _client_id),
    "from_username": _of(_publisher, _username),
    "clientid": _of(_receiver, _client_id),
    "username": _of(_receiver, _username),
    "peerhost": _of(_receiver, _peer_host),
}
_SELF: Final[dict[str, Maker]] = {
    "clientid": _of(_receiver, _client_id),
    "username": _of(_receiver, _username),
}
_CONNECTION: Final[dict[str, Maker]] = {
    **_SELF,
    "peername": _of(_receiver, lambda client: client.peer),
    "sockname": _of(_receiver, lambda client: authority(client.sock_host, client.sock_port)),
    "proto_name": _of(_receiver, lambda client: client.proto_name),
    "proto_ver": _of(_receiver, lambda client: client.proto_ver),
}
_CONNECT: Final[dict[str, Maker]] = {
    **_CONNECTION,
    "keepalive": _of(_receiver, lambda client: client.keep_alive),
    "clean_start": _of(_receiver, lambda client: client.clean_start),
    "expiry_interval": _of(_receiver, lambda client: client.expiry_interval),
    "conn_props": _fact("properties"),
}
_SUBSCRIPTION: Final[dict[str, Maker]] = {
    **_SELF,
    "peerhost": _of(_receiver, _peer_host),
    "topic": _fact("topic"),
    "qos": _fact("qos"),
}

_COLUMN_ORDER: Final = ("event", "id", "reason", "reason_code", "from_clientid", "from_username", "clientid")
_EXAMPLES: Final[dict[str, object]] = {
    "id": "5C0E7A1D93B24F68A1B7C2D3E4F50617",
    "clientid": "c_emqx",
    "username": "u_emqx",
    "from_clientid": "c_emqx_1",
    "from_username": "u_emqx_1",
    "topic": "t/a",
    "qos": 1,
    "payload": '{"msg": "hello"}',
    "peerhost": "192.168.0.10",
    "peername": "192.168.0.10:56431",
    "sockname": "0.0.0.0:1883",
    "proto_name": "MQTT",
    "proto_ver": 5,
    "keepalive": 60,
    "clean_start": True,
    "expiry_interval": 3600,
    "receive_maximum": 100,
    "is_bridge": False,
    "flags": {},
    "headers": {},
    "pub_props": {},
    "sub_props": {},
    "unsub_props": {},
    "puback_props": {},
    "conn_props": {},
    "disconn_props": {},
    "reason": "normal",
    "reason_code": "success",
    "action": "publish",
    "result": "allow",
    "is_cache": False,
}
# Not shown in forms, because tests cannot change their values.
_UNLISTED: Final = frozenset({"event", "timestamp", "node", "headers", "mountpoint"})


def _kind(
    topic: str, titles: tuple[str, str], texts: tuple[str, str], *makers: Mapping[str, Maker], **examples: object
) -> EventKind:
    made: dict[str, Maker] = dict(_ALWAYS)
    for each in makers:
        made.update(each)
    ordered = {name: made[name] for name in (*_COLUMN_ORDER, *made) if name in made}
    if "from_clientid" in made:
        examples = {"clientid": "c_emqx_2", "username": "u_emqx_2", **examples}
    shown = {
        name: examples.get(name, _EXAMPLES.get(name))
        for name in ordered
        if name not in _UNLISTED and (name in examples or name in _EXAMPLES)
    }
    if topic == PUBLISH_TOPIC:
        sql = "SELECT payload.msg as msg FROM \"t/#\" WHERE msg = 'hello'"
    else:
        sql = f'SELECT * FROM "{topic}"' + (" WHERE topic =~ 't/#'" if "topic" in made else "")
    event = topic.removeprefix("$events/").replace("_", ".", 1)
    return EventKind(topic, event, Text(*titles), Text(*texts), sql, ordered, shown)


_RECEIVER: Final = {"clientid": "c_emqx_2", "username": "u_emqx_2"}

MESSAGE_PUBLISH: Final = _kind(
    PUBLISH_TOPIC,
    ("Message published", "消息已发布"),
    ("A message is about to be routed", "消息即将被路由"),
    _MESSAGE,
    _FROM,
)
MESSAGE_DELIVERED: Final = _kind(
    "$events/message_delivered",
    ("Message delivered", "消息已投递"),
    ("A message was sent to a subscriber", "消息已发送给订阅者"),
    _MESSAGE,
    _TO,
)
MESSAGE_ACKED: Final = _kind(
    "$events/message_acked",
    ("Message acknowledged", "消息已确认"),
    ("A subscriber acknowledged a message of QoS 1 or 2", "订阅者确认了 QoS 1 或 2 的消息"),
    _MESSAGE,
    _TO,
    {"puback_props": _fact("properties")},
)
MESSAGE_DROPPED: Final = _kind(
    "$events/message_dropped",
    ("Message dropped", "消息被丢弃"),
    ("A message was routed and had no subscriber", "消息没有任何接收者"),
    _MESSAGE,
    _FROM,
    {"reason": _fact("reason")},
    reason="no_subscribers",
)
DELIVERY_DROPPED: Final = _kind(
    "$events/delivery_dropped",
    ("Delivery dropped", "投递被丢弃"),
    ("A message will not reach one of its subscribers", "消息不会到达某个订阅者"),
    _MESSAGE,
    _TO,
    {"reason": _fact("reason")},
    reason="queue_full",
)
CLIENT_CONNECTED: Final = _kind(
    "$events/client_connected",
    ("Client connected", "客户端已连接"),
    ("A client has connected", "客户端连接成功"),
    _CONNECT,
    {
        "mountpoint": _of(_receiver, lambda client: client.mountpoint or None),
        "receive_maximum": _of(_receiver, _receive_maximum),
        "is_bridge": _of(_receiver, lambda client: client.is_bridge),
        "connected_at": _connected_at,
    },
)
CLIENT_DISCONNECTED: Final = _kind(
    "$events/client_disconnected",
    ("Client disconnected", "客户端已断开"),
    ("The connection of a client ended", "客户端的连接已结束"),
    _CONNECTION,
    {
        "reason": _fact("reason"),
        "disconn_props": _fact("properties"),
        "disconnected_at": lambda event: _milliseconds(event.at),
    },
)
CLIENT_CONNACK: Final = _kind(
    "$events/client_connack",
    ("CONNACK sent", "已发送 CONNACK"),
    ("A CONNECT was answered, whether it was accepted or refused", "节点已响应 CONNECT（接受或拒绝）"),
    _CONNECT,
    {"reason_code": _fact("reason_code")},
)
SESSION_SUBSCRIBED: Final = _kind(
    "$events/session_subscribed",
    ("Subscribed", "已订阅"),
    ("A topic filter of a session is active", "会话的主题过滤器已生效"),
    _SUBSCRIPTION,
    {"sub_props": _fact("properties")},
)
SESSION_UNSUBSCRIBED: Final = _kind(
    "$events/session_unsubscribed",
    ("Unsubscribed", "已取消订阅"),
    ("A topic filter of a session is no longer active", "会话的主题过滤器已失效"),
    _SUBSCRIPTION,
    {"unsub_props": _fact("properties")},
)
CLIENT_CHECK_ACL_COMPLETE: Final = _kind(
    "$events/client_check_acl_complete",
    ("Access checked", "访问检查完成"),
    ("It was decided whether a client may publish or subscribe", "已决定客户端能否发布或订阅"),
    _SELF,
    {
        "peerhost": _of(_receiver, _peer_host),
        "topic": _fact("topic"),
        "action": _fact("action"),
        "result": _fact("result"),
        "is_cache": _fact("is_cache"),
    },
)

KINDS: Final[tuple[EventKind, ...]] = (
    MESSAGE_PUBLISH,
    MESSAGE_DELIVERED,
    MESSAGE_ACKED,
    MESSAGE_DROPPED,
    DELIVERY_DROPPED,
    CLIENT_CONNECTED,
    CLIENT_DISCONNECTED,
    CLIENT_CONNACK,
    SESSION_SUBSCRIBED,
    SESSION_UNSUBSCRIBED,
    CLIENT_CHECK_ACL_COMPLETE,
)
"""In the order of ``GET /rule_events``."""

EVENTS: Final[dict[str, EventKind]] = {kind.topic: kind for kind in KINDS if kind is not MESSAGE_PUBLISH}
"""The events that FROM may name, in addition to topics and filters."""


def kind_of(sources: Iterable[str]) -> EventKind:
    """Return the event of a rule's test: the first one that FROM names, otherwise a published message."""
    return next((EVENTS[source] for source in sources if source in EVENTS), MESSAGE_PUBLISH)


RESTORED_EVENT: Final = EventKind("", "", Text("", ""), Text("", ""), "", _ALWAYS, {})
"""Replaces an event from before the last restart, of which only the row of a rule remains."""
