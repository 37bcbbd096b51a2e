"""ExhookPlugin: sends events to providers of EMQX's exhook protocol, and asks them about messages."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taipan.broker.core.inspection import Inspection, InspectionLimits
from taipan.broker.server import Server

from ..config import EngineSettings, ExhookSettings
from ..delivery.circuit_breaker import CircuitBreaker

if TYPE_CHECKING:
    from .provider import Provider

logger = logging.getLogger(__name__)


class ExhookPlugin:
    """Belongs to one event loop. ``providers``: those that are configured."""

    def __init__(self, server: Server, settings: ExhookSettings, engine: EngineSettings) -> None:
        """From now on, messages wait for the answers of the providers. Raises ValueError for a file that cannot be
        used."""
        self._server = server
        self._engine = engine
        self._inspection: Inspection | None = None
        self.providers: Sequence[Provider] = ()
        if not settings.servers:
            return
        # Imported here: a node without providers needs no grpcio.
        from . import provider
        from .inspector import ExhookInspector

        self.providers = [
            provider.Provider(
                server,
                each.name,
                settings,
                each,
                CircuitBreaker(engine.breaker_failures, engine.breaker_pause),
                self._hooks_changed,
            )
            for each in settings.servers
        ]
        inspector = ExhookInspector(server, self.providers, settings.request_failed_action == "deny")
        limits = InspectionLimits("exhook", settings.max_queued, settings.max_queued_bytes)
        self._inspection = Inspection(server.broker, inspector, limits)
        server.guard.event_queues.append(self._inspection)
        self._hooks_changed()

    def _hooks_changed(self) -> None:
        asked = any(provider.may_ask for provider in self.providers)
        self._server.broker.inspection = self._inspection if asked else None

    def start(self) -> None:
        """Introduce the node to each provider."""
        for provider in self.providers:
            provider.start()

    async def close(self) -> None:
        """Send what waits, for at most ``ruleengine.close_timeout``; the rest is dropped and counted."""
        if self._inspection is not None:
            left = await self._inspection.close(self._engine.close_timeout)
            if left:
                self._server.metrics.refusals.add("exhook_dropped_stopped", left)
                line = "exhook_dropped provider=* reason=stopped setting=ruleengine.close_timeout count=%s"
                logger.warning(line, left)
        for provider in self.providers:
            await provider.close(self._engine.close_timeout)
        if self._inspection is not None:
            self._server.guard.event_queues.remove(self._inspection)
