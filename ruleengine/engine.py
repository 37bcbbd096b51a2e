"""RuleEngine: the rules, the resources and their environment. Created before the broker starts, closed before it
stops."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence

from taipan.broker.channel.operator_subscriptions import OperatorSubscriptions
from taipan.broker.mqtt.topics import valid_filter
from taipan.broker.server import Server

from .actions.action import ActionType
from .config import RuleEngineSettings
from .delivery.buffer_store import BufferStore
from .error import WRONG, RuleEngineError
from .event import EventEnvironment
from .events.kinds import EVENTS, KINDS
from .functions.registry import FUNCTIONS, Function
from .records import RuleEventRecord, RuleFunction
from .resources.resource import NodeContext, ResourceType
from .resources.resource_manager import ResourceManager
from .rules.event_watch import A_SECOND, KEPT, EventWatch
from .rules.hook_bindings import HookBindings
from .rules.metrics import TICK
from .rules.rule_index import RuleIndex
from .rules.rule_manager import RuleManager
from .rules.runtime import Runtime
from .schemas.schema_registry import SchemaRegistry
from .stored.rows import StoredResource, StoredRule, StoredSchema
from .types.builtin import ACTION_TYPES, RESOURCE_TYPES
from .types.operator_modules import OperatorModuleError, load_operator_modules


class RuleEngine:
    """Rules, their actions, and the resources that these share.

    Stored rules are started when the server has restored its tables, before the first client connects."""

    def __init__(self, server: Server, settings: RuleEngineSettings) -> None:
        self.server = server
        self.settings = settings
        self.action_types: dict[str, ActionType] = {each.name: each for each in ACTION_TYPES}
        self.resource_types: dict[str, ResourceType] = {each.name: each for each in RESOURCE_TYPES}
        added = load_operator_modules(each.module for each in settings.functions)
        try:
            for resource_type in added.resources:
                self.add_resource_type(resource_type)
            for action_type in added.actions:
                self.add_action_type(action_type)
        except ValueError as error:
            raise OperatorModuleError(str(error)) from None
        # Those added for this node only are looked up first; they cannot have existing names.
        self._functions: ChainMap[str, Function] = ChainMap({}, FUNCTIONS)
        broker, name = server.broker, server.settings.node.name
        self.buffers = BufferStore(server.tables, server.metrics.refusals.add)
        self.node = NodeContext(
            name,
            settings,
            server.clock,
            broker.rng,
            server.metrics,
            server.tables,
            broker.account,
            self.buffers,
            broker.accept,
            broker,
            OperatorSubscriptions(server.context),
        )
        self.rule_index = RuleIndex(settings.ignore_sys_message)
        environment = EventEnvironment(name, broker.rng, lambda: server.clock.skew)
        self.runtime = Runtime(settings, server.metrics, server.clock, environment, broker.budget)
        bindings = self._bindings = HookBindings(broker, self.rule_index, self.runtime)
        self.schemas = SchemaRegistry(server.tables, server.clock)
        self.resources = ResourceManager(self.node, self.resource_types, server.alarms)
        self.rules = RuleManager(
            self.node,
            self.action_types,
            self._functions,
            self.resources,
            self.rule_index,
            self.runtime,
            bindings,
            self.schemas.codec,
        )
        self._closed = False
        server.on_recovered.append(self._restore)
        stats = server.stats
        stats.gauge("rules", lambda: len(self.rules))
        stats.gauge("resources", lambda: len(self.resources))
        stats.gauge("actions", lambda: len(self.action_types))

    def _restore(self) -> None:
        self.resources.restore()
        self.rules.restore()

    @staticmethod
    def prepare() -> None:
        """Do slow preparations before the first rule is read: before the loop runs, or in a thread."""
        from .sql.parser import prepare  # imported here: a node without rules needs no grammar

        prepare()

    def start(self) -> None:
        """Start measuring speeds and checking resources; the server is already running."""
        self.server.ticker.every(TICK, self._tick)

    def check(self, settings: RuleEngineSettings) -> None:
        """Check whether a reload could apply these settings. Raises ValueError if anything has changed."""
        if settings != self.settings:
            raise ValueError("[ruleengine] cannot change while the node runs")

    async def close(self) -> None:
        """Stop all rules and resources, once. Buffered rows stay on disk, if there is one."""
        if self._closed:
            return
        self._closed = True
        self.rules.close()
        await self.resources.close()
        self.rules.save_counters()
        for name in ("rules", "resources", "actions"):
            self.server.stats.remove(name)

    def _tick(self, now: float) -> None:
        self.resources.tick()
        self.rules.tick()

    async def adopt(
        self, schemas: Sequence[StoredSchema], resources: Sequence[StoredResource], rules: Sequence[StoredRule]
    ) -> None:
        """Apply rows that ``ImportCheck`` has checked, replacing those with the same ids."""
        for schema in schemas:
            self.schemas.adopt(schema)
        await self.resources.adopt(resources)
        await self.rules.adopt(rules)

    def add_action_type(self, action_type: ActionType) -> None:
        """Add an action for this node only; before the start if stored rules use it. Raises ValueError."""
        if action_type.name in self.action_types:
            raise ValueError(f"action {action_type.name} already exists")
        self.action_types[action_type.name] = action_type

    def add_resource_type(self, resource_type: ResourceType) -> None:
        """Add a resource type for this node only; before the start if stored resources have it. Raises ValueError."""
        if resource_type.name in self.resource_types:
            raise ValueError(f"resource type {resource_type.name} already exists")
        self.resource_types[resource_type.name] = resource_type

    def add_function(self, function: Function) -> None:
        """Add an SQL function for this node only; before the start if stored rules use it. Raises ValueError."""
        if function.name in self._functions:
            raise ValueError(f"function {function.name} already exists")
        self._functions[function.name] = function

    def rule_events(self) -> list[RuleEventRecord]:
        """Return every event with its columns, for authors of rules."""
        return [kind.record() for kind in KINDS]

    def watch(self, source: str, kept: int = KEPT, a_second: int = A_SECOND) -> EventWatch:
        """Observe the events of a topic filter, or of an event by its topic, until ``unwatch``: ``a_second`` events per
        second, of which ``kept`` are kept. Raises RuleEngineError."""
        if source not in EVENTS and (source.startswith("$events/") or not valid_filter(source)):
            raise RuleEngineError(WRONG, f"events: expected a topic filter or an event, not {source[:64]}")
        watch = EventWatch(source, kept, a_second)
        watch.rule.running = True
        self.rule_index.add(watch.rule)
        self._bindings.sync()
        return watch

    def unwatch(self, watch: EventWatch) -> None:
        watch.rule.running = False
        self.rule_index.remove(watch.rule)
        self._bindings.sync()

    def functions(self) -> list[RuleFunction]:
        """Return the functions of SQL by name, including those of the operator."""
        known = sorted(self._functions.values(), key=lambda each: each.name)
        return [RuleFunction(each.name, each.min_args, each.max_args, list(each.kinds)) for each in known]

    def action_type(self, name: str) -> ActionType:
        """Return the action type. Raises RuleEngineError."""
        kind = self.action_types.get(name)
        if kind is None:
            raise RuleEngineError.unknown("action", name, self.action_types)
        return kind
