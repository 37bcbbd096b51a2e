"""HttpConnection: one accepted socket, from its TLS handshake to its end, with its time limits."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

_TLS_SHUTDOWN_TIMEOUT: Final = 5.0
MAX_WITHOUT_REQUEST: Final = 2_097_152
"""Maximum number of bytes that do not lead to a request: much more than a head has, or a body that the server has not
yet asked for."""


class ConnectionOwner(Protocol):
    """The ``HttpListener`` that accepted the connection."""

    def authenticated(self, connection: "HttpConnection") -> None: ...
    def closed(self, connection: "HttpConnection") -> None: ...
    def is_open(self, connection: "HttpConnection") -> bool: ...
    def hold(self, connection: "HttpConnection", size: int) -> None: ...
    def evict(self, connection: "HttpConnection") -> None: ...


class HttpConnection(asyncio.Protocol):
    """Passes everything to the HTTP protocol that ``handler`` creates, after the handshake.

    Closes unless a request begins within ``timeout`` seconds; between requests, aiohttp's own timer applies.

    aiohttp limits the lines of a head that arrives in one piece; this class limits heads that arrive in many pieces."""

    __slots__ = (
        "_answering",
        "_bytes_without_request",
        "_first_request_timer",
        "_handler",
        "_http",
        "_owner",
        "_sock",
        "_task",
        "_timeout",
        "_transport",
        "_waiting",
        "address",
        "held",
        "is_authenticated",
        "reading",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        handler: "Callable[[HttpConnection], asyncio.Protocol]",
        timeout: float,
        address: str,
    ) -> None:
        self.address = address
        self.is_authenticated = False
        self._owner = owner
        self._handler = handler
        self._timeout = timeout
        self._sock: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._http: asyncio.Protocol | None = None
        self._first_request_timer: asyncio.TimerHandle | None = None
        self._answering = False
        self._bytes_without_request = 0
        # Number of received bytes of the current request, and whether its body is incomplete.
        self.held = 0
        self.reading = False
        self._waiting: asyncio.Future[None] | None = None

    def begin(self, sock: socket.socket, context: ssl.SSLContext | None, handshake_timeout: float | None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._task = asyncio.get_running_loop().create_task(self._connect(context, handshake_timeout))

    async def _connect(self, context: ssl.SSLContext | None, handshake_timeout: float | None) -> None:
        sock, self._sock = self._sock, None
        assert sock is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self,
                sock,
                ssl=context,
                ssl_handshake_timeout=handshake_timeout,
                ssl_shutdown_timeout=None if context is None else _TLS_SHUTDOWN_TIMEOUT,
            )
        except OSError:  # it disconnected, or does not use TLS
            self._owner.closed(self)
        finally:
            self._task = None

    def abort(self) -> None:
        """Close the connection immediately, in any state."""
        self._owner.closed(self)
        if self._transport is not None:
            self._transport.abort()
        else:
            if self._task is not None:
                self._task.cancel()
            if self._sock is not None:
                self._sock.close()

    # Requests

    def request_begins(self) -> None:
        """The head of a request is complete."""
        self._answering = True
        if self._first_request_timer is not None:
            self._first_request_timer.cancel()
            self._first_request_timer = None

    def request_answered(self) -> None:
        """The request is answered; the next one may begin."""
        self._answering = False
        self._bytes_without_request = 0
        if self.held:
            self._owner.hold(self, 0)

    def release(self) -> None:
        """The received bytes of the request are no longer stored."""
        self._owner.hold(self, 0)

    def evict(self) -> None:
        """See ``core.before_login.Newcomer``."""
        self._owner.evict(self)

    @property
    def unfinished_bytes(self) -> int:
        """Return the number of received bytes of a request whose body is incomplete."""
        return self.held if self.reading else 0

    def close_unfinished(self) -> None:
        """See ``memory_guard.Sender``."""
        self._owner.evict(self)

    def authenticated(self) -> None:
        """The caller has sent correct credentials."""
        self.is_authenticated = True
        self._owner.authenticated(self)

    async def wait(self, seconds: float) -> None:
        """Wait for this number of seconds, or until the connection is lost."""
        if self._http is None:
            return
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._end_wait)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def _end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.is_open(self):
            self._transport.abort()
            return
        self._http = self._handler(self)
        self._http.connection_made(transport)
        self._first_request_timer = asyncio.get_running_loop().call_later(self._timeout, self._transport.close)

    def data_received(self, data: bytes) -> None:
        if self._http is None or self._transport is None or self._transport.is_closing():
            return
        if not self._answering:
            self._bytes_without_request += len(data)
            if self._bytes_without_request > MAX_WITHOUT_REQUEST:
                self._transport.close()
                return
        self._owner.hold(self, self.held + len(data))
        if self._owner.is_open(self):  # otherwise this connection itself stored too much
            self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._http is None else self._http.eof_received()

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.closed(self)
        self.request_begins()  # leave no timer running
        http, self._http = self._http, None
        self._end_wait()
        if http is not None:
            http.connection_lost(exc)
