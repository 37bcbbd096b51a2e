"""What actions and resources are tested in when alone: what they see of an engine, with a real server."""

from __future__ import annotations

from random import Random
from typing import Any

from taipan.broker.channel.operator_subscriptions import OperatorSubscriptions
from taipan.broker.config import ZoneSettings
from taipan.broker.mqtt.message import Message
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo
from taipan.ruleengine.actions.action import Action, ActionContext, ActionType, Row
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.delivery.buffer_store import BufferStore
from taipan.ruleengine.event import Event, EventEnvironment
from taipan.ruleengine.events.kinds import MESSAGE_PUBLISH
from taipan.ruleengine.params import check_params
from taipan.ruleengine.resources.resource import NodeContext, Resource, ResourceContext, ResourceType
from tests.support.node import make_settings

QUICK = RuleEngineSettings(
    retry_backoff=0.01, retry_backoff_max=0.05, breaker_pause=0.05, liveness_interval=0.05, close_timeout=0.3
)


class FakeReport:
    """A report that remembers its calls."""

    def __init__(self) -> None:
        self.successes = 0
        self.failures: list[tuple[str, Row | None]] = []

    def success(self, count: int = 1) -> None:
        self.successes += count

    def failed(self, reason: str, row: Row | None = None, event: Event | None = None, count: int = 1) -> None:
        self.failures += [(reason, row)] * count

    @property
    def count(self) -> int:
        return self.successes + len(self.failures)


class FakeEngine:
    """What actions and resources see of an engine. ``await close()`` ends what runs."""

    def __init__(self, settings: RuleEngineSettings = QUICK, server: Server | None = None) -> None:
        self.server = server or Server(make_settings())
        self.settings = settings
        self.buffers = BufferStore(self.server.tables)
        self.resources: dict[str, Resource] = {}
        self.alive: list[bool] = []
        self.report = FakeReport()
        server = self.server
        self.node = NodeContext(
            server.settings.node.name,
            settings,
            server.clock,
            server.broker.rng,
            server.metrics,
            server.tables,
            server.broker.account,
            self.buffers,
            server.broker.accept,
            server.broker,
            OperatorSubscriptions(server.context),
        )

    def resource(self, id: str) -> Resource:
        return self.resources.get(id)  # type: ignore[return-value]  # None: one that does not run

    def make(self, type: ResourceType, id: str = "resource:1", **config: Any) -> Resource:
        """A resource that has not started. Raises ParamError."""
        context = ResourceContext(id, check_params(config, type.params), self.node, self.alive.append)
        return type.create(context)

    def run(self, type: ResourceType, id: str = "resource:1", **config: Any) -> Any:
        """A resource that runs."""
        made = self.resources[id] = self.make(type, id, **config)
        made.start()
        return made

    def action(
        self, type: ActionType, /, id: str = "action_1", report: FakeReport | None = None, **params: Any
    ) -> Action:
        """Raises ParamError."""
        checked = check_params({"$resource": "resource:1", **params}, type.params)
        return type.create(
            ActionContext(id, "rule:1", checked, report or self.report, self.node, self.resource, lambda event: 1)
        )

    async def close(self) -> None:
        for each in self.resources.values():
            await each.close()


def published(
    topic: str = "t/1", payload: bytes = b"{}", qos: int = 0, retain: bool = False, client_id: str = "c1"
) -> Event:
    """The event of a message that a client has published."""
    client = ClientInfo("taipan@127.0.0.1", ZoneSettings(), client_id=client_id)
    message = Message(topic, payload, qos, retain, publisher=client)
    return Event(MESSAGE_PUBLISH, EventEnvironment("taipan@127.0.0.1", Random(1)), 1.0, client, message)
