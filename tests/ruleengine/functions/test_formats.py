"""The directives of `sprintf`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.budget import BudgetExceeded
from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from tests.ruleengine.functions.calls import call


@pytest.mark.parametrize(
    "template, values, expected",
    [
        ("~.2f|~f", [3.14159, 1.0], "3.14|1.000000"),
        ("~e|~.3e", [1.0, 12345.678], "1.00000e+0|1.23e+4"),
        ("~g|~g|~g", [0.5, 12.0, 1e6], "0.500000|12.0000|1.00000e+6"),
        ("~5s|~-5s|~2s", ["ab", "ab", "abc"], "   ab|ab   |ab"),
        ("~5.2s", ["abc"], "   ab"),
        ("~.3s|", ["a"], "a  |"),
        ("~*s", [4, "a"], "   a"),
        ("~4..0B|~6..*b", [42, 7], "0042|*****7"),
        ("~2b", [12345], "**"),
        ("~.16b|~.2B|~.36B", [-255, 5, 35], "-ff|101|Z"),
        ("~c~3c|~.2c", [97, 98, 99], "abbb|cc"),
        ("~n~2n~~", [], "\n\n\n~"),
        ("~i~s", [1, "x"], "x"),
        ("~s ~s ~s", [True, None, UNDEFINED], "true null undefined"),
        ("~s", [["a", 98]], "ab"),
        ("~s", [b"\xff"], b"\xff"),
        ("~ts", ["你好"], "你好"),
        ("~p ~p ~w", ["ab", 1.0, "ab"], '<<"ab">> 1.0 <<97,98>>'),
        ("~p ~w", [[97, 98], [97, 98]], '"ab" [97,98]'),
        ("~p", [{"a": [1, None]}], '#{<<"a">> => [1,null]}'),
        ("~p ~p", [b"\xff", 1e25], "<<255>> 1.0e25"),
        ("~p", ['say "x"\n'], '<<"say \\"x\\"\\n">>'),
        ("no directive", [], "no directive"),
    ],
)
def test_directives(template: str, values: list[Any], expected: Any) -> None:
    assert call("sprintf", template, *values) == expected
    assert call("sprintf_s", template, values) == expected


@pytest.mark.parametrize(
    "template, values, reason",
    [
        ("~s", [], "there is no value for ~s"),
        ("~s", ["a", "b"], "2 values are more than the format has directives for"),
        ("~y", [1], "there is no directive ~y"),
        ("ends ~", [], "there is no directive ~"),
        ("~b", [1.5], "~b got the float 1.5, expected an integer"),
        ("~f", [1], "~f got the integer 1, expected a float"),
        ("~s", [1], "~s got the integer 1, expected a string"),
        ("~.1b", [1], "base 1, expected 2 to 36"),
        ("~.500f", [1.0], "precision 500"),
        ("~.1e", [1.0], "precision 1"),
        ("~c", [0x110000], "number of a character"),
        ("~c", [0xD800], "number of a character"),
        ("~*s", ["x", "y"], "the width is the string 'x'"),
        ("~99999999999s", ["y"], "too large"),
    ],
)
def test_refused(template: str, values: list[Any], reason: str) -> None:
    with pytest.raises(FunctionError, match="sprintf: ") as caught:
        call("sprintf", template, *values)
    assert reason in str(caught.value)


@given(st.integers(-(10**30), 10**30), st.integers(2, 36))
def test_any_base_reads_back(number: int, base: int) -> None:
    assert int(call("sprintf", f"~.{base}b", number), base) == number


@given(st.text("~.*-0123456789sbpfc k"), st.lists(st.integers(0, 300) | st.text("ab") | st.floats(0, 10), max_size=3))
def test_any_format_gives_text_or_the_one_error(template: str, values: list[Any]) -> None:
    with suppress(FunctionError, BudgetExceeded):
        assert isinstance(call("sprintf_s", template, values), str)
