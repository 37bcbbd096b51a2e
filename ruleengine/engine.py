"""RuleEngine: the room's whole face. Made before the broker starts, started after it, closed before it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from taipan.broker.server import Server

from . import tester
from .actions.action import ActionFailed, ActionType
from .builtin_types import ACTION_TYPES, RESOURCE_TYPES
from .config import RuleEngineSettings
from .delivery.buffer import Buffer
from .delivery.buffer_store import BufferStore
from .delivery.dead_letters import DeadLetter
from .error import IN_USE, UNKNOWN, WRONG, RuleEngineError
from .event import Near
from .events import KINDS
from .extensions import ExtensionError, load_extensions
from .hook_bindings import HookBindings
from .metrics import TICK
from .registry import Registry
from .resources.resource import Resource, ResourceType
from .resources.resource_manager import ResourceBook
from .rule import Rule
from .rule_manager import Rules
from .runtime import Runtime
from .sql.error import SqlError
from .sql.off_loop import OffLoop
from .sql.parser import prepare
from .stored import StoredResource, StoredRule, expect


class RuleEngine:
    """Rules, their actions, and the resources these share.

    Stored ones are taken up when the server has restored its tables, before any client is let in. What can be refused
    is refused with ``RuleEngineError``. A change is in memory when its call returns; whoever must know it on disk
    waits for ``server.tables.stored()``.
    """

    def __init__(self, server: Server, settings: RuleEngineSettings) -> None:
        prepare()
        self.server = server
        self.settings = settings
        self.action_types: dict[str, ActionType] = {each.name: each for each in ACTION_TYPES}
        self.resource_types: dict[str, ResourceType] = {each.name: each for each in RESOURCE_TYPES}
        for added in load_extensions(each.module for each in settings.functions):
            if added.name in self.action_types:
                raise ExtensionError(f"there is an action {added.name} already")
            self.action_types[added.name] = added
        self.buffers = BufferStore(server.tables, server.metrics.refusals.add)
        self.registry = Registry(settings.ignore_sys_message)
        near = Near(server.settings.node.name, server.broker.rng, lambda: server.clock.skew)
        self.runtime = Runtime(settings, server.metrics, server.clock, near, server.broker.turn)
        self.taps = HookBindings(server.broker, self.registry, self.runtime)
        self.off_loop = OffLoop()
        self.resource_book = ResourceBook(self)
        self.rule_book = Rules(self)
        self._changing = asyncio.Lock()
        self._closed = False
        server.on_restored.append(self._take_up)
        stats = server.stats
        stats.gauge("rules", lambda: len(self.rule_book))
        stats.gauge("resources", lambda: len(self.resource_book))
        stats.gauge("actions", lambda: len(self.action_types))

    def _take_up(self) -> None:
        self.resource_book.take_up()
        self.rule_book.take_up()

    def start(self) -> None:
        """Begin to measure speeds and to mind resources; the server runs already."""
        self.server.ticker.every(TICK, self._tick)

    def check(self, settings: RuleEngineSettings) -> None:
        """Whether a reload could take these. Raises ValueError where anything is new."""
        if settings != self.settings:
            raise ValueError("[ruleengine] cannot change while the node runs")

    async def close(self) -> None:
        """End all rules and resources, once. What waits in buffers stays on disk where there is one."""
        if self._closed:
            return
        self._closed = True
        self.rule_book.close()
        await self.resource_book.close()
        self.rule_book.save_counters()
        self.off_loop.close()
        for name in ("rules", "resources", "actions"):
            self.server.stats.remove(name)

    def _tick(self, now: float) -> None:
        self.rule_book.tick()
        self.resource_book.tick()
        self.rule_book.retry_suspended()
        self.off_loop.tick(now)

    # Rules

    async def create_rule(
        self,
        rawsql: str,
        actions: Sequence[Mapping[str, Any]],
        id: str | None = None,
        description: str = "",
        enabled: bool = True,
        on_action_failed: str = "continue",
    ) -> dict[str, Any]:
        """The record of a new rule. ``actions``: ``{"name", "params", "fallbacks"}`` each."""
        async with self._changing:
            rule = await self.rule_book.create(rawsql, actions, id, description, enabled, on_action_failed)
        return self._rule_record(rule.row.id)

    async def update_rule(self, id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The record after changing any of rawsql, actions, description, enabled, on_action_failed."""
        async with self._changing:
            await self.rule_book.update(id, changes)
        return self._rule_record(id)

    async def delete_rule(self, id: str) -> None:
        async with self._changing:
            self.rule_book.delete(id)

    def rules(self) -> list[dict[str, Any]]:
        """Records, in the order of creation."""
        return [self.rule_record(rule) for rule in self.rule_book.all()]

    def rule(self, id: str) -> dict[str, Any]:
        return self._rule_record(id)

    def reset_metrics(self, id: str) -> None:
        """Zero the counters of a rule, its actions and fallbacks."""
        self.rule_book.reset_metrics(id)

    def trace_rule(self, id: str, size: int = 20) -> None:
        """Keep the last ``size`` evaluations of a rule from now on; 0: none any more."""
        self.rule_book.trace(id, size)

    def rule_trace(self, id: str) -> list[dict[str, Any]]:
        """Its last evaluations, the oldest first; empty where nobody asked for a trace."""
        trace = self.rule_book.get(id).trace
        return [] if trace is None else trace.records()

    async def test_sql(self, rawsql: str, ctx: Mapping[str, Any]) -> Any:
        """What a rule would select from an example: a row, or for FOREACH the list of rows."""
        expect("rawsql", rawsql, str, "a string")
        expect("ctx", ctx, Mapping, "an object")
        try:
            statement = await self.off_loop.parse(rawsql, self.server.clock.wall())
        except SqlError as error:
            raise RuleEngineError.of_sql(error) from error
        return tester.test_sql(statement, ctx, self.settings, self._node)

    def rule_events(self) -> list[dict[str, Any]]:
        """Every event with its columns, for who writes a rule."""
        return [kind.record() for kind in KINDS]

    def stored_rules(self) -> list[StoredRule]:
        """Rows as they are, for an export."""
        return [rule.row for rule in self.rule_book.all()]

    # Resources

    async def create_resource(
        self, type: str, config: Mapping[str, Any], id: str | None = None, description: str = ""
    ) -> dict[str, Any]:
        """The record of a new resource, whether its other side can be reached or not."""
        async with self._changing:
            entry = await self.resource_book.create(type, config, id, description)
        return self.resource_record(entry.row.id)

    async def test_resource(self, type: str, config: Mapping[str, Any], id: str | None = None) -> None:
        """Whether such a resource could be reached; nothing is stored. What is masked is that of ``id``."""
        await self.resource_book.test(type, config, id)

    async def update_resource(
        self, id: str, config: Mapping[str, Any] | None = None, description: str | None = None
    ) -> dict[str, Any]:
        """A new ``config`` is refused while an enabled rule uses the resource, unless that could not be started, and
        where it cannot be reached."""
        async with self._changing:
            running = self.resource_book.get(id).instance is not None
            if config is not None and running:
                self._refuse_in_use(id, [rule.row.id for rule in self.rule_book.users_of(id) if rule.row.enabled])
            await self.resource_book.update(id, config, description)
        return self.resource_record(id)

    async def start_resource(self, id: str) -> None:
        """Try at once whether it can be reached."""
        async with self._changing:
            await self.resource_book.start(id)

    async def delete_resource(self, id: str) -> None:
        """Refused while rules use it, in fallbacks too, enabled or not."""
        async with self._changing:
            self.resource_book.get(id)
            self._refuse_in_use(id, [rule.row.id for rule in self.rule_book.users_of(id)])
            await self.resource_book.delete(id)

    def resources(self, type: str | None = None) -> list[dict[str, Any]]:
        """Records in the order of creation, ``status`` telling whether each is alive; those of one ``type``."""
        if type is not None and type not in self.resource_types:
            raise RuleEngineError(UNKNOWN, f"there is no resource type {type[:64]}")
        book = self.resource_book
        return [
            book.record(each) | {"status": each.alive} for each in book.all() if type is None or each.row.type == type
        ]

    def resource_record(self, id: str) -> dict[str, Any]:
        """One record, ``status`` being a list with an entry for each node."""
        entry = self.resource_book.get(id)
        return self.resource_book.record(entry) | {"status": self.resource_book.status(entry)}

    def resource(self, id: str) -> Resource:
        """The running instance, for actions. Raises RuleEngineError where there is none."""
        entry = self.resource_book.get(id)
        if entry.instance is None:
            raise RuleEngineError(UNKNOWN, f"resource {id} does not run: {entry.fault}")
        return entry.instance

    def dead_letters(self, id: str) -> dict[int, DeadLetter]:
        """The rows of a resource that were set aside, by number, the oldest first."""
        self.resource_book.get(id)
        return self.buffers.dead_letters.of(id)

    def send_dead_letters(self, id: str, numbers: Sequence[int] | None = None) -> int:
        """Put them among the rows that wait, in their order; all without ``numbers``. How many."""
        wanted = self._chosen(id, numbers)
        buffer = getattr(self.resource(id), "buffer", None)
        assert isinstance(buffer, Buffer)
        for sent, number in enumerate(wanted):
            try:
                buffer.send_again(number)
            except ActionFailed as error:
                raise RuleEngineError(WRONG, f"{sent} of {len(wanted)} were sent again: {error}") from error
        return len(wanted)

    def remove_dead_letters(self, id: str, numbers: Sequence[int] | None = None) -> int:
        """Forget them; all without ``numbers``. How many."""
        wanted = self._chosen(id, numbers)
        for number in wanted:
            self.buffers.dead_letters.remove(id, number)
        return len(wanted)

    def _chosen(self, id: str, numbers: Sequence[int] | None) -> list[int]:
        there = self.dead_letters(id)
        for number in numbers or ():
            if number not in there:
                raise RuleEngineError(UNKNOWN, f"no row {number} of {id} was set aside")
        return sorted(there if numbers is None else set(numbers))

    def stored_resources(self) -> list[StoredResource]:
        """Rows as they are, secrets included, for an export."""
        return [entry.row for entry in self.resource_book.all()]

    # Files

    async def adopt(self, resources: Sequence[StoredResource], rules: Sequence[StoredRule]) -> None:
        """Take up rows that ``Adoption`` has checked, in place of those of the same ids."""
        async with self._changing:
            for resource in resources:
                await self.resource_book.adopt(resource)
            for rule in rules:
                await self.rule_book.adopt(rule)

    # Types

    def action_type(self, name: str) -> dict[str, Any]:
        kind = self.action_types.get(name)
        if kind is None:
            raise RuleEngineError(UNKNOWN, f"there is no action {name[:64]}")
        return kind.record()

    def resource_type(self, name: str) -> dict[str, Any]:
        kind = self.resource_types.get(name)
        if kind is None:
            raise RuleEngineError(UNKNOWN, f"there is no resource type {name[:64]}")
        return kind.record()

    @property
    def _node(self) -> str:
        return self.server.settings.node.name

    def rule_record(self, rule: Rule) -> dict[str, Any]:
        """Specification, Rule. Secrets are masked."""
        return rule.record(self._node, self.action_types)

    def _rule_record(self, id: str) -> dict[str, Any]:
        return self.rule_record(self.rule_book.get(id))

    @staticmethod
    def _refuse_in_use(id: str, rules: list[str]) -> None:
        if rules:
            raise RuleEngineError(IN_USE, f"{id} is used by rules {', '.join(rules)}", tuple(rules))
