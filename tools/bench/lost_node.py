"""Measure how soon the clients of a lost node have all their messages: ``python -m tools.bench.lost_node``.

There are three nodes with ``cluster.replicas = 1``. The second node has ``SESSIONS`` (10,000) sessions of offline
clients, with ``MESSAGES`` (10) queued messages each. The second node is killed and its data is deleted. All clients
then connect to the other nodes, and try again until they are accepted. Prints the seconds from the kill until half of
the clients, 99 % of them and all of them have received all messages, once and in order; and until the node runs again
and has left. ``CLIENTS`` limits how many clients reconnect (0: none); the other sessions move without their clients."""

import asyncio
import os
import re
import shutil
import sys
import time

from tools.bench.cluster import Nodes, _until_idle, _until_in_sync, nodes, processor_time
from tools.bench.latency import quantile
from tools.bench.run import raise_file_limit

_AT_ONCE = 400
"""Clients that connect or publish at the same time while the sessions are made."""
_RETRY = 0.5
_LIMIT = 180.0


def _packet(kind: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((kind, len(body))) + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


class Client(asyncio.Protocol):
    """A 3.1.1 client with a session that stays. ``got``: the numbers of the messages that it has received."""

    def __init__(self, number: int, wanted: int) -> None:
        self.number = number
        self.wanted = wanted
        self.got: list[int] = []
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(_packet(0x10, b"\0\x04MQTT\x04\0\0\0" + _text(f"c{self.number}")))

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.answered, self.complete):
            if not future.done():
                future.set_exception(ConnectionError())
            future.exception()

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        answers = b""
        while len(data) >= 2 and len(data) >= 2 + data[1]:
            kind, size = data[0] >> 4, data[1]
            body, data = data[2 : 2 + size], data[2 + size :]
            if kind == 3:
                start = 2 + int.from_bytes(body[:2], "big")
                answers += b"\x40\x02" + body[start : start + 2]
                self.got.append(int(body[start + 2 :]))
                if len(self.got) == self.wanted and not self.complete.done():
                    self.complete.set_result(None)
            elif not self.answered.done():
                self.answered.set_result(body[-1])
        self._data = data
        if answers:
            self.transport.write(answers)

    async def request(self, packet: bytes) -> int:
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(packet)
        return await self.answered


async def _connected(port: int, number: int, wanted: int = 0) -> Client:
    source = (f"127.0.0.{2 + number % 50}", 0)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(number, wanted), "127.0.0.1", port, local_addr=source)
    if await client.answered:
        client.transport.close()
        raise ConnectionError("refused")
    return client


async def _fill(port: int, sessions: int, messages: int) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            client = await _connected(port, number)
            assert await client.request(_packet(0x82, b"\0\x01" + _text(f"q/{number}") + b"\x01")) == 1
            client.transport.write(b"\xe0\0")
            client.transport.close()

    await asyncio.gather(*map(one, range(sessions)))

    async def publish(part: int) -> None:
        client = await _connected(port, sessions + part)
        for message in range(messages):
            for number in range(part, sessions, _AT_ONCE):
                await client.request(_packet(0x32, _text(f"q/{number}") + b"\0\x01" + b"%d" % message))
        client.transport.close()

    await asyncio.gather(*map(publish, range(_AT_ONCE)))


async def _back(ports: list[int], clients: range, messages: int, since: float) -> list[float]:
    """Return the seconds until each of these clients had all its messages. Raises AssertionError if a message is
    missing, duplicated or out of order."""

    async def one(number: int) -> float:
        got: list[int] = []
        for turn in range(10_000):
            try:
                client = await _connected(ports[(number + turn) % len(ports)], number, messages)
                await client.complete
                got = client.got
                waited = time.monotonic() - since
                break
            except OSError:
                await asyncio.sleep(_RETRY)
        assert got == list(range(messages)), (number, got)
        return waited

    async with asyncio.timeout(_LIMIT):
        return list(await asyncio.gather(*map(one, clients)))


def _until_logged(running: Nodes, event: str) -> tuple[int, str]:
    """Return the number of the node that has logged the event, and the line."""
    until = time.monotonic() + _LIMIT
    while time.monotonic() < until:
        for number in range(len(running.pid)):
            found = re.search(rf".*{event}.*", (running.directory / f"n{number + 1}.log").read_text())
            if found is not None:
                return number, found[0]
        time.sleep(0.05)
    raise SystemExit(f"not logged: {event}")


def main() -> int:
    sessions, messages = int(os.environ.get("SESSIONS", "10000")), int(os.environ.get("MESSAGES", "10"))
    raise_file_limit()
    with nodes(3, "disk", replicas=1) as running:
        _until_in_sync(running, 1)
        asyncio.run(_fill(running.port[1], sessions, messages))
        _until_idle(running)
        print(f"load {os.getloadavg()[0]:.1f}; {sessions} sessions, {sessions * messages} messages", flush=True)
        others = [running.pid[0], running.pid[2]]
        before = sum(map(processor_time, others))
        began = time.monotonic()
        running.process[1].kill()
        running.process[1].wait()
        shutil.rmtree(running.directory / "data-2")
        ports = [running.port[0], running.port[2]]
        clients = int(os.environ.get("CLIENTS", str(sessions)))
        if clients:
            waited = sorted(asyncio.run(_back(ports, range(0, sessions, sessions // clients), messages, began)))
            spent = (sum(map(processor_time, others)) - before) / sessions
            print(
                f"{len(waited)} clients served again: half {quantile(waited, 0.5):.1f} s, "
                f"99 % {quantile(waited, 0.99):.1f} s, all {waited[-1]:.1f} s; "
                f"{spent * 1e6:.0f} µs of both nodes a session"
            )
        host, line = _until_logged(running, "hosted_node_started")
        print(f"n{host + 1}: {line}")
        _, line = _until_logged(running, "hosted_node_ended")
        spent = (sum(map(processor_time, others)) - before) / sessions
        print(f"left after {time.monotonic() - began:.1f} s; {spent * 1e6:.0f} µs of both nodes a session: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
