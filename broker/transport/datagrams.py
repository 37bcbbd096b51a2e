"""Datagrams: the clients of a listener whose sockets receive datagrams. One socket serves many of them.

A ``DatagramPeer`` takes the place of a connection for one address. This address is not proved: anyone can send a
datagram with a forged address. So a peer uses few resources before its login, and receives no more bytes than it has
sent."""

import asyncio
import errno
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ..session.client_info import shared_text
from .binding import PlainSocket, bound_sockets
from .dtls import DtlsError, DtlsSession, is_client_hello
from .handshakes import Handshakes
from .layer import Layer

if TYPE_CHECKING:
    from .listener import Listener

READS_PER_ITERATION: Final = 64
LARGEST: Final = 65_535
"""Bytes: more than a datagram can have."""
MAX_NEWCOMERS: Final = 1024
"""Maximum number of peers of a listener without a login. A new one replaces the oldest: a flood of forged addresses
cannot fill the memory, and a client logs in before it is the oldest."""
MAX_WAITING: Final = 65_536
"""Bytes of the datagrams of a client that wait while the node does not read from it."""
_DATAGRAM_BYTES: Final = 100
"""Approximate memory of a waiting datagram without its own bytes."""
# Flags of a peer.
_CLOSING: Final = 1
_KEEPS: Final = 2  # its DTLS session, for the next peer
_PAUSED: Final = 4
_STAYS_NEWCOMER: Final = 8
_FULL: Final = frozenset((errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM))

_Address = tuple[Any, ...]
_Key = tuple[int, _Address, bytes]
"""The socket, the sender's address, and what precedes the messages of a client behind it (``gateway.Gateway.split``).
"""


