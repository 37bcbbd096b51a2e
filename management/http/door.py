"""Door: the HTTP server's listening socket, with a bound on how many may be in."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from broker.core.client_info import authority
from broker.core.clock import Clock

logger = logging.getLogger(__name__)

BACKLOG: Final = 128
_SAY_EVERY: Final = 60.0


class Door:
    """Lets connections in to what ``handler`` makes, as long as there are fewer than ``max_connections``.

    Those beyond are closed at once and counted in ``refused``.
    """

    def __init__(self, handler: Callable[[], asyncio.Protocol], max_connections: int, clock: Clock) -> None:
        self.handler = handler
        self.max_connections = max_connections
        self.current_connections = 0
        self.accepted = 0
        self.refused = 0
        self._clock = clock
        self._say_at = 0.0
        self._server: asyncio.Server | None = None
        self._host = ""
        self._secure = False

    async def open(
        self, host: str, port: int, context: ssl.SSLContext | None, handshake_timeout: float | None = None
    ) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        self._host, self._secure = host, context is not None
        self._server = await loop.create_server(
            lambda: _Visit(self),
            host,
            port,
            ssl=context,
            ssl_handshake_timeout=None if context is None else handshake_timeout,
            backlog=BACKLOG,
            reuse_address=True,
        )

    def close(self) -> None:
        """Nobody comes in any more; who is in stays."""
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """0 while it is not open."""
        if self._server is None or not self._server.sockets:
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def protocol(self) -> str:
        return "https:management" if self._secure else "http:management"

    @property
    def listen_on(self) -> str:
        return authority(self._host, self.port)

    def enter(self) -> bool:
        """Whether there is room for one more, who is in from now on."""
        if self.current_connections < self.max_connections:
            self.current_connections += 1
            self.accepted += 1
            return True
        self.refused += 1
        now = self._clock.now()
        if now >= self._say_at:
            self._say_at = now + _SAY_EVERY
            logger.warning(
                "management_full connections=%s refused=%s setting=management.max_connections",
                self.current_connections,
                self.refused,
            )
        return False

    def leave(self) -> None:
        self.current_connections -= 1


class _Visit(asyncio.Protocol):
    """One connection: passes everything on to a protocol of the handler's, once it is let in."""

    __slots__ = ("_door", "_inner")

    def __init__(self, door: Door) -> None:
        self._door = door
        self._inner: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._door.enter():
            transport.close()
            return
        self._inner = self._door.handler()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._door.leave()
            self._inner.connection_lost(exc)
