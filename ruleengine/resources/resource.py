"""Resource: a connection that actions share; the type that is offered and the instance that runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from taipan.broker.core.outcome import Outcome, PublisherKind
from taipan.broker.loop.clock import Clock
from taipan.broker.mqtt.message import Message
from taipan.broker.observability.metrics import Metrics
from taipan.broker.persistence.tables import Tables
from taipan.broker.session.memory_account import MemoryAccount

from ..config import RuleEngineSettings
from ..delivery.buffer_store import BufferStore
from ..params import Param, Text
from ..records import ResourceStatus, ResourceTypeRecord


class ResourceError(Exception):
    """The resource cannot be reached or used; the text gives the reason in one line."""


class Resource(Protocol):
    """A running instance: it connects by itself, knows whether it is alive, and tries again while it is not."""

    @property
    def alive(self) -> bool: ...

    @property
    def status(self) -> ResourceStatus: ...

    def start(self) -> None:
        """Begin to connect; never waits."""
        ...

    async def test(self) -> None:
        """Try once whether it can be reached. Raises ResourceError."""
        ...

    async def close(self) -> None:
        """Stop for good, within seconds; what is buffered on disk stays there for a resource of the same id."""
        ...


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What resources and actions may use of the node.

    ``node`` is its name, ``settings`` are ``[ruleengine]``. ``accept`` is ``Broker.accept``: it publishes a
    message or refuses it with a reason.
    """

    node: str
    settings: RuleEngineSettings
    clock: Clock
    rng: Random
    metrics: Metrics
    tables: Tables
    account: MemoryAccount
    buffers: BufferStore
    accept: Callable[[Message, PublisherKind], Outcome]


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """What an instance is made for: ``id`` of the resource and its checked configuration; what it may use.

    ``on_alive`` is called each time that liveness changes.
    """

    id: str
    config: dict[str, Any]
    node: NodeContext
    on_alive: Callable[[bool], None]


@dataclass(slots=True, eq=False)
class ResourceType:
    """What ``GET /resource_types`` offers. ``create`` raises ParamError for what does not go together."""

    name: str
    title: Text
    description: Text
    create: Callable[[ResourceContext], Resource]
    params: tuple[Param, ...]
    provider: str = "taipan_rule_engine"
    connection: tuple[str, ...] = ()
    """The parameters that decide whether the other side can be reached; empty: all."""
    order: int = 100
    """Its place in lists; types with the same one are listed by name."""

    def same_connection(self, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
        """Whether the two configurations connect alike, so that a change needs no trial."""
        names = self.connection or tuple(param.name for param in self.params)
        return all(one.get(name) == other.get(name) for name in names)

    def record(self) -> ResourceTypeRecord:
        params = {param.name: param.record() for param in self.params}
        return ResourceTypeRecord(self.name, self.provider, self.title, self.description, params)
