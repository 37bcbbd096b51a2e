"""Measure what rules cost: one publisher and one subscriber at QoS 0 with a JSON payload, as in S1, under four
conditions.

``python -m tools.bench.rules`` (``ROUNDS=5``, ``DUR=3``) writes its section of ``docs/performance.md``. Each round runs
all conditions in turn, each on a fresh broker: Mosquitto; no rule; 1,000 rules on other topics; one rule that matches
every message. This script generates the load. All messages are identical, so that it can send whole buffers of them at
once and count the arrived ones by their length."""

import base64
import contextlib
import json
import os
import selectors
import socket
import statistics
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from taipan.broker.mqtt.packets import Connect, Subscribe, TopicFilter
from tests.support import wire
from tests.support.node import free_port
from tools.bench.brokers import installed, raise_file_limit, running
from tools.bench.page import write
from tools.bench.results import commit, machine

CONDITIONS: Final = ("mosquitto", "no rule", "1,000 rules elsewhere", "one rule")
RULE: Final = 'SELECT payload.x as x FROM "t/#" WHERE x > 10'
TOPIC: Final = "t/1"
PAYLOAD: Final = b'{"x": 11, "device": "sensor-0017", "note": "sixty-four bytes..."}'
A_WRITE: Final = 100
OUTSTANDING: Final = 1000
WARM_UP: Final = 1.0
SECRET: Final = "of the benchmark"


class Figures(NamedTuple):
    """Delivered messages per second, and the broker's processor time for each in microseconds."""

    rate: float
    cost: float


@contextlib.contextmanager
def broker(condition: str, core: int | None) -> Iterator[tuple[int, int]]:
    """Run a new broker under a condition; yield its port and pid."""
    if condition == "mosquitto":
        with running("mosquitto", core) as found:
            yield found
        return
    api = free_port()
    settings = (
        f"management.bind=127.0.0.1:{api}", "dashboard.enabled=false",
        "management.apps.0.id=bench", f"management.apps.0.secret={SECRET}",
        "durability.level=disk",
    )  # fmt: skip
    with running("taipan", core, settings) as (port, pid):
        if condition == "one rule":
            create_rule(api, RULE)
        elif condition != "no rule":
            for number in range(1000):
                create_rule(api, f'SELECT payload.x as x FROM "other/{number}/#" WHERE x > 10')
        yield port, pid


def create_rule(api: int, sql: str) -> None:
    body = json.dumps({"rawsql": sql, "actions": [{"name": "do_nothing", "params": {}}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{api}/api/v4/rules", body, {"Content-Type": "application/json"})
    request.add_header("Authorization", "Basic " + base64.b64encode(f"bench:{SECRET}".encode()).decode())
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer: dict[str, Any] = json.load(reply)
    if answer["code"] != 0:
        raise RuntimeError(str(answer))


def processor_time(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connected(port: int, client_id: str) -> socket.socket:
    """Connect a client, and wait until the broker accepts it."""
    client = socket.create_connection(("127.0.0.1", port), 5)
    client.sendall(wire.encode(Connect(4, client_id), 4))
    if client.recv(4) != b"\x20\x02\x00\x00":
        raise RuntimeError("the broker refuses the client")
    return client


def measure(port: int, pid: int, duration: float) -> Figures:
    """Send as fast as messages arrive."""
    subscriber, publisher = connected(port, "sink"), connected(port, "source")
    with subscriber, publisher:
        subscriber.sendall(wire.encode(Subscribe(1, [TopicFilter(TOPIC)]), 4))
        if subscriber.recv(5) != b"\x90\x03\x00\x01\x00":
            raise RuntimeError("the broker refuses the subscription")
        frame = wire.encode(wire.Publish(TOPIC, PAYLOAD), 4)
        chunk = frame * A_WRITE
        publisher.setblocking(False)
        subscriber.setblocking(False)
        selector = selectors.DefaultSelector()
        selector.register(subscriber, selectors.EVENT_READ)
        room = bytearray(1 << 20)
        sent = received = 0  # octets
        rest = memoryview(b"")
        start = time.perf_counter() + WARM_UP
        end = start + duration
        from_octets = 0
        from_time = 0.0
        began = 0.0
        while True:
            now = time.perf_counter()
            if not began and now >= start:
                began, from_octets, from_time = now, received, processor_time(pid)
            if now >= end:
                break
            while sent - received < OUTSTANDING * len(frame):
                if not rest:
                    rest = memoryview(chunk)
                try:
                    written = publisher.send(rest)
                except BlockingIOError:
                    break
                sent += written
                rest = rest[written:]
            for _ in selector.select(0.1):
                got = subscriber.recv_into(room)
                if not got:
                    raise RuntimeError("the broker closed the connection")
                received += got
        messages = (received - from_octets) / len(frame)
        spent = processor_time(pid) - from_time
        selector.close()
    if not messages:
        raise RuntimeError("nothing was delivered")
    return Figures(messages / (now - began), 1e6 * spent / messages)


def main() -> int:
    rounds, duration = int(os.environ.get("ROUNDS", "5")), float(os.environ.get("DUR", "3"))
    raise_file_limit()
    cpu = machine()["cpu"]
    usable = sorted(os.sched_getaffinity(0))
    core = None
    if len(usable) > 1:
        core = usable[0]
        os.sched_setaffinity(0, {usable[1]})
    conditions = [each for each in CONDITIONS if each != "mosquitto" or "mosquitto" in installed()]
    found: dict[str, list[Figures]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for condition in conditions if number % 2 else conditions[::-1]:
            with broker(condition, core) as (port, pid):
                figures = measure(port, pid, duration)
            found[condition].append(figures)
            print(f"round {number}  {condition:22} {figures.rate:10,.0f}/s {figures.cost:7.2f} µs", flush=True)
    lines = ["| condition | delivered/s | processor time per message |", "|---|---|---|"]
    for condition in conditions:
        rates = [each.rate for each in found[condition]]
        costs = [each.cost for each in found[condition]]
        lines.append(
            f"| {condition} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) "
            f"| {statistics.median(costs):.2f} µs ({min(costs):.2f} to {max(costs):.2f}) |"
        )
    text = (
        f"Written by `python -m tools.bench.rules` with `ROUNDS={rounds} DUR={duration:g}` at commit {commit()}; "
        f"{cpu}.\nOne publisher, one subscriber, QoS 0, {len(PAYLOAD)} bytes of JSON; medians of {rounds} "
        f"interleaved rounds with their range.\n"
        f"The one rule is `{RULE}` with `do_nothing`; it matches every message.\n\n" + "\n".join(lines)
    )
    print("\n" + text)
    write("Rules", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