class Datagrams:
    """The sockets of a listener, and their peers by socket and address.

    After ``stop`` the known peers are still served; the sockets are closed with the last of them."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._sockets: list[PlainSocket] = []
        self.names: dict[int, _Address] = {}
        """The own address of each socket, by its descriptor: one for all peers."""
        self._peers: dict[_Key | _Address, DatagramPeer] = {}  # by ``_place``
        self._newcomers: dict[DatagramPeer, None] = {}  # the oldest first
        self._accepting = False
        self._beacon_timer: asyncio.TimerHandle | None = None
        gateway = listener.gateway
        self._split = None if gateway is None else gateway.split
        self._handshakes = Handshakes(listener, self._secured)
        self.challenge_bytes = None if gateway is None else gateway.challenge_bytes

    async def start(self, host: str, port: int, shared: bool) -> list[PlainSocket]:
        """Return the bound sockets: the previous ones, if they still serve peers. Raises the errors of
        ``binding.listening_sockets``."""
        if not self._sockets:
            self._sockets = await bound_sockets(host, port, shared, socket.SOCK_DGRAM)
            loop = asyncio.get_running_loop()
            for sock in self._sockets:
                self.names[sock.fileno()] = sock.getsockname()
                loop.add_reader(sock, self._read, sock)
        self._accepting = True
        self._announce()
        return list(self._sockets)

    def _announce(self) -> None:
        """Send the gateway's beacon, if it has one, now and at its intervals."""
        self._beacon_timer = None
        gateway = self._listener.gateway
        if gateway is None or gateway.beacon is None or not self._accepting:
            return
        beacon = gateway.beacon(self._listener.gateway_settings)
        if not beacon.seconds:
            return
        for sock in self._sockets:
            if sock.family == socket.AF_INET:
                to = beacon.host, sock.getsockname()[1]
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                    sock.sendto(beacon.data, to)
                except OSError as error:
                    self._listener.refuse("datagrams_unsent", "", to, error.strerror or "")
        self._beacon_timer = asyncio.get_running_loop().call_later(beacon.seconds, self._announce)

    def settings_changed(self) -> None:
        """Apply the new settings of the listener to its beacon."""
        if self._beacon_timer is not None:
            self._beacon_timer.cancel()
        self._announce()

    def stop(self) -> None:
        """Accept no new peers."""
        self._accepting = False
        self._handshakes.end()
        if self._beacon_timer is not None:
            self._beacon_timer.cancel()
            self._beacon_timer = None
        self._close_unused()

    def _close_unused(self) -> None:
        if self._accepting or self._peers:
            return
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)
            sock.close()
        self._sockets = []
        self.names.clear()

    def _read(self, sock: socket.socket) -> None:
        for _ in range(READS_PER_ITERATION):
            try:
                data, address = sock.recvfrom(LARGEST)
            except OSError as error:
                if error.errno in _FULL or sock.fileno() < 0:
                    return
                continue  # what the system knows of a datagram that was sent before
            if not data:
                continue
            head = b""
            if self._split is not None:
                try:
                    head, data = self._split(data)
                except ValueError as error:
                    self._listener.refuse("malformed_datagram", "", address[:2], str(error))
                    continue
            self._receive((sock.fileno(), address, head), sock, data)
            if not self._sockets:  # that was the last peer of a stopped listener
                return

    def _place(self, key: _Key) -> _Key | _Address:
        """Return the key of a peer in ``_peers``: its address alone, which the peer has anyway, unless there are
        several sockets or several clients behind the address. The sockets stay the same while there are peers."""
        return key if key[2] or len(self._sockets) > 1 else key[1]

    def _receive(self, key: _Key, sock: socket.socket, data: bytes) -> None:
        dtls = self._listener.dtls
        peer = self._peers.get(self._place(key))
        if dtls is None or (peer is not None and not is_client_hello(data)):
            self._take(key, sock, data)
        # Until a new handshake is done, the session of before goes on: a ClientHello may be an old one, repeated by
        # anyone. Of two sessions, one cannot read what belongs to the other, and ignores it.
        if dtls is not None and self._accepting and (peer is None or self._handshakes.takes(key, data)):
            self._handshakes.take(dtls, key, sock, data)

    def _secured(self, key: _Key, sock: socket.socket, session: DtlsSession, found: list[bytes]) -> None:
        """Add the client of a completed handshake, in place of the previous client of the address."""
        old = self._peers.pop(self._place(key), None)
        if old is not None:
            old.abort()
        peer = self._created(key, sock, session)
        for data in found:
            peer.take(data)

    def _take(self, key: _Key, sock: socket.socket, data: bytes) -> None:
        peer = self._peers.get(self._place(key))
        if peer is None:
            if not self._accepting or not self._listener.admits_datagrams(key[1][:2]):
                return
            peer = self._created(key, sock)
        peer.datagram_received(data)

    def renew(self, key: _Key, sock: socket.socket, data: bytes) -> None:
        """Pass a datagram to a new peer of the same address; the old peer ends itself."""
        old = self._peers.pop(self._place(key), None)
        if self._listener.dtls is None:
            self._take(key, sock, data)
        elif old is not None and self._accepting and self._listener.admits_datagrams(key[1][:2]):
            self._created(key, sock, old.hand_over()).take(data)
        elif old is not None:
            old.end_session()

    def _created(self, key: _Key, sock: socket.socket, session: DtlsSession | None = None) -> "DatagramPeer":
        if len(self._newcomers) >= MAX_NEWCOMERS:
            oldest = next(iter(self._newcomers))
            self.refuse("newcomers", oldest, "too many clients have not logged in")
            oldest.abort()
        host, *rest = key[1]
        key = key[0], (shared_text(host), *rest), key[2]
        peer = self._peers[self._place(key)] = DatagramPeer(self, sock, key, session)
        self._newcomers[peer] = None
        peer.open(self._listener)
        return peer

    def refuse(self, reason: str, peer: "DatagramPeer", detail: str = "") -> None:
        """Count a peer or a datagram that is dropped."""
        self._listener.refuse(reason, "", peer.address[:2], detail)

    def is_newcomer(self, peer: "DatagramPeer") -> bool:
        """Return whether a peer has not logged in."""
        return peer in self._newcomers

    def no_newcomer(self, peer: "DatagramPeer") -> None:
        """A peer has logged in, or is about to end."""
        self._newcomers.pop(peer, None)

    def remove(self, key: _Key, peer: "DatagramPeer") -> None:
        """Remove a peer that has ended. The next datagram from its address begins a new conversation."""
        place = self._place(key)
        if self._peers.get(place) is peer:
            del self._peers[place]
        self._close_unused()


class _Waiting:
    """The datagrams of a client that wait while the node does not read from it. ``size``: their memory."""

    __slots__ = ("_datagrams", "size")

    def __init__(self) -> None:
        self._datagrams: deque[bytes] = deque()
        self.size = 0

    def add(self, data: bytes) -> None:
        self._datagrams.append(data)
        self.size += len(data) + _DATAGRAM_BYTES

    def next(self) -> bytes:
        data = self._datagrams.popleft()
        self.size -= len(data) + _DATAGRAM_BYTES
        return data


