"""The same bytes against a running node, while a well-behaved client watches that it goes on serving."""

import asyncio
import secrets
from pathlib import Path
from random import Random
from time import monotonic

from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.encoder import encode
from taipan.broker.mqtt.packets import Connack, Connect, Pingresp

from .mutation import Corpus

_PATIENCE = 10.0
_PINGREQ = b"\xc0\x00"


class NotServed(AssertionError):
    """The node did not answer a client that did nothing wrong."""


class Watcher:
    """A well-behaved client of its own client identifier."""

    def __init__(self, host: str, port: int, version: int) -> None:
        self._host = host
        self._port = port
        self._version = version
        self._decoder = Decoder(TopicNames(), 1_000_000, 1_000_000, server_side=False)
        self._decoder.version = version
        self._packets: list[object] = []

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
                connect = Connect(self._version, "watcher-" + secrets.token_hex(8), keep_alive=60)
                self._writer.write(encode(connect, self._version))
                answer = await self._next()
        except (OSError, TimeoutError) as error:
            raise NotServed(f"CONNECT: {error!r}") from error
        if not isinstance(answer, Connack) or answer.reason_code:
            raise NotServed(f"CONNECT answered with {answer!r}")

    async def ping(self) -> float:
        """Seconds until PINGRESP."""
        start = monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                self._writer.write(_PINGREQ)
                answer = await self._next()
        except (OSError, TimeoutError) as error:
            raise NotServed(f"PINGREQ: {error!r}") from error
        if not isinstance(answer, Pingresp):
            raise NotServed(f"PINGREQ answered with {answer!r}")
        return monotonic() - start

    async def close(self) -> None:
        self._writer.write(b"\xe0\x00")
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # closed from the other side first

    async def _next(self) -> object:
        while not self._packets:
            data = await self._reader.read(65536)
            if not data:
                raise NotServed("connection closed")
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)


async def _throw(
    host: str, port: int, corpus: Corpus, random: Random, end: float, pause: float, counts: dict[str, int]
) -> None:
    """Bad connections, one after the other, each ``pause`` seconds after the last one began at the earliest."""
    due = monotonic()
    while monotonic() < end:
        due = max(due + pause, monotonic())
        await asyncio.sleep(due - monotonic())
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            # Whether the node is still there is for the watcher to say.
            counts["refused"] = counts.get("refused", 0) + 1
            continue
        counts["connections"] = counts.get("connections", 0) + 1
        try:
            async with asyncio.timeout(_PATIENCE):
                await _talk(reader, writer, corpus, random, counts)
        except (OSError, TimeoutError):
            counts["cut off"] = counts.get("cut off", 0) + 1
        finally:
            writer.transport.abort()


async def _talk(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    corpus: Corpus,
    random: Random,
    counts: dict[str, int],
) -> None:
    version = 0
    if random.random() < 0.7:
        row = corpus.connect()
        version = row.version
        writer.write(row.data)
        for _ in range(random.randrange(4)):
            writer.write(corpus.good(version))
    for _ in range(random.randint(1, 3)):
        data = corpus.input(version)
        counts["bytes"] = counts.get("bytes", 0) + len(data)
        for piece in corpus.pieces(data):
            if writer.is_closing():
                return
            writer.write(piece)
            if len(piece) == 1 and random.random() < 0.2:
                # Let the node see the pieces apart.
                await writer.drain()
                await asyncio.sleep(0)
    await writer.drain()
    if random.random() < 0.5:
        # Half of them look at the answer, the others leave it unread.
        try:
            async with asyncio.timeout(0.2):
                while await reader.read(65536):
                    pass
        except TimeoutError:
            counts["left open"] = counts.get("left open", 0) + 1


async def _watch(host: str, port: int, end: float, counts: dict[str, int]) -> float:
    """A client that stays, and new ones; the longest answer in seconds. Raises ``NotServed``."""
    stays = Watcher(host, port, 5)
    await stays.connect()
    worst = 0.0
    last = False
    while not last:
        last = monotonic() >= end
        worst = max(worst, await stays.ping())
        for version in (3, 4, 5):
            fresh = Watcher(host, port, version)
            await fresh.connect()
            worst = max(worst, await fresh.ping())
            await fresh.close()
            counts["watched"] = counts.get("watched", 0) + 1
        await asyncio.sleep(0.5)
    await stays.close()
    return worst


async def run(host: str, port: int, seconds: float, seed: int, connections: int, rate: float) -> dict[str, int]:
    """Try for so long over so many connections at a time; what was done. Raises ``NotServed``.

    ``rate`` is how many connections are begun a second at most: below the listener's accept rate, or else the watcher
    is refused as well, and rightly.
    """
    counts: dict[str, int] = {}
    end = monotonic() + seconds
    pause = connections / rate
    throwers = []
    for number in range(connections):
        random = Random(seed + number)
        throwers.append(asyncio.create_task(_throw(host, port, Corpus(random), random, end, pause, counts)))
    try:
        worst = await _watch(host, port, end, counts)
        await asyncio.gather(*throwers)
    finally:
        for thrower in throwers:
            thrower.cancel()
        await asyncio.gather(*throwers, return_exceptions=True)
    # And once more, when all of them are gone.
    counts["slowest answer in ms"] = round(1000 * max(worst, await _watch(host, port, 0.0, counts)))
    return counts


def resident(pid: int) -> int:
    """Resident memory of a process in KiB (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
