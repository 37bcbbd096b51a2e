"""ExhookPlugin: sends events to providers of EMQX's exhook protocol, without ever waiting where they happen."""

from typing import TYPE_CHECKING

from taipan.broker.server import Server

from ..config import EngineSettings, ExhookSettings

if TYPE_CHECKING:
    from .provider import Provider


class ExhookPlugin:
    """Belongs to one event loop. ``providers``: those that are configured, from ``start`` on."""

    def __init__(self, server: Server, settings: ExhookSettings, engine: EngineSettings) -> None:
        self._server = server
        self._settings = settings
        self._engine = engine
        self.providers: list[Provider] = []

    def start(self) -> None:
        """Introduce the node to each provider. Raises ValueError for a file that cannot be used."""
        if not self._settings.servers:
            return
        from .provider import Provider  # imported here: a node without providers needs no grpcio

        self.providers = [Provider(self._server, each.name, self._settings, each) for each in self._settings.servers]
        for provider in self.providers:
            provider.start()

    async def close(self) -> None:
        """Send what waits, for at most ``ruleengine.close_timeout``; the rest is dropped and counted."""
        for provider in self.providers:
            await provider.close(self._engine.close_timeout)
