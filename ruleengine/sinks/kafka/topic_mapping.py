"""TopicMapping: which message a record of Kafka becomes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taipan.broker.mqtt.topics import has_wildcard, valid_name

from ...actions.template import Template, always_reserved
from ...events.hops import NAME
from ...functions.values import restore
from ...params import ParamError

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

_MAX_MAPPINGS: Final = 100
_NAMES: Final = frozenset({"value", "key", "topic", "partition", "offset", "ts", "ts_type", "headers"})
_TIMESTAMPS: Final = {0: "create", 1: "append"}
_DIGITS: Final = 3
BASE64: Final = "base64"
ENCODE_MODES: Final = ["force_utf8", BASE64]
EXAMPLE: Final[list[dict[str, Any]]] = [
    {"kafka_topic": "commands", "mqtt_topic": "kafka/${topic}", "qos": 1, "payload_template": "${value}"}
]


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An element of ``topic_mapping``."""

    kafka_topic: str
    mqtt_topic: str
    qos: int = 0
    payload_template: str = "${value}"
    retain: bool = False


class Unpublishable(Exception):
    """A record that cannot become a message; the text is the reason."""


class Published(msgspec.Struct, frozen=True):
    """The message of a record. ``hops``: the hops of the message from which the record was created."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    hops: int


class TopicMapping:
    """The message of the records of one Kafka topic."""

    def __init__(self, given: _Given, key_mode: str, value_mode: str, max_payload: int) -> None:
        """Raises ParamError."""
        self.kafka_topic = given.kafka_topic
        self._topic = Template(given.mqtt_topic)
        self._payload = Template(given.payload_template)
        self._qos = given.qos
        self._retain = given.retain
        self._key_mode = key_mode
        self._value_mode = value_mode
        self._max_payload = max_payload
        if given.qos not in (0, 1, 2):
            raise ParamError("topic_mapping", "qos must be 0, 1 or 2")
        if not given.kafka_topic:
            raise ParamError("topic_mapping", "kafka_topic is empty")
        if not given.mqtt_topic or has_wildcard(given.mqtt_topic):
            raise ParamError("topic_mapping", "mqtt_topic must be a topic without wildcards")
        if always_reserved(self._topic):
            raise ParamError("topic_mapping", f"mqtt_topic {given.mqtt_topic!r} is reserved for the server")
        for path in (*self._topic.placeholders, *self._payload.placeholders):
            if path[0] not in _NAMES:
                raise ParamError("topic_mapping", f"a record has no {path[0]}; it has {', '.join(sorted(_NAMES))}")

    def message(self, record: ConsumerRecord) -> Published:
        """Return the message to publish for a record. Raises Unpublishable."""
        row = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": _value(record.key, self._key_mode),
            "value": _value(record.value, self._value_mode),
            "ts": record.timestamp,
            "ts_type": _TIMESTAMPS.get(record.timestamp_type, "create"),
            "headers": {name: _value(value, "") for name, value in record.headers},
        }
        try:
            topic = self._topic.render(row)
            payload = self._payload.render_bytes(row)
        except ValueError as error:
            raise Unpublishable(str(error)) from None
        if not isinstance(topic, str) or not valid_name(topic) or has_wildcard(topic):
            raise Unpublishable(f"{topic[:200]!r} is not a valid topic")
        if len(payload) > self._max_payload:
            raise Unpublishable(f"a payload of {len(payload)} bytes is larger than max_payload_bytes")
        return Published(topic, payload, self._qos, self._retain, _hops(record))


def _value(given: bytes | None, mode: str) -> str | bytes:
    """Return text, or binary that is not UTF-8; empty for a record without it."""
    if given is None:
        return ""
    return base64.b64encode(given).decode() if mode == BASE64 else restore(given)


def _hops(record: ConsumerRecord) -> int:
    """Return the number of rules and brokers that the message of a record has passed."""
    found = [value.decode("ascii", "replace") for name, value in record.headers if name == NAME and value]
    return max((int(each) for each in found if each.isdigit() and len(each) <= _DIGITS), default=0)


def read_mappings(given: object, key_mode: str, value_mode: str, max_payload: int) -> dict[str, TopicMapping]:
    """Return the mappings by Kafka topic. Raises ParamError."""
    try:
        read = msgspec.convert(given, list[_Given])
    except msgspec.ValidationError as error:
        raise ParamError("topic_mapping", str(error)) from None
    if not 0 < len(read) <= _MAX_MAPPINGS:
        raise ParamError("topic_mapping", f"expected 1 to {_MAX_MAPPINGS} topics")
    found = {each.kafka_topic: TopicMapping(each, key_mode, value_mode, max_payload) for each in read}
    if len(found) < len(read):
        raise ParamError("topic_mapping", "a Kafka topic occurs twice")
    return found
