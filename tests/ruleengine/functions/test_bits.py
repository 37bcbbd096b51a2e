"""Bits beyond the shared vectors."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.functions.values import restore
from tests.ruleengine.functions.calls import call


@given(st.integers(-(2**70), 2**70), st.integers(0, 200))
def test_shifts_undo_each_other(number: int, places: int) -> None:
    assert call("bitsr", call("bitsl", number, places), places) == number
    assert call("bitsl", number, -places) == call("bitsr", number, places)


@given(st.binary(min_size=1, max_size=9), st.data())
def test_bits_are_those_of_the_written_number(text: bytes, data: st.DataObject) -> None:
    bits = "".join(f"{byte:08b}" for byte in text)
    start = data.draw(st.integers(1, len(bits)))
    count = data.draw(st.integers(1, len(bits)))
    assert call("subbits", text, start, count) == int(bits[start - 1 : start - 1 + count], 2)


@given(st.integers(-(2**31), 2**31 - 1))
def test_integers_are_read_as_struct_writes_them(number: int) -> None:
    for order, endian in ((">", "big"), ("<", "little")):
        text = b"\xaa" + struct.pack(order + "i", number)
        assert call("subbits", text, 9, 32, "integer", "signed", endian) == number


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_are_read_as_struct_writes_them(number: float) -> None:
    for order, endian in ((">", "big"), ("<", "little")):
        for form, size in (("f", 32), ("d", 64)):
            text = struct.pack(order + form, number)
            assert call("subbits", text, 1, size, "float", "unsigned", endian) == number


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["abc", 9, 8, "bits"], "b"),
        ([b"\xf0", 5, 8], 0),
        (["abc", 25, 1], UNDEFINED),
        (["", 1], UNDEFINED),
        (["abc", 1, 64, "float"], UNDEFINED),
        ([b"\x7f\xf0" + bytes(6), 1, 64, "float"], UNDEFINED),
        ([b"\x3c\x00", 1, 16, "float"], 1.0),
        ([b"\x12\x34", 1, 12, "integer", "unsigned", "little"], 0x312),
        (["abc", 1, 0], 0),
    ],
)
def test_sub_bits(arguments: list[Any], expected: Any) -> None:
    assert call("subbits", *arguments) == expected


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("subbits", ["abc", 0, 8]),
        ("subbits", ["abc", -1]),
        ("subbits", ["abc", 1, 3, "bits"]),
        ("subbits", ["abc", 1, 8, "float"]),
        ("subbits", [b"x" * 2000, 16000]),
        ("subbits", [7, 1]),
        ("bitsl", [1, 10**30]),
        ("bitsl", [1, 8192]),
        ("bitsr", [1, -(10**30)]),
        ("bitand", [1.0, 1]),
    ],
)
def test_refused(name: str, arguments: list[Any]) -> None:
    with pytest.raises(FunctionError, match=f"^{name}: "):
        call(name, *arguments)


@given(st.binary(max_size=20))
def test_all_bits_are_the_string(text: bytes) -> None:
    expected = restore(text) if text else UNDEFINED
    assert call("subbits", text, 1, call("bitsize", text), "bits") == expected


def test_shifting_far_right_leaves_the_sign() -> None:
    assert call("bitsr", 5, 10**30) == 0
    assert call("bitsr", -5, 10**30) == -1
    assert call("bitsl", 0, 10**30) == 0
