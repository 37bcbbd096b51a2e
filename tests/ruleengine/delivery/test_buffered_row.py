"""Entries: a row comes back from disk as a rule selected it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.delivery.buffered_row import decode_row, encode_row
from taipan.ruleengine.functions.undefined import UNDEFINED

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.just(UNDEFINED),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_every_row_comes_back(row: dict[str, Any]) -> None:
    assert decode_row(encode_row(row)) == row


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**300, "\ud800", UNDEFINED, [{"x": 2**70}]])
def test_values_that_messagepack_has_no_place_for(value: Any) -> None:
    assert decode_row(encode_row({"v": value})) == {"v": value}
