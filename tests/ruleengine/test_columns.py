"""Columns are computed when they are asked for, once, and the payload is decoded once for all rules."""

from typing import Any

import pytest

from taipan.ruleengine.events import columns as module
from taipan.ruleengine.events.columns import Columns
from taipan.ruleengine.functions.undefined import UNDEFINED


def test_a_column_is_made_when_it_is_asked_for_and_once() -> None:
    made: list[str] = []

    def shout(source: str) -> str:
        made.append(source)
        return source.upper()

    columns = Columns({"qos": 1}, {"loud": shout}, "x")
    assert "loud" in columns and set(columns) == {"loud", "qos"} and len(columns) == 2 and made == []
    assert columns["loud"] == columns.get("loud") == "X" and made == ["x"]
    assert dict(columns) == {"loud": "X", "qos": 1} and len(columns) == 2
    assert columns.get("none", 7) == 7 and "none" not in columns
    with pytest.raises(KeyError):
        columns["none"]


def test_payload_is_decoded_once_valid_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []
    decode = module._decode

    def count(payload: str | bytes) -> Any:
        decoded.append(payload)
        return decode(payload)

    monkeypatch.setattr(module, "_decode", count)
    sound, broken = Columns({"payload": '{"a": 1}'}), Columns({"payload": b"\xff"})
    assert sound.payload_json() is sound.payload_json()
    for _ in range(2):
        with pytest.raises(ValueError, match="the payload is not JSON"):
            broken.payload_json()
    assert len(decoded) == 2


def test_payload_missing_or_decoded_already() -> None:
    assert Columns({}).payload_json() is UNDEFINED
    assert Columns({"payload": {"a": 1}}).payload_json() == {"a": 1}
