"""Strings and graphemes beyond the shared vectors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.graphemes import graphemes
from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.functions.values import restore
from tests.ruleengine.functions.calls import call

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    "text, parts",
    [
        ("e\u0301a", ["e\u0301", "a"]),
        ("\r\n\n\r", ["\r\n", "\n", "\r"]),
        (FAMILY + "x", [FAMILY, "x"]),
        ("\U0001f44d\U0001f3fd!", ["\U0001f44d\U0001f3fd", "!"]),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", ["\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7"]),
        ("\u1112\u1161\u11ab한", ["\u1112\u1161\u11ab", "한"]),
        ("\n\u0301", ["\n", "\u0301"]),
        ("нет", ["н", "е", "т"]),
        ("", []),
    ],
)
def test_characters_as_a_reader_counts_them(text: str, parts: list[str]) -> None:
    assert graphemes(text, Budget()) == parts
    assert call("strlen", text) == len(parts)
    assert call("reverse", text) == "".join(reversed(parts))
    assert call("substr", text, 1) == "".join(parts[1:])
    assert call("strlen", call("pad", text, len(parts) + 2, "leading", "-")) == len(parts) + 2


@given(st.text("ab\r\n\u0301你\u200d\U0001f468"))
def test_graphemes_make_up_the_text(text: str) -> None:
    assert "".join(graphemes(text, Budget())) == text
    assert call("strlen", text) == len(graphemes(text, Budget()))


@given(st.binary(), st.binary())
def test_binary_travels_through(one: bytes, other: bytes) -> None:
    assert call("concat", one, other) == restore(one + other)
    assert call("reverse", call("reverse", b"\xff" + one)) is not None
    assert call("replace", one, one, other) == restore(other if one else one)


@given(st.lists(st.binary()))
def test_split_and_join_belong_together(parts: list[bytes]) -> None:
    clean = [part.replace(b"/", b"") for part in parts] or [b""]
    got = call("split", b"/".join(clean), "/", "notrim")
    assert got == [restore(part) for part in clean]


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("split", ["a//b", "/"], ["a", "b"]),
        ("split", ["ab", ""], ["ab"]),
        ("split", ["", ""], []),
        ("split", ["a/b/c", "/", "trailing_notrim"], ["a/b", "c"]),
        ("tokens", ["a", ""], ["a"]),
        ("tokens", ["", ""], []),
        ("trim", [b" \xff\t"], b"\xff"),
        ("upper", [b"a\xff"], b"A\xff"),
        ("pad", ["abc", 6, "both"], " abc  "),
        ("pad", ["abc", -1], "abc"),
        ("replace", ["abc", "", "x"], "abc"),
        ("find", ["abc", ""], "abc"),
        ("substr", ["abc", 10**30], ""),
        ("ascii", ["你"], 0xE4),
        ("join_to_string", [[1, 1.5, True, None, UNDEFINED, {"a": 1}]], '1, 1.5, true, null, undefined, {"a":1}'),
        ("join_to_string", ["", []], ""),
        (
            "join_to_sql_values_string",
            [["it's", 1, 2.5, True, None, UNDEFINED, {"a": "b"}]],
            "'it''s', 1, 2.5, true, NULL, NULL, '{\"a\":\"b\"}'",
        ),
    ],
)
def test_answers(name: str, arguments: list[Any], expected: Any) -> None:
    assert call(name, *arguments) == expected


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("substr", ["abc", -1]),
        ("substr", ["abc", 0, -1]),
        ("tokens", ["a", "b", "crlf"]),
        ("pad", ["a", "5"]),
        ("find", ["a", "b", "all"]),
        ("join_to_string", ["-"]),
        ("join_to_string", [["a"], ["b"]]),
        ("join_to_sql_values_string", ["a"]),
        ("strlen", [None]),
        ("concat", ["a"]),
    ],
)
def test_refused(name: str, arguments: list[Any]) -> None:
    with pytest.raises(FunctionError, match=f"^{name}"):
        call(name, *arguments)
