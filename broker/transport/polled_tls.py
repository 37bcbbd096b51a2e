"""PolledTls: a TLS connection of the Poller; OpenSSL reads and writes its socket itself.

A transport of the event loop gives each TLS connection buffers of its own, two more of OpenSSL, and two protocols:
27 KB. Here, OpenSSL has 14 KB, and frees its buffers after each record.

The handshake takes a step each time that the socket is ready, up to ``poller.HANDSHAKES`` in an iteration. After it,
the transport behaves like any other of the Poller, with these differences:

- A read returns one record at most, and no part of it stays in OpenSSL, because ``RECORD`` is the largest. The system
  has the rest, and epoll reports it. Several small records are read in one iteration, and passed on together.
- Every record is a write of its own. One that the socket does not accept stays in OpenSSL, and is offered again with
  the same bytes: so they stay in the pieces until then. Before that, OpenSSL fails if it reads a second key update:
  what may be one is read when the record is sent, or after ``KEY_UPDATE_WAIT``.
- TLS has no half-closed connections. ``close`` sends a close_notify after all data, then waits for that of the client
  or for its end, and discards what it still sends."""

import asyncio
import os
import socket
from array import array
from errno import ECONNRESET
from fcntl import ioctl
from ssl import SSLEOFError, SSLError, SSLWantReadError, SSLWantWriteError, SSLZeroReturnError
from termios import FIONREAD
from typing import Any, Final, Protocol

from .poller import IN, OUT, PIECES, READ_BYTES, PolledTransport, Poller
from .tls import PolledSocket, is_reset

RECORD: Final = 16_384
RECORDS: Final = 128
"""Maximum number of records of one client that an iteration reads: each costs about as much as a kilobyte of data, even
if it has only one byte."""
KEY_UPDATE_WAIT: Final = 5.0
"""Seconds that a record which may be a key update waits, at most, for ours to be sent."""
_KEY_UPDATE: Final = b"\x17\x03\x03\x00\x16"
"""The header of a key update's record without padding (RFC 8446, section 4.6.3), and of five bytes of data."""
_PEEK: Final = int(socket.MSG_PEEK)
_found: Final = array("i", [0])
# The states of a connection, in their order. REFUSED: its handshake has failed, and the client may read the alert.
_HANDSHAKE: Final = 0
_REFUSED: Final = 1
_OPEN: Final = 2
_SHUTDOWN: Final = 3  # our close_notify was sent


