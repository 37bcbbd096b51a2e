"""Listener: one address that accepts clients, over TCP, TLS, WebSocket (also with TLS), a Unix socket or datagrams."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ..config import ListenerSettings, ZoneSettings, parse_bind
from ..core.before_login import BeforeLogin
from ..gateway import GATEWAYS, Gateway, GatewayLoadError
from ..listener_kinds import LISTENER_KINDS, SOCKET_FILE_KEYS
from ..loop.clock import Clock
from ..session.client_info import authority, is_loopback
from .acceptor import Acceptor, Lingering
from .binding import PlainSocket, listening_sockets
from .datagrams import Datagrams
from .descriptors import UNLIMITED, Descriptors
from .dtls import DtlsContext
from .pending_connection import PendingConnection
from .poller import Poller
from .tls import ServerContext, TlsError, build_context
from .unix_socket import SocketFile, SocketFileError, listening_socket

if TYPE_CHECKING:
    from .connection import Connection
    from .websocket import WebSocketLayer

logger = logging.getLogger(__name__)

_GATEWAY_ERROR: Final = "gateway_error"
PROBE_LOG_INTERVAL: Final = 60.0  # seconds between two log lines about connections without a byte
REFUSAL_LOG_INTERVAL: Final = 10.0  # seconds between two log lines about the same reason


FIXED_KEYS: Final = ("name", "type", "bind", "reuse_port", *SOCKET_FILE_KEYS)
"""The settings of a listener that only a start applies."""
TLS_BYTES: Final = 27_000
"""Approximate memory of a connection's TLS, during the handshake and after it."""
POLLED_TLS_BYTES: Final = 15_000
"""The same after the handshake, with a Poller."""


class ListenerError(Exception):
    """A listener that cannot start, or cannot apply new settings; the message is one line.

    ``taken``: host and port, if another process uses them."""

    def __init__(self, text: str, taken: str = "") -> None:
        super().__init__(text)
        self.taken = taken


@dataclass(slots=True)
class PreparedListener:
    """New settings of a listener with their certificates loaded: applying them cannot fail."""

    settings: ListenerSettings
    zone: ZoneSettings
    context: ServerContext | None
    gateway_settings: object = None
    dtls: DtlsContext | None = None


