"""gmqtt: 5.0 and 3.1.1, over TCP."""

import asyncio
from typing import Any

import gmqtt  # type: ignore[import-untyped]
from gmqtt.mqtt.constants import MQTTv50, MQTTv311  # type: ignore[import-untyped]

from tests.support.patience import patience

from .client import PATIENCE, InteropClient, LoopThread, Received

VERSIONS = {4: MQTTv311, 5: MQTTv50}
NAMES = {
    "user": "user_property",
    "content_type": "content_type",
    "response_topic": "response_topic",
    "correlation": "correlation_data",
    "payload_format": "payload_format_id",
    "expiry": "message_expiry_interval",
}


class GmqttClient(InteropClient):
    library = "gmqtt"

    def connect(self) -> bool | None:
        self._thread = LoopThread()
        return self._thread.run(self._connect())

    async def _connect(self) -> bool:
        will = None
        if self.will is not None:
            will = gmqtt.Message(self.will.topic, self.will.payload, self.will.qos, self.will.retain)
        options = {"session_expiry_interval": 600} if self.persistent and self.version == 5 else {}
        self._client = client = gmqtt.Client(
            self.client_id, clean_session=self.clean and not self.persistent, will_message=will, **options
        )
        client.stop_reconnect()
        connected: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[Any]] = {}

        def on_connect(_client: Any, flags: int, _rc: int, _properties: Any) -> None:
            connected.set_result(bool(flags & 1))

        def on_message(_client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
            found = {}
            for name, theirs in NAMES.items():
                if theirs in properties:
                    value = properties[theirs]
                    found[name] = value if name == "user" else value[0]
            message = Received(topic, bytes(payload), qos, bool(properties.get("retain")), found)
            self.received.put(message)
            return 0

        def on_answer(_client: Any, mid: int, codes: Any, _properties: Any = None) -> None:
            self._answer(mid).set_result(codes)

        client.on_connect = on_connect
        client.on_message = on_message
        client.on_subscribe = on_answer
        client.on_unsubscribe = on_answer
        await client.connect(self.address.host, self.address.port, version=VERSIONS[self.version])
        return await asyncio.wait_for(connected, patience(PATIENCE))

    def _answer(self, mid: int) -> "asyncio.Future[Any]":
        return self._answers.setdefault(mid, asyncio.get_running_loop().create_future())

    def disconnect(self) -> None:
        self._thread.run(self._client.disconnect())
        self._thread.stop()

    async def _drop(self) -> None:
        self._client._connection._transport.abort()
        await asyncio.sleep(0)

    def drop(self) -> None:
        self._thread.run(self._drop())
        self._thread.stop()

    async def _subscribe(self, topic_filter: str, qos: int) -> Any:
        mid = self._client.subscribe(topic_filter, qos)
        return await asyncio.wait_for(self._answer(mid), patience(PATIENCE))

    async def _unsubscribe(self, topic_filter: str) -> None:
        await asyncio.wait_for(self._answer(self._client.unsubscribe(topic_filter)), patience(PATIENCE))

    def subscribe(self, topic_filter: str, qos: int) -> None:
        assert list(self._thread.run(self._subscribe(topic_filter, qos))) == [qos]

    def unsubscribe(self, topic_filter: str) -> None:
        self._thread.run(self._unsubscribe(topic_filter))

    async def _publish(self, topic: str, payload: bytes, qos: int, retain: bool, properties: dict[str, Any]) -> None:
        self._client.publish(topic, payload, qos, retain, **properties)
        await self._client._wait_qos_queue_drained()  # gmqtt gives no handle on one acknowledgement

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        theirs = {NAMES[name]: value for name, value in (properties or {}).items()}
        self._thread.run(self._publish(topic, payload, qos, retain, theirs))
