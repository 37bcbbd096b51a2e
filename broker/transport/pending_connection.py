"""PendingConnection: an accepted socket that does not have a Connection yet.

::

    accept -> PROXY header -> TLS handshake -> WebSocket handshake -> Connection
              (each only where the listener has it; each bounded in time; each failure counted by its reason)

If nothing is awaited before the socket has its transport, no task is created: that would cost a plain client as much as
its CONNECT does to be decoded. With a Poller and without a handshake, the listener needs no PendingConnection either.
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final, cast

from .poller import Poller
from .proxy_protocol import ProxiedTransport, ProxyHeader, ProxyProtocolError, read_header
from .tls import handshake_refusal, on_handshake_failure

if TYPE_CHECKING:
    from .listener import Listener

ALERT_TIMEOUT: Final = 2.0  # seconds that a peer whose handshake failed has to read the reason, and to close
TLS_SHUTDOWN_TIMEOUT: Final = 5.0  # seconds that a peer has to answer our close_notify


class PendingConnection(asyncio.Protocol):
    """Runs the handshakes of one accepted socket; the listener counts it among its sockets until ``finish``."""

    __slots__ = ("_counted", "_header", "_listener", "_secured", "_sock", "_task", "_transport", "peer")

    def __init__(self, listener: "Listener", sock: socket.socket, peer: tuple[str, int]) -> None:
        self._listener = listener
        self._sock: socket.socket | None = sock
        self._secured: socket.socket | None = None  # the same, once the loop has it for TLS
        self._header: ProxyHeader | None = None
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._counted = False  # as refused
        self.peer = peer

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._listener.context is None and not self._listener.settings.proxy_protocol:
            self._start_plain(loop)
        else:
            if self._sock is not None:
                self._sock.setblocking(False)
            self._listener.before_login.hold(self, 0)
            self._task = loop.create_task(self._run(loop))

    def _start_plain(self, loop: asyncio.AbstractEventLoop) -> None:
        sock, self._sock = self._sock, None
        assert sock is not None
        poller = self._listener.poller
        if poller is not None:
            self._start_polled(poller, sock)
            return
        steps = loop.connect_accepted_socket(lambda: self, sock)
        try:
            made = steps.send(None)
        except OSError:
            sock.close()
            self.refuse("closed_early", "")
        else:
            made.add_done_callback(lambda _: self._transport_made(steps))

    def _start_polled(self, poller: Poller, sock: socket.socket) -> None:
        try:
            transport = poller.open(sock, self.peer)
        except OSError:
            self.refuse("closed_early", "")
            return
        transport.start(lambda made: self.connection_made(cast(asyncio.BaseTransport, made)))

    def _transport_made(self, steps: Coroutine[None, None, object]) -> None:
        try:
            steps.send(None)
        except StopIteration:
            pass
        except OSError:
            self.refuse("closed_early", "")

    def abort(self) -> None:
        """Close the socket in any state, without counting it."""
        transport = self._transport
        self.finish()
        if self._task is not None:
            self._task.cancel()
        if transport is not None:
            transport.abort()

    def evict(self) -> None:
        """See ``core.before_login.Newcomer``."""
        self.refuse("memory", "limits.memory")
        self.abort()

    def finish(self) -> None:
        """Note that the socket has its Connection, or was closed."""
        self._listener.before_login.leave(self)
        self._transport = None  # otherwise its TLS, whose callbacks refer to this, would wait for a garbage collection
        self._listener.finished(self)

    def refuse(self, reason: str, setting: str, detail: str = "") -> None:
        """Refuse the socket a Connection because of ``setting``; the caller closes it. Counted once."""
        if self in self._listener.pending:
            self.finish()
            self._count(reason, setting, detail)

    def _count(self, reason: str, setting: str, detail: str) -> None:
        if not self._counted:
            self._counted = True
            self._listener.refuse(reason, setting, self.peer, detail)

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        settings = self._listener.settings
        try:
            assert self._sock is not None
            if settings.proxy_protocol:
                async with asyncio.timeout(settings.proxy_protocol_timeout):
                    self._header = await read_header(loop, self._sock)
                if self._header.source is not None:
                    self.peer = self._header.source
        except TimeoutError:
            self.refuse("proxy_protocol_timeout", "proxy_protocol_timeout")
        except ProxyProtocolError as exc:
            self.refuse("proxy_protocol_error", "proxy_protocol", str(exc))
        except (EOFError, OSError):
            self.refuse("closed_early", "proxy_protocol")
        else:
            await self._connect(loop)
        finally:
            if self._sock is not None:
                self._sock.close()
            self._task = None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass the socket to a transport of the loop, over TLS if the listener has it."""
        sock, self._sock = self._sock, None
        assert sock is not None
        context, tls = self._listener.context, self._listener.settings.tls
        try:
            if context is None or tls is None:
                poller = self._listener.poller
                if poller is not None:
                    self._start_polled(poller, sock)
                else:
                    await loop.connect_accepted_socket(lambda: self, sock)
            else:
                on_handshake_failure.set(self._handshake_failed)
                self._secured = sock
                await loop.connect_accepted_socket(
                    lambda: self,
                    sock,
                    ssl=context,
                    ssl_handshake_timeout=tls.handshake_timeout,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT,
                )
        except ConnectionAbortedError:
            self.refuse("tls_timeout", "tls.handshake_timeout")
        except OSError:
            self.refuse("closed_early", "tls" if tls is not None else "")

    def _handshake_failed(self, exc: ssl.SSLError) -> None:
        """Count the failure, and let the peer read the alert: then it closes, as it must, or we do."""
        self._count(*handshake_refusal(exc))
        asyncio.get_running_loop().call_later(ALERT_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        if self._task is not None:
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Step aside: from now on the transport uses the Connection, or its WebSocket layer."""
        below = cast(asyncio.Transport, transport)
        ssl_object = below.get_extra_info("ssl_object")
        if ssl_object is not None:
            ssl_object.sock = self._secured
        listener = self._listener
        settings = listener.settings
        if self not in listener.pending:  # the listener was stopped in the meantime
            below.abort()
            return
        if not (settings.nodelay or listener.kind.local):
            sock = below.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        top = below if self._header is None else ProxiedTransport(below, self._header)
        if listener.layer is not None:
            from .origins import accepted_origins

            self._transport = below
            origins = accepted_origins(settings, listener.zone, listener.loopback)
            layer = listener.layer(
                settings, listener.zone, listener.connect, self, origins, listener.before_login, listener.layers
            )
            below.set_protocol(layer)
            layer.connection_made(top)
        else:
            self.finish()
            listener.attach(below, top)
