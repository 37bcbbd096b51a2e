"""Long tables as few test items: what pytest does around an item takes longer than a row of these."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ITEMS = 8


def each_row(rows: Iterable[Any], name: Callable[[Any], str] = str) -> Callable[[Callable[[Any], None]], Any]:
    """Run a test of one row over all of them, in ``ITEMS`` items; each names every row of its that fails."""
    table = list(rows)
    assert table

    def decorate(test: Callable[[Any], None]) -> Any:
        @functools.wraps(test)
        def over(part: int) -> None:
            failures: list[Exception] = []
            for row in table[part::ITEMS]:
                try:
                    test(row)
                except Exception as error:
                    error.add_note(f"row: {name(row)}")
                    failures.append(error)
            if failures:
                names = "\n".join(error.__notes__[-1] for error in failures)
                raise ExceptionGroup(f"{len(failures)} of {len(table[part::ITEMS])} rows\n{names}", failures)

        del over.__wrapped__  # type: ignore[attr-defined]
        return pytest.mark.parametrize("part", range(ITEMS))(over)

    return decorate
