"""Rule: a stored rule (``StoredRule``) at run time, with its program, its actions and its counters."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol, cast

from msgspec import UNSET

from ..actions.action import Action, ActionFailed, ActionType, Row
from ..records import LastError, OnActionFailed, RuleActionRecord, RuleRecord
from ..stored.param_masking import shown
from .metrics import ActionCounters, RuleCounters
from .trace import Evaluation, RuleTrace, sample

if TYPE_CHECKING:
    from ..event import Event
    from ..events.columns import Columns
    from ..functions.budget import Budget
    from ..stored.rows import StoredAction, StoredRule
    from .runtime import Runtime

logger = logging.getLogger(__name__)


LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about failures of one rule or action."""
MAX_SAMPLE_LENGTH: Final = 512


class Selection(Protocol):
    """The program that is run for the columns of an event: that of an SQL text (``sql.compiler.Program``)."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    def run(self, columns: Columns, budget: Budget) -> list[dict[str, object]] | None: ...


class RuleAction:
    """One action of a rule, with its fallbacks; also the ``Report`` of an action whose outcome comes later.

    ``instance`` is None while the rule is not running."""

    __slots__ = ("_logged_at", "_runtime", "counters", "fallbacks", "instance", "last_error", "stored")

    def __init__(self, stored: StoredAction, runtime: Runtime) -> None:
        self.stored = stored
        self._runtime = runtime
        self.instance: Action | None = None
        self.fallbacks = tuple(RuleAction(each, runtime) for each in stored.fallbacks)
        self.counters = ActionCounters()
        self.last_error: LastError | None = None
        self._logged_at = float("-inf")

    def run(self, row: Row, event: Event, evaluation: Evaluation | None = None) -> bool:
        """Run the action for one row; return False if it failed, and its fallbacks were run."""
        instance = self.instance
        if instance is None:
            return True
        self.counters.taken += 1
        try:
            done = instance.run(row, event)
        except ActionFailed as error:
            reason = str(error)
        except Exception as error:
            # The code may be the operator's own: an error in it must not end the publication.
            reason = f"{type(error).__name__}: {error}"
            logger.debug("action_crashed action=%s", self.stored.id, exc_info=True)
        else:
            if done:
                self.success()
            if evaluation is not None:
                evaluation.acted(self.stored.id, "success" if done else "taken")
            return True
        if evaluation is not None:
            evaluation.acted(self.stored.id, "failed", reason)
        self._fail(reason, row, event, 1, evaluation)
        return False

    def success(self, count: int = 1) -> None:
        self.counters.success += count
        self._runtime.metrics.actions_success += count

    def failed(self, reason: str, row: Row | None = None, event: Event | None = None, count: int = 1) -> None:
        self._fail(reason, row, event, count, None)

    def _fail(self, reason: str, row: Row | None, event: Event | None, count: int, trace: Evaluation | None) -> None:
        runtime = self._runtime
        now = runtime.clock.now()
        self.counters.failed += count
        runtime.metrics.actions_failure += count
        self.last_error = LastError.of(
            runtime.clock.wall(), reason, sample="" if row is None else sample(row)[:MAX_SAMPLE_LENGTH]
        )
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            logger.warning("action_failed action=%s reason=%s", self.stored.id, reason)
        if row is None:
            return
        for fallback in self.fallbacks:
            fallback.run(row, event or runtime.restored_event(), trace)

    def walk(self) -> Iterator[RuleAction]:
        """Yield this action and all fallbacks below it."""
        yield self
        for fallback in self.fallbacks:
            yield from fallback.walk()

    def inherit(self, other: RuleAction) -> None:
        """Continue counting from the action that this one replaces."""
        self.counters = other.counters
        for fallback, before in zip(self.fallbacks, other.fallbacks, strict=False):
            fallback.inherit(before)

    def close(self) -> None:
        for each in self.walk():
            instance, each.instance = each.instance, None
            if instance is not None:
                instance.close()

    def record(self, node: str, types: Mapping[str, ActionType]) -> RuleActionRecord:
        kind = types.get(self.stored.name)
        return RuleActionRecord(
            id=self.stored.id,
            name=self.stored.name,
            params=shown(self.stored.params, () if kind is None else kind.params),
            metrics=[self.counters.record(node)],
            fallbacks=[each.record(node, types) for each in self.fallbacks],
            last_error=self.last_error or UNSET,
        )


class Rule:
    """One rule. ``running``: it is evaluated; ``suspended``: why it is not, although it is enabled, otherwise empty.

    ``program`` is None for a stored rule whose SQL can no longer be used. A change creates a new ``Rule`` that
    continues these counters, so that a running evaluation notices that its rule has ended."""

    __slots__ = ("actions", "counters", "last_error", "logged_at", "program", "running", "stored", "suspended", "trace")

    def __init__(self, stored: StoredRule, program: Selection | None, actions: tuple[RuleAction, ...]) -> None:
        self.stored = stored
        self.program = program
        self.actions = actions
        self.running = False
        self.suspended = ""
        self.counters = RuleCounters()
        self.last_error: LastError | None = None
        self.logged_at = float("-inf")
        self.trace: RuleTrace | None = None

    @property
    def usable(self) -> bool:
        """Whether the SQL of the rule could be compiled."""
        return self.program is not None

    @property
    def sources(self) -> tuple[str, ...]:
        return () if self.program is None else self.program.sources

    @property
    def all_actions(self) -> Iterator[RuleAction]:
        """Yield its actions and their fallbacks."""
        for action in self.actions:
            yield from action.walk()

    def inherit(self, other: Rule) -> None:
        """Continue counting from the rule before a change; actions are matched by their position."""
        self.counters = other.counters
        self.last_error = other.last_error
        self.trace = other.trace
        for action, before in zip(self.actions, other.actions, strict=False):
            action.inherit(before)

    def record(self, node: str, types: Mapping[str, ActionType]) -> RuleRecord:
        stored = self.stored
        return RuleRecord(
            id=stored.id,
            rawsql=stored.rawsql,
            sources=list(self.sources),
            enabled=stored.enabled and not self.suspended,
            description=stored.description,
            on_action_failed=cast(OnActionFailed, stored.on_action_failed),
            created_at=stored.created_at,
            metrics=[self.counters.record(node)],
            actions=[action.record(node, types) for action in self.actions],
            suspended=self.suspended or UNSET,
            last_error=self.last_error or UNSET,
        )
