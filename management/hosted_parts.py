"""HostedParts: rules, hooks and operations of a lost node that this process runs from its copy."""

from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.exhook.plugin import ExhookPlugin
from taipan.ruleengine.webhook.plugin import WebHookPlugin

from .configuration.config import Loaded
from .history.history import History
from .operations.operations import Operations


class HostedParts:
    """``broker.hosted_node.PartsAbove``. Its rules run for what the node publishes, and deliver what they had accepted
    before. It answers the questions of other nodes; operators have no port there."""

    def __init__(self, server: Server, loaded: Loaded, managed: bool) -> None:
        """``managed``: whether nodes of this cluster have a management server."""
        settings = loaded.settings
        self._engine = RuleEngine(server, settings.ruleengine)
        self._web_hook = WebHookPlugin(server, settings.webhook, settings.ruleengine)
        self._exhook = ExhookPlugin(server, settings.exhook, settings.ruleengine)
        self._operations: Operations | None = None
        if managed:
            history = History(server, settings.history)
            self._operations = Operations(server, settings.management, self._engine, history, settings.dashboard)
            self._operations.configuration.use(loaded)

    @property
    def owed(self) -> int:
        return self._engine.buffers.total

    @property
    def kept(self) -> int:
        return self._engine.buffers.dead_letters.total

    def start(self) -> None:
        self._engine.start()
        self._web_hook.start()
        self._exhook.start()

    async def close(self) -> None:
        if self._operations is not None:
            await self._operations.live.stop()
            self._operations.dashboard_users.close()
        await self._exhook.close()
        await self._web_hook.close()
        await self._engine.close()
