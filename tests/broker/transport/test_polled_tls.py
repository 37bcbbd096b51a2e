"""PolledTls over real sockets, on both loops: what a protocol sees of a TLS connection, and what its client sees."""

import asyncio
import ctypes
import ctypes.util
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from taipan.broker.transport import polled_tls
from taipan.broker.transport.polled_tls import RECORD, RECORDS, PolledTls
from taipan.broker.transport.poller import HANDSHAKES, HAS_EPOLL, IN, OUT, Poller
from taipan.broker.transport.tls import PolledSocket, ServerContext, build_context
from taipan.broker.transport.unread import unread
from tests.broker.transport.echo import on_both_loops
from tests.broker.transport.test_poller import Recorder, is_open, reset, some_iterations, until
from tests.broker.transport.test_tls import client_context
from tests.support.certificates import Certificates

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="only Linux has epoll")


class Beginning(Recorder):
    """Both the protocol of the handshake and that of the connection."""

    failed: ssl.SSLError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def handshake_failed(self, error: ssl.SSLError) -> None:
        self.failed = error


class Secure:
    """A Poller with TLS; its clients do not block."""

    def __init__(self, certificates: Certificates, version: ssl.TLSVersion) -> None:
        self.poller = Poller(asyncio.get_running_loop())
        context = build_context(certificates.settings())
        assert isinstance(context, ServerContext)
        self.context = context
        self.client_context = client_context(certificates)
        self.client_context.maximum_version = version
        self.clients: list[socket.socket] = []

    def begin(self) -> tuple[PolledTls, Beginning, ssl.SSLSocket]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            sock, peer = listening.accept()
        for each in (client, sock):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = self.client_context.wrap_socket(
            client, server_hostname="localhost", do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
        self.clients.append(secure)
        protocol = Beginning()
        name = sock.getsockname()
        transport = PolledTls(self.poller, self.context.wrap_accepted(sock), peer, name)
        protocol.transport = transport
        transport.begin(protocol)
        return transport, protocol, secure

    async def connect(self) -> tuple[PolledTls, Beginning, ssl.SSLSocket]:
        transport, protocol, client = self.begin()
        await does(client.do_handshake)
        await until(lambda: "made" in protocol.calls)
        return transport, protocol, client


def with_tls(test: Callable[..., Any]) -> Callable[..., Any]:
    return pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])(on_both_loops(test))


@asynccontextmanager
async def securing(certificates: Certificates, version: ssl.TLSVersion) -> AsyncIterator[Secure]:
    secure = Secure(certificates, version)
    try:
        yield secure
    finally:
        secure.poller.close()
        for client in secure.clients:
            client.close()


async def does(step: Callable[[], Any]) -> Any:
    """Repeat a step of a client until it no longer has to wait."""
    found: list[Any] = []

    def tried() -> bool:
        try:
            found.append(step())
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return False
        return True

    await until(tried)
    return found[0]


