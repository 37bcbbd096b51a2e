"""Acceptor: accepts the clients of a Listener within its limits, and starts their Connections.

Compiled, because every client passes through it. A client of a plain socket with a Poller becomes a Connection at once;
the others are PendingConnections first."""

import asyncio
import errno
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from ..loop.clock import Clock
from .binding import PlainSocket, is_wildcard
from .descriptors import SETTING, Descriptors
from .pending_connection import PendingConnection
from .poller import PolledTransport, Poller
from .rate_limits import TokenBucket
from .unix_socket import peer_of

if TYPE_CHECKING:
    from .listener import Listener

ACCEPTS_PER_ITERATION: Final = 64  # so that a burst of connections leaves room for existing ones
EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
ACCEPT_PAUSE: Final = 1.0  # seconds without accepting when the system has no more sockets
PLACE_TIMEOUT: Final = 0.25
"""Seconds that a new client waits for one of ``max_connections``, because a recent disconnect may not have been noticed
yet."""
MAX_WAITING: Final = 64  # for a place


class Lingering(Protocol):
    """A closed connection whose client has not closed its side yet."""

    def abort(self) -> None:
        """Stop waiting."""


class Acceptor:
    """``waiting``: accepted sockets that wait for a place, at most ``max_waiting``, each with its client's address."""

    __slots__ = (
        "_clock",
        "_lingering",
        "_listener",
        "_rate",
        "_rest",
        "_sockets",
        "descriptors",
        "max_waiting",
        "waiting",
    )

    def __init__(self, listener: "Listener", clock: Clock, descriptors: Descriptors) -> None:
        self._listener = listener
        self._clock = clock
        self.descriptors = descriptors
        self._sockets: list[PlainSocket] = []
        self._rest: asyncio.TimerHandle | None = None
        self._rate: TokenBucket | None = None
        self._lingering: dict[Lingering, None] = {}
        self.waiting: deque[tuple[socket.socket, tuple[str, int]]] = deque()
        self.max_waiting = MAX_WAITING
        self.limit_rate()

    def limit_rate(self) -> None:
        """Apply ``accept_rate``, which is new."""
        rate = self._listener.settings.accept_rate
        self._rate = TokenBucket(rate, 1.0) if rate else None

    def start(self, sockets: list[PlainSocket]) -> None:
        """Accept the clients of these listening sockets, until ``stop``."""
        self._sockets = sockets
        self._resume()

    def stop(self) -> None:
        """Accept no more clients, and close the sockets that wait for a place. The listening sockets stay open."""
        self._pause()
        self._sockets = []
        for sock, _ in self.waiting:
            sock.close()
        self.waiting.clear()

    def _resume(self) -> None:
        self._rest = None
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock, self._name_of_all(sock))

    def _name_of_all(self, sock: PlainSocket) -> object:
        """Return the address of all sockets that are accepted from this one; None: each has its own."""
        if self._listener.kind.local:
            return None
        name = sock.getsockname()
        return None if is_wildcard(name[0]) else name

    def _pause(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)

    def _accept(self, listening: PlainSocket, name: object) -> None:
        listener = self._listener
        most = self.descriptors.for_clients
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                # accept() also reports the error of a client that was in the backlog and has disconnected.
                text = os.strerror(exc.errno or 0)
                if exc.errno not in EXHAUSTED:
                    listener.refuse("closed_early", "", ("", 0), text)
                    continue
                self._exhausted(("", 0), text)
                return
            peer: tuple[str, int] = peer_of(sock) if listener.kind.local else address[:2]
            if sock.fileno() >= most:
                sock.close()
                kept = self.descriptors.limit - most
                self._exhausted(peer, f"{kept} of {self.descriptors.limit} are kept for the node itself")
                return
            sock.__class__ = PlainSocket
            self._admit(sock, peer, name)
            if self._rate is not None:
                wait = self._rate.consume(1, self._clock.now())
                if wait > 0:
                    # Further ones wait in the backlog, where they cost nothing.
                    listener.slowed(peer)
                    self._pause()
                    self._rest = asyncio.get_running_loop().call_later(wait, self._resume)
                    return

    def _poller(self) -> Poller | None:
        """Return the Poller of sockets that become Connections at once; None: they are PendingConnections first."""
        listener = self._listener
        if listener.context is not None or listener.layer is not None or listener.settings.proxy_protocol:
            return None
        poller: Poller | None = listener.poller
        return poller

    def _made(self, transport: PolledTransport) -> None:
        below = cast(asyncio.Transport, transport)
        self._listener.attach(below, below)

    def _exhausted(self, peer: tuple[str, int], detail: str) -> None:
        """Pause accepting, because no descriptor is free: new clients wait in the backlog."""
        self._listener.refuse("no_sockets", SETTING, peer, detail)
        self._pause()
        self._rest = asyncio.get_running_loop().call_later(ACCEPT_PAUSE, self._resume)

    @property
    def full(self) -> bool:
        """Whether no place is free."""
        listener = self._listener
        limit: int = listener.settings.max_connections
        return limit > 0 and listener.current_connections + len(listener.pending) >= limit

    def admits_datagrams(self, peer: tuple[str, int]) -> bool:
        """See ``Listener.admits_datagrams``."""
        listener = self._listener
        if self.full:
            listener.refuse("max_connections", "max_connections", peer)
            return False
        if self._rate is not None:
            now = self._clock.now()
            if not self._rate.has(1, now):
                listener.throttled += 1
                listener.refuse("accept_rate", "accept_rate", peer)
                return False
            self._rate.consume(1, now)
        return True

    def _admit(self, sock: socket.socket, peer: tuple[str, int], name: object) -> None:
        if not self.waiting and not self.full:
            self._start(sock, peer, name)
        elif len(self.waiting) < self.max_waiting:
            self.waiting.append((sock, peer))
            asyncio.get_running_loop().call_later(PLACE_TIMEOUT, self._refuse_waiting, sock)
            if self._lingering:
                oldest = next(iter(self._lingering))
                del self._lingering[oldest]
                oldest.abort()
        else:
            self._refuse_full(sock, peer)

    def _start(self, sock: socket.socket, peer: tuple[str, int], name: object = None) -> None:
        listener = self._listener
        poller = self._poller()
        if poller is not None:
            try:
                transport = poller.open(sock, peer, name)
            except OSError:
                listener.refuse("closed_early", "", peer)
                return
            transport.start(self._made)
            return
        pending = PendingConnection(listener, sock, peer)
        listener.pending.add(pending)
        pending.start(asyncio.get_running_loop())

    def _refuse_full(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._listener.refuse("max_connections", "max_connections", peer)
        sock.close()

    def _refuse_waiting(self, sock: socket.socket) -> None:
        """Refuse a socket that still waits for a place after the timeout."""
        for waiting in self.waiting:
            if waiting[0] is sock:
                self.waiting.remove(waiting)
                self._refuse_full(waiting[0], waiting[1])
                return

    def place_free(self) -> None:
        """Admit clients that wait for a place, because one may be free now."""
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._admit_waiting)

    def _admit_waiting(self) -> None:
        while self.waiting and not self.full:
            sock, peer = self.waiting.popleft()
            self._start(sock, peer)

    def lingers(self, connection: Lingering) -> None:
        """Note that a connection waits for its client to close. If no other place is free, a new client replaces it."""
        self._lingering[connection] = None

    def freed(self, connection: Lingering) -> None:
        """Note that a connection has lost its transport, and its place is free."""
        self._lingering.pop(connection, None)
        self.place_free()
