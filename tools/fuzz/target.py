"""The fuzz target: the decoder in this process."""

from random import Random
from time import monotonic
from typing import Any, get_args

from taipan.broker.mqtt.decoder import Decoder, Packet, TopicNames
from taipan.broker.mqtt.encoder import encode
from taipan.broker.mqtt.errors import MqttError
from taipan.broker.mqtt.packets import Connect
from tests.packets import comparable

from .mutation import Corpus

_ALLOWED = get_args(Packet)
_LIMIT = 20_000


class Found(AssertionError):
    """The decoder violated the rules; the text has the input in hexadecimal."""


def check(data: bytes, version: int, strict: bool, corpus: Corpus) -> list[Any]:
    """Decode ``data`` whole, byte by byte and in pieces: the results must be equal, and allowed."""
    try:
        whole = _decoder(version, strict)
        packets = whole.feed(data)
        _judge(packets)
        for pieces in ([data[at : at + 1] for at in range(len(data))], corpus.pieces(data)):
            decoder = _decoder(version, strict)
            found: list[Any] = []
            for piece in pieces:
                found += decoder.feed(piece)
                if decoder.pending > len(data):
                    raise Found("holds more than it was given")
            if _all(found) != _all(packets):
                raise Found(f"cut in {len(pieces)}: {_all(found)!r} instead of {_all(packets)!r}")
            if decoder.pending != whole.pending:
                raise Found(f"cut in {len(pieces)}: holds {decoder.pending} instead of {whole.pending} bytes")
        _again(packets, version, strict)
    except Exception as error:
        raise Found(f"version {version} strict {strict}: {data.hex()}: {error!r}") from error
    return packets


def _decoder(version: int, strict: bool) -> Decoder:
    decoder = Decoder(TopicNames(strict), _LIMIT, _LIMIT)
    decoder.version = version
    return decoder


def _all(packets: list[Any]) -> list[Any]:
    return [comparable(packet) for packet in packets]


def _judge(packets: list[Any]) -> None:
    for packet in packets[:-1]:
        if isinstance(packet, MqttError):
            raise Found("goes on behind an error")
    for packet in packets:
        if not isinstance(packet, _ALLOWED):
            raise Found(f"found a {type(packet)}")
        if isinstance(packet, MqttError) and not 0x80 <= packet.reason_code <= 0xA2:
            raise Found(f"reason code {packet.reason_code}")


def _again(packets: list[Any], version: int, strict: bool) -> None:
    """Check that a decoded packet can be encoded, and is decoded to the same packet again."""
    good = [packet for packet in packets if not isinstance(packet, MqttError)]
    wire = b""
    for packet in good:
        if isinstance(packet, Connect):
            version = packet.version
        wire += encode(packet, version)
    fresh = bool(good) and isinstance(good[0], Connect)
    if _all(_decoder(0 if fresh else version, strict).feed(wire)) != _all(good):
        raise Found(f"encodes to {wire.hex()}")


def run(seconds: float, seed: int) -> dict[str, int]:
    """Run for this time; return how often each result occurred. Raises ``Found``."""
    random = Random(seed)
    corpus = Corpus(random)
    counts: dict[str, int] = {"inputs": 0, "packets": 0}
    end = monotonic() + seconds
    while monotonic() < end:
        for _ in range(50):
            version = random.choice((0, 3, 4, 5))
            packets = check(corpus.input(version), version, random.random() < 0.3, corpus)
            counts["inputs"] += 1
            counts["packets"] += len(packets)
            if packets and isinstance(packets[-1], MqttError):
                name = type(packets[-1]).__name__
                counts["packets"] -= 1
                counts[name] = counts.get(name, 0) + 1
    return counts
