"""Noise: datagrams like those of MQTT-SN clients, with what should not be in them. ``python -m tests.gateways.sn_noise
HOST PORT SECONDS`` sends it to a node, and ends with an error if the node no longer answers."""

import random
import socket
import sys
import time

from taipan.broker.gateways.mqttsn import codec as sn
from tests.gateways.noise import opened, send

NAMES = ("a", "a/b", "+", "#", "a/#", "$SYS/x", "$share/g/a", "", "\0", "x" * 300, "\u00fc/\U0001f40d")


class Noise:
    """``datagram`` returns the next one. It learns ids from the answers that it is given by ``seen``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ids = [0, 1, 2, 0xFFFF, 0x6162]

    def seen(self, packet: sn.SnPacket) -> None:
        for name in ("topic_id", "msg_id"):
            value = getattr(packet, name, 0)
            if value:
                self._ids[self._random.randrange(len(self._ids))] = value

    def datagram(self) -> bytes:
        some = self._random
        roll = some.random()
        if roll < 0.1:
            return some.randbytes(some.randrange(40))
        if roll < 0.2:
            body = some.randbytes(some.randrange(20))
            return bytes((len(body) + 2, some.randrange(0x20))) + body
        data = sn.encode(self._packet())
        if some.random() < 0.05:
            data = b"\x05\xfe\x00ab" + data
        if some.random() < 0.2:
            at = some.randrange(len(data))
            data = data[:at] + bytes((some.randrange(256),)) + data[at + 1 :]
        return data

    def _packet(self) -> sn.SnPacket:
        some = self._random
        an_id, other, qos = some.choice(self._ids), some.choice(self._ids), some.randrange(3)
        flag, id_type = some.random() < 0.5, some.randrange(3)
        name = some.choice(NAMES)
        code = some.randrange(4)
        return some.choice(
            (
                lambda: sn.SnConnect(some.choice(("n1", "n2", "n3", name)), flag, some.random() < 0.2, other),
                lambda: sn.SnWillTopic(name, qos, flag, some.random() < 0.5),
                lambda: sn.SnWillMsg(b"gone", flag),
                lambda: sn.SnRegister(other, an_id, name),
                lambda: sn.SnRegack(other, an_id, code),
                lambda: sn.SnPublish(
                    other, id_type, b"x" * some.randrange(300), some.randrange(-1, 3), flag, flag, an_id
                ),
                lambda: sn.SnPuback(other, an_id, code),
                lambda: sn.SnReply(some.choice((sn.PUBREC, sn.PUBREL, sn.PUBCOMP, sn.UNSUBACK)), an_id),
                lambda: sn.SnSubscribe(an_id, name if id_type == sn.NORMAL else other, id_type, qos, flag, flag),
                lambda: sn.SnPingreq(some.choice(("", "n1", "n2"))),
                lambda: sn.SnDisconnect(some.choice((None, 0, other))),
                lambda: sn.SnSearchGw(other & 0xFF),
                lambda: sn.SnSimple(some.choice((sn.WILLTOPICREQ, sn.WILLMSGREQ, sn.PINGRESP))),
                lambda: sn.SnConnack(code),
            )
        )()


def ask(sock: socket.socket, packet: sn.SnPacket, wanted: bytes) -> None:
    """Repeat a request until it is answered: the node's socket may be full."""
    for _ in range(20):
        sock.send(sn.encode(packet))
        try:
            while (heard := sock.recv(70_000)) != wanted:
                print(f"to the probe: {heard!r}")
            return
        except TimeoutError:
            continue
    raise AssertionError(f"no answer to {packet}")


def main(host: str, port: str, seconds: str) -> None:
    """Send noise from 64 addresses for so long; every second, a client of its own must get its PINGRESP."""
    noise = Noise(int(time.time()))
    senders, probe = opened(host, port)
    ask(probe, sn.SnConnect("probe", True, False, 3600), b"\x03\x05\x00")
    send(
        senders,
        seconds,
        noise.datagram,
        lambda data: noise.seen(sn.decode(sn.split(data)[1])),
        lambda: ask(probe, sn.SnPingreq(), b"\x02\x17"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
