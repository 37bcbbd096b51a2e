"""Records of retained messages, for files that move them to another node."""

import base64
from typing import Any, Final

import msgspec

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import NO_PROPERTIES
from taipan.broker.mqtt.topics import valid_name
from taipan.broker.session.client_info import ClientInfo

from .emqx_formats import LAST_SECOND, BadField, Record
from .json_document import JsonObject

_NAMES: Final = {
    c.PAYLOAD_FORMAT_INDICATOR: "payload_format_indicator",
    c.MESSAGE_EXPIRY_INTERVAL: "message_expiry_interval",
    c.RESPONSE_TOPIC: "response_topic",
    c.CONTENT_TYPE: "content_type",
    c.CORRELATION_DATA: "correlation_data",
    c.USER_PROPERTY: "user_properties",
}
_IDENTIFIERS: Final = {name: identifier for identifier, name in _NAMES.items()}


class ExportedRetained(msgspec.Struct, array_like=True, frozen=True):
    """A retained message without anything specific to its node. ``timestamp``: Unix seconds."""

    topic: str
    payload: bytes
    qos: int
    properties: dict[int, Any]
    timestamp: float
    client_id: str | None = None
    username: str | None = None

    def message(self, publisher: ClientInfo | None) -> Message:
        properties = dict(self.properties) if self.properties else NO_PROPERTIES
        if c.USER_PROPERTY in properties:
            properties[c.USER_PROPERTY] = [(name, value) for name, value in properties[c.USER_PROPERTY]]
        return Message(self.topic, self.payload, self.qos, True, properties, publisher, self.timestamp)


def retained_row(message: Message) -> JsonObject:
    """Return the record: payload and correlation data in base64, ``timestamp`` in milliseconds."""
    publisher = message.publisher
    properties: JsonObject = {}
    for identifier, name in _NAMES.items():
        if identifier in message.properties:
            value = message.properties[identifier]
            properties[name] = base64.b64encode(value).decode() if identifier == c.CORRELATION_DATA else value
    return {
        "topic": message.topic,
        "payload": base64.b64encode(message.frame[message.payload_at :]).decode(),
        "qos": message.qos,
        "timestamp": round(message.timestamp * 1000),
        "properties": properties,
        "clientid": None if publisher is None else publisher.client_id,
        "username": None if publisher is None else publisher.username,
    }


def read_retained(value: object, max_payload: int) -> ExportedRetained:
    """Read a record. Raises BadField."""
    record = Record(value)
    topic = record.name("topic")
    if not valid_name(topic) or topic.startswith("$SYS"):
        raise BadField("topic", "expected a Topic Name, not one of $SYS")
    payload = record.bytes_of("payload")
    if not payload:
        raise BadField("payload", "is empty, which is not a retained message")
    if 0 < max_payload < len(payload):
        raise BadField("payload", f"longer than {max_payload} bytes (setting retained.max_payload_size)")
    given = record.get("properties") if "properties" in record else {}
    if not isinstance(given, dict):
        raise BadField("properties", "expected an object")
    of = Record(given)
    properties = {_identifier(name): _property(of, name) for name in given}
    client_id = record.text("clientid", "") or None
    return ExportedRetained(
        topic,
        payload,
        record.integer("qos", most=2),
        properties,
        record.integer("timestamp", most=LAST_SECOND * 1000) / 1000,
        client_id,
        record.text("username", "") or None,
    )


def _identifier(name: str) -> int:
    if name not in _IDENTIFIERS:
        raise BadField(f"properties.{name[:64]}", "no such property of a retained message")
    return _IDENTIFIERS[name]


def _property(properties: Record, name: str) -> object:
    identifier = _IDENTIFIERS.get(name)
    if identifier == c.PAYLOAD_FORMAT_INDICATOR:
        return properties.integer(name, most=1)
    if identifier == c.MESSAGE_EXPIRY_INTERVAL:
        return properties.integer(name, most=4_294_967_295)
    if identifier == c.CORRELATION_DATA:
        return properties.bytes_of(name)
    if identifier == c.USER_PROPERTY:
        return _pairs(properties.get(name))
    text = properties.text(name)
    if identifier == c.RESPONSE_TOPIC and not valid_name(text):
        raise BadField(name, "expected a Topic Name")
    return _sound(name, text)


def _pairs(given: object) -> list[tuple[str, str]]:
    pairs = []
    for pair in given if isinstance(given, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise BadField("user_properties", "expected an array of pairs of strings")
        pairs.append((_sound("user_properties", pair[0]), _sound("user_properties", pair[1])))
    return pairs


def _sound(key: str, text: str) -> str:
    """Return the text if it can be an MQTT string."""
    if "\0" in text or len(text.encode()) > 65_535:
        raise BadField(key, "expected at most 65535 bytes and no U+0000")
    return text
