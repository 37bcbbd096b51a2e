"""Assembly: broker, rule engine and management of one node, started and stopped in the required order.

The command ``taipan`` and ``taipan.Node`` use it to run a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taipan.broker.loop.clock import Clock
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.exhook.plugin import ExhookPlugin
from taipan.ruleengine.webhook.plugin import WebHookPlugin

from .certificate_expiry import ExpiryAlarms
from .configuration.config import Loaded

if TYPE_CHECKING:
    from taipan.broker.hosted_node import PartsAbove

    from .management_server import ManagementServer


class Assembly:
    """``await start()`` and ``await stop()``, once each, on one event loop."""

    def __init__(self, loaded: Loaded, managed: bool = True, tell: Callable[[str], None] | None = None) -> None:
        """``managed``: whether there is a management server and a socket for ``taipan-ctl``. ``tell``: called with the
        secrets that are generated for the first operator."""
        settings = loaded.settings
        self.loaded = loaded
        self.server = Server(settings.broker, Clock())
        self.engine = RuleEngine(self.server, settings.ruleengine)
        self.web_hook = WebHookPlugin(self.server, settings.webhook, settings.ruleengine)
        self.exhook = ExhookPlugin(self.server, settings.exhook, settings.ruleengine)
        self.management: ManagementServer | None = None
        if managed:
            # Imported here: an embedded node mostly has no management server, and then does not need aiohttp.
            from .management_server import ManagementServer

            self.management = ManagementServer(
                self.server, settings.management, self.engine, settings.history, settings.dashboard, tell
            )
            self.management.operations.configuration.use(loaded)
        self.server.above_hosted = self._above_hosted
        self.expiry: ExpiryAlarms | None = None
        self._disconnected = False

    def _above_hosted(self, server: Server) -> PartsAbove:
        """Return what runs with a lost node that this process runs from its copy."""
        from .hosted_parts import HostedParts  # imported here: only a cluster with replicas needs it

        return HostedParts(server, self.loaded, self.management is not None)

    async def start(self) -> None:
        """Accept clients and operators. Raises the errors of its parts, and leaves nothing open then."""
        try:
            await self.server.start()
        except BaseException:
            await self.engine.close()
            raise
        try:
            self.engine.start()
            self.web_hook.start()
            self.exhook.start()
            if self.management is not None:
                await self.management.start()
            self.expiry = self._expiry_alarms()
        except BaseException:
            await self.exhook.close()
            await self.web_hook.close()
            await self.engine.close()
            await self.server.stop()
            raise

    def _expiry_alarms(self) -> ExpiryAlarms:
        if self.management is None:
            return ExpiryAlarms(self.server, self.loaded.settings)
        thresholds = self.management.operations.alarm_thresholds
        alarms = ExpiryAlarms(self.server, self.loaded.settings, lambda: thresholds.certificate_seconds)
        thresholds.on_certificates = alarms.look
        return alarms

    async def disconnect(self) -> None:
        """Disconnect operators and clients, once. Rules still receive Wills and disconnect events. Takes a limited
        time."""
        if self._disconnected:
            return
        self._disconnected = True
        if self.management is not None:
            await self.management.stop()
        await self.server.disconnect_clients()

    async def stop(self) -> None:
        """Call ``disconnect`` unless that was done, then close everything. Takes a limited time."""
        await self.disconnect()
        await self.exhook.close()
        await self.web_hook.close()
        await self.engine.close()
        await self.server.stop()
