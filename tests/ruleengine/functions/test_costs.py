"""What a call may cost: refused before it begins, or done in a moment, whatever a publisher sends."""

from __future__ import annotations

from typing import Any

import pytest

from taipan.ruleengine.events.columns import Columns
from taipan.ruleengine.functions import regexes
from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.values import MAX_VALUES, decode_json, measure, value_text
from tests.ruleengine.functions.calls import call, context
from tests.support.processor_time import at_most

TWO_MIB = 2 * 1024 * 1024 - 100
AB = b"abbabaaababbab" * 150_000


@pytest.mark.parametrize(
    "function, arguments",
    [
        ("split", [b"," * TWO_MIB, ",", "notrim"]),
        ("split", ["a," * (TWO_MIB // 2), ","]),
        ("tokens", ["é," * (TWO_MIB // 3), ",;"]),
        ("sprintf", ["~p", "a" * TWO_MIB]),
        ("sprintf", ["~s", [65] * 600_000]),
        ("regex_match", [AB, "(([a-z]{1,50}){1,20})c"]),
        ("regex_match", [AB, "(.*a.{200}b)+$"]),
        ("regex_match", [AB, "[ab]*a[ab]{900}z"]),
        ("regex_replace", [AB, "((a|b)*abb+)+c", ""]),
    ],
)
def test_what_would_hold_the_loop_is_refused_before_it_begins(function: str, arguments: list[Any]) -> None:
    with at_most(0.05), pytest.raises(ValueError, match="too many steps"):
        call(function, *arguments)


@pytest.mark.parametrize("function", ["gzip", "zip", "zip_compress"])
def test_compression_is_paid_for_by_its_size(function: str) -> None:
    call(function, AB[: 500 * 1024])
    budget = Budget()
    within = context(budget=budget)
    call(function, AB[: 100 * 1024], within=within)
    assert Budget().steps_left - budget.steps_left >= 100 * 1024 // 48


@pytest.mark.parametrize("expression", ["zz", r"\d+", "hello", "^[a-f]+$"])
def test_an_expression_of_a_few_instructions_goes_through_a_large_text(expression: str) -> None:
    assert call("regex_match", AB[: 200 * 1024], expression) in (True, False)


def test_an_expression_that_looks_at_the_rest_for_each_hit_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regexes, "MAX_TIME", 0.0)
    with pytest.raises(FunctionError, match="needs more than"):
        call("regex_replace", "a" * 2000, "a.*b|a", "")


@pytest.mark.parametrize("expression, expected", [("(a)(b)", True), ("(?P<name>a)c", False), ("a|(b)", True)])
def test_groups_make_no_difference_to_whether_it_hits(expression: str, expected: bool) -> None:
    assert call("regex_match", "xaby", expression) is expected


@pytest.mark.parametrize("text", [b"[" + b"[]," * 50_000 + b"1]", b"[" + b"1," * 250_000 + b"1]"])
def test_json_of_too_many_values_is_not_decoded(text: bytes) -> None:
    for payload in (text, text.decode()):
        with pytest.raises(ValueError, match=f"more than {MAX_VALUES} values"):
            Columns({"payload": payload}).payload_json()
        with pytest.raises(ValueError, match=f"more than {MAX_VALUES} values"):
            decode_json(payload, Budget())


def test_json_of_many_values_is() -> None:
    assert len(Columns({"payload": b"[" + b"1," * 190_000 + b"1]"}).payload_json()) == 190_001


@pytest.mark.parametrize("size", [1, 1000])
def test_a_large_json_text_reads_as_a_small_one(size: int) -> None:
    one = '{"i":1,"big":99999999999999999999999,"f":1.5,"e":1e5,"n":-0.0,"t":true,"u":null,"s":"\\u00e9"}'
    value = Columns({"payload": "[" + ",".join([one] * size) + "]"}).payload_json()
    expected = {"i": 1, "big": 99999999999999999999999, "f": 1.5, "e": 1e5, "n": 0.0, "t": True, "u": None, "s": "é"}
    assert value == [expected] * size
    assert [type(each) for each in value[0].values()] == [type(each) for each in expected.values()]
    for wrong in ("NaN", "Infinity", "1e999", "01", "'a'", "[1,]"):
        with pytest.raises(ValueError, match="not JSON"):
            Columns({"payload": "[" + ",".join([one] * size) + f",{wrong}]"}).payload_json()


def test_large_integers_are_paid_for() -> None:
    budget = Budget()
    value_text(1 << 8000, budget)
    measure([1 << 8000], budget)
    assert Budget().steps_left - budget.steps_left >= 2 * 62
