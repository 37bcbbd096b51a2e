"""How long a test waits for what must come, before it fails: a guard against waiting for ever, and nothing else."""

import os
from typing import Final

_RUNNABLE: Final = 3.0
"""Processes that want a core while ``make test`` has the machine for itself."""
_SLOWEST: Final = 8.0


def slowness() -> float:
    """How many times longer everything takes than while nothing runs beside the tests."""
    try:
        wanting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 1.0
    return min(_SLOWEST, max(1.0, wanting / _RUNNABLE))


def patience(seconds: float) -> float:
    """These seconds, and more in proportion where the machine has more to do than the tests."""
    return seconds * slowness()
