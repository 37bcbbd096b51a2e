"""Receiver: the part that each system has to implement from which messages are received.

A type implements ``test`` and ``receive``. Status, alarms, and attempts after an error are in ``ReceiverResource``."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..network.allowed_networks import NOT_TRIED, reason_of
from ..records import ResourceStatus
from .resource import NodeContext, Resource, ResourceContext, ResourceError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReceiverContext:
    """The data of a receiver: the ``id`` of the resource, its checked configuration, and the node.

    ``learn``: the receiver calls it with why the other system cannot be used; with an empty text if it can."""

    id: str
    config: dict[str, Any]
    node: NodeContext
    learn: Callable[[str], None]


class Receiver(ABC):
    """A system from which messages are received. The constructor checks the configuration and raises ParamError."""

    @property
    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """How many messages were published, and how many were not."""

    @abstractmethod
    async def test(self) -> None:
        """Try once to reach the other system. Raises OSError or ResourceError."""

    @abstractmethod
    async def receive(self) -> None:
        """Receive until it is cancelled. Raises OSError or ResourceError, and is called again."""


class ReceiverResource:
    """A running resource that only receives."""

    def __init__(self, context: ResourceContext, create: Callable[[ReceiverContext], Receiver]) -> None:
        """Raises ParamError."""
        self._id = context.id
        self._node = context.node
        self._on_alive = context.on_alive
        self._receiver = create(ReceiverContext(context.id, context.config, context.node, self._learn))
        self._running: asyncio.Task[None] | None = None
        self._alive = False
        self._reason = NOT_TRIED

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def status(self) -> ResourceStatus:
        received, refused = self._receiver.counts
        return ResourceStatus(
            node=self._node.node,
            is_alive=self._alive,
            reason=self._reason,
            received=received,
            received_refused=refused,
        )

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def test(self) -> None:
        try:
            await self._receiver.test()
        except OSError as error:
            raise ResourceError(reason_of(error)) from None

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running], timeout=self._node.settings.close_timeout)

    async def _run(self) -> None:
        settings, loop = self._node.settings, asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                await self._receiver.receive()
            except (OSError, ResourceError) as error:
                self._learn(reason_of(error))
            except Exception as error:
                logger.exception("resource_failed resource=%s error=%s", self._id, error)
                self._learn(reason_of(error))
            longest = settings.retry_backoff_max
            failures = 0 if loop.time() - began > longest else failures + 1
            pause = min(longest, settings.retry_backoff * 2.0 ** min(failures, 30))
            await asyncio.sleep(pause * self._node.rng.uniform(0.5, 1.0))

    def _learn(self, reason: str) -> None:
        alive = not reason
        changed = alive != self._alive or self._reason == NOT_TRIED
        self._alive, self._reason = alive, reason
        if not changed:
            return
        if alive:
            logger.info("resource_alive resource=%s", self._id)
        else:
            logger.warning("resource_down resource=%s reason=%s", self._id, reason)
        self._on_alive(alive)


def receiving(create: Callable[[ReceiverContext], Receiver]) -> Callable[[ResourceContext], Resource]:
    """Return ``create`` of a ResourceType whose resources are receivers."""

    def resource(context: ResourceContext) -> Resource:
        return ReceiverResource(context, create)

    return resource
