"""The other side of an MQTT client: a server that does packet by packet what a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, TypeVar

from taipan.broker.mqtt import encoder
from taipan.broker.mqtt.constants import V4
from taipan.broker.mqtt.decoder import Decoder, Packet, TopicNames
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Connack, Connect, Disconnect, Properties, Suback, Subscribe, TopicFilter
from taipan.ruleengine.mqtt_client.client import ClientOptions, MqttClient
from taipan.ruleengine.mqtt_client.stream import Address
from taipan.ruleengine.network.allowed_networks import Networks

P = TypeVar("P")


class Gone(Exception):
    """The client has closed the connection."""


class Visit:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.connect = Connect(V4, "")
        self._decoder = Decoder(TopicNames(), 1 << 28, 1 << 28)
        self.buffered: list[Packet] = []

    async def read(self) -> Packet:
        while not self.buffered:
            try:
                data = await self.reader.read(65_536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Gone
            self.buffered = self._decoder.feed(data)
        return self.buffered.pop(0)

    async def expect(self, kind: type[P]) -> P:
        packet = await self.read()
        assert isinstance(packet, kind), packet
        return packet

    async def ack(self) -> tuple[int, int]:
        """Type and Packet Identifier of a plain acknowledgement."""
        packet = await self.expect(int)
        return packet >> 16, packet & 0xFFFF

    async def send(self, *packets: Any) -> None:
        octets = [each if isinstance(each, bytes) else encoder.encode(each, self._decoder.version) for each in packets]
        self.writer.write(b"".join(octets))
        await self.writer.drain()

    async def accept(self, present: bool = False, **properties: Any) -> Connect:
        """CONNECT and CONNACK; SUBSCRIBE and SUBACK are the next, where the client does so."""
        self.connect = await self.expect(Connect)
        await self.send(Connack(0, present, properties.get("properties", {})))
        return self.connect

    async def accept_with(self, octets: bytes) -> None:
        """CONNECT and CONNACK, and these bytes together with it."""
        self.connect = await self.expect(Connect)
        await self.send(Connack(0, False, {}), octets)

    async def subscribed(self) -> Subscribe:
        subscribe = await self.expect(Subscribe)
        await self.send(Suback(subscribe.packet_id, [each.qos for each in subscribe.filters]))
        return subscribe

    async def gone(self) -> None:
        """Until the client has closed; nothing but a DISCONNECT may come before."""
        with suppress(Gone):
            while True:
                await self.expect(Disconnect)


Script = Callable[[Visit], Awaitable[None]]


class OtherSide:
    """``scripts``: what is done with the first connection, with the second, and so on. The last is for all others, also
    for those that it does not fit, such as the one that ends a session of 3.1.1."""

    def __init__(self, *scripts: Script) -> None:
        self.visits: list[Visit] = []
        self.errors: list[BaseException] = []
        self.done = 0
        self.port = 0
        self._scripts = scripts
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        visit = Visit(reader, writer)
        last = len(self._scripts) - 1
        repeats = len(self.visits) > last
        script = self._scripts[min(len(self.visits), last)]
        self.visits.append(visit)
        try:
            await script(visit)
            self.done += 1
        except Gone:
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        except BaseException as error:
            if not repeats:
                self.errors.append(error)
        finally:
            writer.close()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in self.errors:
            raise error


@asynccontextmanager
async def other_side(*scripts: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[OtherSide]:
    made = OtherSide(*scripts)
    await made.start(tls)
    try:
        yield made
    finally:
        await made.stop()


class Kept:
    """A receiver. ``room`` and ``store`` may be cleared to hold it up; ``trouble``: nothing can be stored."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.room = asyncio.Event()
        self.store = asyncio.Event()
        self.room.set()
        self.store.set()
        self.trouble = False

    async def ready(self) -> None:
        await self.room.wait()

    def take(self, message: Message) -> None:
        self.messages.append(message)

    async def stored(self) -> bool:
        await self.store.wait()
        return not self.trouble

    @property
    def payloads(self) -> list[bytes]:
        return [each.payload for each in self.messages]


def client_of(port: int, version: int = V4, receiver: Kept | None = None, path: str = "", **more: Any) -> MqttClient:
    """A client that has not started; with a receiver it subscribes to ``in/#`` at QoS 2."""
    options = {
        "keep_alive": 60,
        "connect_timeout": 20.0,
        "reconnect_interval": 0.02,
        "answer_timeout": 20.0,
        "username": None,
        "password": None,
        **more,
    }
    filters = None if receiver is None else [TopicFilter("in/#", 2)]
    made = ClientOptions(Address("127.0.0.1", port, path), version, **options)
    return MqttClient("me", made, Networks(()), Random(1), lambda: None, filters, receiver)


@asynccontextmanager
async def running(client: MqttClient) -> AsyncIterator[MqttClient]:
    client.start()
    try:
        yield client
    finally:
        await client.close()


def message(payload: bytes, qos: int = 1, retain: bool = False, properties: Properties | None = None) -> Message:
    return Message("t", payload, qos, retain, properties or {})
