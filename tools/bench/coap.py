"""Measure what CoAP clients and LwM2M devices cost: ``python -m tools.bench.coap``.

A node with CoAP, LwM2M and MQTT listeners runs in its own process. 100 CoAP clients publish confirmable requests to one
MQTT subscriber; each sends its next request when the previous one is answered. 100 devices update their registrations
in the same way. Then idle observers and devices connect. The results are the node's processor time, which other work on
the machine hardly changes, and the growth of its resident memory."""

import argparse
import itertools
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from taipan.broker.gateways.coap import codec

from .mqttsn import CONFIG, SUBSCRIBER, free_port, processor_seconds, resident, started

CLIENTS = 100
LWM2M = """
[[listeners]]
name = "devices"
type = "lwm2m"
bind = "127.0.0.1:{port}"
"""
_mids = itertools.count(1)


class Client:
    """A client with its own socket, and therefore its own address."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.connect(("127.0.0.1", port))
        self.sock.settimeout(10)

    def ask(self, data: bytes) -> codec.Packet:
        """Send a request and return its answer. Pings from the node are answered in the meantime."""
        self.sock.send(data)
        while True:
            packet = codec.decode(self.sock.recv(2000))
            if packet.code:
                return packet
            if packet.type == codec.CON:
                self.sock.send(codec.empty(codec.RST, packet.mid))


def request(code: int, path: tuple[str, ...], query: tuple[str, ...], payload: bytes = b"", *more: tuple[int, bytes]
            ) -> bytes:  # fmt: skip
    mid = next(_mids) & 0xFFFF
    options = [(codec.URI_PATH, each.encode()) for each in path]
    options += [(codec.URI_QUERY, each.encode()) for each in query]
    return codec.encode(codec.CON, code, mid, mid.to_bytes(2), [*more, *options], payload)


def exchanges(
    pid: int, clients: list[Client], build: Callable[[int], bytes], seconds: float
) -> tuple[int, float, float]:
    """Each client sends its next request when it receives an answer. Return the answers, the seconds and the seconds of
    processor time."""
    poll = select.poll()
    numbers = {each.sock.fileno(): at for at, each in enumerate(clients)}
    for each in clients:
        poll.register(each.sock, select.POLLIN)
    before, begin, count = processor_seconds(pid), time.perf_counter(), 0
    for at, each in enumerate(clients):
        each.sock.send(build(at))
    while time.perf_counter() < begin + seconds:
        for number, _ in poll.poll(1000):
            at = numbers[number]
            packet = codec.decode(clients[at].sock.recv(2000))
            if packet.code != codec.CHANGED:
                raise OSError(f"an answer {codec.dotted(packet.code)}")
            count += 1
            clients[at].sock.send(build(at))
    took = time.perf_counter() - begin
    time.sleep(0.5)
    return count, took, processor_seconds(pid) - before


def told(name: str, count: int, took: float, used: float) -> None:
    print(
        f"{name}: {count} in {took:.1f} s, {count / took:,.0f}/s; {used / count * 1e6:.1f} us of the processor each, "
        f"{count / used:,.0f}/s through one core"
    )


def publishes(pid: int, coap: int, tcp: int, seconds: float) -> None:
    subscriber = subprocess.Popen(
        [sys.executable, "-c", SUBSCRIBER, str(tcp)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    time.sleep(0.5)
    clients = [Client(coap) for _ in range(CLIENTS)]

    def build(at: int) -> bytes:
        return request(codec.PUT, ("mqtt", "t"), (f"c=c{at}",), b"x" * 20)

    for at, each in enumerate(clients):
        assert each.ask(build(at)).code == codec.CHANGED
    found = exchanges(pid, clients, build, seconds)
    subscriber.terminate()
    received = int(subscriber.communicate()[0].split()[-1])
    if received < found[0]:
        raise OSError(f"{received} received of {found[0]}")
    told("CoAP PUT, confirmable", *found)


def registered(port: int, number: int) -> tuple[Client, tuple[str, ...]]:
    device = Client(port)
    query = (f"ep=device{number:05}", "lt=86400", "lwm2m=1.0")
    answer = device.ask(
        request(codec.POST, ("rd",), query, b"</1/0>,</3/0>", (codec.CONTENT_FORMAT, codec.uint_bytes(40)))
    )
    assert answer.code == codec.CREATED
    return device, tuple(value.decode() for kind, value in answer.options if kind == codec.LOCATION_PATH)


def updates(pid: int, port: int, seconds: float) -> None:
    devices = [registered(port, 90_000 + number) for number in range(CLIENTS)]
    places = [place for _, place in devices]
    found = exchanges(
        pid, [each for each, _ in devices], lambda at: request(codec.POST, places[at], ()), seconds
    )  # fmt: skip
    told("LwM2M update", *found)


def idle(pid: int, name: str, connect: Callable[[int], object], count: int) -> None:
    warm = [connect(number) for number in range(500)]
    before = resident(pid)
    clients = [connect(500 + number) for number in range(count)]
    print(f"idle {name}: {(resident(pid) - before) / count:,.0f} bytes for each of {len(clients)}")
    del warm


def observer(port: int, number: int) -> Client:
    client = Client(port)
    found = client.ask(
        request(codec.GET, ("mqtt", f"own{number}"), (f"c=idle{number:05}",), b"", (codec.OBSERVE, b""))
    )  # fmt: skip
    assert found.code == codec.CONTENT
    return client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--idle", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tcp, coap, lwm2m = (free_port(each) for each in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_DGRAM))
        config = CONFIG.replace('type = "mqttsn"', 'type = "coap"') + LWM2M.format(port=lwm2m)
        file = Path(directory, "taipan.toml")
        file.write_text(config.format(directory=directory, tcp=tcp, udp=coap))
        node = started(file)
        try:
            publishes(node.pid, coap, tcp, options.seconds)
            updates(node.pid, lwm2m, options.seconds)
            idle(node.pid, "CoAP observers", lambda number: observer(coap, number), options.idle)
            idle(node.pid, "LwM2M devices", lambda number: registered(lwm2m, number), options.idle)
        finally:
            node.terminate()
            node.wait()


if __name__ == "__main__":
    main()
