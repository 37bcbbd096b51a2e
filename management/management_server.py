"""ManagementServer: the operators' side of a node with a running broker. It opens and closes the sockets."""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from taipan.broker.access.registry import tables_of
from taipan.broker.config import parse_bind
from taipan.broker.server import Server
from taipan.broker.session.client_info import authority, is_loopback
from taipan.ruleengine.engine import RuleEngine

from .api import monitoring
from .api.index import all_routes
from .configuration.settings import RELOADED, DashboardSettings, HistorySettings, ManagementSettings
from .ctl.socket import ControlSocket
from .dashboard.gate import DashboardGate
from .dashboard.pages import Pages
from .history.history import History
from .http.app import Application
from .http.certificates import Certificates
from .http.connection import HttpConnection
from .http.credentials import CredentialsCheck
from .http.cross_site import CrossSite
from .http.listener import HttpListener
from .http.protocol import HttpProtocol
from .operations.apps import NOTE_USES_EVERY
from .operations.operations import Operations
from .secret_line import secret_line

logger = logging.getLogger(__name__)

NONE: Final = DashboardSettings(enabled=False)
"""The settings of a node without a dashboard."""
_STARTED: Final = {"management": "management_started url=%s", "dashboard": "dashboard_started url=%s"}
_WITHOUT_TLS: Final = {
    "management": "management_without_tls url=%s: secrets cross the network in clear text; setting=management.tls",
    "dashboard": "dashboard_without_tls url=%s: passwords cross the network in clear text; setting=dashboard.tls",
}
_STOP_TIMEOUT = 2.0
_KEEP_ALIVE = 75.0


def _print(text: str) -> None:
    print(text, flush=True)


class ManagementError(Exception):
    """The management server cannot start; the message is one line with the setting.

    ``taken``: the address, if another process uses it."""

    def __init__(self, text: str, taken: str = "") -> None:
        super().__init__(text)
        self.taken = taken


class _HttpServer:
    """One HTTP listener and the application that answers there. ``table``: ``management`` or ``dashboard`` in the
    configuration."""

    def __init__(
        self, table: str, settings: ManagementSettings | DashboardSettings, timeout: float, application: Application
    ) -> None:
        self.table = table
        self.settings = settings
        self._timeout = timeout
        self._application = application
        self._runner: web.AppRunner | None = None
        self.listener: HttpListener | None = None
        self.certificates: Certificates | None = None

    async def start(self, server: Server) -> None:
        """Listen. Raises ManagementError, and TlsError for certificates that cannot be used."""
        settings = self.settings
        tls = settings.tls
        self.certificates = None if tls is None else Certificates(self.table, tls)
        context = None if self.certificates is None else self.certificates.context
        host, port = parse_bind(settings.bind)
        runner = web.AppRunner(
            self._application.web_application(),
            handle_signals=False,
            shutdown_timeout=_STOP_TIMEOUT,
        )
        await runner.setup()
        http_server, loop = runner.server, asyncio.get_running_loop()
        assert http_server is not None

        def make_protocol(connection: HttpConnection) -> HttpProtocol:
            return HttpProtocol(http_server, loop, connection, access_log=None, keepalive_timeout=_KEEP_ALIVE)

        listener = HttpListener(
            self.table,
            make_protocol,
            min(self._timeout, settings.first_request_timeout),
            settings.max_connections,
            settings.max_unauthenticated,
            server.clock,
            server.descriptors,
            server.before_login,
        )
        try:
            await listener.open(host, port, context, tls.handshake_timeout if tls is not None else None)
        except OSError as error:
            await runner.cleanup()
            why = error.strerror or str(error)
            taken = settings.bind if error.errno == errno.EADDRINUSE else ""
            raise ManagementError(f"{self.table}.bind {settings.bind}: {why}", taken) from None
        self._runner, self.listener = runner, listener
        server.http_bytes.append(self._memory)
        server.guard.senders.append(listener.senders)
        logger.info(_STARTED[self.table], self.url)
        if tls is None and host != "localhost" and not is_loopback(host):
            logger.warning(_WITHOUT_TLS[self.table], self.url)

    def _memory(self) -> int:
        return 0 if self.listener is None else self.listener.memory

    @property
    def url(self) -> str:
        """Return the URL, even before the server listens."""
        host, port = parse_bind(self.settings.bind)
        if self.listener is not None:
            port = self.listener.port
        scheme = "http" if self.settings.tls is None else "https"
        return f"{scheme}://{authority(host, port)}"

    def prepare(self) -> None:
        """Read the certificates again. Raises TlsError."""
        if self.certificates is not None:
            self.certificates.prepare()

    def apply(self) -> None:
        """Use the certificates that ``prepare`` has read."""
        if self.certificates is not None:
            self.certificates.apply()
            if self.listener is not None:
                self.listener.context = self.certificates.context

    async def stop(self) -> None:
        if self._runner is not None and self.listener is not None:
            self.listener.close()
            await self._runner.cleanup()
            self._runner = self.listener = None


