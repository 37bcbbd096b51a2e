"""A node with its rule engine in this process, and an action that keeps what it is given."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from taipan.ruleengine.actions.action import Action, ActionContext, ActionFailed, ActionType, Row
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.event import Event
from taipan.ruleengine.params import Text
from taipan.ruleengine.records import RuleMetrics
from tests.support.node import Node, make_settings

from .patience import patience

KEEP = {"name": "keep", "params": {}}
FAIL = {"name": "fail", "params": {}}


class RuleEngineNode(Node):
    """``engine`` is its rule engine; ``kept`` the rows that the action ``keep`` was given, in order."""

    packages = ("taipan.broker", "taipan.ruleengine")

    def __init__(self, settings: Any, rules: RuleEngineSettings) -> None:
        super().__init__(settings)
        self.engine = RuleEngine(self.server, rules)
        self.kept: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.closed: list[str] = []
        self.on_keep: Callable[[str], None] = lambda rule_id: None
        words = Text("for tests", "用于测试")
        for name, create in (("keep", self._keep), ("fail", self._fail)):
            self.engine.action_types[name] = ActionType(name, words, words, create)

    def _keep(self, context: ActionContext) -> Action:
        return _Keep(self, context)

    def _fail(self, context: ActionContext) -> Action:
        return _Fail()

    async def rule(self, sql: str, *actions: dict[str, Any], **more: Any) -> str:
        """The id of a new rule that keeps its rows, or does ``actions``."""
        record = await self.engine.rules.create(sql, actions or [KEEP], **more)
        return str(record.id)

    def metrics(self, rule_id: str) -> RuleMetrics:
        (metrics,) = self.engine.rules.lookup(rule_id).metrics
        return metrics

    async def until_kept(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(patience(40)):
            while len(self.kept) < count:
                await asyncio.sleep(0.005)
        return self.kept

    async def start(self) -> "RuleEngineNode":
        await super().start()
        self.engine.start()
        return self

    async def stop(self) -> None:
        await self.close_clients()
        await self.engine.close()
        await super().stop()


class _Keep:
    def __init__(self, node: RuleEngineNode, context: ActionContext) -> None:
        self.node = node
        self.context = context

    def run(self, row: Row, event: Event) -> bool:
        self.node.kept.append({**row, "_rule": self.context.rule_id})
        self.node.events.append(event)
        self.node.on_keep(self.context.rule_id)
        return True

    def close(self) -> None:
        self.node.closed.append(self.context.id)


class _Fail:
    def run(self, row: Row, event: Event) -> bool:
        raise ActionFailed("as told")

    def close(self) -> None:
        pass


@asynccontextmanager
async def rule_engine_node(
    zone: dict[str, Any] | None = None, rules: dict[str, Any] | None = None, data_dir: str | None = None, **config: Any
) -> AsyncIterator[RuleEngineNode]:
    """A node for as long as the block lasts; ``rules`` is ``[ruleengine]``."""
    with tempfile.TemporaryDirectory(prefix="taipan-rules-") as directory:
        config.setdefault("node", {"data_dir": data_dir or directory})
        settings = msgspec.convert(rules or {}, RuleEngineSettings)
        node = await RuleEngineNode(make_settings(zone, [{"type": "tcp"}], **config), settings).start()
        try:
            yield node
        finally:
            await node.stop()
