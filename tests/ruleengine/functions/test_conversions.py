"""Conversions beyond the shared vectors."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.functions.values import restore
from tests.ruleengine.functions.calls import call


@given(st.binary())
def test_hexadecimal_comes_back(data: bytes) -> None:
    assert call("hexstr2bin", call("bin2hexstr", data)) == restore(data)


@given(st.floats(-1e300, 1e300), st.integers(0, 253))
def test_rounded_decimals_are_near(number: float, decimals: int) -> None:
    text = call("float2str", number, decimals)
    assert abs(Decimal(text) - Decimal(number)) <= Decimal(5).scaleb(-decimals - 1) * Decimal("1.0000000001")
    if decimals:
        assert not text.endswith("0") or text.endswith(".0")


@pytest.mark.parametrize("text", ["g1", "1 2 ", "٣٣", "+1", "0x12"])
def test_what_is_not_hexadecimal(text: str) -> None:
    with pytest.raises(FunctionError, match="hexstr2bin: "):
        call("hexstr2bin", text)


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("int", 1e20, 10**20),
        ("int", "-7", -7),
        ("int", b"12", 12),
        ("int", -1.5, -2),
        ("bool", "true", True),
        ("bool", b"false", False),
        ("bool", 1, True),
        ("map", b'{"a":1}', {"a": 1}),
        ("map", {"a": 1}, {"a": 1}),
        ("is_str", b"\xff", True),
        ("is_not_null_var", UNDEFINED, False),
        ("is_not_null", UNDEFINED, False),
    ],
)
def test_converted(name: str, value: Any, expected: Any) -> None:
    got = call(name, value)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("int", [[1]]),
        ("int", [b"\xff"]),
        ("float", [True]),
        ("float", [10**400]),
        ("bool", [2]),
        ("bool", [None]),
        ("bool", ["TRUE"]),
        ("map", [[]]),
        ("float2str", [1.5, -1]),
        ("float2str", [1.5, 254]),
    ],
)
def test_refused(name: str, arguments: list[Any]) -> None:
    with pytest.raises(FunctionError, match=f"^{name}: "):
        call(name, *arguments)