class DatagramPeer(Layer):
    """One address, which the layer above uses like a transport: each ``write`` sends a datagram, and each call of the
    protocol's ``data_received`` passes one on. With a ``DtlsSession``, both are encrypted on the wire."""

    reads_to_the_end = True

    __slots__ = ("_datagrams", "_flags", "_head", "_protocol", "_session", "_sock", "_waiting",
                 "address", "room")  # fmt: skip

    def __init__(
        self, datagrams: Datagrams, sock: socket.socket, key: _Key, session: DtlsSession | None = None
    ) -> None:
        super().__init__()
        self._datagrams = datagrams
        self._sock = sock
        self.address = key[1]
        self._head = key[2]
        self._protocol: asyncio.Protocol
        self._flags = 0
        self._waiting: _Waiting | None = None
        self._session = session
        # Bytes that it may be sent; -1: its address is proved, as by the cookie of DTLS.
        self.room = 0 if session is None else -1

    @property
    def _key(self) -> _Key:
        return self._sock.fileno(), self.address, self._head

    def stay_newcomer(self) -> None:
        """See ``gateway.GatewayLink``."""
        self._flags |= _STAYS_NEWCOMER

    def open(self, listener: "Listener") -> None:
        self._protocol = listener.connect_gateway()
        self._protocol.connection_made(self)

    def datagram_received(self, data: bytes) -> None:
        if self._session is None:
            self.take(data)
            return
        try:
            found = self._session.received(data)
        except DtlsError as error:
            if error.why:
                self._datagrams.refuse("tls_handshake", self, error.why)
            self.abort()
            return
        for each in found:
            self.take(each)

    def hand_over(self) -> DtlsSession | None:
        """Return the session for the next peer of the address."""
        session, self._session = self._session, None
        return session

    def keep_session(self) -> None:
        """Keep the session when this peer ends, because ``renew`` follows."""
        if self._session is not None:
            self._flags |= _KEEPS

    def end_session(self) -> None:
        """Tell the client that the session has ended."""
        if self._session is not None:
            for each in self._session.closing():
                self._send(each)
            self._session = None

    def take(self, data: bytes) -> None:
        """Process a datagram, or keep it until the node reads from this client."""
        flags = self._flags
        if flags & _CLOSING:
            return
        if self.room >= 0:
            self.room += len(self._head) + len(data)
        if not flags & _PAUSED:
            self._protocol.data_received(data)
            return
        if self._datagrams.is_newcomer(self) or self.held_bytes + len(data) + _DATAGRAM_BYTES > MAX_WAITING:
            self._datagrams.refuse("datagrams_dropped", self, "the node does not read from this client at present")
            return
        if self._waiting is None:
            self._waiting = _Waiting()
        self._waiting.add(data)

    # What the layer above uses

    @property
    def sender(self) -> tuple[str, int, int]:
        """See ``gateway.GatewayLink``."""
        return self.address[0], self.address[1], 0 if self._session is None else self._session.number

    @property
    def held_bytes(self) -> int:
        return 0 if self._waiting is None else self._waiting.size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a datagram. A datagram that the system does not accept is lost, like one that the network loses."""
        if self._flags & (_CLOSING | _KEEPS):
            return
        if self._head:
            data = self._head + data
        if self.room >= 0:
            if len(data) > self.room:
                self._datagrams.refuse("amplification", self, "an answer above what the client has sent")
                return
            self.room -= len(data)
        if self._session is None:
            self._send(data)
            return
        try:
            for each in self._session.encrypted(bytes(data)):
                self._send(each)
        except DtlsError as error:
            self._datagrams.refuse("datagrams_unsent", self, error.why)

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._sock.sendto(data, self.address)
        except OSError as error:
            self._datagrams.refuse("datagrams_unsent", self, error.strerror or "")

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._flags & _CLOSING:
            if not self._flags & _KEEPS:
                self.end_session()
            self._flags |= _CLOSING
            self._waiting = None
            self._datagrams.no_newcomer(self)
            asyncio.get_running_loop().call_soon(self._lost)

    def _lost(self) -> None:
        self._protocol.connection_lost(None)
        self._datagrams.remove(self._key, self)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._flags & _CLOSING != 0

    def is_reading(self) -> bool:
        return not self._flags & _PAUSED

    def pause_reading(self) -> None:
        self._flags |= _PAUSED

    def resume_reading(self) -> None:
        if self._flags & _PAUSED:
            self._flags &= ~_PAUSED
            if self._waiting is not None:
                asyncio.get_running_loop().call_soon(self._read_waiting)

    def _read_waiting(self) -> None:
        while self._waiting is not None and not self._flags & _PAUSED:
            data = self._waiting.next()
            if not self._waiting.size:
                self._waiting = None
            self._protocol.data_received(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass  # nothing waits to be sent

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "peername":
            return self.address
        if name == "certificate_names":
            return default if self._session is None else self._session.names
        return self._datagrams.names.get(self._sock.fileno(), default) if name == "sockname" else default

    def raise_packet_limit(self, max_packet_size: int) -> None:
        if self._flags & _STAYS_NEWCOMER:
            return
        self._datagrams.no_newcomer(self)
        if self._datagrams.challenge_bytes is None:
            self.proved()
        elif self.room >= 0:
            self.room += self._datagrams.challenge_bytes

    def proved(self) -> None:
        """Note that the client receives at its address: from now on, it may receive more bytes than it has sent."""
        self.room = -1

    def renew(self, data: bytes) -> None:
        """Pass a datagram to a new peer of this address."""
        self._datagrams.renew(self._key, self._sock, data)
