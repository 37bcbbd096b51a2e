"""Firsts: what it keeps of many pairs is what sorting all of them has first."""

from hypothesis import given
from hypothesis import strategies as st

from taipan.management.operations.client_order import Firsts

NAMED = st.tuples(st.integers(0, 5), st.text("abc", max_size=3))
PAIRS = st.lists(NAMED, max_size=3_000, unique_by=lambda pair: pair[1])
NUMBERED = st.lists(st.integers(0, 9), max_size=4_000).map(
    lambda values: [(value, f"c{number:04}") for number, value in enumerate(values)]
)


@given(PAIRS | NUMBERED, st.integers(0, 40), st.booleans(), st.integers(1, 700))
def test_the_first_of_many(pairs: list[tuple[int, str]], wanted: int, down: bool, together: int) -> None:
    found = Firsts(wanted, down)
    for start in range(0, len(pairs), together):
        found.offer(pairs[start : start + together])
    exact = sorted(pairs, key=lambda pair: (-pair[0] if down else pair[0], pair[1]))
    assert found.rows() == exact[:wanted]


@given(st.lists(st.text("äbc ", max_size=4), max_size=2_000, unique=True), st.booleans())
def test_texts(names: list[str], down: bool) -> None:
    found = Firsts(10, down)
    found.offer([(name[:1], name) for name in names])
    kept = [value for value, _ in found.rows()]
    assert kept == sorted((name[:1] for name in names), reverse=down)[:10]
