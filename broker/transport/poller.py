"""Poller: the sockets of clients, without transports of the event loop.

A transport of the event loop and its Python socket use 1,450 bytes, a ``PolledTransport`` a tenth of that. All sockets
of a node are in one epoll, which the event loop watches as if it were a socket. Each socket that is ready is read once
in an iteration, up to ``READ_BYTES``: no client is read a second time before all others have had their turn.

A PolledTransport behaves like a transport of asyncio. Data is sent immediately, as far as the socket accepts it;
``close`` sends the rest first, ``abort`` discards it. ``connection_lost`` is called once, in a later iteration.

``polled_tls`` adds TLS. Only Linux has epoll; on other systems, the event loop serves all sockets."""

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from .read_watch import ReadWatch
from .socket_view import SocketView

HAS_EPOLL: Final = hasattr(select, "epoll")
READ_BYTES: Final = 65_536
"""Maximum size of a read: the C library has such blocks ready, and requests larger ones from the system."""
EVENTS: Final = 1024
"""Maximum number of sockets in an iteration; the others are first in the next one."""
HANDSHAKES: Final = 8
"""Maximum number of steps of TLS handshakes in an iteration: one with an RSA key of 2,048 bits takes a millisecond.
Epoll reports the others again in the next one."""
SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds that a TLS client has to answer our close_notify."""
SMALL: Final = 65_536
"""Unsent data below this size is copied to the end of the data before it. Larger data is shared by many clients."""
PIECES: Final = 64
"""Maximum number of pieces of one write."""
_HIGH: Final = 65_536
_LOW: Final = 16_384
# The numbers of Linux, because a compiled module reads attributes of a module slowly.
IN: Final = 0x001  # EPOLLIN
OUT: Final = 0x004  # EPOLLOUT
_FAILED: Final = 0x018  # EPOLLERR, EPOLLHUP


class Poller:
    """Watches the sockets of PolledTransports. ``open`` creates one of an accepted socket; ``close`` ends all."""

    __slots__ = (
        "_end_scheduled",
        "_ended",
        "_epoll",
        "_read_watch",
        "_transports",
        "handshakes",
        "loop",
        "reading",
        "reads",
        "shutdown_timeout",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.handshakes = HANDSHAKES  # the steps that are left in this iteration
        self.shutdown_timeout = SHUTDOWN_TIMEOUT
        self.reading = -1  # the socket that OpenSSL reads; see ReadWatch
        self.reads = 0
        self._read_watch: ReadWatch | None = None
        self._epoll = select.epoll()
        # By the number of the socket.
        self._transports: list[PolledTransport | None] = []
        self._ended: deque[PolledTransport] = deque()
        self._end_scheduled = False
        loop.add_reader(self._epoll.fileno(), self.poll)

    def open(self, sock: socket.socket, peer: object, name: object = None) -> "PolledTransport":
        """Return a transport that owns an accepted socket; ``peer`` is its ``peername``, ``name`` its ``sockname``, if
        this is known. ``start`` it.

        Raises OSError, and closes the socket, if it has failed already."""
        try:
            sock.setblocking(False)
            if name is None:
                name = sock.getsockname()
        except OSError:
            sock.close()
            raise
        transport = PolledTransport(self, sock.detach(), peer, name)
        self.add(transport)
        return transport

    def add(self, transport: "PolledTransport") -> None:
        """Take charge of a new transport; it is looked up by its ``fd`` until it has ended."""
        transports, fd = self._transports, transport.fd
        if fd >= len(transports):
            transports.extend([None] * (fd + 64 - len(transports)))
        transports[fd] = transport

    def watch_reads(self) -> None:
        """Let no read of TLS keep the event loop, from now on."""
        if self._read_watch is None:
            self._read_watch = ReadWatch(self)

    def poll(self) -> None:
        """Read and write the sockets that are ready."""
        self.handshakes = HANDSHAKES
        transports = self._transports
        for fd, events in self._epoll.poll(0, EVENTS):
            transport = transports[fd]
            if transport is None:
                continue
            if events & (IN | _FAILED) and transport.events & IN:
                transport.read()
            # Looked up again, because reading may have written, or ended the connection.
            if events & (OUT | _FAILED) and transport.events & OUT:
                transport.send_pieces()

    def watch(self, fd: int, before: int, events: int) -> None:
        """Change the events that epoll reports for a socket. Raises OSError."""
        if not before:
            self._epoll.register(fd, events)
        elif events:
            self._epoll.modify(fd, events)
        else:
            # With a mask of 0 it would report failures again and again. Before the socket is closed, because a child
            # process may have a copy of it, and epoll would continue to report that.
            self._epoll.unregister(fd)

    def failed(self, error: Exception, transport: "PolledTransport", doing: str) -> None:
        """Report an exception of a protocol in the same way as the event loop reports it."""
        self.loop.call_exception_handler(
            {
                "message": f"Fatal error: {doing} failed.",
                "exception": error,
                "transport": transport,
                "protocol": transport.get_protocol(),
            }
        )

    def end_later(self, transport: "PolledTransport") -> None:
        """End a transport in the next iteration."""
        self._ended.append(transport)
        self._schedule_end()

    def _schedule_end(self) -> None:
        if not self._end_scheduled:
            self._end_scheduled = True
            self.loop.call_soon(self._end)

    def _end(self) -> None:
        self._end_scheduled = False
        ended = self._ended
        try:
            for _ in range(len(ended)):
                transport = ended.popleft()
                fd = transport.fd
                try:
                    transport.end()
                except Exception as error:
                    self.failed(error, transport, "protocol.connection_lost() call")
                finally:
                    transport.fd = -1
                    self._transports[fd] = None
                    try:
                        transport.close_socket(fd)
                    except OSError:
                        pass  # an error of data that was sent; the number is free nevertheless
        finally:
            if ended:
                self._schedule_end()

    def close(self) -> None:
        """Abort all transports, end them now, and stop."""
        for transport in self._transports:
            if transport is not None:
                transport.abort()
        while self._ended:
            self._end()
        if self._read_watch is not None:
            self._read_watch.close()
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class PolledTransport:
    """A socket, used like an ``asyncio.Transport``.

    ``fd``: its number, -1 after it was closed. ``events``: those that epoll reports for it."""

    __slots__ = (
        "_buffered",
        "_closing",
        "_ending",
        "_eof_written",
        "_error",
        "_high",
        "_low",
        "_names",
        "_paused",
        "_pieces",
        "_poller",
        "_protocol",
        "_protocol_paused",
        "_unsent",
        "events",
        "fd",
    )

    def __init__(self, poller: Poller, fd: int, peer: object, name: object) -> None:
        self.fd = fd
        self._poller = poller
        self._protocol: Any = None
        # peername and sockname until ``start``. A protocol asks for them at its beginning.
        self._names: tuple[object, object] | None = (peer, name)
        self.events = 0
        self._pieces: list[Any] | None = None  # unsent data, or None
        self._unsent = 0  # bytes of it
        self._high = _HIGH
        self._low = _LOW
        self._error: Exception | None = None
        self._paused = False
        self._closing = False
        self._ending = False  # ``end`` follows
        self._eof_written = False
        self._protocol_paused = False
        self._buffered = False  # the protocol is a BufferedProtocol

    def start(self, made: Callable[["PolledTransport"], None]) -> None:
        """Call ``made``, which sets the protocol, then begin to read. If ``made`` fails, the socket is closed."""
        try:
            made(self)
        except BaseException:
            self.abort()
            raise
        self._names = None
        if not self._paused and not self._closing:
            self._watch(self.events | IN)

    def _watch(self, events: int) -> None:
        before = self.events
        if events == before:
            return
        self.events = events
        try:
            self._poller.watch(self.fd, before, events)
        except OSError as error:  # the system has no memory, or no further socket for this user
            self.events = before if events else 0
            self._end_later(error)

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self) -> None:
        """Read once, because epoll has reported that something can be read. If reading is paused, epoll reports
        nothing more until it resumes."""
        if self._paused:
            self._watch(self.events & ~IN)
            return
        protocol = self._protocol
        data = b""
        size = 0
        try:
            try:
                if self._buffered:
                    size = os.readv(self.fd, [protocol.get_buffer(-1)])
                else:
                    data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._end_later(error)
                return
            if data:
                protocol.data_received(data)
            elif size:
                protocol.buffer_updated(size)
            elif protocol.eof_received():
                self._watch(self.events & ~IN)
            else:
                self.close()
        except Exception as error:
            self._poller.failed(error, self, "protocol.data_received() call")
            self._end_later(error)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        # Epoll is told only if data arrives (``read``): most pauses end before, and two system calls are saved.
        if not self._closing:
            self._paused = True

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._watch(self.events | IN)

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``: what the socket does not accept now is sent later. Does nothing after the loss of the
        connection. Raises RuntimeError after ``write_eof``."""
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._ending or not data:
            return
        sent = 0
        if self._pieces is None:
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                pass
            except OSError as error:
                self._end_later(error)
                return
            if sent == len(data):
                return
        self._keep(data if isinstance(data, bytes) else bytes(data), sent)

    def _send_first(self, pieces: list[Any]) -> int:
        """Return how many bytes of the first pieces the socket accepts. Raises OSError if the connection is lost."""
        try:
            return os.writev(self.fd, pieces[:PIECES])
        except BlockingIOError:
            return 0

    def _keep(self, data: bytes, sent: int) -> None:
        """Keep the rest of some data; ``sent``: how many bytes the socket has accepted."""
        if self._pieces is None:
            self._pieces = []
            self._watch(self.events | OUT)
            if self._ending:
                return
        pieces = self._pieces
        rest = len(data) - sent
        if rest >= SMALL:
            pieces.append(memoryview(data)[sent:] if sent else data)
        elif pieces and isinstance(pieces[-1], bytearray) and len(pieces[-1]) < SMALL:
            pieces[-1].extend(data[sent:])
        else:
            pieces.append(bytearray(data[sent:]))
        self._unsent += rest
        if self._unsent > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def send_pieces(self) -> None:
        """Send unsent data, because epoll has reported that there is room for it."""
        pieces = self._pieces
        if pieces is None:
            return
        try:
            sent = self._send_first(pieces)
        except OSError as error:
            self._end_later(error)
            return
        self._unsent -= sent
        whole = 0
        for piece in pieces:
            if sent < len(piece):
                break
            sent -= len(piece)
            whole += 1
        del pieces[:whole]
        if not pieces:
            self._pieces = None
            self._watch(self.events & ~OUT)
        elif isinstance(pieces[0], bytearray):
            del pieces[0][:sent]
        elif sent:
            pieces[0] = memoryview(pieces[0])[sent:]
        if self._protocol_paused and self._unsent <= self._low:
            self._protocol_paused = False
            try:
                self._protocol.resume_writing()
            except Exception as error:
                self._poller.failed(error, self, "protocol.resume_writing() call")
                self._end_later(error)
        if self._pieces is None:
            if self._closing:
                self._finish()
            elif self._eof_written:
                try:
                    self._shut_down()
                except OSError as error:
                    self._end_later(error)

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Close this side after all data. Raises OSError if the client has reset the connection."""
        if self._closing or self._eof_written:
            return
        self._eof_written = True
        if self._pieces is None:
            self._shut_down()

    def _shut_down(self) -> None:
        SocketView(self).shutdown(socket.SHUT_WR)

    # ------------------------------------------------------------------------------------------------------- the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._pieces is None:
            self._finish()
        else:
            self._watch(self.events & ~IN)

    def _finish(self) -> None:
        """End the connection: ``close`` was called, and everything is sent."""
        self._end_later(None)

    def abort(self) -> None:
        self._end_later(None)

    def _end_later(self, error: Exception | None) -> None:
        if self._ending:
            return
        self._ending = self._closing = True
        self._error = error
        self._pieces = None
        self._unsent = 0
        self._watch(0)
        self._poller.end_later(self)

    def end(self) -> None:
        """Call ``connection_lost``; until it returns, the socket is open, and the rest of its data can be read."""
        protocol, self._protocol = self._protocol, None
        error, self._error = self._error, None
        if protocol is not None:
            protocol.connection_lost(error)

    def close_socket(self, fd: int) -> None:
        os.close(fd)

    # ------------------------------------------------------------------------------------- the protocol and the socket

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the addresses ``peername`` and ``sockname``, or a SocketView for ``socket``."""
        if name == "socket":
            return SocketView(self)
        names = self._names
        try:
            if name == "peername":
                return SocketView(self).getpeername() if names is None else names[0]
            if name == "sockname":
                return SocketView(self).getsockname() if names is None else names[1]
        except OSError:
            pass  # the connection is lost
        return default
