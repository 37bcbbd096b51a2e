"""Measure how long a durable publisher waits for PUBACK while QoS 0 floods the node.

``python -m tools.bench.latency`` (``ROUNDS=3``, ``DUR=5``) writes its section of ``docs/performance.md``. The publisher
has one QoS 1 message in flight at a time, for a persistent session that is offline, so that each PUBACK requires a
flush of the disk. The flood consists of as many QoS 0 messages as the node accepts, to one subscriber."""

import contextlib
import multiprocessing
import multiprocessing.sharedctypes
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator

from tools.bench.brokers import running
from tools.bench.page import write
from tools.bench.results import commit, machine
from tools.bench.scenarios import DISK

SETTINGS = (DISK, "zones.external.max_queued_messages=0")
PAUSE = 0.001
TIMEOUT = 20.0
_PAYLOAD = bytes(64)
_FLOOD = b"\x30" + bytes((2 + 7 + len(_PAYLOAD),)) + b"\0\x07flood/0" + _PAYLOAD
_CONNACK = bytes.fromhex("20020000")


def connected(port: int, client_id: str, clean: bool = True) -> socket.socket:
    """Connect a 3.1.1 client, and wait until the node accepts it."""
    client = socket.create_connection(("127.0.0.1", port), TIMEOUT)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = client_id.encode()
    connect = b"\0\x04MQTT\x04" + (b"\x02" if clean else b"\0") + b"\0\0" + len(name).to_bytes(2, "big") + name
    client.sendall(b"\x10" + bytes((len(connect),)) + connect)
    answer = exactly(client, 4)
    if answer[0] != _CONNACK[0] or answer[3] != 0:
        raise ConnectionError(f"refused: {answer.hex()}")
    return client


def exactly(client: socket.socket, size: int) -> bytes:
    """Return this number of bytes from the node."""
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        if not piece:
            raise ConnectionError("the node closed the connection")
        data += piece
    return data


def subscribe(client: socket.socket, filter: str, qos: int) -> None:
    """Subscribe, and wait for SUBACK."""
    name = filter.encode()
    body = b"\0\x01" + len(name).to_bytes(2, "big") + name + bytes((qos,))
    client.sendall(b"\x82" + bytes((len(body),)) + body)
    if exactly(client, 5)[4] != qos:
        raise ConnectionError("not subscribed")


def _flood(port: int, received: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    reader = connected(port, "flood-reader")
    subscribe(reader, "flood/0", 0)
    writer = connected(port, "flood-writer")
    writer.settimeout(None)

    def write_on() -> None:
        burst = _FLOOD * 500
        with contextlib.suppress(OSError):
            while True:
                writer.sendall(burst)

    threading.Thread(target=write_on, daemon=True).start()
    while data := reader.recv(1 << 20):
        received.value += len(data)


@contextlib.contextmanager
def flooding(port: int) -> Iterator["multiprocessing.sharedctypes.Synchronized[int]"]:
    """Run a process that floods the node during the block; yield the counter of delivered bytes."""
    context = multiprocessing.get_context("spawn")
    received = context.Value("q", 0)
    process = context.Process(target=_flood, args=(port, received), daemon=True)
    process.start()
    try:
        until = time.monotonic() + TIMEOUT
        while not received.value:
            if time.monotonic() > until or not process.is_alive():
                raise ConnectionError("the flood did not begin")
            time.sleep(0.05)
        yield received
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def publishing(port: int) -> Iterator[socket.socket]:
    """Yield a publisher to ``kept/0``, to which a persistent, offline session has subscribed with QoS 1."""
    with connected(port, "away", clean=False) as away:
        subscribe(away, "kept/0", 1)
    with connected(port, "publisher") as publisher:
        yield publisher


def latencies(publisher: socket.socket, seconds: float) -> list[float]:
    """Return the milliseconds from PUBLISH to PUBACK, one message after another for ``seconds``; sorted."""
    found = []
    packet_id = 0
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        packet_id = packet_id % 65_535 + 1
        number = packet_id.to_bytes(2, "big")
        publisher.sendall(b"\x32" + bytes((10 + len(_PAYLOAD),)) + b"\0\x06kept/0" + number + _PAYLOAD)
        if exactly(publisher, 4) != b"\x40\x02" + number:
            raise ConnectionError("another packet than PUBACK")
        found.append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE)
    return sorted(found)


def quantile(values: list[float], part: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * part))]


def main() -> int:
    rounds, seconds = int(os.environ.get("ROUNDS", "3")), float(os.environ.get("DUR", "5"))
    found: dict[str, list[list[float]]] = {"idle": [], "under the flood": []}
    rates = []
    for number in range(1, rounds + 1):
        with running("taipan", None, SETTINGS) as (port, _), publishing(port) as publisher:
            found["idle"].append(latencies(publisher, seconds))
            with flooding(port) as received:
                before = received.value
                found["under the flood"].append(latencies(publisher, seconds))
                rates.append((received.value - before) / len(_FLOOD) / seconds)
        for name, each in found.items():
            print(f"round {number}  {name:16} p99 {quantile(each[-1], 0.99):7.2f} ms", flush=True)
    lines = ["| node | p50 in ms | p99 in ms | highest in ms |", "|---|---|---|---|"]
    for name, each in found.items():
        cells = []
        for part in (0.5, 0.99, 1.0):
            values = [quantile(one, part) for one in each]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    about = machine()
    text = (
        f"Written by `python -m tools.bench.latency` with `ROUNDS={rounds} DUR={seconds:g}` at commit {commit()}; "
        f"{about['cpu']},\nshared by node, flood and publisher. A QoS 1 publisher has one message in flight, "
        "for a persistent session\nwhose client is offline: each PUBACK is a flush of the disk. The flood is as many "
        "QoS 0 messages (64 bytes) as the\nnode accepts: "
        f"{statistics.median(rates):,.0f} messages/s arrived during the measurement. "
        "Medians of the rounds with their range.\n\n" + "\n".join(lines)
    )
    print("\n" + text)
    write("Latency of PUBACK under a flood", text)
    return 0 if min(quantile(each, 0.99) for each in found["under the flood"]) < 10 else 1


if __name__ == "__main__":
    sys.exit(main())
