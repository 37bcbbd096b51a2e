"""aMQTT's client: 3.1.1, over TCP and WebSocket."""

import asyncio
import contextlib
from typing import Any

from amqtt.client import ClientError, MQTTClient  # type: ignore[import-untyped]

from .client import InteropClient, LoopThread, Received


class AmqttClient(InteropClient):
    library = "amqtt"
    largest_payload = 1_048_576 - 1024  # its WebSocket takes frames of 1 MiB, header included

    def connect(self) -> bool | None:
        self._thread = LoopThread()
        self._thread.run(self._connect())
        return None

    async def _connect(self) -> None:
        config: dict[str, Any] = {"auto_reconnect": False, "plugins": {}}
        if self.will is not None:
            config["will"] = {
                "topic": self.will.topic,
                "message": self.will.payload.decode(),
                "qos": self.will.qos,
                "retain": self.will.retain,
            }
        self._client = MQTTClient(client_id=self.client_id, config=config)
        host, port = self.address.host, self.address.port
        uri = f"mqtt://{host}:{port}/"
        if self.transport == "ws":
            uri = f"ws://{self.address.ws_host}:{self.address.ws_port}{self.address.ws_path}"
        assert await self._client.connect(uri, cleansession=self.clean and not self.persistent) == 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, ClientError):
            while True:
                message = await self._client.deliver_message()
                if message is not None and message.publish_packet is not None:
                    packet = message.publish_packet
                    self.received.put(
                        Received(message.topic, bytes(message.data or b""), message.qos or 0, packet.retain_flag)
                    )

    async def _disconnect(self) -> None:
        self._reader.cancel()
        await self._client.disconnect()

    def disconnect(self) -> None:
        self._thread.run(self._disconnect())
        self._thread.stop()

    async def _drop(self) -> None:
        self._reader.cancel()
        handler = self._client._handler
        assert handler is not None and handler.writer is not None
        await handler.writer.close()

    def drop(self) -> None:
        self._thread.run(self._drop())
        self._thread.stop()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        assert self._thread.run(self._client.subscribe([(topic_filter, qos)])) == [qos]

    def unsubscribe(self, topic_filter: str) -> None:
        self._thread.run(self._client.unsubscribe([topic_filter]))

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        self._thread.run(self._client.publish(topic, payload, qos, retain))
