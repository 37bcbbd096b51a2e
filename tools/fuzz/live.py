"""The same bytes against a running node, while a well-behaved client checks that the node continues to serve it."""

import asyncio
import secrets
import ssl
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.encoder import encode
from taipan.broker.mqtt.packets import Connack, Connect, Pingresp

from .mutation import Corpus

_PATIENCE = 10.0
_PINGREQ = b"\xc0\x00"


class NotServed(AssertionError):
    """The node did not answer a client that behaved correctly."""


SCHEMES: Final = ("tcp", "tls", "ws", "wss")


class Stream:
    """A connection to a node, over TCP or TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def read(self) -> bytes:
        """Return the bytes that arrived; empty: the connection has ended."""
        return await self._reader.read(65536)

    @property
    def closing(self) -> bool:
        return self._writer.is_closing()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # closed from the other side first

    def abort(self) -> None:
        self._writer.transport.abort()


class WebSocketStream(Stream):
    """The same bytes in WebSocket frames. ``random``: some of the frames are invalid."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        protocol: ClientProtocol,
        random: Random | None,
    ) -> None:
        super().__init__(reader, writer)
        self._protocol = protocol
        self._random = random

    @classmethod
    async def opened(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, random: Random | None
    ) -> "WebSocketStream":
        """Open a connection, and complete the handshake. Raises OSError if it is refused."""
        protocol = ClientProtocol(parse_uri(url), subprotocols=["mqtt"], max_size=None)  # type: ignore[list-item]
        protocol.send_request(protocol.connect())
        for data in protocol.data_to_send():
            writer.write(data)
        while True:
            data = await reader.read(65536)
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
            answered = any(isinstance(event, Response) for event in protocol.events_received())
            if protocol.handshake_exc is not None or not data:
                raise ConnectionError(f"handshake: {protocol.handshake_exc!r}")
            if answered:
                return cls(reader, writer, protocol, random)

    def write(self, data: bytes) -> None:
        random = self._random
        if random is None or random.random() < 0.7:
            super().write(Frame(Opcode.BINARY, data).serialize(mask=True))
            return
        frame = bytearray(Frame(Opcode.BINARY, data).serialize(mask=random.random() < 0.8))
        frame[0] = (0x80 if random.random() < 0.5 else 0) | random.randrange(16)
        for _ in range(random.randrange(3)):
            frame[random.randrange(min(len(frame), 14))] ^= 1 << random.randrange(8)
        super().write(bytes(frame[: random.randint(1, len(frame))] if random.random() < 0.2 else frame))

    async def read(self) -> bytes:
        while True:
            data = await super().read()
            if not data:
                return data
            try:
                self._protocol.receive_data(data)
            except WebSocketException as error:
                raise ConnectionError(str(error)) from error
            found = b"".join(bytes(each.data) for each in self._protocol.events_received() if isinstance(each, Frame))
            if found or self._random is not None:
                return found or data


class Target:
    """The address of a node: ``tcp://HOST:PORT``, ``tls://``, ``ws://HOST:PORT/PATH`` or ``wss://``."""

    def __init__(self, url: str) -> None:
        """Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"tcp://{url}")
        if parts.scheme not in SCHEMES or not parts.hostname or not parts.port:
            raise ValueError(f"expected SCHEME://HOST:PORT with a scheme of {', '.join(SCHEMES)}, got {url}")
        self._host, self._port = parts.hostname, parts.port
        self._url = parts.geturl() if parts.scheme in ("ws", "wss") else ""
        self._tls: ssl.SSLContext | None = None
        if parts.scheme in ("tls", "wss"):
            self._tls = ssl.create_default_context()
            self._tls.check_hostname = False  # a node to try, mostly with a certificate that it made itself
            self._tls.verify_mode = ssl.CERT_NONE

    async def open(self, random: Random | None = None) -> Stream:
        """Open a connection. Raises OSError. ``random``: sometimes the layers around MQTT are invalid, too."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        if not self._url:
            return Stream(reader, writer)
        try:
            return await WebSocketStream.opened(reader, writer, self._url, random)
        except BaseException:
            writer.transport.abort()
            raise


