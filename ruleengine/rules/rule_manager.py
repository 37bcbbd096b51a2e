"""RuleManager: all rules of the node, changed one at a time; running rules are in the rule index."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from taipan.broker.persistence.tables import Table

from ..actions.action import ActionContext, ActionType
from ..error import EXISTS, MISSING, UNKNOWN, WRONG, RuleEngineError
from ..events.kinds import EVENTS
from ..functions.function import SchemaCodec
from ..functions.registry import Function
from ..params import RESOURCE, ParamError, check_params
from ..records import EvaluationRecord, RuleRecord
from ..resources.resource import NodeContext
from ..resources.resource_manager import ResourceManager
from ..sql.ast import Statement
from ..sql.compiler import Program, compile
from ..sql.error import SqlError
from ..sql.scope import FunctionEnvironment
from ..sql.sliced_parsing import SlicedParsing, parse_here
from ..stored.counters import Counted
from ..stored.rows import MAX_ID, StoredAction, StoredRule, check_stored, expect, new_id
from ..stored.shared_rows import TakenRows, check_row, check_unchanged
from . import tester
from .hook_bindings import HookBindings
from .output_names import check_placeholders, output_names, warnings
from .rule import Rule, RuleAction
from .rule_index import RuleIndex
from .runtime import Runtime
from .trace import RuleTrace

logger = logging.getLogger(__name__)

TABLE: Final = "rules"
MAX_ACTIONS: Final = 100
"""Maximum number of actions of one rule, including fallbacks."""
MAX_FALLBACK_DEPTH: Final = 8
MAX_TRACE: Final = 100
ON_FAILED: Final = ("continue", "stop")


class RuleManager:
    """Rules by id, in the order of their creation.

    All refusals are RuleEngineError. A change is in memory when its call returns; for disk, wait for
    ``tables.stored()``."""

    def __init__(
        self,
        node: NodeContext,
        action_types: Mapping[str, ActionType],
        functions: Mapping[str, Function],
        resources: ResourceManager,
        rule_index: RuleIndex,
        runtime: Runtime,
        bindings: HookBindings,
        codec: Callable[[str], SchemaCodec],
    ) -> None:
        self.action_types = action_types
        self._functions = functions
        self._parsing = SlicedParsing()
        self._node = node
        self._resources = resources
        self._rule_index = rule_index
        self._runtime = runtime
        self._bindings = bindings
        self._lock = asyncio.Lock()
        self._table: Table[StoredRule] = node.tables.open(TABLE, StoredRule, shared=True)
        self._taken = TakenRows(self._take)
        self._table.on_taken.append(self._taken.add)
        self._counted = Counted(node.tables)
        self._rules: dict[str, Rule] = {}
        self._order = 0
        self._last_number = 0
        self._environment = FunctionEnvironment(node.node, {}, node.clock.wall, codec)
        resources.users = self

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, id: object) -> bool:
        return id in self._rules

    def all(self) -> list[Rule]:
        return list(self._rules.values())

    def stored_row(self, id: str) -> StoredRule | None:
        """Return the row with this id, if it exists."""
        rule = self._rules.get(id)
        return None if rule is None else rule.stored

    def get(self, id: str) -> Rule:
        rule = self._rules.get(id)
        if rule is None:
            raise RuleEngineError(UNKNOWN, f"there is no rule {id[:MAX_ID]}")
        return rule

    def lookup(self, id: str) -> RuleRecord:
        return self.record(self.get(id))

    def records(self) -> list[RuleRecord]:
        """Return the records in the order of creation."""
        return [self.record(rule) for rule in self._rules.values()]

    def record(self, rule: Rule) -> RuleRecord:
        return rule.record(self._node.node, self.action_types)

    def stored(self) -> list[StoredRule]:
        """Return the stored rows, for an export."""
        return [rule.stored for rule in self._rules.values()]

    def restore(self) -> None:
        """Start the stored rules before the first client connects; a rule that cannot run is suspended with the
        reason."""
        for row in sorted(self._table.values(), key=lambda row: row.order):
            actions = tuple(RuleAction(each, self._runtime) for each in row.actions)
            try:
                rule = Rule(row, self._compile(parse_here(row.rawsql), row.id), actions)
            except SqlError as error:
                rule = Rule(row, None, actions)
                rule.suspended = f"rawsql: {error}"
                logger.error("rule_unusable rule=%s reason=%s", row.id, error)
            self._rules[row.id] = rule
            self._counted.restore(rule)
            self._order = max(self._order, row.order)
            if row.enabled and rule.usable:
                self._start_or_suspend(rule)
        self._bindings.sync()

    async def create(
        self,
        rawsql: str,
        actions: Sequence[Mapping[str, object]],
        id: str | None = None,
        description: str = "",
        enabled: bool = True,
        on_action_failed: str = "continue",
    ) -> RuleRecord:
        """Create a rule; return its record. ``actions``: ``{"name", "params", "fallbacks"}`` each."""
        async with self._lock:
            return self._answer(*await self._create(rawsql, actions, id, description, enabled, on_action_failed))

    async def _create(
        self,
        rawsql: str,
        actions: Sequence[Mapping[str, object]],
        id: str | None,
        description: str,
        enabled: bool,
        on_action_failed: str,
    ) -> tuple[Rule, Statement]:
        id = new_id("rule", id, self._rules)
        if len(self._rules) >= self._node.settings.max_rules:
            raise RuleEngineError(WRONG, "the limit of rules is reached (ruleengine.max_rules)")
        _check_on_failed(on_action_failed)
        statement = await self._parse(rawsql)
        stored = self._check_actions(actions, output_names(statement))
        now = int(self._node.clock.wall() * 1000)
        row = StoredRule(id, rawsql, stored, enabled, description, on_action_failed, now, self._order + 1)
        self.check_row(row)
        if id in self._table:
            raise RuleEngineError(EXISTS, f"rule {id} already exists")
        rule = self._build(row, statement, None)
        self._order += 1
        self._put(rule, None)
        return rule, statement

    async def update(self, id: str, changes: Mapping[str, object]) -> RuleRecord:
        """Change any of ``rawsql``, ``actions``, ``description``, ``enabled``, ``on_action_failed``; the rest remains.
        Return the record."""
        async with self._lock:
            return self._answer(*await self._update(id, changes))

    def _answer(self, rule: Rule, statement: Statement | None) -> RuleRecord:
        """Return the record; if SQL or actions were given, with warnings about probably unintended input."""
        record = self.record(rule)
        if statement is not None:
            every = _with_fallbacks(rule.stored.actions)
            kinds = [(each.params, self._action_type(each.name)) for each in every]
            found = warnings(statement, [(params, kind.params) for params, kind in kinds])
            found += [text for params, kind in kinds for text in kind.undeclared(params)]
            record.warnings = list(dict.fromkeys(found)) or msgspec.UNSET
            for text in found:
                logger.warning("rule_doubtful rule=%s reason=%r", record.id, text)
        return record

    async def _update(self, id: str, changes: Mapping[str, Any]) -> tuple[Rule, Statement | None]:
        old = self.get(id)
        row = old.stored
        known = ("rawsql", "actions", "description", "enabled", "on_action_failed")
        given = {key: changes[key] for key in known if changes.get(key) is not None}
        _check_on_failed(given.get("on_action_failed", row.on_action_failed))
        statement: Statement | None = None
        if "rawsql" in given or "actions" in given or given.get("enabled"):
            statement = await self._parse(given.get("rawsql", row.rawsql))
            names = output_names(statement)
            if "actions" in given:
                given["actions"] = self._check_actions(given["actions"], names)
            else:
                self._check_stored(row.actions, names)
        new_row = self.check_row(msgspec.structs.replace(row, **given))
        check_unchanged(self._table, id, row)
        rule = self._build(new_row, statement, old)
        self._put(rule, old)
        return rule, statement

    async def check_sql(self, rawsql: str, id: str) -> None:
        """Check whether a rule could have this SQL. Raises RuleEngineError."""
        self._compiled(await self._parse(rawsql), id)

    def _compiled(self, statement: Statement, id: str) -> Program:
        try:
            return self._compile(statement, id)
        except SqlError as error:
            raise RuleEngineError.of_sql(error) from error

    async def adopt(self, rows: Sequence[StoredRule]) -> None:
        """Apply rows that ``ImportCheck`` has checked, replacing those with the same ids."""
        async with self._lock:
            for row in rows:
                await self._adopt(row)

    async def _adopt(self, row: StoredRule) -> None:
        """Apply a checked row except its position, which is that of the rule with its id, or the last; a rule that
        cannot run is suspended with the reason."""
        statement = await self._parse(row.rawsql)
        old = self._rules.get(row.id)
        row = check_stored(msgspec.structs.replace(row, order=self._order + 1 if old is None else old.stored.order))
        if old is not None and old.stored == row:
            return
        actions = tuple(RuleAction(each, self._runtime) for each in row.actions)
        rule = Rule(row, self._compiled(statement, row.id), actions)
        if old is not None:
            self._stop(old)
        self._order = max(self._order, row.order)
        self._rules[row.id] = rule
        self._table.put(row.id, row)
        if row.enabled:
            self._start_or_suspend(rule)
        self._bindings.sync()
        logger.info("rule_adopted rule=%s enabled=%s for=%s", row.id, row.enabled, ",".join(rule.sources)[:256])

    def check_row(self, row: StoredRule) -> StoredRule:
        """Return the row if it can be stored and sent to other nodes. Raises RuleEngineError."""
        return check_row(self._table, row)

    async def _take(self, id: str) -> None:
        """Handle a change by another node; the counters of this node stay."""
        async with self._lock:
            row, old = self._table.get(id), self._rules.get(id)
            if row is None:
                if old is not None:
                    self._remove(old)
            elif old is None or old.stored != row:
                await self._replace(row, old)

    async def _replace(self, row: StoredRule, old: Rule | None) -> None:
        """Run the rule of this row instead of ``old``; a rule that cannot run is suspended with the reason."""
        self._order = max(self._order, row.order)
        actions = tuple(RuleAction(each, self._runtime) for each in row.actions)
        try:
            statement = await self._parse(row.rawsql)
            program = self._compiled(statement, row.id)
        except RuleEngineError as error:
            rule = Rule(row, None, actions)
            rule.suspended = error.message
            logger.error("rule_unusable rule=%s reason=%s", row.id, error.message)
        else:
            if old is not None and old.running and row.enabled and row.actions == old.stored.actions:
                self._install(self._build(row, statement, old), old)
                return
            rule = Rule(row, program, actions)
        if old is not None:
            rule.inherit(old)
            self._stop(old)
        self._rules[row.id] = rule
        if row.enabled and rule.usable:
            self._start_or_suspend(rule)
        self._bindings.sync()
        logger.info("rule_taken rule=%s enabled=%s for=%s", row.id, row.enabled, ",".join(rule.sources)[:256])

    async def delete(self, id: str) -> None:
        async with self._lock:
            self._delete(id)

    def _delete(self, id: str) -> None:
        rule = self.get(id)
        check_unchanged(self._table, id, rule.stored)
        self._table.remove(id)
        self._remove(rule)

    def _remove(self, rule: Rule) -> None:
        id = rule.stored.id
        self._stop(rule)
        del self._rules[id]
        self._counted.forget(id)
        self._bindings.sync()
        logger.info("rule_deleted rule=%s", id)

    def reset_metrics(self, id: str) -> None:
        rule = self.get(id)
        rule.counters.reset()
        rule.last_error = None
        for action in rule.all_actions:
            action.counters.reset()
            action.last_error = None

    def trace(self, id: str, size: int = 20) -> None:
        """Keep the last ``size`` evaluations from now on; 0: none."""
        expect("size", size, int, "a whole number")
        if not 0 <= size <= MAX_TRACE:
            raise RuleEngineError(WRONG, f"size: expected 0 to {MAX_TRACE}")
        self.get(id).trace = RuleTrace(size) if size else None

    def traced(self, id: str) -> list[EvaluationRecord]:
        """Return the last evaluations of a rule, oldest first; empty if none are kept."""
        trace = self.get(id).trace
        return [] if trace is None else trace.records()

    async def test_sql(self, rawsql: str, ctx: Mapping[str, object]) -> object:
        """Return the result for an example: a row, or for FOREACH the list of rows."""
        expect("rawsql", rawsql, str, "a string")
        expect("ctx", ctx, Mapping, "an object")
        return tester.test_sql(
            await self._parse(rawsql),
            ctx,
            self._node.settings,
            self._node.node,
            self._functions,
            self._environment.codec,
        )

    def ids_with(self, resource_id: str, enabled_only: bool = False) -> list[str]:
        """Return the ids of the rules with an action or a fallback that uses a resource."""
        return [rule.stored.id for rule in self._users_of(resource_id) if rule.stored.enabled or not enabled_only]

    def _users_of(self, resource_id: str) -> list[Rule]:
        return [
            rule
            for rule in self._rules.values()
            if any(each.stored.params.get(RESOURCE) == resource_id for each in rule.all_actions)
        ]

    def retry_suspended(self) -> None:
        """Start the suspended rules whose resources are available now."""
        again = [rule for rule in self._rules.values() if rule.suspended and rule.usable and rule.stored.enabled]
        for rule in again:
            if self._start_or_suspend(rule, quiet=True):
                logger.info("rule_resumed rule=%s", rule.stored.id)
        if again:
            self._bindings.sync()

    def restart_users_of(self, resource_id: str) -> None:
        """Create new action instances for the rules that use a resource with a new instance."""
        for rule in self._users_of(resource_id):
            if rule.running:
                self._stop(rule)
                self._start_or_suspend(rule)
        self.retry_suspended()
        self._bindings.sync()

    def tick(self) -> None:
        """Once a second: update speeds, store counters, and start rules whose resources are available now."""
        for rule in self._rules.values():
            rule.counters.tick()
        self._counted.save_some(self._rules.values())
        self.retry_suspended()

    def save_counters(self) -> None:
        """Store the counters for the next process; the last step of a stop."""
        self._counted.save(self._rules.values())

    def close(self) -> None:
        self._taken.close()
        for rule in self._rules.values():
            self._stop(rule)
        self._bindings.sync()

    # Creation

    async def _parse(self, rawsql: str) -> Statement:
        expect("rawsql", rawsql, str, "a string")
        try:
            return await self._parsing.parse(rawsql)
        except SqlError as error:
            raise RuleEngineError.of_sql(error) from error

    def _compile(self, statement: Statement, id: str) -> Program:
        return compile(
            statement, self._functions, environment=self._environment, metadata={"rule_id": id}, events=EVENTS
        )

    def _build(self, row: StoredRule, statement: Statement | None, old: Rule | None) -> Rule:
        """Return the rule of a row, running if it should run; without a ``statement``, that of ``old`` continues."""
        if statement is None:
            assert old is not None
            program = old.program
        else:
            program = self._compiled(statement, row.id)
        if old is not None and row.actions == old.stored.actions and old.running and row.enabled:
            # The same instances continue.
            rule = Rule(row, program, old.actions)
        else:
            rule = Rule(row, program, tuple(RuleAction(each, self._runtime) for each in row.actions))
            if row.enabled and rule.usable:
                self._make_instances(rule)
        if old is not None:
            if rule.actions is old.actions:
                rule.counters, rule.last_error, rule.trace = old.counters, old.last_error, old.trace
            else:
                rule.inherit(old)
            rule.suspended = old.suspended if not rule.usable else ""
        return rule

    def _put(self, rule: Rule, old: Rule | None) -> None:
        self._table.put(rule.stored.id, rule.stored)
        self._install(rule, old)

    def _install(self, rule: Rule, old: Rule | None) -> None:
        if old is not None:
            old.running = False
            if old.usable:
                self._rule_index.remove(old)
            if rule.actions is not old.actions:
                for action in old.actions:
                    action.close()
        row = rule.stored
        self._rules[row.id] = rule
        if row.enabled and rule.usable:
            rule.running = True
            self._rule_index.add(rule)
        self._bindings.sync()
        logger.info("rule_stored rule=%s enabled=%s for=%s", row.id, row.enabled, ",".join(rule.sources)[:256])

    def _start_or_suspend(self, rule: Rule, quiet: bool = False) -> bool:
        try:
            self._make_instances(rule)
        except RuleEngineError as error:
            rule.suspended = error.message
            if not quiet:
                logger.warning("rule_suspended rule=%s reason=%s", rule.stored.id, error.message)
            return False
        rule.suspended = ""
        rule.running = True
        self._rule_index.add(rule)
        return True

    def _stop(self, rule: Rule) -> None:
        if rule.running:
            rule.running = False
            self._rule_index.remove(rule)
        for action in rule.actions:
            action.close()

    def _make_instances(self, rule: Rule) -> None:
        """Create the action instances. Raises RuleEngineError, and leaves none then."""
        try:
            for action in rule.all_actions:
                kind = self._action_type(action.stored.name)
                self._check_resource(kind, action.stored.params)
                context = ActionContext(
                    action.stored.id,
                    rule.stored.id,
                    dict(action.stored.params),
                    action,
                    self._node,
                    self._resources.running,
                    self._runtime.take_hop,
                )
                try:
                    action.instance = kind.create(context)
                except ParamError as error:
                    raise RuleEngineError.of_param(error) from error
        except RuleEngineError:
            for action in rule.actions:
                action.close()
            raise

    # Checks

    def _check_actions(self, given: Sequence[Mapping[str, object]], names: frozenset[str]) -> tuple[StoredAction, ...]:
        expect("actions", given, Sequence, "an array")
        count = [0]
        return tuple(self._check_action(each, names, 1, count) for each in given)

    def _check_action(
        self, given: Mapping[str, object], names: frozenset[str], depth: int, count: list[int]
    ) -> StoredAction:
        count[0] += 1
        if count[0] > MAX_ACTIONS:
            raise RuleEngineError(WRONG, f"actions: more than {MAX_ACTIONS}, fallbacks included")
        if depth > MAX_FALLBACK_DEPTH:
            raise RuleEngineError(WRONG, f"fallbacks: nested deeper than {MAX_FALLBACK_DEPTH}")
        if not isinstance(given, Mapping):
            raise RuleEngineError(WRONG, "actions: expected objects")
        for key in ("name", "params"):
            if given.get(key) is None:
                raise RuleEngineError(MISSING, f"actions: {key} is missing")
        name, params = given["name"], {} if given["params"] == [] else given["params"]
        if not isinstance(name, str) or not isinstance(params, Mapping):
            raise RuleEngineError(WRONG, "actions: expected name as a string and params as an object")
        fallbacks = given.get("fallbacks") or ()
        if not isinstance(fallbacks, Sequence) or isinstance(fallbacks, str):
            raise RuleEngineError(WRONG, "fallbacks: expected an array")
        kind = self._action_type(name)
        try:
            checked = check_params(params, kind.params)
            check_placeholders(checked, kind.params, names)
        except ParamError as error:
            raise RuleEngineError.of_param(error) from error
        self._check_resource(kind, checked)
        below = tuple(self._check_action(each, names, depth + 1, count) for each in fallbacks)
        return StoredAction(f"{name}_{self._next_number()}", name, checked, below)

    def _check_stored(self, actions: Sequence[StoredAction], names: frozenset[str]) -> None:
        for action in actions:
            try:
                check_placeholders(action.params, self._action_type(action.name).params, names)
            except ParamError as error:
                raise RuleEngineError.of_param(error) from error
            self._check_stored(action.fallbacks, names)

    def _check_resource(self, kind: ActionType, params: Mapping[str, object]) -> None:
        if not kind.resource_types:
            return
        id = params.get(RESOURCE)
        if id is None:
            raise RuleEngineError(MISSING, f"{RESOURCE} is missing")
        if not isinstance(id, str):
            raise RuleEngineError(WRONG, f"{RESOURCE}: expected the id of a resource")
        resource = self._resources.get(id)
        if resource.stored.type not in kind.resource_types:
            wanted = " or ".join(kind.resource_types)
            raise RuleEngineError(WRONG, f"{RESOURCE}: {id} is a {resource.stored.type}, {kind.name} needs {wanted}")
        if resource.instance is None:
            raise RuleEngineError(WRONG, f"{RESOURCE}: {id} could not be started: {resource.fault}")

    def _action_type(self, name: str) -> ActionType:
        kind = self.action_types.get(name)
        if kind is None:
            raise RuleEngineError.unknown("action", name, self.action_types)
        return kind

    def _next_number(self) -> int:
        """Return nanoseconds, as in EMQX, but never the same number twice."""
        self._last_number = max(time.time_ns(), self._last_number + 1)
        return self._last_number


def _check_on_failed(value: object) -> None:
    if value not in ON_FAILED:
        raise RuleEngineError(WRONG, f"on_action_failed: expected {' or '.join(ON_FAILED)}")


def _with_fallbacks(actions: Iterable[StoredAction]) -> Iterator[StoredAction]:
    for action in actions:
        yield action
        yield from _with_fallbacks(action.fallbacks)