async def receive(client: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await does(lambda: client.recv(65536))
        if not piece:
            break
        data += piece
    return data


@with_tls
async def test_bytes_both_ways(certificates: Certificates, version: ssl.TLSVersion) -> None:
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        assert transport.get_extra_info("peername") == client.getsockname()
        assert transport.get_extra_info("sockname") == client.getpeername()
        tls = transport.get_extra_info("ssl_object")
        assert isinstance(tls, ssl.SSLSocket) and tls.version() == client.version()
        assert not transport.can_write_eof()
        with pytest.raises(NotImplementedError):
            transport.write_eof()
        large = os.urandom(300_000)
        sent = 0
        while sent < len(large):
            sent += await does(lambda sent=sent: client.send(large[sent:]))
        await until(lambda: len(protocol.received) == len(large))
        assert protocol.received == large
        transport.write(b"")
        for piece in (b"bytes", bytearray(b"bytearray"), memoryview(b"memoryview"), large):
            transport.write(piece)
        expected = b"bytesbytearraymemoryview" + large
        assert await receive(client, len(expected)) == expected


@with_tls
async def test_small_records_that_came_together_are_passed_on_together(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        for number in range(20):
            client.send(b"%02d" % number)
        await until(lambda: len(protocol.received) == 40)
        assert protocol.received == b"".join(b"%02d" % number for number in range(20))
        assert protocol.calls == ["made", 40]


@with_tls
async def test_an_iteration_reads_a_part_of_what_one_client_has_sent(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        transport.pause_reading()
        sent = 0
        while sent < 6 * RECORD:
            sent += client.send(bytes(RECORD))
        transport.resume_reading()
        await until(lambda: len(protocol.received) == sent)
        assert protocol.calls == ["made", 4 * RECORD, 2 * RECORD]


@with_tls
async def test_an_iteration_reads_a_limited_number_of_small_records(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """Tens of thousands with a byte each would keep the other clients waiting for a second."""
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        transport.pause_reading()
        for _ in range(3 * RECORDS):
            client.send(b"x")
        transport.resume_reading()
        await until(lambda: len(protocol.received) == 3 * RECORDS)
        assert protocol.calls == ["made", RECORDS, RECORDS, RECORDS]


@with_tls
async def test_a_pause(certificates: Certificates, version: ssl.TLSVersion) -> None:
    """What is left in the socket comes after it, and nothing is left in OpenSSL, which epoll could not report."""
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        protocol.on_data = lambda data: transport.pause_reading()
        client.send(bytes(RECORD))
        await until(lambda: len(protocol.received) == RECORD)
        client.send(b"later")
        await some_iterations()
        assert not transport.is_reading() and len(protocol.received) == RECORD
        assert not transport.events & IN
        transport.resume_reading()
        await until(lambda: protocol.received.endswith(b"later"))


@with_tls
async def test_a_slow_reader_gets_everything_in_order(certificates: Certificates, version: ssl.TLSVersion) -> None:
    """Small and large pieces, written while the socket is full, and read from meanwhile."""
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        expected = b""
        for number in range(60):
            for piece in (os.urandom(200_000), b"%d," % number, b"small"):
                transport.write(piece)
                expected += piece
        assert "pause" in protocol.calls
        assert 0 < transport.get_write_buffer_size() < len(expected)
        assert transport.events & OUT
        client.send(b"still read")
        await until(lambda: protocol.received == b"still read")
        assert await receive(client, len(expected)) == expected
        await until(lambda: "resume" in protocol.calls)
        assert transport.get_write_buffer_size() == 0 and not transport.events & OUT


@with_tls
async def test_close_sends_everything_and_its_close_notify(certificates: Certificates, version: ssl.TLSVersion) -> None:
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        expected = bytes(6_000_000)
        transport.write(expected)
        transport.close()
        assert transport.is_closing() and protocol.lost == []
        assert await receive(client, len(expected)) == expected
        # Data of the client that crosses is discarded.
        client.send(b"crosses")
        assert await does(lambda: client.recv(100)) == b""  # a ragged end would raise an error
        transport.write(b"too late")
        await does(client.unwrap)
        await until(lambda: protocol.lost)
        assert protocol.lost == [None] and protocol.received == b""


@with_tls
async def test_a_client_that_does_not_answer_the_close_notify(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    async with securing(certificates, version) as secure:
        secure.poller.shutdown_timeout = 0.1
        transport, protocol, client = await secure.connect()
        fd = transport.fd
        transport.close()
        assert await does(lambda: client.recv(100)) == b""
        await until(lambda: protocol.lost)
        assert protocol.lost == [None]
        await until(lambda: not is_open(fd) or transport.fd == -1)


@with_tls
async def test_a_client_that_closes(certificates: Certificates, version: ssl.TLSVersion) -> None:
    """With a close_notify, which is answered, and without."""
    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        client.send(b"last")
        await does(client.unwrap)
        await until(lambda: protocol.lost)
        assert protocol.calls == ["made", 4, "eof", "lost"] and protocol.lost == [None]
        _, protocol, client = await secure.connect()
        client.send(b"last")
        with pytest.raises(ssl.SSLWantReadError):
            client.recv(1)  # a socket with unread tickets would be reset
        client.close()
        await until(lambda: protocol.lost)
        assert protocol.calls == ["made", 4, "eof", "lost"] and protocol.lost == [None]


@with_tls
async def test_an_end_that_came_with_the_last_data_waits_for_the_end_of_a_pause(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """OpenSSL has read it then, and epoll reports nothing more."""
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        protocol.on_data = lambda data: transport.pause_reading()
        client.send(b"last")
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        await until(lambda: protocol.received == b"last")
        await some_iterations()
        assert protocol.calls == ["made", 4]
        transport.resume_reading()
        await until(lambda: protocol.lost)
        assert protocol.calls == ["made", 4, "eof", "lost"]


@with_tls
async def test_data_before_a_fault_is_passed_on(certificates: Certificates, version: ssl.TLSVersion) -> None:
    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        raw = socket.socket(fileno=os.dup(client.fileno()))
        secure.clients.append(raw)
        client.send(b"last")
        raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        await until(lambda: protocol.lost)
        assert protocol.received == b"last" and isinstance(protocol.lost[0], ssl.SSLError)


@with_tls
async def test_abort(certificates: Certificates, version: ssl.TLSVersion) -> None:
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        transport.write(bytes(60_000_000))
        transport.abort()
        transport.write(b"more")
        assert transport.get_write_buffer_size() == 0 and protocol.lost == []
        await until(lambda: protocol.lost)
        assert protocol.lost == [None] and transport.fd == -1
        with suppress(OSError):  # whether an end without an alert is an error depends on the client's OpenSSL
            assert len(await receive(client, 60_000_000)) < 60_000_000


@with_tls
async def test_a_reset(certificates: Certificates, version: ssl.TLSVersion) -> None:
    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        reset(client)
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], ConnectionError)


@with_tls
async def test_what_the_client_sent_before_a_write_failed_can_be_read(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """As the DISCONNECT of a client that closes its socket at once."""

    class Reader(Beginning):
        def connection_lost(self, exc: Exception | None) -> None:
            self.received += b"".join(unread(self.transport, exc))
            super().connection_lost(exc)

    async with securing(certificates, version) as secure:
        transport, _, client = await secure.connect()
        protocol = Reader()
        protocol.transport = transport
        transport.set_protocol(protocol)
        transport.pause_reading()
        client.send(b"DISCONNECT")
        reset(client)
        transport.write(b"x")
        await until(lambda: protocol.lost)
        assert protocol.received == b"DISCONNECT" and isinstance(protocol.lost[0], OSError)


@with_tls
async def test_bytes_that_are_no_record_end_the_connection(certificates: Certificates, version: ssl.TLSVersion) -> None:
    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        raw = socket.socket(fileno=os.dup(client.fileno()))
        secure.clients.append(raw)
        raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], ssl.SSLError)
        with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac|decrypt"):
            await does(lambda: client.recv(100))


@with_tls
async def test_an_exception_of_the_protocol_ends_the_connection(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    def fail(data: bytes) -> None:
        raise RuntimeError("of the protocol")

    async with securing(certificates, version) as secure:
        loop = asyncio.get_running_loop()
        reported: list[dict[str, Any]] = []
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        _, protocol, client = await secure.connect()
        protocol.on_data = fail
        client.send(b"x")
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], RuntimeError)
        assert [str(each["exception"]) for each in reported] == ["of the protocol"]
        loop.set_exception_handler(before)


@with_tls
async def test_a_read_that_has_to_write_first_continues(
    certificates: Certificates, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the answer to a key update, when the socket is full."""
    async with securing(certificates, version) as secure:
        transport, protocol, client = await secure.connect()
        read = PolledSocket.read
        wants = [True]

        def read_later(self: PolledSocket, *arguments: Any) -> Any:
            if wants:
                wants.pop()
                raise ssl.SSLWantWriteError
            return read(self, *arguments)

        monkeypatch.setattr(PolledSocket, "read", read_later)
        client.send(b"data")
        await until(lambda: protocol.received == b"data")
        await until(lambda: not transport.events & OUT)


class KeyUpdater:
    """A client of TLS 1.3 that can ask for a key update, which Python's TLS cannot."""

    def __init__(self, sock: socket.socket) -> None:
        self.lib = lib = ctypes.CDLL(ctypes.util.find_library("ssl"))
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        self.tls = ctypes.c_void_p(lib.SSL_new(self.context))
        lib.SSL_set_fd(self.tls, sock.fileno())

    def try_to_connect(self) -> bool:
        return bool(self.lib.SSL_connect(self.tls) == 1)

    def update_keys(self) -> bool:
        """Send a key update, and request one."""
        return bool(self.lib.SSL_key_update(self.tls, 1) == 1 and self.lib.SSL_do_handshake(self.tls) == 1)

    def send(self, data: bytes) -> bool:
        return bool(self.lib.SSL_write(self.tls, data, len(data)) == len(data))

    def read(self) -> bytes:
        """Return what has come; empty: nothing, or the connection is lost."""
        room = ctypes.create_string_buffer(65536)
        size = self.lib.SSL_read(self.tls, room, len(room))
        return room.raw[: max(0, size)]

    def close(self) -> None:
        self.lib.SSL_free(self.tls)
        self.lib.SSL_CTX_free(self.context)


@asynccontextmanager
async def updating(certificates: Certificates) -> AsyncIterator[tuple[PolledTls, Beginning, KeyUpdater]]:
    """A connection whose client does not read, so that a record waits in OpenSSL."""
    async with securing(certificates, ssl.TLSVersion.TLSv1_3) as secure:
        transport, protocol, client = secure.begin()
        raw = socket.socket(fileno=client.detach())
        secure.clients.append(raw)
        updater = KeyUpdater(raw)
        try:
            await until(updater.try_to_connect)
            await until(lambda: "made" in protocol.calls)
            while not transport.get_write_buffer_size():
                transport.write(bytes(1_000_000))
            yield transport, protocol, updater
        finally:
            updater.close()


with_libssl = pytest.mark.skipif(ctypes.util.find_library("ssl") is None, reason="requires libssl")


@with_libssl
@on_both_loops
async def test_key_updates_while_a_record_waits_to_be_sent(certificates: Certificates) -> None:
    """With OpenSSL 3.0, one alone would do no harm, but the read of a second one would fail."""
    async with updating(certificates) as (transport, protocol, client):
        assert client.send(b"before") and client.update_keys() and client.update_keys() and client.send(b"after")
        await until(lambda: protocol.received == b"before")
        await some_iterations()
        assert transport.get_write_buffer_size() and not protocol.lost
        assert protocol.received == b"before"

        def all_came() -> bool:
            client.read()
            return protocol.received == b"beforeafter" and not transport.get_write_buffer_size()

        await until(all_came)
        transport.write(b"with new keys")
        await until(lambda: client.read().endswith(b"with new keys"))
        assert client.send(b"!")
        await until(lambda: protocol.received == b"beforeafter!")
        assert not protocol.lost


@pytest.mark.interpreted
@with_libssl
@on_both_loops
async def test_data_of_the_size_of_a_key_update_waits_only_once(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with updating(certificates) as (transport, protocol, client):
        waits: list[Callable[[], None]] = []
        later = type(transport)._must_wait

        def noted(self: PolledTls) -> bool:
            found = later(self)
            if found:
                waits.append(self._wait_over)
            return found

        monkeypatch.setattr(PolledTls, "_must_wait", noted)
        assert client.send(b"12345")
        await until(lambda: waits)
        assert not protocol.received
        waits[0]()
        await until(lambda: protocol.received == b"12345")
        assert client.send(b"67890")
        await until(lambda: protocol.received == b"1234567890")
        assert len(set(waits)) == 1 and not protocol.lost


class _FullBetweenReads:
    """A socket of TLS that is full in each iteration of the loop and has room before the next, with a record to read
    that may be a key update."""

    def __init__(self) -> None:
        self.full = False

    def fileno(self) -> int:
        return 7

    def version(self) -> str:
        return "TLSv1.3"

    def write(self, data: bytes) -> int:
        if self.full:
            raise ssl.SSLWantWriteError
        return len(data)


@pytest.mark.interpreted
@pytest.mark.asyncio
async def test_what_fills_the_socket_in_each_iteration_puts_no_read_off(monkeypatch: pytest.MonkeyPatch) -> None:
    poller: Any = SimpleNamespace(
        loop=asyncio.get_running_loop(), add=lambda *_: None, watch=lambda *_: None, reading=-1, reads=0
    )
    sock: Any = _FullBetweenReads()
    reads: list[bool] = []

    def read(self: PolledTls) -> bytes | None:
        if self._pieces is not None and self._must_wait():
            return None
        reads.append(True)
        return None

    monkeypatch.setattr(PolledTls, "_records", read)
    monkeypatch.setattr(socket.socket, "recv", lambda *_: polled_tls._KEY_UPDATE)
    transport = PolledTls(poller, sock, None, None)  # type: ignore[arg-type]
    transport._state = polled_tls._OPEN
    transport._protocol = Recorder()
    transport._watch(IN)
    for _ in range(10):  # as the poller and the flusher do: read, then send, then write what does not fit
        sock.full = True
        transport.write(b"more")
        if transport.events & IN:
            transport.read()
        sock.full = False
        if transport.events & OUT:
            transport.send_pieces()
    assert len(reads) == 10


@with_tls
async def test_handshakes_leave_room_for_others(
    certificates: Certificates, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration takes a few steps of handshakes; who is connected is read in each."""
    steps = 0
    take = PolledSocket.do_handshake

    def counted(self: PolledSocket, block: bool = False) -> None:
        nonlocal steps
        steps += 1
        take(self, block)

    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        monkeypatch.setattr(PolledSocket, "do_handshake", counted)
        waiting = [secure.begin() for _ in range(2 * HANDSHAKES)]
        for _, _, each in waiting:
            with pytest.raises(ssl.SSLWantReadError):
                each.do_handshake()
        client.send(b"1")
        for total in (HANDSHAKES, 2 * HANDSHAKES):
            secure.poller.poll()
            assert steps == total
        assert protocol.received == b"1"
        for _, _, each in waiting:
            await does(each.do_handshake)
        await until(lambda: all("made" in each.calls for _, each, _ in waiting))


@with_tls
async def test_a_read_that_does_not_return_is_ended(
    certificates: Certificates, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by key updates without data, which OpenSSL passes over: it goes on while records come that are whole."""
    whole = bytes(range(100))
    passed = 0

    def over_key_updates(self: PolledSocket, length: int = 1024, buffer: bytearray | None = None) -> bytes:
        nonlocal passed
        while True:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)  # processor time without the lock of the interpreter
            if os.read(self.fileno(), 100) != whole:
                raise ssl.SSLError(1, "wrong version number")
            passed += 1

    async with securing(certificates, version) as secure:
        _, protocol, client = await secure.connect()
        other, _, _ = await secure.connect()
        monkeypatch.setattr(PolledSocket, "read", over_key_updates)
        raw = socket.socket(fileno=client.detach())
        secure.clients.append(raw)
        raw.send(whole * 5000)
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], ssl.SSLError) and 0 < passed < 5000
        assert is_open(other.fd)


@with_tls
async def test_a_handshake_that_ends(certificates: Certificates, version: ssl.TLSVersion) -> None:
    """By the client, by an abort, and by bytes that are no TLS: then the client has time to close."""
    async with securing(certificates, version) as secure:
        for leaves in (True, False):
            transport, protocol, client = secure.begin()
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            if leaves:
                client.close()
            else:
                transport.abort()
            await until(lambda protocol=protocol: protocol.lost)
            assert protocol.calls == ["lost"] and protocol.failed is None
        transport, protocol, client = secure.begin()
        raw = socket.socket(fileno=client.detach())
        secure.clients.append(raw)
        raw.send(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        await until(lambda: protocol.failed)
        raw.send(bytes(1000))
        await some_iterations()
        assert protocol.lost == []
        raw.close()
        await until(lambda: protocol.lost)
        assert protocol.lost == [None]
