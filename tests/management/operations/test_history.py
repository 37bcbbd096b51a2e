"""Drops of many points by their reasons."""

import pytest

from taipan.management.history.point import FIGURES, Point
from taipan.management.operations.history import MAX_REASONS, drops_by_reason

pytestmark = pytest.mark.asyncio


def point(at: int, drops: dict[str, int | float] | None = None) -> Point:
    return Point(at, 1.0, [0] * len(FIGURES), drops or {})


async def test_drops_have_a_number_for_each_point() -> None:
    points = [point(1, {"a": 1}), point(2), point(3, {"b": 5, "a": 1})]
    assert await drops_by_reason(points) == {"b": [0, 0, 5], "a": [1, 0, 1]}
    assert await drops_by_reason([]) == {}


async def test_the_rarest_of_many_reasons_are_told_together() -> None:
    drops: dict[str, int | float] = {f"r{number}": 100 - number for number in range(MAX_REASONS + 3)}
    found = await drops_by_reason([point(1, drops), point(2, {"r0": 1, f"r{MAX_REASONS + 2}": 1})])
    assert len(found) == MAX_REASONS + 1
    assert found["r0"] == [100, 1]
    assert found["other"] == [sum(100 - MAX_REASONS - more for more in range(3)), 1]
