"""ManagementServer: the operators' side of a node, over a running broker. Opens its sockets and closes them."""

import asyncio
import errno
import logging

import msgspec
from aiohttp import web

from taipan.broker.config import parse_bind
from taipan.broker.server import Server
from taipan.broker.session.client_info import authority, is_loopback
from taipan.ruleengine.engine import RuleEngine

from .api import monitoring
from .api.index import all_routes
from .ctl.socket import ControlSocket
from .history.history import History
from .http.app import Application
from .http.certificates import Certificates
from .http.connection import HttpConnection
from .http.listener import HttpListener
from .http.protocol import HttpProtocol
from .operations.operations import Operations
from .settings import RELOADED, HistorySettings, ManagementSettings

logger = logging.getLogger(__name__)

_STOP_TIMEOUT = 2.0
_KEEP_ALIVE = 75.0


class ManagementError(Exception):
    """The management server cannot start; one line that names the setting.

    ``taken``: the address, where another process has it.
    """

    def __init__(self, text: str, taken: str = "") -> None:
        super().__init__(text)
        self.taken = taken


class ManagementServer:
    """``await start()`` after the broker's, ``await stop()`` before it. Make it before the broker starts: it opens
    tables that are filled then."""

    def __init__(
        self,
        server: Server,
        settings: ManagementSettings,
        engine: RuleEngine,
        history: HistorySettings,
    ) -> None:
        self.server = server
        self.settings = settings
        self.history = History(server, history)
        self.operations = Operations(server, settings, engine, self.history)
        self.application = Application(self.operations, all_routes(), monitoring.root_routes.all)
        self.control = ControlSocket(self.operations, server.settings.node.data_dir)
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._certificates: Certificates | None = None
        self._access = server.settings.access
        self._telling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ManagementError, ControlError, and TlsError for certificates that cannot be used."""
        await self.control.start()
        try:
            if self.settings.enabled:
                await self._start_http()
            await self.history.start()
        except BaseException:
            await self.stop()
            raise

    async def _start_http(self) -> None:
        tls = self.settings.tls
        self._certificates = None if tls is None else Certificates(tls)
        context = None if self._certificates is None else self._certificates.context
        host, port = parse_bind(self.settings.bind)
        runner = web.AppRunner(
            self.application.web_application(),
            handle_signals=False,
            shutdown_timeout=_STOP_TIMEOUT,
        )
        await runner.setup()
        server, loop = runner.server, asyncio.get_running_loop()
        assert server is not None

        def make_protocol(connection: HttpConnection) -> HttpProtocol:
            return HttpProtocol(server, loop, connection, access_log=None, keepalive_timeout=_KEEP_ALIVE)

        listener = HttpListener(
            make_protocol,
            min(self.settings.read_timeout, self.settings.first_request_timeout),
            self.settings.max_connections,
            self.settings.max_unauthenticated,
            self.server.clock,
            self.server.descriptors,
        )
        try:
            await listener.open(host, port, context, tls.handshake_timeout if tls is not None else None)
        except OSError as error:
            await runner.cleanup()
            why = error.strerror or str(error)
            taken = self.settings.bind if error.errno == errno.EADDRINUSE else ""
            raise ManagementError(f"management.bind {self.settings.bind}: {why}", taken) from None
        self._runner, self._listener = runner, listener
        self.operations.listeners.http_listeners.append(listener)
        self._first_app()
        logger.info("management_started url=%s", self.url)
        if tls is None and host != "localhost" and not is_loopback(host):
            logger.warning(
                "management_without_tls url=%s: secrets cross the net in clear text; setting=management.tls", self.url
            )

    def _first_app(self) -> None:
        """A node without applications makes one, and says its secret this once."""
        made = self.operations.apps.create_first()
        if made is not None:
            app_id, secret = made
            print(
                "The first application may manage this node. Its secret is shown this once:\n"
                f"  curl -u {app_id}:{secret} {self.url}/api/v4/brokers",
                flush=True,
            )

    @property
    def url(self) -> str:
        """Where the HTTP server is, or will be."""
        host, port = parse_bind(self.settings.bind)
        if self._listener is not None:
            port = self._listener.port
        scheme = "http" if self.settings.tls is None else "https"
        return f"{scheme}://{authority(host, port)}"

    def check(self, settings: ManagementSettings, history: HistorySettings) -> None:
        """Whether ``reload`` could take these. Raises ValueError where more than ``RELOADED`` is new or certificates,
        which are read anew, cannot be used."""
        if history != self.history.settings:
            raise ValueError("[history] cannot change while the node runs")
        if msgspec.structs.replace(settings, **RELOADED) != msgspec.structs.replace(self.settings, **RELOADED):
            raise ValueError(f"[management] cannot change while the node runs, except for {', '.join(RELOADED)}")
        if self._certificates is not None:
            self._certificates.prepare()

    def reload(self, settings: ManagementSettings) -> None:
        """Take what is ``RELOADED``, and the certificates that ``check`` has read; superusers who are connected and are
        none any more, by the broker's new settings, lose that right."""
        self.operations.apps.configure(settings.apps)
        self.application.cross_site.configure(settings)
        if self._certificates is not None:
            self._certificates.apply()
            if self._listener is not None:
                self._listener.context = self._certificates.context
        before, now = self._access, self.server.settings.access
        self._access = now
        changed: set[str] | None = {user.username for user in frozenset(before.users) ^ frozenset(now.users)}
        if before.authenticators != now.authenticators or before.http != now.http:
            changed = None  # whose users count is another
        gone = {user.username for user in before.users} - {user.username for user in now.users}
        self._telling = asyncio.ensure_future(self._tell(gone, changed))
        self.settings = settings

    async def _tell(self, gone: set[str], changed: set[str] | None) -> None:
        await self.operations.users.end_connected(gone)
        await self.operations.users.tell_connected(changed)

    async def stop(self) -> None:
        await self.control.stop()
        await self.operations.live.stop()
        await self.history.stop()
        if self._runner is not None and self._listener is not None:
            self._listener.close()
            await self._runner.cleanup()
            self.operations.listeners.http_listeners.remove(self._listener)
            self._runner = self._listener = None