class ManagementServer:
    """``await start()`` after the broker has started, ``await stop()`` before it stops. Create it before the broker
    starts, because it opens tables that are loaded then."""

    def __init__(
        self,
        server: Server,
        settings: ManagementSettings,
        engine: RuleEngine,
        history: HistorySettings,
        dashboard: DashboardSettings = NONE,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """``dashboard``: if it is omitted, there is none. ``tell``: called with the secrets that are generated for the
        first operator; if it is omitted, they are printed."""
        self._tell_secret = tell or _print
        self.server = server
        self.settings = settings
        self.dashboard_settings = dashboard
        self.history = History(server, history)
        self.operations = Operations(server, settings, engine, self.history, dashboard)
        self.control = ControlSocket(self.operations, server.settings.node.data_dir)
        self._cross_site = CrossSite(settings, server.clock, server.metrics.refusals)
        self._pages: list[Pages] = []
        self._http = _HttpServer("management", settings, settings.read_timeout, self._management_application())
        self._dashboard = _HttpServer("dashboard", dashboard, settings.read_timeout, self._dashboard_application())
        self._access = server.settings.access
        self._telling: asyncio.Task[None] | None = None
        self._notes_uses = False

    def _management_application(self) -> Application:
        server, operations = self.server, self.operations
        applications = CredentialsCheck(operations.apps, server.clock, server.metrics.refusals)
        if not self._on_management:
            return Application(operations, applications, self._cross_site, all_routes(), monitoring.root_routes.all)
        pages = self._make_pages("dashboard")
        gate = DashboardGate(operations.dashboard_users, operations.dashboard_sessions, applications)
        return Application(operations, gate, self._cross_site, all_routes(), monitoring.root_routes.all, pages)

    def _dashboard_application(self) -> Application:
        gate = DashboardGate(self.operations.dashboard_users, self.operations.dashboard_sessions)
        pages = self._make_pages() if self.dashboard_settings.enabled else None
        return Application(self.operations, gate, self._cross_site, all_routes(), pages=pages)

    def _make_pages(self, below: str = "") -> Pages:
        settings = self.dashboard_settings
        pages = Pages(settings.static_dir, self.server.listeners, below, settings.static_dir_eval)
        self._pages.append(pages)
        return pages

    @property
    def _on_management(self) -> bool:
        return self.settings.enabled and self.dashboard_settings.on_management

    async def start(self) -> None:
        """Listen. Raises ManagementError, ControlError, and TlsError for certificates that cannot be used."""
        await self.control.start()
        try:
            await self.history.start()
            for http in self._servers():
                await http.start(self.server)
                assert http.listener is not None
                self.operations.listeners.http_listeners.append(http.listener)
            if self.settings.enabled:
                self._first_app()
            if self._pages:
                self._pages[0].read()
                for pages in self._pages[1:]:
                    pages.share(self._pages[0])
                self.operations.dashboard_sessions.start()
                await self._first_user()
            self.server.ticker.every(NOTE_USES_EVERY, self._note_uses)
            self._notes_uses = True
            self.operations.alarm_targets.start()
            self.operations.alarm_thresholds.start()
            self.server.memory.started()
        except BaseException:
            await self.stop()
            raise

    def _note_uses(self, now: float) -> None:
        self.operations.apps.note_uses()

    def _servers(self) -> list[_HttpServer]:
        """Yield the servers that listen."""
        return [each for each in (self._http, self._dashboard) if each.settings.enabled]

    def _first_app(self) -> None:
        """Create an application if the node has none, and show its secret once."""
        made = self.operations.apps.create_first()
        if made is not None:
            app_id, secret = made
            self._tell_secret(
                "The first application for the HTTP API was created. Its secret is shown only now:\n"
                f"  curl -u {app_id}:{secret} {self.url}/api/v4/brokers"
            )

    async def _first_user(self) -> None:
        """Create a dashboard user if the node has none, and show its password once."""
        made = await self.operations.dashboard_users.create_first()
        if made is not None:
            name, password = made
            self._tell_secret(secret_line(f"The dashboard: {self.dashboard_url}", name, password))

    @property
    def url(self) -> str:
        """The URL of the HTTP API, even before it listens."""
        return self._http.url

    @property
    def dashboard_url(self) -> str:
        """The URL of the dashboard, even before it listens."""
        return self._dashboard.url if self.dashboard_settings.enabled else f"{self.url}/dashboard"

    def check(
        self, settings: ManagementSettings, history: HistorySettings, dashboard: DashboardSettings = NONE
    ) -> None:
        """Check whether ``reload`` could apply these settings. Raises ValueError if settings other than ``RELOADED``
        have changed, or if certificates, which are read again, cannot be used."""
        if history != self.history.settings:
            raise ValueError("[history] cannot change while the node runs")
        if msgspec.structs.replace(settings, **RELOADED) != msgspec.structs.replace(self.settings, **RELOADED):
            raise ValueError(f"[management] cannot change while the node runs, except for {', '.join(RELOADED)}")
        if dashboard != self.dashboard_settings:
            raise ValueError("[dashboard] cannot change while the node runs")
        for http in self._servers():
            http.prepare()

    def reload(self, settings: ManagementSettings) -> None:
        """Apply the settings in ``RELOADED``, and the certificates that ``check`` has read. Connected superusers that
        are no longer superusers in the broker's new settings lose that right."""
        self.operations.apps.configure(settings.apps)
        self._cross_site.configure(settings)
        for http in self._servers():
            http.apply()
        self.operations.dashboard_users.reload(self.server.settings.access)
        before, now = self._access, self.server.settings.access
        self._access = now
        changed: set[str] | None = {user.username for user in frozenset(before.users) ^ frozenset(now.users)}
        if before.authenticators != now.authenticators or tables_of(before) != tables_of(now):
            changed = None  # whose users are different now
        gone = {user.username for user in before.users} - {user.username for user in now.users}
        self._telling = asyncio.ensure_future(self._tell(gone, changed))
        self.settings = settings

    async def _tell(self, gone: set[str], changed: set[str] | None) -> None:
        await self.operations.users.end_connected(gone)
        await self.operations.users.tell_connected(changed)

    async def stop(self) -> None:
        if self._notes_uses:
            self._notes_uses = False
            self.server.ticker.remove(self._note_uses)
            self.operations.apps.note_uses()
        self.operations.alarm_thresholds.stop()
        await self.operations.alarm_targets.stop()
        await self.operations.live.stop()
        await self.control.stop()
        await self.history.stop()
        for http in self._servers():
            if http.listener is not None:
                listener = http.listener
                await http.stop()
                if listener in self.operations.listeners.http_listeners:
                    self.operations.listeners.http_listeners.remove(listener)
        self.operations.dashboard_users.close()
