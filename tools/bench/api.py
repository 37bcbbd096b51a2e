"""Measure what listings cost a node.

The node has SESSIONS (20,000) sessions with FILTERS (10) subscriptions each, and handles RATE (5,000) MQTT messages per
second. A caller requests one page of a listing after another for DUR (5) seconds.

``python -m tools.bench.api``. The node runs in its own process on one core, with a probe of its event loop every
millisecond; publisher, subscriber and caller run on another core. Prints the table for ``docs/performance.md``."""

import argparse
import asyncio
import gc
import http.client
import json
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import uvloop

from taipan.broker.mqtt.constants import NEVER_EXPIRES
from taipan.broker.observability.lag import LagProbe
from taipan.broker.persistence.log import records
from taipan.broker.persistence.log.batch import encode
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.store.store import FILE
from taipan.management.configuration.settings import HistorySettings, ManagementSettings
from taipan.management.management_server import ManagementServer
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine
from tests.support.node import Node, make_settings

A_BATCH = 2000
PROBE = 0.001
PATIENCE = 30.0
APP, SECRET = "bench", "bench"
CONNECT = bytes.fromhex("100f00044d515454040200000003")
TICK = 0.005
FRAME = struct.Struct(">2sH2sd")
TOPIC = b"bt"


# ------------------------------------------------------------------------- node


