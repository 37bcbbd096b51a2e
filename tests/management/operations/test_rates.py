"""Rates as text."""

import pytest

from taipan.management.operations.clients import read_rate
from taipan.management.operations.refusal import WRONG, Refusal


@pytest.mark.parametrize(
    ("text", "in_bytes", "rate"),
    [
        ("100,1s", False, (100, 1)),
        (" 5 , 10s ", False, (5, 10)),
        ("1,500ms", False, (1, 0.5)),
        ("1,2m", False, (1, 120)),
        ("1,1h", False, (1, 3600)),
        ("1,1d", False, (1, 86_400)),
        ("100KB,10s", True, (102_400, 10)),
        ("2mb,1s", True, (2 << 20, 1)),
        ("1GB,1s", True, (1 << 30, 1)),
        ("7b,1s", True, (7, 1)),
        ("7,1s", True, (7, 1)),
    ],
)
def test_a_rate(text: str, in_bytes: bool, rate: tuple[float, float]) -> None:
    assert read_rate("key", text, in_bytes) == rate


@pytest.mark.parametrize(
    ("text", "in_bytes"),
    [
        ("", False),
        ("100", False),
        ("100,", False),
        (",1s", False),
        ("100,1", False),
        ("0,1s", False),
        ("1,0s", False),
        ("-1,1s", False),
        ("1.5,1s", False),
        ("100KB,1s", False),
        ("100TB,1s", True),
        ("1,1s,1s", False),
        ("9" * 5000 + ",1s", False),
        ("\u0663,1s", True),
    ],
)
def test_no_rate(text: str, in_bytes: bool) -> None:
    with pytest.raises(Refusal, match="key: ") as caught:
        read_rate("key", text, in_bytes)
    assert caught.value.code == WRONG and len(caught.value.message) < 250
