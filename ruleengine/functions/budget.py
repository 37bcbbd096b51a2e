"""The cost limit of one evaluation of one rule, so that no rule can block the event loop."""

from __future__ import annotations

from typing import Final

DEFAULT_STEPS: Final = 20_000
DEFAULT_BYTES: Final = 16 * 1024 * 1024


class BudgetExceeded(ValueError):
    """An evaluation needed more steps or bytes than allowed."""


class Budget:
    """Counts down the steps (iterations, list elements) and bytes (of values built) that an evaluation may still use.

    Charge it *before* building something large, so that the evaluation stops in time."""

    __slots__ = ("bytes_left", "steps_left")

    def __init__(self, steps: int = DEFAULT_STEPS, size: int = DEFAULT_BYTES) -> None:
        self.steps_left = steps
        self.bytes_left = size

    def step(self, n: int = 1) -> None:
        """Take `n` steps; raise `BudgetExceeded` when fewer are left."""
        self.steps_left -= n
        if self.steps_left < 0:
            raise BudgetExceeded("the evaluation needs too many steps")

    def take_bytes(self, n: int) -> None:
        """Take `n` bytes of output; raise `BudgetExceeded` when less is left."""
        self.bytes_left -= n
        if self.bytes_left < 0:
            raise BudgetExceeded("the evaluation builds too much output")
