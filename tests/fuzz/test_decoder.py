"""A short turn of the fuzz target with every run of the tests; ``FUZZ_SECONDS`` makes it a long one."""

import os
import secrets

import pytest

from broker.mqtt.decoder import Decoder

from . import target


def test_decoder_finds_packets_and_mqtt_errors_only() -> None:
    seconds = float(os.environ.get("FUZZ_SECONDS", "2"))
    counts = target.run(seconds, secrets.randbits(32))
    print(counts)
    for outcome in ("inputs", "packets", "MalformedPacket", "ProtocolError"):
        assert counts[outcome] > 0


def test_target_notices_a_decoder_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Decoder, *_: object) -> int:
        raise IndexError

    monkeypatch.setattr(Decoder, "_other", broken)
    with pytest.raises(target.Found, match="IndexError"):
        target.run(10.0, 1)
