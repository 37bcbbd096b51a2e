"""Counted: the metrics of rules and actions, stored from time to time, so that counting continues after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from taipan.broker.persistence.tables import Table, Tables

from ..rules.rule import Rule, RuleAction

TABLE: Final = "rule_counters"
_MAX_ROWS_PER_TICK: Final = 1000
"""Number of rows that one tick writes."""


class StoredCounters(msgspec.Struct, frozen=True, array_like=True):
    """The counters of one rule; ``actions`` by the id of the action: taken, success, failed."""

    matched: int
    passed: int
    no_result: int
    exception: int
    speed_max: float
    actions: dict[str, tuple[int, int, int]]


class Counted:
    """The metrics of all rules as they were last written.

    They are not written for each message: ``save`` is called at ticks and at the stop. Counts since the last call are
    lost if the process is killed."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._table: Table[StoredCounters] = tables.open(TABLE, StoredCounters)
        self._left: list[Rule] = []

    def restore(self, rule: Rule) -> None:
        """Continue with the counts of the previous process."""
        stored = self._table.get(rule.stored.id)
        if stored is None:
            return
        rule.counters.resume(stored.matched, stored.passed, stored.no_result, stored.exception, stored.speed_max)
        for action in rule.all_actions:
            figures = stored.actions.get(action.stored.id)
            if figures is not None:
                action.counters.resume(*figures)

    def save_some(self, rules: Iterable[Rule]) -> None:
        """Write the changes of some rules; those of all rules within a few calls."""
        if not self._left:
            self._left = list(rules)
        self._save(self._left[-_MAX_ROWS_PER_TICK:])
        del self._left[-_MAX_ROWS_PER_TICK:]

    def save(self, rules: Iterable[Rule]) -> None:
        """Write all changes."""
        self._save(list(rules))

    def forget(self, rule_id: str) -> None:
        self._table.remove(rule_id)

    def _save(self, rules: list[Rule]) -> None:
        if not self._tables.durable or self._tables.in_trouble:
            return
        for rule in rules:
            counters = rule.counters
            actions = {each.stored.id: _figures(each) for each in rule.all_actions}
            row = StoredCounters(
                counters.matched, counters.passed, counters.no_result, counters.exception, counters.speed_max, actions
            )
            there = self._table.get(rule.stored.id)
            if row != there and (there is not None or counters.evaluated or any(map(any, actions.values()))):
                self._table.put(rule.stored.id, row)


def _figures(action: RuleAction) -> tuple[int, int, int]:
    counters = action.counters
    return counters.taken, counters.success, counters.failed
