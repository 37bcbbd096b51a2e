"""Loudest: what it keeps is what sorting all rows has first."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.observability.top.loudest import Loudest


@dataclass
class Row:
    values: tuple[float, ...]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=400), st.integers(1, 8))
def test_against_sorting(measured: list[tuple[int, int]], kept: int) -> None:
    found: Loudest[Row] = Loudest(2, kept)
    for values in measured:
        # As the sweep does.
        if values[0] > found.floors[0] or values[1] > found.floors[1]:
            found.offer(Row(values))
        assert len(found._rows) <= 4 * kept
    for measure in (0, 1):
        exact = sorted((values[measure] for values in measured if values[measure] > 0), reverse=True)[:kept]
        assert [row.values[measure] for row in found.rows(measure)] == exact
