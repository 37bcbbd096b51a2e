"""Noise: datagrams like those of LwM2M devices, with what should not be in them. ``python -m tests.gateways.lwm2m_noise
HOST PORT SECONDS MQTT_PORT`` sends it to a node, with commands for these devices by MQTT, and ends with an error if the
node no longer answers."""

import json
import random
import socket
import sys
import time
from itertools import count

from taipan.broker.mqtt.encoder import encode
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Connect
from tests.gateways.lwm2m_device import (
    ACCEPT,
    BLOCK1,
    BLOCK2,
    CON,
    DELETE,
    FORMAT,
    GET,
    NON,
    OBSERVE,
    PATH,
    POST,
    QUERY,
    Coap,
    decoded,
    plain,
)
from tests.gateways.noise import opened, send

NAMES = ("n1", "n2", "n3", "pump-7")
QUERIES = ("ep=", "ep=n1", "ep=n2", "ep=n3", "ep=+", "lt=60", "lt=-1", "lt=1", "lwm2m=1.0", "lwm2m=1.0", "b=UQ", "b=x",
           "sms=1")  # fmt: skip
PATHS = (b"rd", b"n1", b"n2", b"n3", b"", b"x" * 300, b"\xff", b"..")
PAYLOADS = (b"", b"</1/0>,</3/0>", b"<", b"</1>," * 50, b"</3/0/9>;pmin=1", b"87", b"\xc8\x00\x03abc", b"\x08\x00\x02",
            b'{"bn":"/3/0/","e":[{"n":"9","v":1}]}', b'{"e":[{"v":{}}]}', b"{" * 500)  # fmt: skip
FORMATS = (0, 40, 42, 11_542, 11_543, 1541, 65_535)
KINDS = ("read", "discover", "observe", "cancel-observe", "write", "write-attr", "execute", "create", "delete", "x")


class Noise:
    """``datagram`` returns the next one. It learns message IDs and tokens from the requests given to ``seen``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._asked = [(0, b"")] * 16

    def seen(self, data: bytes) -> None:
        message = decoded(data)
        self._asked[self._random.randrange(len(self._asked))] = message.mid, message.token

    def datagram(self) -> bytes:
        some = self._random
        if some.random() < 0.1:
            return some.randbytes(some.randrange(40))
        data = (self._answer() if some.random() < 0.4 else self._request()).encoded()
        if some.random() < 0.2:
            at = some.randrange(len(data))
            data = data[:at] + bytes((some.randrange(256),)) + data[at + 1 :]
        return data

    def _request(self) -> Coap:
        some = self._random
        options = [(PATH, b"rd" if some.random() < 0.7 else some.choice(PATHS))]
        options += [(PATH, some.choice(PATHS)) for _ in range(some.randrange(2))]
        options += [(QUERY, each.encode()) for each in some.sample(QUERIES, some.randrange(6))]
        code = some.choice((GET, POST, POST, POST, POST, DELETE, 5, 0x45, 0x84, 0))
        return Coap(some.choice((CON, CON, CON, NON, 2, 3)), code, some.randrange(5000), some.randbytes(
            some.randrange(9)), options + self._others(), self._payload())  # fmt: skip

    def _answer(self) -> Coap:
        """Return an answer to a command, or a notification."""
        some = self._random
        mid, token = some.choice(self._asked)
        code = some.choice((0x45, 0x45, 0x44, 0x41, 0x42, 0x5F, 0x80, 0x84, 0xA0, 0, 0x7F))
        return Coap(some.choice((CON, NON, 2, 2, 2, 3)), code, mid, token, self._others(), self._payload())

    def _others(self) -> list[tuple[int, bytes]]:
        some = self._random
        found = [(FORMAT, plain(some.choice(FORMATS)))] if some.random() < 0.5 else []
        for number in (OBSERVE, ACCEPT, BLOCK1, BLOCK2, 60, 4, 9):
            if some.random() < 0.1:
                found.append((number, plain(some.choice((0, 1, 6, 8, 14, 22, some.randrange(1 << 20))))))
        return found

    def _payload(self) -> bytes:
        some = self._random
        return some.randbytes(some.randrange(1100)) if some.random() < 0.2 else some.choice(PAYLOADS)

    def command(self) -> tuple[str, bytes]:
        """Return the topic and the payload of a command for one of the devices."""
        some = self._random
        path = some.choice(("/3/0/9", "/3/0", "/3", "/", "/x", "/1/2/3/4/5", "/65535/0", "/6/0/0"))
        value = some.choice((1, "x", "00ff", None, True, [], {}, 1e300, "1" * 5000))
        content = [{"path": path, "type": some.choice(("String", "Opaque", "Time", "x")), "value": value}]
        data = {"path": path, "type": "Integer", "value": value, "basePath": "/3/0", "args": value, "pmin": value}
        if some.random() < 0.3:
            data["content"] = content
        body = json.dumps({"reqID": value, "msgType": some.choice(KINDS), "data": data}).encode()
        if some.random() < 0.2:
            at = some.randrange(len(body))
            body = body[:at] + some.randbytes(1) + body[at + 1 :]
        return f"lwm2m/{some.choice(NAMES[:3])}/dn/x", body


def main(host: str, port: str, seconds: str, mqtt: str) -> None:
    """Send noise from 64 addresses and commands for so long; every second, a registered device must get the answer to
    its update."""
    noise = Noise(int(time.time()))
    senders, probe = opened(host, port)
    publisher = socket.create_connection((host, int(mqtt)))
    publisher.sendall(encode(Connect(4, "noise", True, 0, None, None, None, {}), 4))
    assert publisher.recv(4) == b"\x20\x02\x00\x00"
    mids = count(1)
    ask(probe, next(mids), [(PATH, b"rd"), *((QUERY, each) for each in (b"ep=pump-7", b"lt=3600", b"lwm2m=1.0"))])

    def commands() -> None:
        for _ in range(4):
            topic, body = noise.command()
            publisher.sendall(encode(Message(topic, body), 4))

    def update() -> None:
        ask(probe, next(mids), [(PATH, b"rd"), (PATH, b"pump-7")])

    send(senders, seconds, noise.datagram, noise.seen, update, commands)


def ask(probe: socket.socket, mid: int, options: list[tuple[int, bytes]]) -> None:
    """Send a POST of the device, until it is answered with success."""
    for _ in range(10):
        probe.send(Coap(CON, POST, mid, b"probe", options, b"</3/0>").encoded())
        try:
            while (heard := decoded(probe.recv(2000))).token != b"probe":
                pass
        except TimeoutError:
            continue
        if heard.code < 0x80:
            return
        raise SystemExit(f"the node has answered {heard.dotted}")
    raise SystemExit("the node does not answer any more")


if __name__ == "__main__":
    main(*sys.argv[1:])
