"""Runtime: applies rules to an event, one after another, and never lets one of them disturb what it looks at."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from taipan.broker.loop.budget import LoopBudget
from taipan.broker.loop.timers import DatedTimeSource
from taipan.broker.observability.metrics import Metrics

from .actions.action import ActionFailed
from .budget import Budget
from .config import RuleEngineSettings
from .event import Event, EventEnvironment
from .events import RESTORED_EVENT
from .metrics import LastError
from .rule import MOST_SAMPLE, QUIET, Rule
from .sql.error import EvaluationError
from .trace import Evaluation, sample

logger = logging.getLogger(__name__)


STEPS_PER_DELIVERY: Final = 4
"""What an evaluation takes stands in the broker's account of the loop turn as deliveries."""


_STEPS_A_SECOND: Final = 100_000
"""What an event takes that leads to more than one thing, in the same account: a turn ends after 40 ms of it."""


class Runtime:
    """What all rules of the node run in."""

    def __init__(
        self,
        settings: RuleEngineSettings,
        metrics: Metrics,
        clock: DatedTimeSource,
        environment: EventEnvironment,
        turn: LoopBudget,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.environment = environment
        self.processor_time: Callable[[], float] = time.thread_time
        self._turn = turn
        self._depth = 0
        self._chained = 0
        # When the running second began, and how many of its messages rules made of republished ones.
        self._second = 0.0
        self._this_second = 0
        # Of the event under way, from the second thing that is done about it on: when to look at the processor time,
        # and what that was then. 0: not yet.
        self._look_at = 0.0
        self._began = 0.0

    def restored_event(self) -> Event:
        """Stands for an event that is not in memory any more."""
        return Event(RESTORED_EVENT, self.environment, self.clock.wall())

    def apply(self, rules: tuple[Rule, ...], event: Event) -> None:
        """Run each rule that still runs when its turn comes."""
        if self._depth == 0:
            self._chained = 0
            self._look_at = 0.0
        self._depth += 1
        try:
            if len(rules) == 1 and self._depth == 1:
                rule = rules[0]
                if rule.running:
                    self._evaluate(rule, event)
                return
            for rule in rules:
                if rule.running:
                    if self._late():
                        self._skip(rule, event)
                    else:
                        self._evaluate(rule, event)
        finally:
            self._depth -= 1
            if self._look_at and self._depth == 0:
                self._turn.deliveries += int((self.processor_time() - self._began) * _STEPS_A_SECOND)

    def _late(self) -> bool:
        """Whether what the event under way has led to has taken its time."""
        now = time.perf_counter()
        if not self._look_at:
            self._began = self.processor_time()
            self._look_at = now + self.settings.max_time
            return False
        if now < self._look_at:
            return False
        # The clock on the wall also counts what the processor did for others.
        left = self.settings.max_time - (self.processor_time() - self._began)
        if left > 0:
            self._look_at = now + left
        return left <= 0

    def _skip(self, rule: Rule, event: Event) -> None:
        evaluation = None if rule.trace is None else rule.trace.begin(event)
        self._failed(rule, event, "", f"not evaluated: {self._too_long()}", evaluation)

    def _too_long(self) -> str:
        return f"what this event led to has taken {self.settings.max_time} seconds already (ruleengine.max_time)"

    def take_hop(self, event: Event) -> int:
        """The hops of a message that this event gives rise to. Raises ActionFailed where a chain of rules must end."""
        hops = event.hops + 1
        if hops > self.settings.max_hops:
            raise ActionFailed(
                f"a loop of rules: the message was republished or bridged {event.hops} times already "
                "(ruleengine.max_hops)"
            )
        if hops > 1 or self._depth > 1:
            self._chained += 1
            self._take_from_second()
            if self._chained > self.settings.max_chained:
                raise ActionFailed(
                    f"a loop of rules: one event led to more than {self.settings.max_chained} messages republished "
                    "by rules that saw republished messages (ruleengine.max_chained)"
                )
        return hops

    def _take_from_second(self) -> None:
        """Count it, unless it is one of the few that an event leads to where rules follow one another once."""
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
        try:
            rows = rule.program.run(event.columns, budget)
        except EvaluationError as error:
            self._turn.deliveries += (settings.max_steps - budget.steps_left) // STEPS_PER_DELIVERY
            self._failed(rule, event, error.clause, error.message, evaluation)
            return
        except Exception as error:
            # The rim of functions that may be the operator's own: the message goes on, and so do the other rules.
            logger.debug("rule_crashed rule=%s", rule.row.id, exc_info=True)
            self._failed(rule, event, "", f"{type(error).__name__}: {error}", evaluation)
            return
        if budget.steps_left != settings.max_steps:
            self._turn.deliveries += (settings.max_steps - budget.steps_left) // STEPS_PER_DELIVERY
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
        stops = rule.row.on_action_failed == "stop"
        alone = len(rows) == len(actions) == 1
        self._turn.deliveries += len(rows) * len(actions)
        for row in rows:
            for action in actions:
                if not rule.running:
                    break  # deleted, disabled or changed by what it did itself
                if not alone and self._late():
                    self._failed(rule, event, "", f"not all actions were run: {self._too_long()}", evaluation)
                    return
                if not action.run(row, event, evaluation) and stops:
                    reason = f"action {action.row.id} failed, and on_action_failed is stop"
                    self._failed(rule, event, "", reason, evaluation)
                    return
        counters.passed += 1

    def _failed(self, rule: Rule, event: Event, clause: str, reason: str, evaluation: Evaluation | None) -> None:
        now = self.clock.now()
        rule.counters.exception += 1
        columns = event.columns
        seen = columns.get("payload") if event.message is not None else None
        rule.last_error = LastError(
            self.clock.wall(), clause, reason, "" if seen is None else sample(seen)[:MOST_SAMPLE]
        )
        if evaluation is not None:
            evaluation.refused("exception", f"{clause}: {reason}" if clause else reason)
        if now - rule.logged_at >= QUIET:
            rule.logged_at = now
            logger.warning("rule_failed rule=%s clause=%s reason=%s", rule.row.id, clause or "-", reason)
