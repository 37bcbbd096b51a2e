"""Runtime: applies rules to an event, one after another; an error in a rule ends only that rule."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from taipan.broker.loop.budget import LoopBudget
from taipan.broker.loop.timers import DatedTimeSource
from taipan.broker.observability.metrics import Metrics

from ..actions.action import ActionFailed
from ..config import RuleEngineSettings
from ..event import Event, EventEnvironment
from ..events.kinds import RESTORED_EVENT
from ..functions.budget import Budget
from ..records import LastError
from ..sql.error import EvaluationError
from .rule import LOG_INTERVAL, MAX_SAMPLE_LENGTH, Rule
from .trace import Evaluation, sample

logger = logging.getLogger(__name__)


STEPS_PER_DELIVERY: Final = 4
"""Number of deliveries in the budget of the loop iteration that the steps of an evaluation count as."""


_DELIVERIES_PER_SECOND: Final = 100_000
"""Processor time of an event with more than one rule or action, in the same budget: 40 ms end an iteration."""


class Runtime:
    """The environment of all rules of the node."""

    def __init__(
        self,
        settings: RuleEngineSettings,
        metrics: Metrics,
        clock: DatedTimeSource,
        environment: EventEnvironment,
        loop_budget: LoopBudget,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.environment = environment
        self.processor_time: Callable[[], float] = time.thread_time
        self._loop_budget = loop_budget
        self._depth = 0
        self._chained = 0
        # When the current second began, and how many of its messages rules created from republished ones.
        self._second = 0.0
        self._this_second = 0
        # For the current event, from its second rule or action on: when to read the processor time, and its value at
        # the beginning. 0: not yet.
        self._check_at = 0.0
        self._began = 0.0

    def restored_event(self) -> Event:
        """Return a replacement for an event of which only the row remains."""
        return Event(RESTORED_EVENT, self.environment, self.clock.wall())

    def apply(self, rules: tuple[Rule, ...], event: Event) -> None:
        """Evaluate each rule that is still running when the previous ones are done."""
        if self._depth == 0:
            self._chained = 0
            self._check_at = 0.0
        self._depth += 1
        try:
            if len(rules) == 1 and self._depth == 1:
                rule = rules[0]
                if rule.running:
                    self._evaluate(rule, event)
                return
            for rule in rules:
                if rule.running:
                    if self._over_time():
                        self._skip(rule, event)
                    else:
                        self._evaluate(rule, event)
        finally:
            self._depth -= 1
            if self._check_at and self._depth == 0:
                self._loop_budget.deliveries += int((self.processor_time() - self._began) * _DELIVERIES_PER_SECOND)

    def _over_time(self) -> bool:
        """Return whether rules and actions have used up ``max_time`` for the current event."""
        now = time.perf_counter()
        if not self._check_at:
            self._began = self.processor_time()
            self._check_at = now + self.settings.max_time
            return False
        if now < self._check_at:
            return False
        # Wall-clock time includes other processes.
        left = self.settings.max_time - (self.processor_time() - self._began)
        if left > 0:
            self._check_at = now + left
        return left <= 0

    def _skip(self, rule: Rule, event: Event) -> None:
        evaluation = None if rule.trace is None else rule.trace.begin(event)
        self._failed(rule, event, "", f"not evaluated: {self._too_long()}", evaluation)

    def _too_long(self) -> str:
        return f"the processing that this event caused has taken {self.settings.max_time} seconds (ruleengine.max_time)"

    def take_hop(self, event: Event) -> int:
        """Return the hops of a message that this event causes. Raises ActionFailed if a chain of rules has to end."""
        hops = event.hops + 1
        if hops > self.settings.max_hops:
            raise ActionFailed(
                f"a loop of rules: the message was republished or bridged {event.hops} times already "
                "(ruleengine.max_hops)"
            )
        if hops > 1 or self._depth > 1:
            self._chained += 1
            if self._chained > self.settings.max_chained:
                raise ActionFailed(
                    f"a loop of rules: one event led to more than {self.settings.max_chained} messages republished "
                    "by rules that saw republished messages (ruleengine.max_chained)"
                )
            self._count_in_second()
        return hops

    def _count_in_second(self) -> None:
        """Count the message, unless it is one of the few that an event causes if rules follow one another once."""
        most = self.settings.max_chained_rate
        if not most or self._chained <= self.settings.max_hops:
            return
        now = self.clock.now()
        if not 0 <= now - self._second < 1:
            self._second = now
            self._this_second = 0
        self._this_second += 1
        if self._this_second > most:
            self.metrics.refusals.add("rules_chained_rate")
            raise ActionFailed(
                f"a loop of rules: rules that saw republished messages made more than {most} messages within a second "
                "(ruleengine.max_chained_rate)"
            )

    def _evaluate(self, rule: Rule, event: Event) -> None:
        trace = rule.trace
        evaluation = None if trace is None else trace.begin(event)
        counters = rule.counters
        settings = self.settings
        budget = Budget(settings.max_steps, settings.max_output)
        program = rule.program
        assert program is not None  # only usable rules run
        try:
            rows = program.run(event.columns, budget)
        except EvaluationError as error:
            self._loop_budget.deliveries += (settings.max_steps - budget.steps_left) // STEPS_PER_DELIVERY
            self._failed(rule, event, error.clause, error.message, evaluation)
            return
        except Exception as error:
            # A function may be the operator's own: the message and the other rules continue.
            logger.debug("rule_crashed rule=%s", rule.stored.id, exc_info=True)
            self._failed(rule, event, "", f"{type(error).__name__}: {error}", evaluation)
            return
        if budget.steps_left != settings.max_steps:
            self._loop_budget.deliveries += (settings.max_steps - budget.steps_left) // STEPS_PER_DELIVERY
        if rows is not None:
            counters.matched += 1
            self.metrics.rules_matched += 1
        if not rows:
            counters.no_result += 1
            if evaluation is not None:
                evaluation.refused("no_result")
            return
        if evaluation is not None:
            evaluation.passed(rows)
        actions = rule.actions
        stops = rule.stored.on_action_failed == "stop"
        alone = len(rows) == len(actions) == 1
        self._loop_budget.deliveries += len(rows) * len(actions)
        for row in rows:
            for action in actions:
                if not rule.running:
                    break  # deleted, disabled or changed by its own action
                if not alone and self._over_time():
                    self._failed(rule, event, "", f"not all actions were run: {self._too_long()}", evaluation)
                    return
                if not action.run(row, event, evaluation) and stops:
                    reason = f"action {action.stored.id} failed, and on_action_failed is stop"
                    self._failed(rule, event, "", reason, evaluation)
                    return
        counters.passed += 1

    def _failed(self, rule: Rule, event: Event, clause: str, reason: str, evaluation: Evaluation | None) -> None:
        now = self.clock.now()
        rule.counters.exception += 1
        columns = event.columns
        seen = columns.get("payload") if event.message is not None else None
        rule.last_error = LastError.of(
            self.clock.wall(), reason, clause, "" if seen is None else sample(seen)[:MAX_SAMPLE_LENGTH]
        )
        if evaluation is not None:
            evaluation.refused("exception", f"{clause}: {reason}" if clause else reason)
        if now - rule.logged_at >= LOG_INTERVAL:
            rule.logged_at = now
            logger.warning("rule_failed rule=%s clause=%s reason=%s", rule.stored.id, clause or "-", reason)
