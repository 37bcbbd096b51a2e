"""A client of CoAP for tests: a UDP socket and the codec. It acknowledges what a client has to acknowledge."""

import asyncio
import itertools
from typing import Any

from taipan.broker.gateways.coap import codec
from taipan.broker.gateways.coap.codec import ACK, CON, GET, NON, PUT, RST, Packet
from tests.support.patience import patience
from tests.support.peer import TIMEOUT


class CoapClient(asyncio.DatagramProtocol):
    """``notifications`` are those of all observations. ``answers``: acknowledge them, and answer pings."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Packet] = asyncio.Queue()
        self.notifications: asyncio.Queue[Packet] = asyncio.Queue()
        self.answers = True
        self.transport: asyncio.DatagramTransport
        self.sent = self.got = 0
        self.pings: list[int] = []
        self._mids = itertools.count(1)
        self._observed: set[bytes] = set()

    @classmethod
    async def open(cls, address: tuple[str, int]) -> "CoapClient":
        _, client = await asyncio.get_running_loop().create_datagram_endpoint(cls, remote_addr=address)
        return client

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    @property
    def port(self) -> int:
        port: int = self.transport.get_extra_info("sockname")[1]
        return port

    def close(self) -> None:
        self.transport.close()

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        self.transport.sendto(data)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.got += len(data)
        packet = codec.decode(data)
        if packet.type == CON and packet.code == codec.EMPTY:
            self.pings.append(packet.mid)
            if self.answers:
                self.send(codec.empty(RST, packet.mid))
            return
        if packet.type == CON and self.answers:
            self.send(codec.empty(ACK, packet.mid))
        observed = packet.token in self._observed and packet.type in (CON, NON)
        (self.notifications if observed else self.inbox).put_nowait(packet)

    def next_mid(self) -> int:
        return next(self._mids)

    async def hear(self) -> Packet:
        async with asyncio.timeout(patience(TIMEOUT)):
            return await self.inbox.get()

    async def ask(
        self, code: int, uri: str, payload: bytes = b"", kind: int = CON, token: bytes = b"t", **options: int
    ) -> Packet:
        """Send a request and return its answer; ``options``: content_format, accept, observe, max_age."""
        self.send(self.request(code, uri, payload, kind, token, **options))
        while True:
            packet = await self.hear()
            if packet.token == token and packet.code:
                return packet

    def request(
        self, code: int, uri: str, payload: bytes = b"", kind: int = CON, token: bytes = b"t", **options: int
    ) -> bytes:
        path, _, query = uri.partition("?")
        found = [(codec.URI_PATH, each.encode()) for each in path.split("/")]
        found += [(codec.URI_QUERY, each.encode()) for each in query.split("&") if each]
        numbers = {
            "content_format": codec.CONTENT_FORMAT,
            "accept": codec.ACCEPT,
            "observe": codec.OBSERVE,
            "max_age": codec.MAX_AGE,
        }
        found += [(numbers[name], codec.uint_bytes(value)) for name, value in options.items()]
        return codec.encode(kind, code, self.next_mid(), token, found, payload)

    async def code(self, code: int, uri: str, payload: bytes = b"", **options: Any) -> str:
        """Return the code of the answer as people write it."""
        return codec.dotted((await self.ask(code, uri, payload, **options)).code)

    async def put(self, uri: str, payload: bytes, **options: Any) -> str:
        return await self.code(PUT, uri, payload, **options)

    async def observe(self, uri: str, token: bytes = b"o") -> Packet:
        packet = await self.ask(GET, uri, token=token, observe=0)
        self._observed.add(token)
        return packet

    async def notification(self) -> Packet:
        async with asyncio.timeout(patience(TIMEOUT)):
            return await self.notifications.get()

    async def state(self) -> bytes:
        return (await self.notification()).payload
