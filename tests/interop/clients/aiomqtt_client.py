"""aiomqtt: 3.1.1 and 5.0, over TCP and WebSocket."""

import asyncio
import contextlib
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from .client import InteropClient, LoopThread, Received, cut
from .paho import from_paho, to_paho

VERSIONS = {4: aiomqtt.ProtocolVersion.V311, 5: aiomqtt.ProtocolVersion.V5}


class AiomqttClient(InteropClient):
    library = "aiomqtt"

    def connect(self) -> bool | None:
        self._thread = LoopThread()
        self._thread.run(self._connect())
        return None

    async def _connect(self) -> None:
        will = None
        if self.will is not None:
            will = aiomqtt.Will(self.will.topic, self.will.payload, self.will.qos, self.will.retain)
        options: dict[str, Any] = {}
        clean = self.clean and not self.persistent
        if self.version == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            if self.persistent:
                properties.SessionExpiryInterval = 600
            options.update(clean_start=clean, properties=properties)
        else:
            options["clean_session"] = clean
        if self.transport == "ws":
            options["websocket_path"] = self.address.ws_path
        self._client = aiomqtt.Client(
            self.address.ws_host if self.transport == "ws" else self.address.host,
            self.address.ws_port if self.transport == "ws" else self.address.port,
            identifier=self.client_id,
            protocol=VERSIONS[self.version],
            transport="websockets" if self.transport == "ws" else "tcp",
            will=will,
            max_inflight_messages=200,
            **options,
        )
        await self._client.__aenter__()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(aiomqtt.MqttError):
            async for message in self._client.messages:
                found = from_paho(message.properties) if self.version == 5 else {}
                assert isinstance(message.payload, bytes)
                self.received.put(Received(str(message.topic), message.payload, message.qos, message.retain, found))

    async def _leave(self, cut_first: bool) -> None:
        if cut_first:
            cut(self._client._client.socket())
            await self._reader
        else:
            self._reader.cancel()
        with contextlib.suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)

    def disconnect(self) -> None:
        self._thread.run(self._leave(cut_first=False))
        self._thread.stop()

    def drop(self) -> None:
        self._thread.run(self._leave(cut_first=True))
        self._thread.stop()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        granted = self._thread.run(self._client.subscribe(topic_filter, qos))
        assert [getattr(code, "value", code) for code in granted] == [qos]

    def unsubscribe(self, topic_filter: str) -> None:
        self._thread.run(self._client.unsubscribe(topic_filter))

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        self._thread.run(self._client.publish(topic, payload, qos, retain, to_paho(properties)))
