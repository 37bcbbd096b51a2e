"""Noise: datagrams like those of CoAP clients, with what should not be in them. ``python -m tests.gateways.coap_noise
HOST PORT SECONDS`` sends it to a node, and ends with an error if the node no longer answers."""

import random
import socket
import sys
import time

from taipan.broker.gateways.coap import codec
from tests.gateways.noise import opened, send

PATHS = ("mqtt", "ps", ".well-known", "core", "a", "a/b", "+", "#", "", "\u00fc", "x" * 200)
QUERIES = ("c=n1", "c=n2", "c=n3", "c=", "u=u", "p=p", "c=\u00fc", "x" * 200)
PROBE = codec.encode(codec.CON, codec.GET, 1, b"probe", [(codec.URI_PATH, b".well-known"), (codec.URI_PATH, b"core")])


class Noise:
    """``datagram`` returns the next one. It learns message IDs and tokens from the answers given to ``seen``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._mids = [0, 1, 0xFFFF, 77, 78]
        self._tokens = [b"", b"a", b"12345678"]

    def seen(self, data: bytes) -> None:
        packet = codec.decode(data)
        self._mids[self._random.randrange(len(self._mids))] = packet.mid
        self._tokens[self._random.randrange(len(self._tokens))] = packet.token

    def datagram(self) -> bytes:
        some = self._random
        if some.random() < 0.1:
            return some.randbytes(some.randrange(1, 40))
        data = self._message()
        if some.random() < 0.2:
            at = some.randrange(len(data))
            data = data[:at] + bytes((some.randrange(256),)) + data[at + 1 :]
        return data[: some.randrange(1, len(data))] if some.random() < 0.05 else data

    def _message(self) -> bytes:
        some = self._random
        kind, mid, token = some.randrange(4), some.choice(self._mids), some.choice(self._tokens)
        if some.random() < 0.3:
            mid = some.randrange(0x10000)
        if some.random() < 0.3:
            return codec.empty(kind, mid)
        code = some.choice((1, 1, 2, 3, 3, 3, 4, 7, codec.CONTENT, codec.CONTINUE))
        options = [(codec.URI_PATH, some.choice(("mqtt", "mqtt", "ps", "ps", "x")).encode())]
        options += [(codec.URI_PATH, some.choice(PATHS).encode()) for _ in range(some.randrange(3))]
        options += [(codec.URI_QUERY, some.choice(QUERIES).encode()) for _ in range(1 + some.randrange(2))]
        for number in (codec.OBSERVE, codec.BLOCK1, codec.BLOCK2, codec.CONTENT_FORMAT, codec.MAX_AGE, codec.ACCEPT):
            if some.random() < 0.2:
                value = some.choice((0, 1, 6, 8, 14, 22, 30, 40, 42, 50, some.randrange(1 << 24)))
                options.append((number, codec.uint_bytes(value)))
        if some.random() < 0.05:
            options.append((some.randrange(3000), some.randbytes(some.randrange(20))))
        return codec.encode(kind, code, mid, token, options, some.randbytes(some.randrange(1100)))


def main(host: str, port: str, seconds: str) -> None:
    """Send noise from 64 addresses for so long; every second, the node must answer a request."""
    noise = Noise(int(time.time()))
    senders, probe = opened(host, port)
    send(senders, seconds, noise.datagram, noise.seen, lambda: ask(probe))


def ask(probe: socket.socket) -> None:
    for _ in range(10):
        probe.send(PROBE)
        try:
            if codec.decode(probe.recv(2000)).token == b"probe":
                return
        except TimeoutError:
            continue
    raise SystemExit("the node does not answer any more")


if __name__ == "__main__":
    main(*sys.argv[1:])