class TurnProbe:
    """Measures the processor time of the event loop's thread between two samples, at least a millisecond apart. This is
    an upper limit for the time that one callback held the loop. Unlike the lag, it is independent of other programs on
    the machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._at = time.thread_time()
        self.stretches: list[float] = []

    def look(self) -> None:
        now = time.thread_time()
        self.stretches.append(now - self._at)
        self._at = now
        self._handle = self._loop.call_later(PROBE, self.look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def fill(directory: Path, sessions: int, filters: int) -> None:
    """Write a store with these sessions, whose clients are offline."""
    log = SqliteLog(directory / FILE)
    log.open()
    waiting: list[bytes] = []
    now = time.time()
    for number in range(1, sessions + 1):
        waiting.append(
            records.encode(
                records.SessionStored(
                    number, f"client-{number}", f"user-{number % 100}", 4, "127.0.0.1", 50000, "external", "tcp-0", "",
                    now, now, now, NEVER_EXPIRES, 60, False, False, 0,
                )
            )
        )  # fmt: skip
        for each in range(filters):
            filter = f"site/{number}/sensor/{each}" if each % 2 else f"site/{number}/+/{each}"
            waiting.append(
                records.encode(records.SubscriptionStored(number, filter, filter, None, 1, False, False, 0, ()))
            )
        if len(waiting) >= A_BATCH:
            log.append(log.last + 1, encode(waiting))
            waiting.clear()
    if waiting:
        log.append(log.last + 1, encode(waiting))
    log.checkpoint_and_close()


def run_node(directory: str, pipe: Connection, core: int | None) -> None:
    """Serve until the pipe closes. Answer each message on the pipe with the lag since the previous one."""
    pin(core)
    uvloop.run(_node(directory, pipe))


async def _node(directory: str, pipe: Connection) -> None:
    settings = make_settings(node={"data_dir": directory}, durability={"level": "disk"})
    apps = {"bind": "127.0.0.1:0", "apps": [{"id": APP, "secret": SECRET}]}
    node = Node(settings)
    engine = RuleEngine(node.server, RuleEngineSettings())
    management = ManagementServer(node.server, msgspec.convert(apps, ManagementSettings), engine, HistorySettings())
    await node.start()
    engine.start()
    await management.start()
    gc.collect()  # as taipan.management.node has it
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    probes: list[tuple[LagProbe, TurnProbe]] = []

    def begin() -> None:
        probes[:] = [(LagProbe(loop, PROBE, 1_000_000), TurnProbe(loop))]
        probes[0][0].start()
        probes[0][1].look()

    def asked() -> None:
        if pipe.recv() == "stop":
            over.set_result(None)
            return
        lag, turns = probes[0]
        lag.stop()
        turns.stop()
        pipe.send((lag.snapshot(), part(turns.stretches, 0.99), part(turns.stretches, 1.0)))
        begin()

    begin()
    loop.add_reader(pipe.fileno(), asked)
    pipe.send((node.address().port, int(management.url.rpartition(":")[2])))
    await over
    loop.remove_reader(pipe.fileno())
    await management.stop()
    await engine.close()
    await node.stop()


# ---------------------------------------------------------------------- traffic


def run_traffic(port: int, rate: int, pipe: Connection, core: int | None) -> None:
    """Publish at this rate. Answer each message on the pipe with the latencies since the previous one, in seconds."""
    pin(core)
    uvloop.run(_traffic(port, rate, pipe))


async def _traffic(port: int, rate: int, pipe: Connection) -> None:
    reader, subscriber = await asyncio.open_connection("127.0.0.1", port)
    subscriber.write(CONNECT + b"sub" + b"\x82\x07\x00\x01\x00\x02" + TOPIC + b"\x00")
    await reader.readexactly(4 + 5)
    answers, publisher = await asyncio.open_connection("127.0.0.1", port)
    publisher.write(CONNECT + b"pub")
    await answers.readexactly(4)
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    latencies: list[float] = []

    def asked() -> None:
        if pipe.recv() == "stop":
            over.set_result(None)
            return
        os.set_blocking(pipe.fileno(), True)  # the loop has made it one that does not wait, and this may be long
        pipe.send(latencies.copy())
        latencies.clear()

    async def publish() -> None:
        owed = 0.0
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            owed += (now - last) * rate
            last = now
            frame = FRAME.pack(b"\x30\x0c", len(TOPIC), TOPIC, now)
            publisher.write(frame * int(owed))
            owed -= int(owed)

    async def receive() -> None:
        pending = b""
        while True:
            pending += await reader.read(65_536)
            now = time.perf_counter()
            whole = len(pending) - len(pending) % FRAME.size
            for _, _, _, sent in FRAME.iter_unpack(pending[:whole]):
                latencies.append(now - sent)
            pending = pending[whole:]

    loop.add_reader(pipe.fileno(), asked)
    tasks = [asyncio.ensure_future(each) for each in (publish(), receive())]
    await over
    for task in tasks:
        task.cancel()
    loop.remove_reader(pipe.fileno())
    for writer in (publisher, subscriber):
        writer.close()


# ----------------------------------------------------------------------- caller


class Caller:
    """Sends requests over one connection that stays open."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = {"Authorization": "Basic " + b64encode(f"{APP}:{SECRET}".encode()).decode()}
        self.octets = 0

    def seconds(self, path: str, **query: Any) -> float:
        """Return how long the whole answer took."""
        begun = time.perf_counter()
        self._http.request("GET", f"/api/v4{path}?{urlencode(query)}", headers=self._headers)
        response = self._http.getresponse()
        body = response.read()
        took = time.perf_counter() - begun
        assert response.status == 200, body[:200]
        self.octets = len(body)
        return took

    def rows(self, path: str, **query: Any) -> int:
        self._http.request("GET", f"/api/v4{path}?{urlencode(query)}", headers=self._headers)
        return len(json.loads(self._http.getresponse().read())["data"])


def part(values: list[float], share: float) -> float:
    """Return a percentile in milliseconds."""
    return sorted(values)[round((len(values) - 1) * share)] * 1000 if values else float("nan")


def answer_of(pipe: Connection) -> Any:
    """Return the answer of the other process, which must arrive within a time limit."""
    if not pipe.poll(PATIENCE):
        raise RuntimeError("node or traffic does not answer")
    return pipe.recv()


