"""A client of MQTT-SN for tests: a UDP socket and the codec. It answers what a client has to answer."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from taipan.broker.gateways.mqttsn import codec as sn
from tests.support.patience import patience
from tests.support.peer import TIMEOUT

_Kind = TypeVar("_Kind", bound=sn.SnPacket)


class SnClient(asyncio.DatagramProtocol):
    """``inbox``: what has come and was not answered by ``answers``. ``prefix``: a forwarder's header."""

    def __init__(self, answers: bool = True, prefix: bytes = b"") -> None:
        self.inbox: asyncio.Queue[sn.SnPacket] = asyncio.Queue()
        self.answers = answers
        self.prefix = prefix
        self.transport: asyncio.DatagramTransport
        self.topics: dict[int, str] = {}
        self.registered: list[str] = []
        self.messages: list[tuple[Any, bytes]] = []
        self._msg_id = 0
        self._received2: set[tuple[int, bytes]] = set()

    @classmethod
    async def open(cls, address: tuple[str, int], answers: bool = True, prefix: bytes = b"") -> "SnClient":
        loop = asyncio.get_running_loop()
        _, client = await loop.create_datagram_endpoint(lambda: cls(answers, prefix), remote_addr=address)
        return client

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    @property
    def port(self) -> int:
        port: int = self.transport.get_extra_info("sockname")[1]
        return port

    def datagram_received(self, data: bytes, addr: Any) -> None:
        prefix, data = sn.split(data)
        if prefix != self.prefix:
            return  # for another node behind the same forwarder
        packet = sn.decode(data)
        if self.answers and self._answered(packet):
            return
        self.inbox.put_nowait(packet)

    def _answered(self, packet: sn.SnPacket) -> bool:
        """Answer what asks for it; return whether nothing else is to be done with it."""
        match packet:
            case sn.SnRegister():
                self.topics[packet.topic_id] = packet.topic
                self.registered.append(packet.topic)
                self.say(sn.SnRegack(packet.topic_id, packet.msg_id, sn.ACCEPTED))
                return True
            case sn.SnPublish():
                if packet.qos == 1:
                    self.say(sn.SnPuback(packet.topic_id, packet.msg_id, sn.ACCEPTED))
                elif packet.qos == 2:
                    self.say(sn.SnReply(sn.PUBREC, packet.msg_id))
                    if (packet.msg_id, packet.payload) in self._received2:
                        return True
                    self._received2.add((packet.msg_id, packet.payload))
            case sn.SnReply(type=sn.PUBREL):
                self.say(sn.SnReply(sn.PUBCOMP, packet.msg_id))
                return True
        return False

    def say(self, packet: sn.SnPacket) -> None:
        self.send(sn.encode(packet))

    def send(self, data: bytes) -> None:
        self.transport.sendto(self.prefix + data)

    async def hear(self, seconds: float = TIMEOUT) -> sn.SnPacket:
        return await asyncio.wait_for(self.inbox.get(), patience(seconds))

    async def expect(self, packet: sn.SnPacket) -> None:
        heard = await self.hear()
        assert heard == packet, heard

    async def ask(self, packet: sn.SnPacket) -> sn.SnPacket:
        self.say(packet)
        return await self.hear()

    def next_id(self) -> int:
        self._msg_id = self._msg_id % 65_535 + 1
        return self._msg_id

    async def connect(self, client_id: str, clean: bool = True, duration: int = 60) -> None:
        assert await self.ask(sn.SnConnect(client_id, clean, False, duration)) == sn.SnConnack(sn.ACCEPTED)

    async def register(self, topic: str) -> int:
        heard = await self.ask(sn.SnRegister(0, self.next_id(), topic))
        assert isinstance(heard, sn.SnRegack) and heard.code == sn.ACCEPTED, heard
        self.topics[heard.topic_id] = topic
        return heard.topic_id

    async def subscribe(self, topic: str | int, qos: int = 0, id_type: int = sn.NORMAL) -> int:
        heard = await self.ask(sn.SnSubscribe(self.next_id(), topic, id_type, qos))
        assert isinstance(heard, sn.SnSuback) and (heard.code, heard.qos) == (sn.ACCEPTED, qos), heard
        if isinstance(topic, str) and heard.topic_id:
            self.topics[heard.topic_id] = topic
        return heard.topic_id

    async def publish(self, topic_id: int, payload: bytes, qos: int = 0, id_type: int = sn.NORMAL,
                      retain: bool = False) -> None:  # fmt: skip
        msg_id = self.next_id() if qos > 0 else 0
        self.say(sn.SnPublish(topic_id, id_type, payload, qos, retain, False, msg_id))
        if qos == 1:
            await self.expect(sn.SnPuback(topic_id, msg_id, sn.ACCEPTED))
        elif qos == 2:
            await self.expect(sn.SnReply(sn.PUBREC, msg_id))
            assert await self.ask(sn.SnReply(sn.PUBREL, msg_id)) == sn.SnReply(sn.PUBCOMP, msg_id)

    async def message(self) -> tuple[str, bytes, int]:
        """Return topic name, payload and QoS of the next message."""
        heard = await self.hear()
        assert isinstance(heard, sn.SnPublish), heard
        if heard.id_type == sn.SHORT:
            topic = heard.topic_id.to_bytes(2).decode()
        elif heard.id_type == sn.PREDEFINED:
            topic = str(heard.topic_id)
        else:
            topic = self.topics[heard.topic_id]
        return topic, heard.payload, heard.qos

    def close(self) -> None:
        self.transport.abort()


class Lossy(asyncio.DatagramProtocol):
    """A network between clients and a gateway: it loses, repeats and reorders datagrams, each with ``part``."""

    def __init__(self, target: tuple[str, int], part: float, seed: int) -> None:
        self._target = target
        self._part = part
        self._random = random.Random(seed)
        self._out: dict[Any, asyncio.DatagramTransport] = {}
        self.transport: asyncio.DatagramTransport
        self._beginnings: list[asyncio.Future[None]] = []
        self.lost = 0

    @classmethod
    async def open(cls, target: tuple[str, int], part: float, seed: int) -> "Lossy":
        loop = asyncio.get_running_loop()
        _, made = await loop.create_datagram_endpoint(lambda: cls(target, part, seed), local_addr=("127.0.0.1", 0))
        return made

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    @property
    def address(self) -> tuple[str, int]:
        name: tuple[str, int] = self.transport.get_extra_info("sockname")
        return name

    def datagram_received(self, data: bytes, addr: Any) -> None:
        out = self._out.get(addr)
        if out is None:
            self._beginnings.append(asyncio.ensure_future(self._begin(data, addr)))
        else:
            self.carry(out.sendto, data)

    async def _begin(self, data: bytes, addr: Any) -> None:
        class Back(asyncio.DatagramProtocol):
            def datagram_received(back, data: bytes, _: Any) -> None:
                self.carry(lambda each: self.transport.sendto(each, addr), data)

        out, _ = await asyncio.get_running_loop().create_datagram_endpoint(Back, remote_addr=self._target)
        self._out[addr] = out
        self.carry(out.sendto, data)

    def carry(self, send: Callable[[bytes], None], data: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._random.random() < self._part:
            self.lost += 1
            return
        for _ in range(2 if self._random.random() < self._part else 1):
            late = self._random.random() * 0.05 if self._random.random() < self._part else 0.0
            loop.call_later(late, self._send, send, data)

    def _send(self, send: Callable[[bytes], None], data: bytes) -> None:
        if not self.transport.is_closing():
            send(data)

    def close(self) -> None:
        for each in (*self._out.values(), self.transport):
            each.abort()
