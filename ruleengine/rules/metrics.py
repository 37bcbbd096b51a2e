"""The metrics of rules and actions: integers, and speeds that are computed from them at each tick."""

from __future__ import annotations

from collections import deque
from typing import Final

from ..records import ActionMetrics, RuleMetrics

TICK: Final = 10.0
"""Seconds between two measurements of speed."""
TICKS: Final = 30
"""Number of measurements over which ``speed_last5m`` is averaged."""


class RuleCounters:
    """The counters of one rule. ``matched``: WHERE was true; ``passed``: and there was at least one row; ``no_result``:
    neither; ``exception``: the evaluation failed, or an action failed in a rule that then stops. Speeds are those of
    ``matched``."""

    __slots__ = ("_before", "_speeds", "exception", "matched", "no_result", "passed", "speed", "speed_max")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all values."""
        self.matched = 0
        self.passed = 0
        self.no_result = 0
        self.exception = 0
        self.speed = 0.0
        self.speed_max = 0.0
        self._before = 0
        self._speeds: deque[float] = deque(maxlen=TICKS)

    def resume(self, matched: int, passed: int, no_result: int, exception: int, speed_max: float) -> None:
        """Continue counting from these values."""
        self.matched = self._before = matched
        self.passed = passed
        self.no_result = no_result
        self.exception = exception
        self.speed_max = speed_max

    @property
    def failed(self) -> int:
        return self.no_result + self.exception

    @property
    def evaluated(self) -> int:
        """How often the SQL was run: EMQX 4.4's ``matched``."""
        return self.passed + self.no_result + self.exception

    @property
    def speed_last5m(self) -> float:
        return sum(self._speeds) / len(self._speeds) if self._speeds else 0.0

    def tick(self) -> None:
        """Measure the speed; called every ``TICK`` seconds."""
        self.speed = (self.matched - self._before) / TICK
        self._before = self.matched
        self.speed_max = max(self.speed_max, self.speed)
        self._speeds.append(self.speed)

    def record(self, node: str) -> RuleMetrics:
        return RuleMetrics(
            node,
            self.matched,
            round(self.speed, 2),
            round(self.speed_max, 2),
            round(self.speed_last5m, 2),
            self.evaluated,
            self.passed,
            self.failed,
            self.no_result,
            self.exception,
        )


class ActionCounters:
    """The counters of one action: rows that it received (``taken``), and their outcomes."""

    __slots__ = ("failed", "success", "taken")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all values."""
        self.taken = 0
        self.success = 0
        self.failed = 0

    def resume(self, taken: int, success: int, failed: int) -> None:
        """Continue counting from these values."""
        self.taken = taken
        self.success = success
        self.failed = failed

    def record(self, node: str) -> ActionMetrics:
        return ActionMetrics(node, self.success, self.failed, self.taken)
