"""What one evaluation of one rule may cost, so that no rule can stall the loop."""

from __future__ import annotations

from typing import Final

DEFAULT_STEPS: Final = 20_000
DEFAULT_OCTETS: Final = 16 * 1024 * 1024


class BudgetExceeded(ValueError):
    """An evaluation asked for more steps or octets than it was given."""


class Budget:
    """Counts down the steps (loop rounds, list elements) and octets (of values built) that an evaluation may still use.

    Whoever builds something large asks *before* building it, so that the refusal comes in time.
    """

    __slots__ = ("octets_left", "steps_left")

    def __init__(self, steps: int = DEFAULT_STEPS, octets: int = DEFAULT_OCTETS) -> None:
        self.steps_left = steps
        self.octets_left = octets

    def step(self, n: int = 1) -> None:
        """Take `n` steps; raise `BudgetExceeded` when fewer are left."""
        self.steps_left -= n
        if self.steps_left < 0:
            raise BudgetExceeded("the evaluation takes too many steps")

    def octets(self, n: int) -> None:
        """Take room for `n` octets of output; raise `BudgetExceeded` when less is left."""
        self.octets_left -= n
        if self.octets_left < 0:
            raise BudgetExceeded("the evaluation builds too much output")