class Watcher:
    """A well-behaved client with its own client ID."""

    def __init__(self, target: Target, version: int) -> None:
        self._target = target
        self._version = version
        self._decoder = Decoder(TopicNames(), 1_000_000, 1_000_000, server_side=False)
        self._decoder.version = version
        self._packets: list[object] = []

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                self._stream = await self._target.open()
                connect = Connect(self._version, "watcher-" + secrets.token_hex(8), keep_alive=60)
                self._stream.write(encode(connect, self._version))
                answer = await self._next()
        except (OSError, TimeoutError) as error:
            raise NotServed(f"CONNECT: {error!r}") from error
        if not isinstance(answer, Connack) or answer.reason_code:
            await self._stream.close()
            raise NotServed(f"CONNECT answered with {answer!r}")

    async def ping(self) -> float:
        """Return the seconds until PINGRESP."""
        start = monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                self._stream.write(_PINGREQ)
                answer = await self._next()
        except (OSError, TimeoutError) as error:
            raise NotServed(f"PINGREQ: {error!r}") from error
        if not isinstance(answer, Pingresp):
            raise NotServed(f"PINGREQ answered with {answer!r}")
        return monotonic() - start

    async def close(self) -> None:
        self._stream.write(b"\xe0\x00")
        await self._stream.close()

    async def _next(self) -> object:
        while not self._packets:
            data = await self._stream.read()
            if not data:
                raise NotServed("connection closed")
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)


async def _throw(
    target: Target, corpus: Corpus, random: Random, end: float, pause: float, counts: dict[str, int]
) -> None:
    """Open bad connections one after another, each at least ``pause`` seconds after the previous one."""
    due = monotonic()
    while monotonic() < end:
        due = max(due + pause, monotonic())
        await asyncio.sleep(due - monotonic())
        try:
            async with asyncio.timeout(_PATIENCE):
                stream = await target.open(random)
        except (OSError, TimeoutError):
            # The watcher decides whether the node still runs.
            counts["refused"] = counts.get("refused", 0) + 1
            continue
        counts["connections"] = counts.get("connections", 0) + 1
        try:
            async with asyncio.timeout(_PATIENCE):
                await _talk(stream, corpus, random, counts)
        except (OSError, TimeoutError):
            counts["cut off"] = counts.get("cut off", 0) + 1
        finally:
            stream.abort()


async def _talk(stream: Stream, corpus: Corpus, random: Random, counts: dict[str, int]) -> None:
    version = 0
    if random.random() < 0.7:
        row = corpus.connect()
        version = row.version
        stream.write(row.data)
        for _ in range(random.randrange(4)):
            stream.write(corpus.good(version))
    for _ in range(random.randint(1, 3)):
        data = corpus.input(version)
        counts["bytes"] = counts.get("bytes", 0) + len(data)
        for piece in corpus.pieces(data):
            if stream.closing:
                return
            stream.write(piece)
            if len(piece) == 1 and random.random() < 0.2:
                # Let the node see the pieces apart.
                await stream.drain()
                await asyncio.sleep(0)
    await stream.drain()
    if random.random() < 0.5:
        # Half of them look at the answer, the others leave it unread.
        try:
            async with asyncio.timeout(0.2):
                while await stream.read():
                    pass
        except TimeoutError:
            counts["left open"] = counts.get("left open", 0) + 1


async def _watch(target: Target, end: float, counts: dict[str, int]) -> float:
    """Keep one client connected, and connect new ones; return the longest answer in seconds. Raises ``NotServed``."""
    stays = Watcher(target, 5)
    await stays.connect()
    worst = 0.0
    last = False
    while not last:
        last = monotonic() >= end
        worst = max(worst, await stays.ping())
        for version in (3, 4, 5):
            fresh = Watcher(target, version)
            await fresh.connect()
            worst = max(worst, await fresh.ping())
            await fresh.close()
            counts["watched"] = counts.get("watched", 0) + 1
        await asyncio.sleep(0.5)
    await stays.close()
    return worst


async def run(target: Target, seconds: float, seed: int, connections: int, rate: float) -> dict[str, int]:
    """Run for this time over this number of connections; return what was done.

    Raises ``NotServed``. ``rate`` limits new connections per second: it must be below the listener's accept rate,
    otherwise the listener rightly refuses the watcher.
    """
    counts: dict[str, int] = {}
    end = monotonic() + seconds
    pause = connections / rate
    throwers = []
    for number in range(connections):
        random = Random(seed + number)
        throwers.append(asyncio.create_task(_throw(target, Corpus(random), random, end, pause, counts)))
    try:
        worst = await _watch(target, end, counts)
        await asyncio.gather(*throwers)
    finally:
        for thrower in throwers:
            thrower.cancel()
        await asyncio.gather(*throwers, return_exceptions=True)
    # And once more, when all of them are gone.
    counts["slowest answer in ms"] = round(1000 * max(worst, await _watch(target, 0.0, counts)))
    return counts


def resident(pid: int) -> int:
    """Return the resident memory of a process in KiB (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
