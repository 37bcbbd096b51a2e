"""Management: the operators' side of a node, over a running broker. Opens its doors and closes them."""

import asyncio
import logging
from ipaddress import ip_address

import msgspec
from aiohttp import web

from broker.server import Server
from ruleengine.engine import RuleEngine

from .api import monitoring
from .api.index import all_routes
from .ctl.socket import ControlSocket
from .http.app import Application
from .http.certificates import Certificates
from .http.door import Door
from .http.reader import Reader
from .operations.operations import Operations
from .settings import ManagementSettings

logger = logging.getLogger(__name__)

_STOP_TIMEOUT = 2.0
_KEEP_ALIVE = 75.0


class ManagementError(Exception):
    """The management server cannot start; one line that names the setting."""


class Management:
    """``await start()`` after the broker's, ``await stop()`` before it. Make it before the broker starts: it opens
    tables that are filled then."""

    def __init__(self, server: Server, settings: ManagementSettings, engine: RuleEngine) -> None:
        self.server = server
        self.settings = settings
        self.operations = Operations(server, settings, engine)
        self.application = Application(self.operations, all_routes(), monitoring.root_routes.all)
        self.control = ControlSocket(self.operations, server.settings.node.data_dir)
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None
        self._certificates: Certificates | None = None
        self._superusers = self._configured_superusers()
        self._telling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ManagementError, ControlError, and TlsError for certificates that cannot be used."""
        await self.control.start()
        if not self.settings.enabled:
            return
        try:
            await self._start_http()
        except BaseException:
            await self.control.stop()
            raise

    async def _start_http(self) -> None:
        tls = self.settings.tls
        self._certificates = None if tls is None else Certificates(tls)
        context = None if self._certificates is None else self._certificates.context
        host, _, port = self.settings.bind.rpartition(":")
        runner = web.AppRunner(
            self.application.web_application(),
            handle_signals=False,
            shutdown_timeout=_STOP_TIMEOUT,
        )
        await runner.setup()
        server, loop = runner.server, asyncio.get_running_loop()

        def read() -> Reader:
            return Reader(server, loop, self.settings.read_timeout, access_log=None, keepalive_timeout=_KEEP_ALIVE)

        door = Door(read, self.settings.max_connections, self.server.clock)
        try:
            await door.open(host.strip("[]"), int(port), context, tls.handshake_timeout if tls is not None else None)
        except OSError as error:
            await runner.cleanup()
            why = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio names the address again
            raise ManagementError(f"management.bind {self.settings.bind}: {why}") from None
        self._runner, self._door = runner, door
        self.operations.listeners.doors.append(door)
        self._first_app()
        logger.info("management_started url=%s", self.url)
        if tls is None and not _is_loopback(host.strip("[]")):
            logger.warning(
                "management_without_tls url=%s: secrets cross the net in clear text; setting=management.tls", self.url
            )

    def _first_app(self) -> None:
        """A node that nobody may manage makes one application, and says its secret this once."""
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
        host, _, port = self.settings.bind.rpartition(":")
        if self._door is not None:
            port = str(self._door.port)
        scheme = "http" if self.settings.tls is None else "https"
        return f"{scheme}://{host}:{port}"

    def check(self, settings: ManagementSettings) -> None:
        """Whether ``reload`` could take these. Raises ValueError where more than ``apps`` is new or certificates, which
        are read anew, cannot be used."""
        if msgspec.structs.replace(settings, apps=[]) != msgspec.structs.replace(self.settings, apps=[]):
            raise ValueError("[management] cannot change while the node runs, except for its apps")
        if self._certificates is not None:
            self._certificates.prepare()

    def reload(self, settings: ManagementSettings) -> None:
        """Take new ``apps`` and the certificates that ``check`` has read; superusers who are connected and are none any
        more, by the broker's new settings, lose that right."""
        self.operations.apps.configure(settings.apps)
        if self._certificates is not None:
            self._certificates.apply()
        before, self._superusers = self._superusers, self._configured_superusers()
        if before != self._superusers:
            self._telling = asyncio.ensure_future(self.operations.users.tell_connected(before ^ self._superusers))
        self.settings = settings

    def _configured_superusers(self) -> frozenset[str]:
        return frozenset(user.username for user in self.server.settings.access.users if user.is_superuser)

    async def stop(self) -> None:
        await self.control.stop()
        if self._runner is not None and self._door is not None:
            self._door.close()
            await self._runner.cleanup()
            self.operations.listeners.doors.remove(self._door)
            self._runner = self._door = None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
