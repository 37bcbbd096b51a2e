"""Measure what MQTT-SN clients cost: ``python -m tools.bench.mqttsn``.

A node with one MQTT-SN listener and one MQTT listener runs in its own process. 100 clients publish with QoS 0 to one
MQTT subscriber, as fast as the node accepts the messages; then idle clients connect. The results are the node's
processor time, which other work on the machine hardly changes, and the growth of its resident memory."""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from taipan.broker.gateways.mqttsn import codec as sn

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CONFIG = """
[node]
data_dir = "{directory}/data"
[management]
bind = "127.0.0.1:0"
[dashboard]
bind = "127.0.0.1:0"
[durability]
level = "memory"
[[listeners]]
name = "mqtt"
type = "tcp"
bind = "127.0.0.1:{tcp}"
[[listeners]]
name = "sn"
type = "mqttsn"
bind = "127.0.0.1:{udp}"
"""
SUBSCRIBER = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(bytes.fromhex("101000044d5154540402000000047375623182060001000174" "00"))
count = 0
while data := sock.recv(1 << 20):
    count += data.count(b"x" * 20)
    print(count, flush=True)
"""


def free_port(kind: int) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def started(file: Path) -> "subprocess.Popen[str]":
    """Start a node with this configuration."""
    node = subprocess.Popen(
        [sys.executable, "-m", "taipan.management.node", "--config", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert node.stdout is not None
    while not node.stdout.readline().startswith("taipan ready"):
        assert node.poll() is None, "the node has ended"
    return node


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def connect(port: int, client_id: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", port))
    sock.settimeout(10)
    for _ in range(5):
        sock.send(sn.encode(sn.SnConnect(client_id, True, False, 0)))
        if sock.recv(100) == b"\x03\x05\x00":
            return sock
    raise OSError("no CONNACK")


def messages(pid: int, udp: int, tcp: int, seconds: float) -> None:
    subscriber = subprocess.Popen(
        [sys.executable, "-c", SUBSCRIBER, str(tcp)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert subscriber.stdout is not None
    time.sleep(0.5)
    clients = [connect(udp, f"c{number}") for number in range(100)]
    packets = []
    for client in clients:
        client.send(sn.encode(sn.SnRegister(0, 1, "t")))
        heard = sn.decode(client.recv(100))
        assert isinstance(heard, sn.SnRegack) and heard.code == sn.ACCEPTED
        packets.append(sn.encode(sn.SnPublish(heard.topic_id, sn.NORMAL, b"x" * 20)))
    before, begin, sent = processor_seconds(pid), time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        for client, packet in zip(clients, packets, strict=True):
            client.send(packet)
        sent += len(clients)
        clients[0].send(b"\x02\x16")  # and it waits until they are taken
        clients[0].recv(100)
    took = time.perf_counter() - begin
    time.sleep(0.5)
    used = processor_seconds(pid) - before
    subscriber.terminate()
    received = int(subscriber.communicate()[0].split()[-1])
    print(
        f"QoS 0: {sent} sent, {received} received in {took:.1f} s, {used / received * 1e6:.1f} us each, "
        f"{received / used:,.0f}/s through one core"
    )


def idle(pid: int, udp: int, count: int) -> None:
    # Enough to fill the tables that have a limit, such as the last events of clients.
    warm = [connect(udp, f"warm{number}") for number in range(4200)]
    before = resident(pid)
    clients = [connect(udp, f"idle{number:05}") for number in range(count)]
    print(f"idle: {(resident(pid) - before) / count:,.0f} bytes for each of {len(clients)} clients")
    for each in (*warm, *clients):
        each.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--idle", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tcp, udp = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
        file = Path(directory, "taipan.toml")
        file.write_text(CONFIG.format(directory=directory, tcp=tcp, udp=udp))
        node = started(file)
        try:
            messages(node.pid, udp, tcp, options.seconds)
            idle(node.pid, udp, options.idle)
        finally:
            node.terminate()
            node.wait()


if __name__ == "__main__":
    main()
