"""Sink: the part that each target system has to implement; ``SinkResource`` does the rest for all of them.

A type implements ``connect``, ``test``, ``write`` and ``close``. Batches, the buffer on disk, the order of rows with
the same key, retries, the circuit breaker, dead letters, liveness checks, fallbacks and metrics are here and in
``delivery``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from ..delivery.buffer import Buffer, DeliveryOutcome
from ..delivery.buffered_row import BufferedRow, deadline, encode_row
from ..network.allowed_networks import reason_of
from ..params import Param, ParamError, Text
from ..records import ResourceStatus
from .liveness import LivenessCheck
from .resource import NodeContext, Resource, ResourceContext, ResourceError

_LIMITS: Final = ("retry_attempts", "dead_letters")
_NO_DETAILS: Final[Mapping[str, int]] = {}
_GRACE: Final = 2.0
"""Additional seconds for ``connect`` and ``test`` beyond ``ruleengine.liveness_timeout``."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The data of a sink: the ``id`` of the resource, its checked configuration, and the node.

    ``noticed``: the sink calls it when the other system has answered, and when its ``report`` has changed."""

    id: str
    config: dict[str, Any]
    node: NodeContext
    noticed: Callable[[], None]


class SinkReport(NamedTuple):
    """The status from a sink that monitors its own connections. ``details``: further fields of ResourceStatus."""

    alive: bool
    reason: str = ""
    details: Mapping[str, int] = _NO_DETAILS


class Sink(ABC):
    """A system to which rows are sent. Each method limits its own time, except ``connect`` and ``test``.

    The constructor checks the configuration and raises ParamError; it does not connect, and needs no event loop."""

    async def connect(self) -> None:  # noqa: B027 - not every sink keeps connections
        """Prepare for ``write`` and ``test``. Called before the first of them, and again after one of them has raised;
        parts that can still be used may stay. Raises OSError or ResourceError."""

    @abstractmethod
    async def test(self) -> None:
        """Ask whether the other system accepts rows. Called at an interval, one call at a time. Raises OSError or
        ResourceError."""

    @abstractmethod
    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        """Send rows that may share a request; return one outcome for each row, in order.

        Raises OSError or ResourceError if the other system cannot be reached: all rows are then sent again. ``lane``:
        below ``pool_size``; rows with the same key are always in the same lane, and a lane has one call at a time."""

    async def stop_receiving(self) -> None:  # noqa: B027
        """Stop receiving messages from the other system. Called before ``close``, while rows are still sent."""

    async def close(self) -> None:  # noqa: B027
        """Close everything that ``connect`` has opened; no method is called afterwards."""

    @property
    def report(self) -> SinkReport | None:
        """None: the engine monitors the other system with ``test``. Otherwise the sink does, and ``test`` is only for
        tests of a configuration, without ``connect``."""
        return None


class SinkRequest(NamedTuple):
    """A row for ``write``: only the sink uses ``body``.

    ``key``: rows with the same key are written in order. ``group``: only rows of one group share a ``write``, at most
    ``max_batch`` of them. ``linger``: seconds that a row waits for others; None: ``ruleengine.batch_linger``.
    ``volatile``: it waits in memory only, because it means nothing after a restart."""

    body: bytes
    key: str = ""
    group: str = ""
    max_batch: int = 1
    linger: float | None = None
    volatile: bool = False


class SinkResource:
    """A running resource: a sink with a buffer of ``pool_size`` lanes, and a liveness check of the other system."""

    def __init__(self, context: ResourceContext, create: Callable[[SinkContext], Sink]) -> None:
        """Raises ParamError."""
        config, node = context.config, context.node
        lanes = _whole(config, "pool_size", 1)
        limits = {name: _whole(config, name, 0) for name in _LIMITS if config.get(name) is not None}
        self._node = node
        self._on_alive = context.on_alive
        self._alive = False
        self._connecting = asyncio.Lock()
        self._testing = asyncio.Lock()
        self._connected = False
        self._starting: asyncio.Task[None] | None = None
        self._liveness = LivenessCheck(context.id, self._probe, node.settings.liveness_interval, self._changed)
        self.sink = create(SinkContext(context.id, config, node, self._noticed))
        self.buffer = Buffer(
            context.id,
            node.buffers,
            node.settings,
            self,
            lanes,
            node.rng,
            config.get("disk_cache") != "off",
            node.clock.now,
            limits,
        )

    @property
    def alive(self) -> bool:
        report = self.sink.report
        return self._liveness.alive if report is None else report.alive

    @property
    def status(self) -> ResourceStatus:
        alive, reason, details = self.sink.report or SinkReport(self._liveness.alive, self._liveness.reason)
        status = ResourceStatus(node=self._node.node, is_alive=alive, reason=reason, buffer=self.buffer.status)
        return msgspec.structs.replace(status, **details)

    def start(self) -> None:
        if self.sink.report is None:
            self._liveness.start()
        else:
            self._starting = asyncio.get_running_loop().create_task(self.sink.connect())
        self.buffer.start()

    async def test(self) -> None:
        try:
            await (self._probe() if self.sink.report is None else self.sink.test())
        except OSError as error:
            raise ResourceError(reason_of(error)) from None

    async def close(self) -> None:
        await self._liveness.close()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self.sink.stop_receiving()
        await self.buffer.close()
        await self.sink.close()

    def put(
        self,
        action: str,
        request: SinkRequest,
        row: Mapping[str, object],
        retry_for: float | None = None,
        client: str = "",
    ) -> None:
        """Accept a row of an action, whose report receives the outcome. ``client``: the client of its event. Raises
        ActionFailed."""
        now = self._node.clock.now()
        self.buffer.append(
            BufferedRow(
                action,
                request.key,
                request.group,
                request.max_batch,
                now,
                request.body,
                encode_row(row),
                deadline(now, retry_for),
                request.linger,
                "" if client == request.key else client,
            ),
            request.volatile,
        )

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        """See ``RowWriter`` of the buffer."""
        try:
            if self.sink.report is None:
                await self._connect()
            outcomes = await self.sink.write(rows, lane)
        except (OSError, ResourceError) as error:
            self._connected = False
            reason = reason_of(error)
            return [DeliveryOutcome(reason, retry=True, unreachable=True)] * len(rows)
        if self.sink.report is None and not all(each.reason for each in outcomes):
            self._liveness.learn()
        return outcomes

    async def _connect(self) -> None:
        if self._connected:
            return
        async with self._connecting, asyncio.timeout(self._node.settings.liveness_timeout + _GRACE):
            if not self._connected:
                await self.sink.connect()
                self._connected = True

    async def _probe(self) -> None:
        """Probe for ``LivenessCheck``. Raises OSError."""
        try:
            await self._connect()
            async with self._testing, asyncio.timeout(self._node.settings.liveness_timeout + _GRACE):
                await self.sink.test()
        except ResourceError as error:
            self._connected = False
            raise OSError(str(error)) from error
        except BaseException:
            self._connected = False
            raise

    def _noticed(self) -> None:
        report = self.sink.report
        if report is None:
            self._liveness.learn()
            return
        self.buffer.retry_now()
        if report.alive != self._alive:
            self._alive = report.alive
            self._on_alive(report.alive)

    def _changed(self, alive: bool) -> None:
        if alive:
            self.buffer.retry_now()
        self._on_alive(alive)


def buffered(create: Callable[[SinkContext], Sink]) -> Callable[[ResourceContext], Resource]:
    """Return ``create`` of a ResourceType whose resources are sinks."""

    def resource(context: ResourceContext) -> Resource:
        return SinkResource(context, create)

    return resource


def limit_params(order: int) -> tuple[Param, ...]:
    """Return the limits that a resource may set instead of the node's; numbered from ``order``."""
    return (
        Param("retry_attempts", order, "number", Text("Attempts", "尝试次数"),
              Text("How often a row is tried if the server answers with an internal error (HTTP 500); then the row "
                   "becomes a dead letter. Not set: ruleengine.retry_attempts",
                   "服务器返回 HTTP 500 时一条数据的尝试次数，之后转为死信；不填则为 ruleengine.retry_attempts"),
              range=(1, 1000)),
        Param("dead_letters", order + 1, "number", Text("Dead Letters", "死信数"),
              Text("How many dead letters are kept, to be inspected and sent again; 0: none. Not set: "
                   "ruleengine.dead_letters", "保留的死信条数；0 则不保留，不填则为 ruleengine.dead_letters"),
              range=(0, 100_000)),
    )  # fmt: skip


def _whole(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name, default)
    if not isinstance(value, int):
        raise ParamError(name, "expected a whole number")
    return value
