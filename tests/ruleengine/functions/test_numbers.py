"""Arithmetic and mathematics beyond the shared vectors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.registry import FunctionError
from tests.ruleengine.functions.calls import call

integers = st.integers(-(10**20), 10**20)


@given(integers, integers.filter(bool))
def test_div_and_mod_belong_together(left: int, right: int) -> None:
    quotient, rest = call("div", left, right), call("mod", left, right)
    assert quotient * right + rest == left
    assert abs(rest) < abs(right) and rest * left >= 0


@given(st.floats(-1e15, 1e15))
def test_rounding_goes_to_the_nearest_and_halves_away_from_zero(number: float) -> None:
    rounded = call("round", number)
    assert type(rounded) is int and abs(rounded - number) <= 0.5
    if abs(number - math.trunc(number)) == 0.5:
        assert abs(rounded) > abs(number)


def test_a_number_just_below_a_half_is_not_rounded_up() -> None:
    assert call("round", 0.49999999999999994) == 0


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("+", ("1", 1)),
        ("-", ("a", "b")),
        ("/", (1, 0.0)),
        ("mod", (1, 0)),
        ("log", (0,)),
        ("atanh", (1,)),
        ("acosh", (0.5,)),
        ("exp", (1000,)),
        ("power", (-8, 0.5)),
        ("power", (10, 400)),
        ("power", (0, -1)),
        ("sqrt", (10**400,)),
        ("abs", (True,)),
        ("ceil", (None,)),
    ],
)
def test_outside_the_domain(name: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(FunctionError, match=f"^\\{name}" if not name.isalpha() else f"^{name}"):
        call(name, *arguments)


def test_integers_stay_integers_and_mathematics_answers_floats() -> None:
    assert type(call("+", 1, 2)) is int and type(call("*", 2, 3)) is int and type(call("abs", -2)) is int
    assert type(call("sqrt", 16)) is float and type(call("power", 2, 2)) is float
    assert call("abs", -1.5) == 1.5


def test_halves_of_a_character_joined_are_text_again() -> None:
    data = "你".encode()
    assert call("+", data[:1], data[1:]) == "你"
    assert call("+", "a", b"\xff") == b"a\xff"
