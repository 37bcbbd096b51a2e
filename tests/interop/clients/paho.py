"""paho-mqtt: 3.1, 3.1.1 and 5.0, over TCP and WebSocket."""

import threading
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from .client import PATIENCE, InteropClient, Received, cut

VERSIONS = {3: mqtt.MQTTv31, 4: mqtt.MQTTv311, 5: mqtt.MQTTv5}
NAMES = {
    "user": "UserProperty",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation": "CorrelationData",
    "payload_format": "PayloadFormatIndicator",
    "expiry": "MessageExpiryInterval",
}


def to_paho(properties: dict[str, Any] | None) -> Properties | None:
    if not properties:
        return None
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in properties.items():
        setattr(made, NAMES[name], value)
    return made


def from_paho(properties: Properties | None) -> dict[str, Any]:
    if properties is None:
        return {}
    return {name: getattr(properties, theirs) for name, theirs in NAMES.items() if hasattr(properties, theirs)}


class PahoClient(InteropClient):
    library = "paho-mqtt"

    def connect(self) -> bool | None:
        transport: Any = "websockets" if self.transport == "ws" else "tcp"
        options: dict[str, Any] = {}
        if self.version != 5:
            options["clean_session"] = self.clean and not self.persistent
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2, self.client_id, protocol=VERSIONS[self.version], transport=transport, **options
        )
        client.max_inflight_messages_set(200)
        if self.transport == "ws":
            client.ws_set_options(path=self.address.ws_path)
        if self.will is not None:
            client.will_set(self.will.topic, self.will.payload, self.will.qos, self.will.retain)
        connected = threading.Event()
        self._done: dict[int, threading.Event] = {}
        self._codes: dict[int, list[Any]] = {}
        self._lock = threading.Lock()
        outcome: list[Any] = []

        def on_connect(_client: Any, _data: Any, flags: Any, code: Any, _properties: Any) -> None:
            outcome.extend((flags.session_present, code))
            connected.set()

        def on_message(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
            found = from_paho(message.properties) if self.version == 5 else {}
            self.received.put(Received(message.topic, bytes(message.payload), message.qos, message.retain, found))

        def on_answer(_client: Any, _data: Any, mid: int, codes: Any, _properties: Any = None) -> None:
            self._codes[mid] = codes
            self._event(mid).set()

        client.on_connect = on_connect
        client.on_message = on_message
        client.on_subscribe = on_answer
        client.on_unsubscribe = on_answer
        host, port = self._address()
        if self.version == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            if self.persistent:
                properties.SessionExpiryInterval = 600
            clean_start = self.clean and not self.persistent
            client.connect(host, port, 60, clean_start=clean_start, properties=properties)
        else:
            client.connect(host, port, 60)
        client.loop_start()
        assert connected.wait(PATIENCE), "no CONNACK"
        present, code = outcome
        assert not code.is_failure, f"refused: {code}"
        return bool(present)

    def _address(self) -> tuple[str, int]:
        if self.transport == "ws":
            return self.address.ws_host, self.address.ws_port
        return self.address.host, self.address.port

    def _event(self, mid: int) -> threading.Event:
        with self._lock:
            return self._done.setdefault(mid, threading.Event())

    def disconnect(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def drop(self) -> None:
        self._client.loop_stop()
        cut(self._client.socket())

    def subscribe(self, topic_filter: str, qos: int) -> None:
        result, mid = self._client.subscribe(topic_filter, qos)
        assert result == mqtt.MQTT_ERR_SUCCESS and mid is not None
        assert self._event(mid).wait(PATIENCE), "no SUBACK"
        assert [code.value for code in self._codes[mid]] == [qos]

    def unsubscribe(self, topic_filter: str) -> None:
        result, mid = self._client.unsubscribe(topic_filter)
        assert result == mqtt.MQTT_ERR_SUCCESS and mid is not None
        assert self._event(mid).wait(PATIENCE), "no UNSUBACK"

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        info = self._client.publish(topic, payload, qos, retain, to_paho(properties))
        info.wait_for_publish(PATIENCE)
        assert info.is_published(), "not acknowledged"