def pin(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def scenarios(sessions: int, filters: int) -> list[tuple[str, Callable[[Caller], float] | None]]:
    rng = random.Random(7)
    subscriptions = sessions * filters

    def anywhere(path: str, total: int, limit: int) -> Callable[[Caller], float]:
        return lambda caller: caller.seconds(path, _limit=limit, _page=rng.randint(1, max(1, total // limit)))

    def last(path: str, total: int, limit: int) -> Callable[[Caller], float]:
        return lambda caller: caller.seconds(path, _limit=limit, _page=max(1, total // limit))

    return [
        ("no listing", None),
        ("`/subscriptions`, 100 rows anywhere", anywhere("/subscriptions", subscriptions, 100)),
        ("`/subscriptions`, the last 100 rows", last("/subscriptions", subscriptions, 100)),
        ("`/clients`, 100 rows anywhere", anywhere("/clients", sessions, 100)),
        ("`/routes`, 100 rows anywhere", anywhere("/routes", subscriptions, 100)),
        ("`/subscriptions`, 10,000 rows anywhere", anywhere("/subscriptions", subscriptions, 10_000)),
        ("`/clients`, 10,000 rows", anywhere("/clients", sessions, 10_000)),
        ("`/clients?_like_username=nobody`", lambda caller: caller.seconds("/clients", _like_username="nobody")),
        (
            "`/subscriptions?_match_topic=none/#`",
            lambda caller: caller.seconds("/subscriptions", _match_topic="none/#"),
        ),
    ]


def measure(arguments: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    mine, others = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="taipan-bench-") as directory:
        fill(Path(directory), arguments.sessions, arguments.filters)
        node_pipe, node_end = spawn.Pipe()
        node = spawn.Process(target=run_node, args=(directory, node_end, others), daemon=True)
        node.start()
        pin(mine)
        mqtt_port, http_port = answer_of(node_pipe)
        caller = Caller(http_port)
        assert caller.rows("/subscriptions", _limit=1, _page=arguments.sessions * arguments.filters) == 1
        traffic_pipe, traffic_end = spawn.Pipe()
        traffic = spawn.Process(target=run_traffic, args=(mqtt_port, arguments.rate, traffic_end, mine), daemon=True)
        traffic.start()
        time.sleep(1.0)
        columns = "asked | answers | p50 | p99 | MQTT msg/s | p50 | p99 | loop lag p99 | max | loop held p99 | max"
        print(f"| {columns} |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for name, ask in scenarios(arguments.sessions, arguments.filters):
            if ask is not None:
                for _ in range(3):
                    ask(caller)
            for pipe in (node_pipe, traffic_pipe):
                pipe.send("begin")
                answer_of(pipe)
            begun = time.perf_counter()
            took: list[float] = []
            while (elapsed := time.perf_counter() - begun) < arguments.seconds:
                if ask is None:
                    time.sleep(0.05)
                else:
                    took.append(ask(caller))
            node_pipe.send("lag")
            lag, turn, longest = answer_of(node_pipe)
            traffic_pipe.send("latencies")
            latencies = answer_of(traffic_pipe)
            asked = f"{len(took)} | {part(took, 0.5):.1f} | {part(took, 0.99):.1f}" if took else "- | - | -"
            print(
                f"| {name} | {asked} | {len(latencies) / elapsed:,.0f} | {part(latencies, 0.5):.2f} | "
                f"{part(latencies, 0.99):.2f} | {lag['p99']:.2f} | {lag['max']:.2f} | {turn:.2f} | {longest:.2f} |",
                flush=True,
            )
        for pipe, process in ((traffic_pipe, traffic), (node_pipe, node)):
            pipe.send("stop")
            process.join(20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=int(os.environ.get("SESSIONS", "20000")))
    parser.add_argument("--filters", type=int, default=int(os.environ.get("FILTERS", "10")))
    parser.add_argument("--rate", type=int, default=int(os.environ.get("RATE", "5000")))
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("DUR", "5")))
    measure(parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
