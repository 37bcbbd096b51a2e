"""SASLprep, with the examples of RFC 4013 section 3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.access.saslprep import saslprep


@pytest.mark.parametrize(
    "text, prepared",
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("", ""),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_examples(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared
    assert saslprep(text, stored=True) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "a\0", "\ud800", "\ue000", "\u06271a", "a\u0627b"])
def test_prohibited(text: str) -> None:
    with pytest.raises(ValueError):
        saslprep(text)


def test_unassigned_code_points_may_be_looked_up_but_not_stored() -> None:
    assert saslprep("\u0221") == "\u0221"
    with pytest.raises(ValueError):
        saslprep("\u0221", stored=True)


@given(st.text(max_size=10))
def test_prepared_text_stays_as_it_is(text: str) -> None:
    try:
        prepared = saslprep(text, stored=True)
    except ValueError:
        return
    assert saslprep(prepared, stored=True) == prepared