class Beginner(Protocol):
    """The protocol of a transport during the handshake. ``connection_made`` sets another one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def handshake_failed(self, error: SSLError) -> None:
        """The client is refused. It can read the alert until it closes or the transport is aborted."""


class PolledTls(PolledTransport):
    """A socket with TLS. ``begin`` the handshake, with the protocol that decides what follows."""

    __slots__ = ("_last", "_loss", "_read_waits", "_sock", "_state", "_timer", "_waited")

    def __init__(self, poller: Poller, sock: PolledSocket, peer: object, name: object) -> None:
        super().__init__(poller, sock.fileno(), peer, name)
        self._sock = sock
        self._state = _HANDSHAKE
        self._last = False  # OpenSSL has seen the end, which the next read returns; epoll does not report it again
        self._loss: OSError | None = None  # the same for a loss
        self._read_waits = False  # for the socket to accept an answer, or a record before it
        self._waited = False  # as long as a key update may
        # Of the wait for our record to be sent, or for the client's close_notify.
        self._timer: asyncio.TimerHandle | None = None
        poller.add(self)

    def begin(self, beginner: Beginner) -> None:
        self._poller.watch_reads()
        self.set_protocol(beginner)
        self._watch(IN)

    # ------------------------------------------------------------------------------------------------------- handshake

    def _take_step(self) -> None:
        poller = self._poller
        if poller.handshakes <= 0:
            return
        poller.handshakes -= 1
        sock = self._sock
        try:
            sock.do_handshake()
        except SSLWantReadError:
            self._watch(IN)
            return
        except SSLWantWriteError:
            self._watch(OUT)
            return
        except (SSLEOFError, SSLZeroReturnError) as error:  # the client has closed
            self._end_later(error)
            return
        except SSLError as error:
            self._refuse(error, sock.established)
            return
        except OSError as error:
            self._end_later(error)
            return
        self._watch(IN)
        if self._ending:
            return
        self._state = _OPEN
        try:
            self.start(self._protocol.connection_made)
        except Exception as error:
            poller.failed(error, self, "protocol.connection_made() call")

    def _refuse(self, error: SSLError, established: bool) -> None:
        self._state = _REFUSED
        try:
            self._protocol.handshake_failed(error)
        except Exception as failure:
            self._poller.failed(failure, self, "protocol.handshake_failed() call")
        if established:
            self.abort()
        else:
            self._watch(IN)

    # --------------------------------------------------------------------------------------------------------- reading

    def read(self) -> None:
        if self._ending:
            return
        if self._state != _OPEN:
            self._read_aside()
            return
        if self._closing:
            return
        if self._paused:
            self._watch(self.events & ~IN)
            return
        try:
            data = self._records()
        except OSError as error:
            self._end_later(error)
            return
        if data is None:
            return
        if data and self._last:
            self._poller.loop.call_soon(self.read)
        protocol = self._protocol
        try:
            if data:
                protocol.data_received(data)
            elif is_reset(self._sock):  # which OpenSSL reports as an end
                self._end_later(ConnectionResetError(ECONNRESET, os.strerror(ECONNRESET)))
            else:
                protocol.eof_received()
                self.close()
        except Exception as error:
            self._poller.failed(error, self, "protocol.data_received() call")
            self._end_later(error)

    def _records(self) -> bytes | None:
        """Return the data of some records; ``None``: no record is complete; empty: the client has closed. Raises
        OSError for a loss that no data precedes. An end or a loss after data sets ``_last``."""
        if self._loss is not None:
            raise self._loss
        poller = self._poller
        data = b""
        more: list[bytes] | None = None
        size = 0
        poller.reading = self.fd
        try:
            for _ in range(RECORDS):
                if self._pieces is not None and self._must_wait():
                    break
                poller.reads += 1
                record: bytes = self._sock.read(RECORD)
                if not record:
                    self._last = True
                    break
                size += len(record)
                if more is not None:
                    more.append(record)
                elif data:
                    more = [data, record]
                else:
                    data = record
                # To ask costs less than the exception of a read that finds nothing.
                if size > READ_BYTES - RECORD or not _available(self.fd):
                    break
        except SSLWantReadError:
            if not size:
                return None
        except SSLWantWriteError:  # an answer to a key update, which the socket does not accept yet
            self._read_waits = True
            self._watch((self.events | OUT) & ~IN)
            if not size:
                return None
        except OSError as error:
            if not size:
                raise
            self._last, self._loss = True, error
        finally:
            poller.reading = -1
        if not size and not self._last:
            return None
        return data if more is None else b"".join(more)

    def _must_wait(self) -> bool:
        """Return whether the next record may be a key update, which OpenSSL cannot answer while a record waits to be
        sent: a second one would make the read fail."""
        if self._waited:
            return False
        sock = self._sock
        try:
            head = socket.socket.recv(sock, len(_KEY_UPDATE), _PEEK)
        except OSError:
            return False
        if head != _KEY_UPDATE or sock.version() != "TLSv1.3":
            return False
        self._read_waits = True
        self._watch((self.events | OUT) & ~IN)
        if self._timer is None and not self._ending:
            self._timer = self._poller.loop.call_later(KEY_UPDATE_WAIT, self._wait_over)
        return True

    def _wait_over(self) -> None:
        """Stop waiting and read: a client that sends this much data may read slowly. It does not have to wait again."""
        self._timer = None
        self._waited = True
        self._read_again()

    def _read_again(self) -> None:
        if self._read_waits:
            self._read_waits = False
            if not self._paused and not self._closing:
                self._watch(self.events | IN)

    def resume_reading(self) -> None:
        super().resume_reading()
        if self._last and not self._paused:
            self._poller.loop.call_soon(self.read)

    def _read_aside(self) -> None:
        """Read in a state in which no data is passed on."""
        if self._state == _HANDSHAKE:
            self._take_step()
            return
        poller = self._poller
        poller.reading = self.fd
        poller.reads += 1
        try:
            data = os.read(self.fd, READ_BYTES) if self._state == _REFUSED else self._sock.read(RECORD)
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return
        except OSError:
            data = b""
        finally:
            poller.reading = -1
        if not data:
            self._end_later(None)

    # --------------------------------------------------------------------------------------------------------- writing

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        """Return how many bytes of ``data`` were accepted. Raises OSError if the connection is lost."""
        sock = self._sock
        size = len(data)
        sent = 0
        try:
            sent = sock.write(data)
            while sent < size:
                with memoryview(data) as view, view[sent:] as rest:
                    sent += sock.write(rest)
        except SSLWantWriteError:
            pass
        return sent

    def _send_first(self, pieces: list[Any]) -> int:
        sent = 0
        for piece in pieces[:PIECES]:
            accepted = self._send(piece)
            sent += accepted
            if accepted < len(piece):
                break
        return sent

    def send_pieces(self) -> None:
        if self._state == _HANDSHAKE:
            self._take_step()
            return
        waits = self._read_waits
        self._read_again()
        if self._pieces is None:
            self._watch(self.events & ~OUT)
            self.read()
        else:
            super().send_pieces()
            if not self._unsent and self._state == _OPEN:
                self._stop_timer()
                # At once: data that fills the socket again in each iteration would let a read wait for ever.
                if waits and not self._paused:
                    self.read()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._state != _OPEN or self._ending or not data:
            return
        sent = 0
        if self._pieces is None:
            try:
                sent = self._send(data)
            except OSError as error:
                self._end_later(error)
                return
            if sent == len(data):
                return
        self._keep(data if isinstance(data, bytes) else bytes(data), sent)

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError("TLS has no half-closed connections")

    # --------------------------------------------------------------------------------------------------------- the end

    def _finish(self) -> None:
        if self._ending or self._state != _OPEN:
            self._end_later(None)
            return
        self._state = _SHUTDOWN
        self._stop_timer()
        poller = self._poller
        poller.reading = self.fd
        poller.reads += 1
        try:
            self._sock.unwrap()
        except (SSLError, ValueError):
            # The client has not answered yet, or has sent data before that. If the socket is full, the client closes
            # without a close_notify: it reads nothing.
            self._watch(IN)
            if not self._ending:
                self._timer = poller.loop.call_later(poller.shutdown_timeout, self.abort)
        except OSError:
            self._end_later(None)
        else:
            self._end_later(None)
        finally:
            poller.reading = -1

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def end(self) -> None:
        self._stop_timer()
        super().end()

    def close_socket(self, fd: int) -> None:
        self._sock.close()

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "ssl_object":
            return self._sock
        return super().get_extra_info(name, default)


def _available(fd: int) -> int:
    """Return how many bytes the system has for a socket."""
    ioctl(fd, FIONREAD, _found)
    return _found[0]
