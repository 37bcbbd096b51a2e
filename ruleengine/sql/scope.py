"""The state of one evaluation of one rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..events.columns import Columns
from ..functions.budget import Budget
from ..functions.function import FunctionContext, SchemaCodec, no_schema


@dataclass(frozen=True, slots=True)
class FunctionEnvironment:
    """The environment of functions: the node's name, values stored between evaluations, Unix time, and the schemas."""

    node: str = "taipan@127.0.0.1"
    state: dict[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    codec: Callable[[str], SchemaCodec] = no_schema


class Scope:
    """The current input: the columns of the event, overridden by results that already have a name.

    `results` hide columns of the same name; a column that no field has written is read directly."""

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
        """The context for functions, created at the first call of one."""
        if self._context is None:
            environment = self.environment
            self._context = FunctionContext(
                self.columns,
                environment.clock(),
                environment.node,
                environment.state,
                self.budget,
                environment.codec,
            )
        return self._context
