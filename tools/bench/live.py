"""What open live streams cost a node: processor time of each, and MQTT's latency at the same time.

python -m tools.bench.live [--sessions 10000] [--rate 1000] [--rounds 3] [--seconds 5] [--every 1000]
                           [--watch figures=1&alarms=1]

The node has ``--sessions`` sessions and handles ``--rate`` messages per second; rounds without and with streams
alternate.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from base64 import b64encode
from pathlib import Path
from typing import Final

from .api import APP, SECRET, answer_of, fill, part, pin, run_node, run_traffic

STREAMS: Final = (0, 1, 10, 100)


class Readers:
    """A number of streams, each read by its own thread."""

    def __init__(self, port: int, count: int, query: str) -> None:
        credentials = b64encode(f"{APP}:{SECRET}".encode()).decode()
        request = f"GET /api/v4/live?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {credentials}\r\n\r\n"
        self.octets = 0
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for each in self._sockets:
            each.sendall(request.encode())
            assert each.recv(4096).startswith(b"HTTP/1.1 200")
            threading.Thread(target=self._read, args=(each,), daemon=True).start()

    def _read(self, sock: socket.socket) -> None:
        while data := sock.recv(65_536):
            self.octets += len(data)

    def close(self) -> None:
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)


def processor_time(process: int) -> float:
    """Return the processor time of all threads of a process, in seconds."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def measure(arguments: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    mine, others = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    spawn = multiprocessing.get_context("spawn")
    query = f"{arguments.watch}&every={arguments.every}"
    used: dict[int, list[float]] = {count: [] for count in STREAMS}
    latencies: dict[int, list[float]] = {count: [] for count in STREAMS}
    with tempfile.TemporaryDirectory(prefix="taipan-bench-") as directory:
        fill(Path(directory), arguments.sessions, 1)
        node_pipe, node_end = spawn.Pipe()
        node = spawn.Process(target=run_node, args=(directory, node_end, others), daemon=True)
        node.start()
        pin(mine)
        mqtt_port, http_port = answer_of(node_pipe)
        traffic_pipe, traffic_end = spawn.Pipe()
        traffic = spawn.Process(target=run_traffic, args=(mqtt_port, arguments.rate, traffic_end, mine), daemon=True)
        traffic.start()
        time.sleep(1.0)
        assert node.pid is not None
        for _ in range(arguments.rounds):
            for count in STREAMS:
                readers = Readers(http_port, count, query)
                time.sleep(0.5)
                traffic_pipe.send("begin")
                answer_of(traffic_pipe)
                before, begun = processor_time(node.pid), time.perf_counter()
                time.sleep(arguments.seconds)
                took = (processor_time(node.pid) - before) / (time.perf_counter() - begun)
                used[count].append(took)
                traffic_pipe.send("latencies")
                latencies[count].append(part(answer_of(traffic_pipe), 0.99))
                assert count == 0 or readers.octets
                readers.close()
                time.sleep(1.5)  # until the node has seen that they are gone
        for pipe, process in ((traffic_pipe, traffic), (node_pipe, node)):
            pipe.send("stop")
            process.join(20)
    print("| streams | node, % of a core | of each stream | MQTT p99, ms, each round |")
    print("|---|---|---|---|")
    base = statistics.median(used[0])
    for count in STREAMS:
        middle = statistics.median(used[count])
        of_each = f"{(middle - base) / count * 100:.3f}" if count else "-"
        rounds = ", ".join(f"{each:.2f}" for each in latencies[count])
        print(f"| {count} | {middle * 100:.1f} | {of_each} | {rounds} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--watch", default="figures=1&alarms=1")
    measure(parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
