"""PendingConnection: an accepted socket that does not have a Connection yet.

::

    accept -> PROXY header -> TLS handshake -> WebSocket handshake -> Connection
              (each only where the listener has it; each bounded in time; each failure counted by its reason)

A task is created only for a PROXY header, and for TLS without a Poller: it would cost a plain client as much as its
CONNECT does to be decoded. With a Poller and without a handshake, the listener needs no PendingConnection either.
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final, cast

from .polled_tls import PolledTls
from .poller import SHUTDOWN_TIMEOUT, Poller
from .proxy_protocol import ProxiedTransport, ProxyHeader, ProxyProtocolError, read_header
from .tls import Handshake, handshake_refusal, on_handshake_failure

if TYPE_CHECKING:
    from .listener import Listener

ALERT_TIMEOUT: Final = 2.0  # seconds that a peer whose handshake failed has to read the reason, and to close


class PendingConnection(asyncio.Protocol):
    """Runs the handshakes of one accepted socket; the listener counts it among its sockets until ``finish``."""

    __slots__ = ("_counted", "_header", "_listener", "_secured", "_sock", "_task", "_timer", "_transport", "peer")

    def __init__(self, listener: "Listener", sock: socket.socket, peer: tuple[str, int]) -> None:
        self._listener = listener
        self._sock: socket.socket | None = sock
        self._secured: socket.socket | None = None  # the same, once the loop has it for TLS
        self._header: ProxyHeader | None = None
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # of a polled handshake
        self._counted = False  # as refused
        self.peer = peer

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        listener = self._listener
        proxied = listener.settings.proxy_protocol
        if listener.context is None and not proxied:
            self._start_plain(loop)
            return
        if self._sock is not None:
            self._sock.setblocking(False)
        listener.before_login.hold(self, 0)
        if proxied or listener.poller is None:
            self._task = loop.create_task(self._run(loop))
        else:
            self._start_handshake(loop, listener.poller)

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

    def _start_handshake(self, loop: asyncio.AbstractEventLoop, poller: Poller) -> None:
        sock, self._sock = self._sock, None
        context, tls = self._listener.context, self._listener.settings.tls
        assert sock is not None and context is not None and tls is not None
        try:
            name = sock.getsockname()
            secured = context.wrap_accepted(sock)
        except OSError:
            sock.close()
            self.refuse("closed_early", "tls")
            return
        self._timer = loop.call_later(tls.handshake_timeout, self._timed_out)
        self._transport = transport = cast(asyncio.Transport, PolledTls(poller, secured, self.peer, name))
        cast(PolledTls, transport).begin(self)

    def _timed_out(self) -> None:
        transport = self._transport
        self.refuse("tls_timeout", "tls.handshake_timeout")
        if transport is not None:
            transport.abort()

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Count the failure. The peer may read the alert, and keeps its place until either side closes the
        connection."""
        self._stop_timer()
        self._count(*handshake_refusal(error))
        self._timer = asyncio.get_running_loop().call_later(ALERT_TIMEOUT, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a peer that has disconnected before its handshake was complete, or after a failure that was
        counted."""
        self.refuse("closed_early", "tls")

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

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
        self._stop_timer()
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
        """Give the socket its transport, over TLS if the listener has it."""
        context, tls = self._listener.context, self._listener.settings.tls
        poller = self._listener.poller
        if context is not None and poller is not None:
            self._start_handshake(loop, poller)
            return
        sock, self._sock = self._sock, None
        assert sock is not None
        try:
            if context is None or tls is None:
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
                    ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
                )
        except ConnectionAbortedError:
            self.refuse("tls_timeout", "tls.handshake_timeout")
        except OSError:
            self.refuse("closed_early", "tls" if tls is not None else "")

    def _handshake_failed(self, exc: ssl.SSLError) -> None:
        """Like ``handshake_failed``, for a transport of the event loop."""
        self._count(*handshake_refusal(exc))
        asyncio.get_running_loop().call_later(ALERT_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        if self._task is not None:
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Step aside: from now on the transport uses the Connection, or its WebSocket layer."""
        below = cast(asyncio.Transport, transport)
        self._stop_timer()
        ssl_object = below.get_extra_info("ssl_object")
        if isinstance(ssl_object, Handshake):
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
