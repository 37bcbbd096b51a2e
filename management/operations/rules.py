"""Rules: SQL on messages and events, with actions; and the available action types."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Self

import msgspec

from taipan.broker.mqtt.topics import matches
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.records import (
    ActionMetrics,
    ActionTypeRecord,
    EvaluationRecord,
    RuleActionRecord,
    RuleEventRecord,
    RuleFunction,
    RuleMetrics,
    RuleRecord,
)
from taipan.ruleengine.rules.rule import Rule
from taipan.ruleengine.stored.param_masking import actions_given_back
from taipan.ruleengine.stored.rows import StoredAction

from .durable_answer import check_storable, check_store_writable, wait_until_stored
from .listing import FILTERED, Listing, PageQuery, everything, searched
from .node_calls import NodeCalls
from .node_listing import CompletedListing, Page
from .refusal import engine_refusals
from .topic_checks import checked_filter

Matches = Callable[[Rule], bool]


class RulesQuery(PageQuery, kw_only=True):
    """Conditions of a search; all given conditions must hold. ``enable_paging=false``: all rules, oldest first, and no
    ``meta``.

    ``source``: one of the rule's topics; ``like_for``: a part of one; ``match_for``: a filter that matches one of them,
    taken as a topic name."""

    pages_on_demand: ClassVar[bool] = True

    enabled: bool | None = None
    source: str | None = msgspec.field(default=None, name="for")
    like_id: str | None = msgspec.field(default=None, name="_like_id")
    like_for: str | None = msgspec.field(default=None, name="_like_for")
    match_for: str | None = msgspec.field(default=None, name="_match_for")
    like_description: str | None = msgspec.field(default=None, name="_like_description")
    enable_paging: bool = True


class RuleFigures(msgspec.Struct):
    """The metrics of a rule on one node, and those of its actions by their ids."""

    rule: RuleMetrics
    actions: dict[str, ActionMetrics]

    @classmethod
    def of(cls, rule: Rule, node: str) -> Self:
        """``node``: the name of this node."""
        return cls(
            rule.counters.record(node), {each.stored.id: each.counters.record(node) for each in rule.all_actions}
        )


class Rules:
    """Operations on rules. They raise Refusal; a change is on disk when its call returns."""

    def __init__(self, engine: RuleEngine, calls: NodeCalls) -> None:
        self._engine = engine
        self._tables = engine.server.tables
        self._calls = calls
        calls.serve(self.figures, self.reset_metrics_here, self.trace_here, self.keep_trace_here)

    def search(self, query: RulesQuery, max_rows: int) -> Page[RuleRecord]:
        """Return one page of the matching rules, newest first. Raises Refusal for an invalid ``match_for``."""
        return self._completed(self._search(query, max_rows))

    def _search(self, query: RulesQuery, max_rows: int) -> Listing[RuleRecord]:
        rules = self._engine.rules.all()[::-1]
        page, limit = query.page, query.rows(max_rows)
        conditions = list(_conditions(query))
        if not conditions:
            return Listing(rules, page, limit, self._record, len(rules))
        matching = searched(rules, _all_of(conditions))
        return Listing(matching, page, limit, self._record, FILTERED)

    def everything(self, query: RulesQuery) -> Page[RuleRecord]:
        """Return all matching rules, oldest first."""
        matching = searched(self._engine.rules.all(), _all_of(list(_conditions(query))))
        return self._completed(everything(matching, self._record))

    def _completed(self, listing: Listing[RuleRecord]) -> Page[RuleRecord]:
        return CompletedListing(listing, self._add_figures) if self._calls.clustered else listing

    async def lookup(self, rule_id: str) -> tuple[RuleRecord, list[str]]:
        """Return a rule, and the nodes that did not answer."""
        with engine_refusals():
            record = self._engine.rules.lookup(rule_id)
        return record, await self._add_figures([record])

    def figures(self, rule_ids: list[str]) -> dict[str, RuleFigures]:
        """Return this node's metrics of each of these rules that exists here."""
        rules, node = self._engine.rules, self._calls.name
        return {each: RuleFigures.of(rules.get(each), node) for each in rule_ids if each in rules}

    async def _add_figures(self, records: list[RuleRecord]) -> list[str]:
        """Add the metrics of all nodes to these rules, in the order of the nodes; return the nodes that did not
        answer."""
        if not self._calls.clustered:
            return []
        found, missing = await self._calls.everywhere(self.figures, [record.id for record in records])
        for record in records:
            counted = [figures[record.id] for _, figures in found if record.id in figures]
            record.metrics = [each.rule for each in counted]
            for action in _actions(record.actions):
                action.metrics = [each.actions[action.id] for each in counted if action.id in each.actions]
        return self._calls.may_lack(missing)

    async def create(
        self,
        rawsql: str,
        actions: Sequence[Mapping[str, object]],
        id: str | None = None,
        description: str = "",
        enabled: bool = True,
        on_action_failed: str = "continue",
    ) -> RuleRecord:
        """Create a rule; return its record. ``actions``: ``name``, ``params`` and optionally ``fallbacks`` of each."""
        check_store_writable(self._tables)
        check_storable("actions", list(actions))
        with engine_refusals():
            actions = actions_given_back(actions, (), self._engine.action_types)
            record = await self._engine.rules.create(rawsql, actions, id, description, enabled, on_action_failed)
        await wait_until_stored(self._tables)
        await self._add_figures([record])
        return record

    async def update(self, rule_id: str, changes: Mapping[str, object]) -> RuleRecord:
        """Change any argument of ``create`` except ``id``; the rest remains. Return the rule's record.

        Unchanged actions keep their ids and continue their pending work; a masked secret remains unchanged."""
        check_store_writable(self._tables)
        check_storable("actions", changes.get("actions", []))
        with engine_refusals():
            if "actions" in changes:
                stored = self._engine.rules.get(rule_id).stored.actions
                actions = actions_given_back(changes["actions"], stored, self._engine.action_types)
                changes = {key: value for key, value in changes.items() if key != "actions"}
                if not _are(stored, actions):
                    changes["actions"] = actions
            record = await self._engine.rules.update(rule_id, changes)
        await wait_until_stored(self._tables)
        await self._add_figures([record])
        return record

    async def delete(self, rule_id: str) -> None:
        check_store_writable(self._tables)
        with engine_refusals():
            await self._engine.rules.delete(rule_id)
        await wait_until_stored(self._tables)

    async def reset_metrics(self, rule_id: str) -> None:
        """Reset the metrics of a rule and its actions on all nodes."""
        await self._calls.order_all(self.reset_metrics_here, rule_id)

    def reset_metrics_here(self, rule_id: str) -> None:
        """Reset the metrics on this node."""
        with engine_refusals():
            self._engine.rules.reset_metrics(rule_id)

    async def test(self, rawsql: str, ctx: Mapping[str, object]) -> object:
        """Return the result of the SQL for an example: a row, or for FOREACH the list of rows."""
        with engine_refusals():
            return await self._engine.rules.test_sql(rawsql, ctx)

    async def trace(self, rule_id: str) -> tuple[list[EvaluationRecord], list[str]]:
        """Return the last evaluations of a rule by all nodes, oldest first, and the nodes that did not answer. Empty
        unless evaluations are kept."""
        found, missing = await self._calls.everywhere(self.trace_here, rule_id)
        rows = [row for _, evaluations in found for row in evaluations]
        return sorted(rows, key=lambda row: row.at), self._calls.may_lack(missing)

    def trace_here(self, rule_id: str) -> list[EvaluationRecord]:
        """Return the evaluations on this node."""
        with engine_refusals():
            return self._engine.rules.traced(rule_id)

    async def keep_trace(self, rule_id: str, size: int) -> None:
        """Make all nodes keep the last ``size`` evaluations from now on; 0: none."""
        await self._calls.order_all(self.keep_trace_here, rule_id, size)

    def keep_trace_here(self, rule_id: str, size: int) -> None:
        """Keep evaluations on this node."""
        with engine_refusals():
            self._engine.rules.trace(rule_id, size)

    def events(self) -> list[RuleEventRecord]:
        """Return the events that rules can use, with their columns."""
        return self._engine.rule_events()

    def functions(self) -> list[RuleFunction]:
        """Return the functions of SQL by name, including those of operators."""
        return self._engine.functions()

    def actions(self) -> list[ActionTypeRecord]:
        """Return the action types."""
        return [each.record() for each in self._engine.action_types.values()]

    def action(self, name: str) -> ActionTypeRecord:
        with engine_refusals():
            return self._engine.action_type(name).record()

    def _record(self, rule: Rule) -> RuleRecord:
        return self._engine.rules.record(rule)


