"""What one evaluation of one rule works on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..events.columns import Columns
from ..functions.budget import Budget
from ..functions.function import FunctionContext


@dataclass(frozen=True, slots=True)
class FunctionEnvironment:
    """The engine as functions see it: the node's name, values stored between evaluations, and Unix time."""

    node: str = "taipan@127.0.0.1"
    state: dict[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.time


class Scope:
    """The working input: the columns of the event, and over them the results that have a name already.

    `results` shadow columns of the same name; a column that no field has written is read directly.
    """

    __slots__ = ("_context", "budget", "columns", "environment", "results")

    def __init__(
        self, columns: Columns, results: dict[str, object], budget: Budget, environment: FunctionEnvironment
    ) -> None:
        self.columns = columns
        self.results = results
        self.budget = budget
        self.environment = environment
        self._context: FunctionContext | None = None

    def context(self) -> FunctionContext:
        """What functions get; made when the first one is called."""
        if self._context is None:
            environment = self.environment
            self._context = FunctionContext(
                self.columns, environment.clock(), environment.node, environment.state, self.budget
            )
        return self._context
