"""A short turn of the fuzz target with every run of the tests; ``FUZZ_SECONDS`` makes it a long one."""

import os
import secrets

import pytest

from taipan.broker.mqtt.decoder import Packet
from tools.fuzz import target


def test_decoder_finds_packets_and_mqtt_errors_only() -> None:
    seconds = float(os.environ.get("FUZZ_SECONDS", "2"))
    counts = target.run(seconds, secrets.randbits(32))
    print(counts)
    for outcome in ("inputs", "packets", "MalformedPacket", "ProtocolError"):
        assert counts[outcome] > 0


class _Raises:
    pending = 0

    def feed(self, data: bytes) -> list[Packet]:
        raise IndexError


class _Whole:
    """Does not put pieces together."""

    pending = 0

    def feed(self, data: bytes) -> list[Packet]:
        return [len(data)]


@pytest.mark.parametrize("broken", [_Raises, _Whole])
def test_target_notices_a_broken_decoder(broken: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_decoder", lambda version, strict: broken())
    with pytest.raises(target.Found):
        target.run(10.0, 1)
