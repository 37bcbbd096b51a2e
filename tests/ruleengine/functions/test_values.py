"""How values compare and print, and their JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions import values
from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from tests.ruleengine.functions.calls import call

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=12,
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@given(json_values)
def test_json_comes_back(value: Any) -> None:
    text = call("json_encode", value)
    assert values.same(call("json_decode", text), value, Budget())
    assert json.loads(text) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_prints_without_noise_and_comes_back(number: float) -> None:
    text = call("str", number)
    assert "e" not in text and "." in text
    assert float(text) == number and call("float", text) == number


@pytest.mark.parametrize(
    "value, text",
    [
        (20.2, "20.2"),
        (1e20, "100000000000000000000.0"),
        (1e-7, "0.0000001"),
        (-0.5, "-0.5"),
        (True, "true"),
        (None, "null"),
        (UNDEFINED, "undefined"),
        ([97, 98], "ab"),
        ([1, 2], "[1,2]"),
        ([], "[]"),
        ({"a": None, "b": UNDEFINED}, '{"a":null,"b":null}'),
        (b"\xff", b"\xff"),
    ],
)
def test_printed(value: Any, text: Any) -> None:
    assert call("str", value) == text


def test_binary_in_json_is_base64() -> None:
    assert call("json_encode", {"a": b"\xff\xfe\x00"}) == '{"a":"//4A"}'


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", '"\\ud800"', b'"\xff"', "[1,]", "9" * 5000, "[" * 5000])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(FunctionError, match="json_decode: "):
        call("json_decode", text)


def test_nesting_ends_at_64() -> None:
    assert call("json_encode", nested(64)) == "[" * 64 + "1" + "]" * 64
    for name, argument in (
        ("json_encode", nested(65)),
        ("json_decode", "[" * 65 + "]" * 65),
        ("json_encode", nested(100_000)),
        ("sprintf", "~p"),
    ):
        with pytest.raises(FunctionError, match="nested deeper than 64"):
            call(name, argument, *([nested(70)] if name == "sprintf" else []))
    with pytest.raises(FunctionError, match="nested deeper than 64"):
        call("eq", nested(70), nested(70))


@pytest.mark.parametrize(
    "left, right, by_value, exactly",
    [
        (1, 1.0, True, False),
        (1, True, False, False),
        (0, False, False, False),
        (None, UNDEFINED, False, False),
        (UNDEFINED, UNDEFINED, True, True),
        ([1, {"a": 2}], [1.0, {"a": 2.0}], True, False),
        ([1], [True], False, False),
        ("a", b"a", True, True),
        ("1", 1, False, False),
        ({"a": 1}, {"b": 1}, False, False),
        (2**53 + 1, float(2**53), False, False),
    ],
)
def test_equality(left: Any, right: Any, by_value: bool, exactly: bool) -> None:
    for one, other in ((left, right), (right, left)):
        assert call("eq", one, other) is by_value
        assert call("contains", one, [other]) is exactly


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1e3", "0x10", "abc", ".5", "5.", "1_0", "١", "--1", "1.0e400"])
def test_only_decimal_texts_are_numbers(text: str) -> None:
    with pytest.raises(ValueError):
        values.parse_number(text)


@pytest.mark.parametrize("text, number", [("+5", 5), ("-0", 0), ("1.5", 1.5), ("1.5e3", 1500.0)])
def test_decimal_texts(text: str, number: float) -> None:
    got = values.parse_number(text)
    assert got == number and type(got) is type(number) and math.isfinite(got)


@pytest.mark.parametrize(
    "value, text",
    [
        ("x" * 1000, "the string '" + "x" * 32 + "...'"),
        (10**2000, "a large integer"),
        ([1, 2], "a list of 2"),
        ({}, "a map of 0"),
        (b"\x00", "binary of 1 bytes"),
        (None, "null"),
        (False, "false"),
        (1.5, "the float 1.5"),
        (7, "the integer 7"),
        (UNDEFINED, "undefined"),
    ],
)
def test_described_in_some_words(value: Any, text: str) -> None:
    assert values.describe(value) == text


@pytest.mark.parametrize("text", ["ü", "\ud800", "\ud83d\ude00"])
def test_texts_of_an_object(text: str) -> None:
    expected = f'{{"a":"{text}"}}'
    assert values.encode_json({"a": text}, Budget()) == expected
    assert values.encode_json_bytes({"a": text}, Budget()) == expected.encode("utf-8", "surrogatepass")


@pytest.mark.interpreted
def test_an_object_beyond_the_budget_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "msgspec", None)
    with pytest.raises(ValueError, match="output"):
        values.encode_json_bytes({"a": "x" * 100}, Budget(size=50))
    with pytest.raises(AttributeError):
        values.encode_json_bytes({"a": "x" * 100}, Budget(size=200))
