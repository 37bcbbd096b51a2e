"""Assembly: broker, rule engine and management of one node, started and stopped in the order that they want.

The command ``taipan`` and ``taipan.Node`` run a node by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taipan.broker.loop.clock import Clock
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine

from .certificate_expiry import ExpiryAlarms
from .configuration.config import Loaded

if TYPE_CHECKING:
    from .management_server import ManagementServer


class Assembly:
    """``await start()`` and ``await stop()``, once each, on one event loop."""

    def __init__(self, loaded: Loaded, managed: bool = True, tell: Callable[[str], None] | None = None) -> None:
        """``managed``: whether there is a management server and a socket for ``taipan-ctl``. ``tell``: told the secrets
        that are made for a first operator."""
        settings = loaded.settings
        self.loaded = loaded
        self.server = Server(settings.broker, Clock())
        self.engine = RuleEngine(self.server, settings.ruleengine)
        self.management: ManagementServer | None = None
        if managed:
            # Imported here: a node of a program mostly has none, and needs no aiohttp then.
            from .management_server import ManagementServer

            self.management = ManagementServer(
                self.server, settings.management, self.engine, settings.history, settings.dashboard, tell
            )
            self.management.operations.configuration.use(loaded)
        self.expiry: ExpiryAlarms | None = None
        self._disconnected = False

    async def start(self) -> None:
        """Accept clients and operators. Raises what a part raises; then nothing is left open."""
        try:
            await self.server.start()
        except BaseException:
            await self.engine.close()
            raise
        try:
            self.engine.start()
            if self.management is not None:
                await self.management.start()
            self.expiry = ExpiryAlarms(self.server, self.loaded.settings)
        except BaseException:
            await self.engine.close()
            await self.server.stop()
            raise

    async def disconnect(self) -> None:
        """Send operators and clients away, once; rules still hear of wills and of who leaves. Bounded in time."""
        if self._disconnected:
            return
        self._disconnected = True
        if self.management is not None:
            await self.management.stop()
        await self.server.disconnect_clients()

    async def stop(self) -> None:
        """``disconnect``, unless that has been done, and close. Bounded in time."""
        await self.disconnect()
        await self.engine.close()
        await self.server.stop()
