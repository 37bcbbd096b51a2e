"""Samples of what went through a rule: as short for the largest value as for the smallest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.records import MAX_REASON_LENGTH, LastError
from taipan.ruleengine.rules.trace import MAX_TEXT_LENGTH, sample
from tests.support.processor_time import at_most


@pytest.mark.parametrize("value", [{"a": 1, "b": [1, {"c": "d"}]}, "é", [], {}, None, 1.5, [[[]]], {"": [True]}])
def test_a_small_value_is_its_json(value: Any) -> None:
    assert json.loads(sample(value)) == value
    assert sample({"x": UNDEFINED, "y": b"\xff"}) == '{"x":null,"y":"/w=="}'


@pytest.mark.parametrize(
    "value",
    ["x" * 2_000_000, b"\xff" * 2_000_000, [1] * 1_000_000, [[[]] * 500] * 10_000, {"l": ["x" * 9000] * 900},
     {str(key): "x" for key in range(100_000)}, ["é" * 5000]],
)  # fmt: skip
def test_a_large_value_is_cut_and_not_walked(value: Any) -> None:
    with at_most(0.05):
        text = sample(value)
    assert len(text) == MAX_TEXT_LENGTH + 3 and text.endswith("...")


def test_what_has_no_json_is_said_in_words() -> None:
    assert sample(10**5000).startswith("(")


def test_a_reason_is_bounded() -> None:
    assert len(LastError.of(0.0, "x" * 1_000_000).reason) == MAX_REASON_LENGTH