def _actions(actions: Sequence[RuleActionRecord]) -> Iterator[RuleActionRecord]:
    """Yield these actions and all their fallbacks."""
    for action in actions:
        yield action
        yield from _actions(action.fallbacks)


def _are(stored: Sequence[StoredAction], given: object) -> bool:
    """Return whether these actions equal the stored ones, apart from their ids."""
    return _plain([_given(each) for each in stored]) == _plain(given)


def _given(action: StoredAction) -> dict[str, object]:
    return {"name": action.name, "params": action.params, "fallbacks": [_given(each) for each in action.fallbacks]}


def _plain(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _conditions(query: RulesQuery) -> Iterator[Matches]:
    enabled, source, part = query.enabled, query.source, query.like_for
    wanted, in_id, in_description = query.match_for, query.like_id, query.like_description
    if enabled is not None:
        yield lambda rule: (rule.stored.enabled and not rule.suspended) is enabled
    if source is not None:
        yield lambda rule: source in rule.sources
    if in_id is not None:
        yield lambda rule: in_id in rule.stored.id
    if part is not None:
        yield lambda rule: any(part in each for each in rule.sources)
    if wanted is not None:
        checked_filter("_match_for", wanted)
        yield lambda rule: any(matches(wanted, each) for each in rule.sources)
    if in_description is not None:
        yield lambda rule: in_description in rule.stored.description


def _all_of(conditions: list[Matches]) -> Matches:
    return lambda rule: all(holds(rule) for holds in conditions)