class Listener:
    """Accepts clients at one address within its limits, and creates a Connection for each socket when it is ready.

    ``label`` is unique on the node: the listener's name, preceded by its type if an earlier listener of another type
    has that name. ``connect(listener)`` creates one Connection. The Connection calls ``opened``, ``freed`` and
    ``closed``. ``settings`` and ``zone`` are those of new clients. ``refused`` and ``shutdown_count`` count by
    reason."""

    def __init__(
        self,
        settings: ListenerSettings,
        zone: ZoneSettings,
        connect: Callable[["Listener"], asyncio.Protocol],
        clock: Clock,
        label: str | None = None,
        descriptors: Descriptors = UNLIMITED,
        before_login: BeforeLogin | None = None,
        poller: Poller | None = None,
    ) -> None:
        self.before_login = BeforeLogin(now=clock.now) if before_login is None else before_login
        self.poller = poller  # None: the sockets have transports of the event loop
        self.settings = settings
        self.zone = zone
        self.name = settings.name
        self.label = label or settings.name
        self.kind = LISTENER_KINDS[settings.type]
        self.type = settings.type
        self.gateway: Gateway | None = GATEWAYS.get(settings.type)
        self.gateway_settings: object = None  # settings of its gateway conversations
        self.accepted = 0  # number of created Connections
        self.throttled = 0  # how often accepting paused because of ``accept_rate``
        self.gateway_faults = 0
        self.dtls: DtlsContext | None = None  # of a datagram listener with TLS
        shared = None if self.gateway is None else self.gateway.shared
        self.gateway_shared: object = None if shared is None else shared()
        self.refused: dict[str, int] = {}
        self.shutdown_count: dict[str, int] = {}
        self.current_connections = 0
        self.context: ServerContext | None = None
        self.layer: type[WebSocketLayer] | None = None  # between its sockets and their Connections
        self.layers: set[WebSocketLayer] = set()  # number of open sockets, including those without a Connection
        self.pending: set[PendingConnection] = set()  # accepted sockets without a Connection yet
        # Adds a layer between the sockets and their Connections: faults, in test brokers.
        self.intercept: Callable[[asyncio.Protocol], asyncio.Protocol] | None = None
        self._connect = connect
        self._clock = clock
        self._host, self._port = _bind_of(settings)
        self._sockets: list[PlainSocket] = []
        self._file: SocketFile | None = None  # of a Unix socket
        self._datagrams = Datagrams(self) if self.kind.datagram else None
        self.acceptor = Acceptor(self, clock, descriptors)
        # Connections without a byte since the last log line about them, and its time.
        self._probes = 0
        self._probes_logged_at: float | None = None
        self._logged: dict[str, tuple[float, int]] = {}  # reason -> time of its last log line, count at that time

    # Properties

    @property
    def running(self) -> bool:
        return bool(self._sockets)

    @property
    def bind(self) -> tuple[str, int]:
        """Return the host and port of the listener, even before it is bound; for a Unix socket its path and 0."""
        if self._sockets and self._file is None:
            address: tuple[str, int] = self._sockets[0].getsockname()[:2]
            return address
        return self._host, self._port

    @property
    def port(self) -> int:
        return self.bind[1]

    @property
    def loopback(self) -> bool:
        """Return whether all its clients are on this machine; False for a hostname before it is bound.

        With ``proxy_protocol``, a load balancer on this machine forwards clients of other machines."""
        if self.settings.proxy_protocol:
            return False
        if self.kind.local:
            return True
        hosts = [sock.getsockname()[0] for sock in self._sockets] or [self._host]
        return all(map(is_loopback, hosts))

    @property
    def socket_bytes(self) -> int:
        """Return the approximate memory of TLS for handshakes, Connections and sockets that are being closed."""
        if self.context is None:
            return 0
        each = TLS_BYTES if self.poller is None else POLLED_TLS_BYTES
        return TLS_BYTES * len(self.pending) + each * max(self.current_connections, len(self.layers))

    @property
    def max_connections(self) -> int:
        return self.settings.max_connections

    @property
    def protocol(self) -> str:
        """The name in EMQX: ``mqtt:tcp``, ``mqtt:ssl``, ``mqtt:ws:8083``, ``mqtt:wss:8084``."""
        return f"{self.kind.protocol}:{self.port}" if self.kind.protocol_has_port else self.kind.protocol

    @property
    def listen_on(self) -> str:
        return authority(self._host, self.port)

    def info(self) -> dict[str, object]:
        return {
            "name": self.name,
            "protocol": self.protocol,
            "listen_on": self.listen_on,
            "running": self.running,
            "max_connections": self.max_connections,
            "current_connections": self.current_connections,
            "accepted": self.accepted,
            "refused": dict(self.refused),
            "shutdown_count": dict(self.shutdown_count),
        }

    def counters(self) -> dict[str, int]:
        """Return its counters by name; refusals and lost connections are by reason."""
        return {
            "connections.count": self.current_connections,
            "connections.max": self.max_connections,
            "accepted": self.accepted,
            "throttled": self.throttled,
            **{f"refused.{reason}": count for reason, count in self.refused.items()},
            **{f"shutdown_count.{reason}": count for reason, count in self.shutdown_count.items()},
        }

    # Starting and stopping

    async def start(self) -> None:
        """Read the certificates and accept clients. Raises TlsError and ListenerError."""
        if self._sockets:
            raise ListenerError(f"listener {self.name}: is running")
        self.context, self.dtls = _tls_context(self.settings), _dtls_context(self.settings)
        self.gateway_settings = self._settings_of_gateway(self.settings)
        if self.kind.websocket:
            # Imported here, because a node without WebSocket does not need it; but not later, because clients would
            # have to wait.
            from .websocket import WebSocketLayer

            self.layer = WebSocketLayer
        try:
            if self.kind.local:
                # In a thread, because another process may keep the lock of the directory.
                self._file = await asyncio.to_thread(listening_socket, self.settings)
                self._sockets = [self._file.sock]
            elif self._datagrams is not None:
                self._sockets = await self._datagrams.start(self._host, self._port, self.settings.reuse_port)
            else:
                self._sockets = await listening_sockets(
                    self._host, self._port, self.settings.backlog, self.settings.reuse_port
                )
        except SocketFileError as exc:
            where = f"cannot bind {self.settings.bind}" if exc.key == "bind" else exc.key
            raise ListenerError(f"listener {self.name}: {where}: {exc}") from None
        except socket.gaierror as exc:
            raise ListenerError(f"listener {self.name}: cannot resolve {self._host!r}: {exc.strerror}") from None
        except OSError as exc:
            why = os.strerror(exc.errno or 0)
            taken = self.settings.bind if exc.errno == errno.EADDRINUSE and not self.kind.local else ""
            raise ListenerError(f"listener {self.name}: cannot bind {self.settings.bind}: {why}", taken) from None
        self._port = self.port  # a restart uses the assigned port again
        self._set_nodelay()
        if self._datagrams is None:
            self.acceptor.start(self._sockets)
        logger.info("listener_started listener=%s protocol=%s listen_on=%s", self.name, self.protocol, self.listen_on)

    async def stop(self) -> None:
        """Stop accepting clients. Connections stay; sockets without a Connection are closed."""
        if not self._sockets:
            return
        if self._datagrams is not None:
            self._sockets = []
            self._datagrams.stop()
            logger.info("listener_stopped listener=%s protocol=%s", self.name, self.protocol)
            return
        self.acceptor.stop()
        if self._file is not None:
            self._file.remove()
            self._file = None
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        for pending in list(self.pending):
            pending.abort()
        logger.info("listener_stopped listener=%s protocol=%s", self.name, self.protocol)

    async def restart(self) -> None:
        if self._sockets:
            await self.stop()
        await self.start()

    def reload(self, settings: ListenerSettings, zone: ZoneSettings) -> None:
        """Call ``prepare`` and ``apply``, if nothing else has to be prepared first."""
        self.apply(self.prepare(settings, zone))

    def prepare(self, settings: ListenerSettings, zone: ZoneSettings) -> "PreparedListener":
        """Load everything that new settings need, without changing anything.

        Raises TlsError for files that cannot be used, and ListenerError for changes that require a restart."""
        for key in FIXED_KEYS:
            if getattr(settings, key) != getattr(self.settings, key):
                raise ListenerError(f"listener {self.name}: {key} cannot change while the node runs")
        return PreparedListener(
            settings, zone, _tls_context(settings), self._settings_of_gateway(settings), _dtls_context(settings)
        )

    def _settings_of_gateway(self, settings: ListenerSettings) -> object:
        if self.gateway is None:
            return None
        try:
            return self.gateway.settings_from(settings.gateway)
        except GatewayLoadError as error:
            raise ListenerError(f"listener {self.name}: gateway: {error}") from None

    def apply(self, prepared: "PreparedListener") -> None:
        """Apply the new limits and certificates to new clients; existing connections are not affected."""
        settings = prepared.settings
        new_rate = settings.accept_rate != self.settings.accept_rate
        if settings.backlog != self.settings.backlog and self._datagrams is None:
            for sock in self._sockets:
                sock.listen(settings.backlog)
        self.settings, self.zone, self.context = settings, prepared.zone, prepared.context
        if new_rate:
            self.acceptor.limit_rate()
        self._set_nodelay()
        self.dtls = prepared.dtls
        if self.gateway_settings != prepared.gateway_settings:
            self.gateway_settings = prepared.gateway_settings
            if self._datagrams is not None:
                self._datagrams.settings_changed()
        self.acceptor.place_free()

    def _set_nodelay(self) -> None:
        """Set TCP_NODELAY of future sockets, which inherit it. Transports of the event loop set it themselves."""
        if self.poller is not None and self._datagrams is None and not self.kind.local:
            for sock in self._sockets:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(self.settings.nodelay))

    # Sockets and their Connections

    def slowed(self, peer: tuple[str, int]) -> None:
        """Count and log a pause of accepting because of ``accept_rate``."""
        self.throttled += 1
        self._warn("accept_rate", self.throttled, "accept_rate", peer, "further ones wait")

    def admits_datagrams(self, peer: tuple[str, int]) -> bool:
        """Return whether a client that sends its first datagram may have a Connection. A refused client is counted and
        receives no answer, because its address may be forged."""
        return self.acceptor.admits_datagrams(peer)

    def finished(self, pending: PendingConnection) -> None:
        """Note that a socket has its Connection, which now has its own place, or was closed."""
        self.pending.discard(pending)
        self.acceptor.place_free()

    def connect_gateway(self) -> asyncio.Protocol:
        """Return a new Connection of this listener with a new gateway conversation that translates for it."""
        from .gateway_layer import GatewayLayer

        connection = cast("Connection", self._connect(self))
        layer = GatewayLayer(connection, self.zone.max_connect_size, self)
        return layer if self.intercept is None else self.intercept(layer)

    def attach(self, below: asyncio.Transport, top: asyncio.Transport) -> None:
        """Give a transport its Connection, or a gateway conversation. ``top``: what these use as the transport."""
        gateway = self.gateway
        connection = self.connect() if gateway is None else self.connect_gateway()
        below.set_protocol(connection)
        connection.connection_made(top)

    def connect(self) -> asyncio.Protocol:
        """Return a new Connection of this listener."""
        connection = self._connect(self)
        return connection if self.intercept is None else self.intercept(connection)

    def refuse(self, reason: str, setting: str, peer: tuple[str, int], detail: str = "") -> None:
        """Count a socket without a Connection, and log it, at most once per interval for each reason."""
        total = self.refused[reason] = self.refused.get(reason, 0) + 1
        self._warn(reason, total, setting, peer, detail)

    def gateway_failed(self, error: Exception) -> None:
        """Log a fault of the gateway with the traceback, at most once per interval."""
        self.gateway_faults += 1
        count = self._untold(_GATEWAY_ERROR, self.gateway_faults)
        if count:
            line = "gateway_error gateway=%s listener=%s count=%s"
            logger.error(line, self.type, self.name, count, exc_info=error)

    def _untold(self, reason: str, total: int) -> int:
        """Return how many of ``total`` a log line about this reason should report now; 0: there was a line recently."""
        now = self._clock.now()
        when, told = self._logged.get(reason, (None, 0))
        if when is not None and now - when < REFUSAL_LOG_INTERVAL:
            return 0
        self._logged[reason] = (now, total)
        return total - told

    def _warn(self, reason: str, total: int, setting: str, peer: tuple[str, int], detail: str) -> None:
        level = logging.DEBUG if reason == "closed_early" else logging.WARNING
        if not logger.isEnabledFor(level):
            return
        count = self._untold(reason, total)
        if not count:
            return
        logger.log(
            level,
            "listener_limit listener=%s reason=%s count=%s setting=%s peer=%s detail=%s",
            self.name,
            reason,
            count,
            setting or "-",
            authority(*peer) if peer[0] else "unknown",
            detail,
        )

    # Called by its Connections

    def probed(self, peer: str) -> None:
        """Count a connection that was closed without a byte; log the number at most once in ``PROBE_LOG_INTERVAL``."""
        self._probes += 1
        now = self._clock.now()
        if self._probes_logged_at is not None and now - self._probes_logged_at < PROBE_LOG_INTERVAL:
            return
        self._probes_logged_at = now
        logger.info("listener_probed listener=%s count=%s peer=%s", self.name, self._probes, peer)
        self._probes = 0

    def opened(self) -> None:
        """Count a new connection."""
        self.current_connections += 1
        self.accepted += 1

    def lingers(self, connection: Lingering) -> None:
        """Note that a connection waits for its client to close. If no other place is free, a new client replaces it."""
        self.acceptor.lingers(connection)

    def freed(self, connection: Lingering) -> None:
        """Stop counting a connection that has lost its transport."""
        self.current_connections -= 1
        self.acceptor.freed(connection)

    def closed(self, reason: str) -> None:
        """Count a Connection that has ended; ``reason`` in EMQX's words (normal, kicked, ...)."""
        self.shutdown_count[reason] = self.shutdown_count.get(reason, 0) + 1


