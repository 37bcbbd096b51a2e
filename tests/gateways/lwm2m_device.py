"""A device for tests, by the text of LwM2M 1.0 and RFC 7252, 7641 and 7959: it shares no code with the gateway.

It registers, answers requests from ``resources`` (path -> content format and bytes), and notifies observers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.patience import patience
from tests.support.peer import TIMEOUT

CON, NON, ACK, RST = range(4)
GET, POST, PUT, DELETE = range(1, 5)
REPEATED_AFTER = 0.5
"""Seconds until the device repeats a request that has no answer."""
OBSERVE, LOCATION, PATH, FORMAT, QUERY, ACCEPT, BLOCK2, BLOCK1 = 6, 8, 11, 12, 15, 17, 23, 27


@dataclass
class Coap:
    """A message of CoAP. ``code``: 0x45 is 2.05."""

    kind: int
    code: int
    mid: int
    token: bytes = b""
    options: list[tuple[int, bytes]] = field(default_factory=list)
    payload: bytes = b""

    def encoded(self) -> bytes:
        data = bytes((0x40 | self.kind << 4 | len(self.token), self.code)) + self.mid.to_bytes(2) + self.token
        last = 0
        for number, value in sorted(self.options, key=lambda each: each[0]):
            first, delta = _extended(number - last)
            second, length = _extended(len(value))
            data += bytes((first << 4 | second,)) + delta + length + value
            last = number
        return data + (b"\xff" + self.payload if self.payload else b"")

    def all(self, number: int) -> list[bytes]:
        return [value for each, value in self.options if each == number]

    def number(self, option: int) -> int | None:
        found = self.all(option)
        return int.from_bytes(found[0]) if found else None

    @property
    def path(self) -> str:
        return "/" + "/".join(each.decode() for each in self.all(PATH))

    @property
    def dotted(self) -> str:
        return f"{self.code >> 5}.{self.code & 31:02}"


def _extended(number: int) -> tuple[int, bytes]:
    if number < 13:
        return number, b""
    return (13, bytes((number - 13,))) if number < 269 else (14, (number - 269).to_bytes(2))


def decoded(data: bytes) -> Coap:
    assert data[0] >> 6 == 1, "version 1"
    size = data[0] & 15
    message = Coap(data[0] >> 4 & 3, data[1], int.from_bytes(data[2:4]), data[4 : 4 + size])
    at, number = 4 + size, 0
    while at < len(data) and data[at] != 0xFF:
        delta, length = data[at] >> 4, data[at] & 15
        at += 1
        found = []
        for nibble in (delta, length):
            if nibble == 13:
                found.append(data[at] + 13)
                at += 1
            elif nibble == 14:
                found.append(int.from_bytes(data[at : at + 2]) + 269)
                at += 2
            else:
                found.append(nibble)
        number += found[0]
        message.options.append((number, data[at : at + found[1]]))
        at += found[1]
    message.payload = data[at + 1 :]
    return message


def plain(number: int) -> bytes:
    """Return a number as the value of an option: without leading zeros."""
    return number.to_bytes((number.bit_length() + 7) // 8)


class Device(asyncio.DatagramProtocol):
    """``requests``: what the node has asked. ``answers``: whether it is answered; ``separate``: by an acknowledgement
    first, and then by a message of its own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.resources: dict[str, tuple[int, bytes]] = {}
        self.codes: dict[tuple[int, str], int] = {}
        self.written: dict[str, bytes] = {}
        self.largest = 6  # the exponent of the blocks that it takes: 1024 bytes
        self._blocks: dict[str, bytes] = {}
        self.requests: asyncio.Queue[Coap] = asyncio.Queue()
        self.replies: asyncio.Queue[Coap] = asyncio.Queue()
        self.answers = True
        self.separate = False
        self.observers: dict[str, bytes] = {}
        self.resets: list[int] = []
        self.times: list[float] = []
        self.transport: asyncio.DatagramTransport
        self._mid = 0
        self._sequence = 1
        self._seen: dict[int, bytes] = {}
        self.location = ""
        self.repeated = 0

    @classmethod
    async def open(cls, address: tuple[str, int], endpoint: str) -> "Device":
        loop = asyncio.get_running_loop()
        _, device = await loop.create_datagram_endpoint(lambda: cls(endpoint), remote_addr=address)
        return device

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    @property
    def port(self) -> int:
        port: int = self.transport.get_extra_info("sockname")[1]
        return port

    # What comes

    def datagram_received(self, data: bytes, addr: Any) -> None:
        message = decoded(data)
        if message.code == 0 and message.kind == CON:
            self.send(Coap(RST, 0, message.mid))  # a ping
        elif 0 < message.code < 32:
            self._asked(message)
        elif message.kind == RST:
            self.resets.append(message.mid)
        else:
            self.replies.put_nowait(message)

    def _asked(self, request: Coap) -> None:
        if request.mid in self._seen:
            self.repeated += 1
            if self._seen[request.mid]:
                self.transport.sendto(self._seen[request.mid])
                return
        else:
            self._seen[request.mid] = b""
            self.times.append(asyncio.get_running_loop().time())
            self.requests.put_nowait(request)
        if not self.answers:
            return
        answer = self._answer(request)
        if self.separate:
            self.send(Coap(ACK, 0, request.mid))
            answer.kind, answer.mid = CON, self.next_mid()
        self._seen[request.mid] = answer.encoded()
        self.send(answer)

    def _answer(self, request: Coap) -> Coap:
        answer = Coap(ACK, 0x45, request.mid, request.token)
        code = self.codes.get((request.code, request.path))
        if code is not None:
            answer.code = code
        elif request.code == GET:
            self._read(request, answer)
        else:
            answer.code = {POST: 0x44, PUT: 0x44, DELETE: 0x42}[request.code]
            if request.code == PUT:
                self._write(request, answer)
        return answer

    def _write(self, request: Coap, answer: Coap) -> None:
        """RFC 7959, section 2.5: blocks in their order, in the size that the device asks for after the first one."""
        part = request.number(BLOCK1)
        if part is None:
            self.written[request.path] = request.payload
            return
        at, more, exponent = part >> 4, part >> 3 & 1, part & 7
        before = self._blocks.get(request.path, b"") if at else b""
        if len(before) != at * (16 << exponent):
            answer.code = 0x88  # 4.08
            return
        self._blocks[request.path] = before + request.payload
        answer.options.append((BLOCK1, plain(at << 4 | more << 3 | min(exponent, self.largest))))
        if more:
            answer.code = 0x5F  # 2.31
        else:
            self.written[request.path] = self._blocks.pop(request.path)

    def _read(self, request: Coap, answer: Coap) -> None:
        wanted = request.number(OBSERVE)
        if request.path not in self.resources:
            answer.code = 0x84
            return
        number, answer.payload = self.resources[request.path]
        answer.options = [(FORMAT, plain(number))]
        if wanted == 0:
            self.observers[request.path] = request.token
            answer.options.append((OBSERVE, plain(self._sequence)))
        elif wanted == 1 and self.observers.get(request.path) == request.token:
            del self.observers[request.path]
        part = request.number(BLOCK2) or 6
        size = 16 << (part & 7)
        if len(answer.payload) > size:
            at = part >> 4
            more = len(answer.payload) > (at + 1) * size
            answer.payload = answer.payload[at * size : (at + 1) * size]
            answer.options.append((BLOCK2, plain(at << 4 | more << 3 | part & 7)))

    # What goes

    def send(self, message: Coap) -> None:
        self.transport.sendto(message.encoded())

    def next_mid(self) -> int:
        self._mid = self._mid + 1 & 0xFFFF
        return self._mid

    async def ask(self, code: int, path: str, query: tuple[str, ...] = (), payload: bytes = b"",
                  options: tuple[tuple[int, bytes], ...] = ()) -> Coap:  # fmt: skip
        mid = self.next_mid()
        found = [(PATH, each.encode()) for each in path.strip("/").split("/")]
        found += [(QUERY, each.encode()) for each in query]
        request = Coap(CON, code, mid, mid.to_bytes(2), [*found, *options], payload)
        for _ in range(int(patience(TIMEOUT) / REPEATED_AFTER)):
            self.send(request)
            try:
                async with asyncio.timeout(REPEATED_AFTER):
                    return await self._reply(request.token)
            except TimeoutError:
                continue
        raise AssertionError(f"no answer to {request}")

    async def _reply(self, token: bytes) -> Coap:
        while True:
            reply = await self.replies.get()
            if reply.token == token and reply.code:
                if reply.kind == CON:
                    self.send(Coap(ACK, 0, reply.mid))
                return reply

    async def register(self, objects: bytes = b"</1/0>,</3/0>", *query: str) -> Coap:
        given = {"ep": self.endpoint, "lt": "300", "lwm2m": "1.0"}
        given |= dict(each.split("=", 1) for each in query)
        options = ((FORMAT, plain(40)),)
        reply = await self.ask(POST, "/rd", tuple(f"{name}={value}" for name, value in given.items()), objects, options)
        self.location = "/" + "/".join(each.decode() for each in reply.all(LOCATION))
        return reply

    async def update(self, *query: str, objects: bytes = b"") -> Coap:
        return await self.ask(POST, self.location, query, objects)

    def notify(self, path: str, number: int, payload: bytes, kind: int = NON) -> int:
        self._sequence += 1
        mid = self.next_mid()
        options = [(OBSERVE, plain(self._sequence)), (FORMAT, plain(number))]
        self.send(Coap(kind, 0x45, mid, self.observers[path], options, payload))
        return mid

    async def asked(self, check: Callable[[Coap], bool] = lambda _: True) -> Coap:
        while True:
            request = await asyncio.wait_for(self.requests.get(), patience(TIMEOUT))
            if check(request):
                return request

    def close(self) -> None:
        self.transport.abort()
