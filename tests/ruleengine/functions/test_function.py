"""Registering a function, and what is checked and charged before and after it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taipan.ruleengine.functions.budget import Budget, BudgetExceeded
from taipan.ruleengine.functions.registry import (
    ANY,
    FUNCTIONS,
    INTEGER,
    NUMBER,
    TEXT,
    FunctionContext,
    FunctionError,
    one_of,
    register,
)
from tests.ruleengine.functions.calls import call, context


@pytest.fixture(autouse=True)
def _no_function_stays() -> Iterator[None]:
    known = dict(FUNCTIONS)
    yield
    FUNCTIONS.clear()
    FUNCTIONS.update(known)


def test_an_operators_function_is_called_like_any_other() -> None:
    @register("celsius", NUMBER)
    def celsius(fahrenheit: float) -> float:
        return (fahrenheit - 32) / 1.8

    assert call("celsius", 212) == 100
    assert celsius(212) == 100
    assert FUNCTIONS["celsius"].takes(1) and not FUNCTIONS["celsius"].takes(0)


def test_optional_arguments_further_ones_and_the_context() -> None:
    @register("gather", TEXT, INTEGER, optional=1, more=ANY, context=True)
    def gather(given: FunctionContext, text: str, number: int = 7, *rest: Any) -> str:
        return f"{given.node} {text} {number} {len(rest)}"

    assert (FUNCTIONS["gather"].min_args, FUNCTIONS["gather"].max_args) == (1, None)
    assert call("gather", "a") == "taipan@127.0.0.1 a 7 0"
    assert call("gather", "a", 1, None, []) == "taipan@127.0.0.1 a 1 2"
    with pytest.raises(FunctionError, match="gather takes 1 or more arguments, not 0"):
        call("gather")


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "++", "é"])
def test_a_name_that_sql_cannot_write_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a function's name"):
        register(name)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="function upper already exists"):
        register("upper", TEXT)(str.upper)
    with pytest.raises(ValueError, match="cannot be optional"):
        register("none", TEXT, optional=2)


def test_an_error_names_function_argument_what_came_and_what_was_expected() -> None:
    with pytest.raises(FunctionError, match=r"^substr: argument 2 is the string 'x', expected an integer$"):
        call("substr", "abc", "x")
    with pytest.raises(FunctionError, match=r"^upper takes 1 arguments, not 2$"):
        call("upper", "a", "b")
    with pytest.raises(FunctionError, match=r"^now_timestamp: argument 1 is the string 'day', expected 'second' or "):
        call("now_timestamp", "day")
    with pytest.raises(FunctionError, match=r"^sqrt: "):
        call("sqrt", -1)
    with pytest.raises(FunctionError, match=r"^split: argument 3 .* expected 'notrim' or 'leading'"):
        call("split", "a/b", "/", "bogus")
    with pytest.raises(FunctionError, match=r"^join_to_string: argument 1 is undefined, expected a string or a list$"):
        call("join_to_string", call("null"))


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_boolean_or_a_float_is_no_integer(value: object) -> None:
    with pytest.raises(FunctionError, match="expected an integer"):
        call("bitnot", value)


def test_words_are_taken_as_written() -> None:
    kind = one_of("big", "little")
    assert kind.take("big") == "big"
    assert kind.name == "'big' or 'little'"


def test_results_that_no_rule_can_hold_are_refused() -> None:
    @register("odd", ANY)
    def odd(value: Any) -> Any:
        return {"set": set(), "nan": float("nan"), "huge": 1 << 9000}[value]

    for value in ("set", "nan", "huge"):
        with pytest.raises(FunctionError, match="odd: the result"):
            call("odd", value)


@pytest.mark.parametrize("arguments", [("*", 10**2400, 10**2400), ("*", 1e300, 1e300), ("+", 1e308, 1e308)])
def test_numbers_do_not_grow_without_bound(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(FunctionError, match="the result"):
        call(*arguments)


def test_calls_and_the_text_they_read_and_write_are_charged() -> None:
    budget = Budget()
    steps, data = budget.steps_left, budget.bytes_left
    call("upper", "x" * 1280, within=context(budget=budget))
    assert (steps - budget.steps_left, data - budget.bytes_left) == (11, 1280)


@pytest.mark.parametrize(
    "arguments",
    [
        ("pad", "a", 10**30),
        ("sprintf", "~999999999s", "a"),
        ("sprintf", "~*s", 10**15, "a"),
        ("sprintf", "~999999999c", 97),
        ("replace", "a" * 100_000, "a", "b" * 100_000),
        ("regex_replace", "a" * 1000, "a", "b" * 1_000_000),
        ("json_encode", ["x" * 1_000_000] * 1000),
        ("join_to_string", ["x" * 1_000_000] * 1000),
        ("sprintf_s", "~s" * 1000, ["x" * 1_000_000] * 1000),
        ("sprintf_s", "~p" * 1000, ["x" * 1_000_000] * 1000),
        ("contains", [0] * 100_000, [[0] * 100_000] * 1000),
        ("md5", "x" * 20_000_000),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_what_would_take_long_is_refused_before(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(BudgetExceeded):
        call(*arguments)


def test_a_spent_budget_ends_the_evaluation() -> None:
    within = context(budget=Budget(steps=2))
    call("qos", within=within)
    call("qos", within=within)
    with pytest.raises(BudgetExceeded):
        call("qos", within=within)
