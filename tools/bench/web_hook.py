"""Measure how a hanging web hook affects publishers: latency of QoS 1 and QoS 0 with a server that answers, and with a
server that never does.

``python -m tools.bench.web_hook`` (``ROUNDS=3``, ``DUR=5``) writes its section of ``docs/performance.md``. One message
is in flight at a time. At QoS 1 the time is from PUBLISH to PUBACK, which at level ``disk`` waits until the row for the
web server is on disk. At QoS 0 it is from the publisher to a subscriber. Each round runs all conditions in turn, each
on a fresh node."""

import asyncio
import base64
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tests.support.node import free_port
from tools.bench.brokers import running
from tools.bench.latency import connected, exactly, quantile, subscribe
from tools.bench.page import write
from tools.bench.results import commit, machine
from tools.bench.rules import SECRET
from tools.bench.scenarios import DISK

CONDITIONS: Final = ("no rule", "it answers", "it hangs", "no server listens")
PAUSE: Final = 0.001
_PAYLOAD: Final = b'{"x": 11, "device": "sensor-0017", "note": "sixty-four bytes..."}'
_TOPIC: Final = b"t/1"


def _serve(port: int, answers: bool) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                (length,) = (int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))
                await reader.readexactly(length)
                if answers:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(main())


@contextlib.contextmanager
def web_server(condition: str) -> Iterator[int]:
    """Run a web server during the block; yield its port."""
    port = free_port()
    if condition not in ("it answers", "it hangs"):
        yield port
        return
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(port, condition == "it answers"), daemon=True
    )
    process.start()
    try:
        yield port
    finally:
        process.kill()
        process.join()


def ask(api: int, path: str, body: Any = None) -> Any:
    """Return ``data`` of an answer of the node's HTTP API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{api}/api/v4{path}", data)
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", "Basic " + base64.b64encode(f"bench:{SECRET}".encode()).decode())
    with urllib.request.urlopen(request, timeout=20) as reply:
        answer = json.load(reply)
    if answer["code"] != 0:
        raise RuntimeError(str(answer))
    return answer["data"]


def measure(condition: str, seconds: float) -> tuple[list[float], list[float], int]:
    """Return the milliseconds at QoS 1 and at QoS 0, sorted, and the number of pending rows at the end."""
    api = free_port()
    settings = (
        f"management.bind=127.0.0.1:{api}", "dashboard.enabled=false",
        "management.apps.0.id=bench", f"management.apps.0.secret={SECRET}", DISK,
    )  # fmt: skip
    with web_server(condition) as port, running("taipan", None, settings) as (mqtt, _):
        if condition != "no rule":
            hook = {"type": "web_hook", "id": "resource:hook", "config": {"url": f"http://127.0.0.1:{port}/"}}
            ask(api, "/resources", hook)
            action = {"name": "data_to_webserver", "params": {"$resource": "resource:hook"}}
            ask(api, "/rules", {"rawsql": 'SELECT payload.x as x, clientid FROM "t/#"', "actions": [action]})
        with connected(mqtt, "reader") as reader, connected(mqtt, "writer") as writer:
            subscribe(reader, "t/1", 0)
            found: list[list[float]] = []
            for qos in (1, 0):
                found.append([])
                packet_id = 0
                topic = len(_TOPIC).to_bytes(2, "big") + _TOPIC
                frame = b"\x30" + bytes((len(topic) + len(_PAYLOAD),)) + topic + _PAYLOAD
                until = time.perf_counter() + seconds
                while (begun := time.perf_counter()) < until:
                    packet_id = packet_id % 65_535 + 1
                    number = packet_id.to_bytes(2, "big")
                    if qos:
                        writer.sendall(b"\x32" + bytes((len(topic) + 2 + len(_PAYLOAD),)) + topic + number + _PAYLOAD)
                        if exactly(writer, 4) != b"\x40\x02" + number:
                            raise ConnectionError("another packet than PUBACK")
                    else:
                        writer.sendall(frame)
                    if not qos:
                        exactly(reader, len(frame))
                    found[-1].append((time.perf_counter() - begun) * 1000)
                    if qos:
                        exactly(reader, len(frame))
                    time.sleep(PAUSE)
        waiting = 0
        if condition != "no rule":
            waiting = ask(api, "/resources/resource:hook")["status"][0]["buffer"]["waiting"]
    return sorted(found[0]), sorted(found[1]), waiting


def main() -> int:
    rounds, seconds = int(os.environ.get("ROUNDS", "3")), float(os.environ.get("DUR", "5"))
    found: dict[str, list[tuple[list[float], list[float], int]]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for condition in CONDITIONS if number % 2 else CONDITIONS[::-1]:
            one = measure(condition, seconds)
            found[condition].append(one)
            print(
                f"round {number}  {condition:15} QoS 1 p99 {quantile(one[0], 0.99):7.2f} ms   "
                f"QoS 0 p99 {quantile(one[1], 0.99):7.2f} ms   waiting {one[2]}",
                flush=True,
            )
    lines = ["| web server | QoS 1 p50 in ms | QoS 1 p99 | QoS 0 p50 | QoS 0 p99 | rows waiting at the end |"]
    lines.append("|---|---|---|---|---|---|")
    p99: dict[str, tuple[float, float]] = {}
    for condition in CONDITIONS:
        cells = []
        for at in (0, 1):
            for part in (0.5, 0.99):
                values = [quantile(one[:2][at], part) for one in found[condition]]
                cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        p99[condition] = (
            statistics.median(quantile(one[0], 0.99) for one in found[condition]),
            statistics.median(quantile(one[1], 0.99) for one in found[condition]),
        )
        lines.append(f"| {condition} | {' | '.join(cells)} | {max(one[2] for one in found[condition]):,} |")
    ratios = [hanging / quiet for hanging, quiet in zip(p99["it hangs"], p99["it answers"], strict=True)]
    text = (
        f"Written by `python -m tools.bench.web_hook` with `ROUNDS={rounds} DUR={seconds:g}` at commit {commit()}; "
        f"{machine()['cpu']},\nshared by node, clients and web server. One message is in flight. A rule that matches "
        "every message sends each row to\nthe web server. QoS 1 is the time from PUBLISH to PUBACK at level `disk`; "
        "with a rule it includes the flush of the row.\nQoS 0 is the time from publisher to subscriber. Medians of the "
        "rounds with "
        f"their range. The p99 with a server that hangs\nis {ratios[0]:.2f} times that with a server that answers at "
        f"QoS 1, and {ratios[1]:.2f} times at QoS 0.\n\n" + "\n".join(lines)
    )
    print("\n" + text)
    write("A web hook that hangs", text)
    return 0 if max(ratios) <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
