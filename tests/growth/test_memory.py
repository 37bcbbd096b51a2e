"""What one more of each thing takes stays within a bound: half as much again as was measured, or the goal."""

import pytest

from tools.bench.memory import THINGS, Fill, octets

BOUNDS = {
    "subscription": 400,
    "wildcard": 700,
    "member": 400,
    "session": 1700,
    "retained": 1000,
    "queued": 650,
    "queued further": 80,
    "delayed": 1400,
    "rule": 7000,
    "user": 650,
    "access rule": 800,
}


@pytest.mark.slow
@pytest.mark.parametrize("name, fill", [pytest.param(name, fill, id=name) for name, _, fill in THINGS])
def test_one_more(name: str, fill: Fill) -> None:
    count = 300 if name == "rule" else 3000
    assert 10 < octets(fill, count) < BOUNDS[name]
