"""Loudest: of very many rows, those with the highest value of any of several measures."""

from heapq import nlargest
from typing import Final, Generic, Protocol, TypeVar

KEPT: Final = 100
"""Rows kept for each measure."""


class Measured(Protocol):
    """A row with a value for each measure."""

    @property
    def values(self) -> tuple[float, ...]: ...


Row = TypeVar("Row", bound=Measured)


class Loudest(Generic[Row]):
    """Keeps the ``kept`` highest rows for each measure. Offer rows, then read ``rows``.

    ``floors``: for each measure the value that a row must exceed to be among the highest; a row that exceeds none need
    not be offered."""

    __slots__ = ("_kept", "_most", "_rows", "floors")

    def __init__(self, measures: int, kept: int = KEPT) -> None:
        self._kept = kept
        self._most = 2 * measures * kept
        self._rows: list[Row] = []
        self.floors: list[float] = [0.0] * measures

    def offer(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) > self._most:
            self._select()

    def rows(self, measure: int) -> list[Row]:
        """Return the rows with the highest values of one measure, without those whose value is 0."""
        found = nlargest(self._kept, self._rows, key=lambda row: row.values[measure])
        return [row for row in found if row.values[measure] > 0]

    def _select(self) -> None:
        chosen: dict[int, Row] = {}
        for measure in range(len(self.floors)):
            found = nlargest(self._kept, self._rows, key=lambda row, by=measure: row.values[by])  # type: ignore[misc]
            if len(found) == self._kept:
                self.floors[measure] = found[-1].values[measure]
            chosen |= {id(row): row for row in found}
        self._rows = list(chosen.values())