def _bind_of(settings: ListenerSettings) -> tuple[str, int]:
    if LISTENER_KINDS[settings.type].local:
        return settings.bind, 0
    try:
        return parse_bind(settings.bind)
    except ValueError as error:
        raise ListenerError(f"listener {settings.name}: bind {settings.bind!r}: {error}") from None


def _dtls_context(settings: ListenerSettings) -> DtlsContext | None:
    """Return the certificates or keys of a datagram listener. Certificates have been checked by ``_tls_context``, whose
    errors are more specific."""
    if not LISTENER_KINDS[settings.type].datagram or settings.tls is None:
        return None
    try:
        return DtlsContext(settings.tls)
    except TlsError as exc:
        raise TlsError(exc.setting, f"listener {settings.name}: {exc.text}") from None


def _tls_context(settings: ListenerSettings) -> ServerContext | None:
    if not LISTENER_KINDS[settings.type].tls:
        if settings.tls is not None:
            raise TlsError("tls", f"listener {settings.name}: type {settings.type} has no TLS")
        return None
    if settings.tls is None:
        raise TlsError("tls", f"listener {settings.name}: type {settings.type} needs certificates")
    if LISTENER_KINDS[settings.type].datagram and settings.tls.psk_file:
        return None  # Python's own TLS has no part in it
    try:
        return build_context(settings.tls)
    except TlsError as exc:
        raise TlsError(exc.setting, f"listener {settings.name}: {exc.text}") from None
