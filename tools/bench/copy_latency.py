"""Measure how long a durable publisher waits for PUBACK with and without a copy: ``python -m
tools.bench.copy_latency``.

There are two nodes. A publisher has one QoS 1 message in flight at a time, for a persistent session that is offline.
Each PUBACK therefore requires a flush of the disk and, with a copy, also the transfer to the other node and the flush
there. Rounds (``ROUNDS=3``) with and without a copy alternate, with ``COUNT`` (1,000) messages each."""

import os
import statistics
import sys
import time

from tools.bench.cluster import _until_idle, _until_in_sync, nodes
from tools.bench.latency import connected, exactly, quantile, subscribe

_PACKET = b"\x32" + bytes((2 + 5 + 2 + 64,)) + b"\0\x05queue\0\x01" + bytes(64)


def _waits(copies: int, count: int) -> list[float]:
    with nodes(2, "disk", replicas=copies) as running:
        _until_in_sync(running, copies)
        with connected(running.port[0], "offline", clean=False) as client:
            subscribe(client, "queue", 1)
        found = []
        with connected(running.port[0], "publisher") as client:
            _until_idle(running)
            for _ in range(count):
                began = time.perf_counter()
                client.sendall(_PACKET)
                exactly(client, 4)
                found.append(1000 * (time.perf_counter() - began))
        return sorted(found)


def main() -> int:
    rounds, count = int(os.environ.get("ROUNDS", "3")), int(os.environ.get("COUNT", "1000"))
    found: dict[int, list[list[float]]] = {0: [], 1: []}
    for _ in range(rounds):
        for copies in (0, 1):
            found[copies].append(_waits(copies, count))
    print(f"load {os.getloadavg()[0]:.1f}, {rounds} rounds with {count} messages; medians and range, in ms")
    for copies, waits in found.items():
        for part in (0.5, 0.99):
            values = [quantile(each, part) for each in waits]
            shown = f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            print(f"cluster.replicas = {copies}: p{part * 100:g} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
