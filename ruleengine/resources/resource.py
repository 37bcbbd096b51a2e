"""Resource: a connection that actions share; the type that is offered and the instance that runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from taipan.broker.core.inspection import Inspection
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
    """The resource cannot be reached or used; the message is the reason in one line."""


class Resource(Protocol):
    """A running instance: it connects automatically, knows whether it is alive, and retries while it is not."""

    @property
    def alive(self) -> bool: ...

    @property
    def status(self) -> ResourceStatus: ...

    def start(self) -> None:
        """Start connecting; never waits."""
        ...

    async def test(self) -> None:
        """Try once to reach the other system. Raises ResourceError."""
        ...

    async def close(self) -> None:
        """Stop permanently, within seconds; rows that are buffered on disk stay there for a resource with the same
        id."""
        ...


class InspectingBroker(Protocol):
    """What resources and actions use of the broker."""

    inspection: Inspection | None


class ConnectedClients(Protocol):
    """What resources and actions use of the clients that are connected to this node."""

    def connected(self, client_id: str) -> bool:
        """Return whether the client is connected to this node."""
        ...

    async def subscribe(self, client_id: str, filters: Sequence[tuple[object, object]]) -> list[tuple[str, Outcome]]:
        """Subscribe a client to filters with their QoS, for the operator. Return the filters that were refused."""
        ...


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts of the node that resources and actions may use.

    ``node`` is its name, ``settings`` are ``[ruleengine]``. ``accept`` is ``Broker.accept``: it publishes a message or
    refuses it with a reason. If ``broker`` has an ``inspection``, its methods are called instead."""

    node: str
    settings: RuleEngineSettings
    clock: Clock
    rng: Random
    metrics: Metrics
    tables: Tables
    account: MemoryAccount
    buffers: BufferStore
    accept: Callable[[Message, PublisherKind], Outcome]
    broker: InspectingBroker
    clients: ConnectedClients


@dataclass(frozen=True, slots=True)
class ResourceContext:
    """The data of an instance: ``id`` of the resource, its checked configuration, and the parts that it may use.

    ``on_alive`` is called each time that liveness changes."""

    id: str
    config: dict[str, Any]
    node: NodeContext
    on_alive: Callable[[bool], None]


@dataclass(slots=True, eq=False)
class ResourceType:
    """An entry of ``GET /resource_types``. ``create`` raises ParamError for parameters that exclude each other."""

    name: str
    title: Text
    description: Text
    create: Callable[[ResourceContext], Resource]
    params: tuple[Param, ...]
    provider: str = "taipan_rule_engine"
    connection: tuple[str, ...] = ()
    """The parameters that determine whether the other system can be reached; empty: all."""
    order: int = 100
    """The position in lists; types with the same position are listed by name."""

    def same_connection(self, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
        """Return whether two configurations connect in the same way, so that a change needs no test."""
        names = self.connection or tuple(param.name for param in self.params)
        return all(one.get(name) == other.get(name) for name in names)

    def record(self) -> ResourceTypeRecord:
        params = {param.name: param.record() for param in self.params}
        return ResourceTypeRecord(self.name, self.provider, self.title, self.description, params)
