"""HttpListener: the listening sockets of the management server or of the dashboard, with a limit of connections.

Connections with correct credentials stay; others are closed if a new connection needs their place.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from taipan.broker.access.guesses import address_group
from taipan.broker.core.before_login import BeforeLogin
from taipan.broker.loop.clock import Clock
from taipan.broker.observability.throttle import Throttle
from taipan.broker.session.client_info import authority
from taipan.broker.transport.acceptor import ACCEPT_PAUSE, EXHAUSTED
from taipan.broker.transport.binding import PlainSocket, listening_sockets
from taipan.broker.transport.descriptors import SETTING, UNLIMITED, Descriptors
from taipan.broker.transport.listener import TLS_BYTES

from .connection import HttpConnection

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_PER_ITERATION: Final = 16  # so that a connection is read before new ones replace it
CONNECTION_BYTES: Final = 24_000
"""Approximate memory of an idle connection in bytes."""
HEAD_BYTES: Final = 4_096
"""Bytes of a request that are included in this."""
_FULL: Final = {
    "management": "management_full reason=%s connections=%s unauthenticated=%s refused=%s setting=%s",
    "dashboard": "dashboard_full reason=%s connections=%s unauthenticated=%s refused=%s setting=%s",
}


def _beyond_a_head(size: int) -> int:
    return size if size > HEAD_BYTES else 0


class HttpListener:
    """Accept connections for the protocol that ``handler`` creates: at most ``max_connections``, and from one address
    at most ``max_unauthenticated`` that have not yet sent correct credentials. ``timeout``: seconds until the first
    request.

    A further connection replaces the oldest one without credentials; if there is none, the new connection is closed.
    Each is counted in ``refused`` under its setting. ``table``: the configuration table, ``management`` or
    ``dashboard``.
    """

    def __init__(
        self,
        table: str,
        handler: Callable[[HttpConnection], asyncio.Protocol],
        timeout: float,
        max_connections: int,
        max_unauthenticated: int,
        clock: Clock,
        descriptors: Descriptors = UNLIMITED,
        before_login: BeforeLogin | None = None,
    ) -> None:
        self._before_login = BeforeLogin(now=clock.now) if before_login is None else before_login
        self._bytes = 0
        self._table = table
        self._handler = handler
        self._timeout = timeout
        self.max_connections = max_connections
        self.accepted = 0
        self.refused = {"max_connections": 0, "max_unauthenticated": 0, "no_sockets": 0, "memory": 0}
        self._max_unauthenticated = max_unauthenticated
        self._clock = clock
        self._descriptors = descriptors
        self._connections: set[HttpConnection] = set()
        # Connections that have not yet sent correct credentials, oldest first: all, and by address.
        self._unauthenticated: dict[HttpConnection, None] = {}
        self._unauthenticated_of: dict[str, dict[HttpConnection, None]] = {}
        self._throttle = Throttle()
        self._sockets: list[PlainSocket] = []
        self._resume_timer: asyncio.TimerHandle | None = None
        self._host = ""
        self.context: ssl.SSLContext | None = None  # for new connections
        self._handshake_timeout: float | None = None

    async def open(
        self, host: str, port: int, context: ssl.SSLContext | None, handshake_timeout: float | None = None
    ) -> None:
        """Bind to the address and accept connections. Raises OSError."""
        self._sockets = await listening_sockets(host, port, BACKLOG)
        self._host, self.context = host, context
        self._handshake_timeout = None if context is None else handshake_timeout
        self._resume_accepting()

    def close(self) -> None:
        """Accept no more connections; those with correct credentials stay."""
        self._pause_accepting()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        for connection in list(self._unauthenticated):
            connection.abort()

    @property
    def current_connections(self) -> int:
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port; 0 while the listener is not open."""
        if not self._sockets:
            return 0
        port: int = self._sockets[0].getsockname()[1]
        return port

    @property
    def protocol(self) -> str:
        return f"http:{self._table}" if self.context is None else f"https:{self._table}"

    @property
    def listen_on(self) -> str:
        return authority(self._host, self.port)

    # Accepting

    def _resume_accepting(self) -> None:
        self._resume_timer = None
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)

    def _pause_accepting(self) -> None:
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # accept() also reports the error of a client that was still in the backlog and has disconnected.
                if error.errno not in EXHAUSTED:
                    continue
                self._refuse("no_sockets")
                if self._unauthenticated:
                    next(iter(self._unauthenticated)).abort()
                self._pause_accepting()
                self._resume_timer = asyncio.get_running_loop().call_later(ACCEPT_PAUSE, self._resume_accepting)
                return
            address = address_group(peer[0])
            if self._admit(address, sock.fileno()):
                self.accepted += 1
                self._add(HttpConnection(self, self._handler, self._timeout, address), sock)
            else:
                sock.close()

    def _admit(self, address: str, number: int) -> bool:
        """Return whether one more connection from ``address``, whose socket has this ``number``, may stay. Others may
        have to be closed."""
        same = self._unauthenticated_of.get(address)
        if same is not None and len(same) >= self._max_unauthenticated:
            self._refuse("max_unauthenticated")
            next(iter(same)).abort()
        if len(self._connections) >= self.max_connections:
            reason = "max_connections"
        elif number >= self._descriptors.for_operators:
            reason = "no_sockets"
        else:
            return True
        self._refuse(reason)
        if not self._unauthenticated:
            return False
        next(iter(self._unauthenticated)).abort()
        return True

    def _refuse(self, reason: str) -> None:
        """Count a connection that is closed because there are too many; log it, once in a while for each reason."""
        self.refused[reason] += 1
        if self._throttle.due(self._clock.now(), reason):
            logger.warning(
                _FULL[self._table],
                reason,
                len(self._connections),
                len(self._unauthenticated),
                self.refused[reason],
                {"no_sockets": SETTING, "memory": "limits.memory"}.get(reason, f"{self._table}.{reason}"),
            )

    def _add(self, connection: HttpConnection, sock: socket.socket) -> None:
        self._connections.add(connection)
        self._unauthenticated[connection] = None
        self._before_login.hold(connection, 0)
        self._unauthenticated_of.setdefault(connection.address, {})[connection] = None
        connection.begin(sock, self.context, self._handshake_timeout)

    def authenticated(self, connection: HttpConnection) -> None:
        """A connection has sent correct credentials: new connections no longer replace it."""
        if self._unauthenticated.pop(connection, self) is None:
            self._before_login.leave(connection)
            self._bytes += _beyond_a_head(connection.held)
            same = self._unauthenticated_of[connection.address]
            del same[connection]
            if not same:
                del self._unauthenticated_of[connection.address]

    def closed(self, connection: HttpConnection) -> None:
        """A connection was closed."""
        self.authenticated(connection)
        self.hold(connection, 0)
        self._connections.discard(connection)

    def hold(self, connection: HttpConnection, size: int) -> None:
        """A connection stores this many received bytes of a request."""
        before, connection.held = connection.held, size
        if connection in self._unauthenticated:
            self._before_login.hold(connection, size)
        elif connection in self._connections:
            self._bytes += _beyond_a_head(size) - _beyond_a_head(before)

    def evict(self, connection: HttpConnection) -> None:
        """Close a connection because memory is short."""
        self._refuse("memory")
        connection.abort()

    @property
    def memory(self) -> int:
        """Return approximately how many bytes of memory the connections use, without requests that have no
        credentials."""
        each = CONNECTION_BYTES if self.context is None else CONNECTION_BYTES + TLS_BYTES
        return self._bytes + each * len(self._connections)

    def senders(self) -> list[HttpConnection]:
        """Return the connections that have sent correct credentials and the beginning of a body."""
        return [each for each in self._connections if each.reading and each.is_authenticated]

    def is_open(self, connection: HttpConnection) -> bool:
        """Return whether a connection is still open."""
        return connection in self._connections
