"""Regular expressions beyond the shared vectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.values import restore
from tests.ruleengine.functions.calls import call


@pytest.mark.parametrize(
    "text, expression, by, expected",
    [
        ("abc", "(a)(b)", r"\2\1", "bac"),
        ("abc", "(a)(b)", r"\g2\g1", "bac"),
        ("abc", "b", "[&]", "a[b]c"),
        ("abc", "b", r"\\", "a\\c"),
        ("abc", "b", "\\", "a\\c"),
        ("abc", "(x)?b", r"<\1>", "a<>c"),
        ("abc", "x*", "-", "-a-b-c-"),
        ("你好", "^.", "x", "x好"),
        (b"a\xff", "a", "b", b"b\xff"),
    ],
)
def test_replaced(text: str | bytes, expression: str, by: str, expected: str | bytes) -> None:
    assert call("regex_replace", text, expression, by) == expected


@pytest.mark.parametrize("expression", ["[", "(?=a)", r"(a)\1", "a{99999}", "x" * 4097, b"\xff"])
def test_an_expression_that_re2_does_not_know_is_refused(expression: str | bytes) -> None:
    with pytest.raises(FunctionError, match="regex_match: the regular expression"):
        call("regex_match", "abc", expression)


def test_a_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(FunctionError, match="names the group 2, the expression has 1"):
        call("regex_replace", "abc", "(a)", r"\2")


def test_an_expression_made_to_take_for_ever_does_not() -> None:
    assert call("regex_match", "x" * 100_000, "(x+x+)+y") is False


@given(st.binary(max_size=50))
def test_the_hit_in_place_of_the_hit_changes_nothing(data: bytes) -> None:
    assert call("regex_replace", data, "[a-z]+|[0-9]", "&") == restore(data)
