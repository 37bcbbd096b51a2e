"""Poller and PolledTransport over real socket pairs, on both loops: what a protocol sees of a plain socket."""

import asyncio
import errno
import os
import select
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taipan.broker.transport.poller import EVENTS, HAS_EPOLL, READ_BYTES, SMALL, PolledTransport, Poller
from taipan.broker.transport.unread import unread
from tests.broker.transport.echo import listening, on_both_loops

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="only Linux has epoll")

MOST = 10_000
"""Iterations of the loop for something to happen."""


class Recorder(asyncio.Protocol):
    """Records what it is called with; ``on_data`` may do more."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.calls: list[Any] = []
        self.received = b""
        self.lost: list[Exception | None] = []
        self.keeps_open = False
        self.on_data: Callable[[bytes], None] = lambda data: None

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.calls.append(len(data))
        self.on_data(data)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.lost.append(exc)


class Watched:
    """A Poller, and the clients of its sockets."""

    def __init__(self) -> None:
        self.poller = Poller(asyncio.get_running_loop())
        self.clients: list[socket.socket] = []

    def connect(self, protocol: Any = None, tcp: bool = False) -> tuple[PolledTransport, Any, socket.socket]:
        """Return the transport, its protocol and the socket of the client."""
        if tcp:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                client = socket.create_connection(listening.getsockname())
                sock, peer = listening.accept()
        else:
            sock, client = socket.socketpair()
            peer = ""
        client.setblocking(False)
        self.clients.append(client)
        protocol = Recorder() if protocol is None else protocol
        transport = self.poller.open(sock, peer)
        protocol.transport = transport
        transport.start(lambda made: made.set_protocol(protocol))
        return transport, protocol, client


@asynccontextmanager
async def polling() -> AsyncIterator[Watched]:
    watched = Watched()
    try:
        yield watched
    finally:
        watched.poller.close()
        for client in watched.clients:
            client.close()


async def until(condition: Callable[[], object]) -> None:
    for _ in range(MOST):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


async def some_iterations() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def read_all(client: socket.socket) -> bytes:
    """What is in the socket of a client now."""
    found = b""
    try:
        while data := client.recv(1_000_000):
            found += data
    except BlockingIOError:
        pass
    return found


async def read_to_end(client: socket.socket) -> bytes:
    found = b""
    for _ in range(MOST):
        try:
            data = client.recv(1_000_000)
            if not data:
                return found
            found += data
        except BlockingIOError:
            await asyncio.sleep(0.001)
    raise AssertionError("no end")


def reset(client: socket.socket) -> None:
    """Close with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def fill(transport: PolledTransport) -> int:
    """Write until the socket accepts no more; return the bytes that wait in the transport."""
    while not transport.get_write_buffer_size():
        transport.write(b"x" * 65_536)
    return transport.get_write_buffer_size()


# --- reading --------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_bytes_both_ways() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        assert transport.is_reading() and not transport.is_closing()
        client.send(b"hello")
        await until(lambda: protocol.received == b"hello")
        transport.write(b"good")
        transport.write(bytearray(b" day"))
        transport.write(memoryview(b"!"))
        transport.write(b"")
        assert read_all(client) == b"good day!"  # sent immediately


@on_both_loops
async def test_each_client_is_read_once_before_any_is_read_again() -> None:
    async with polling() as watched:
        order: list[int] = []
        loud = [watched.connect() for _ in range(3)]
        for index, (transport, protocol, client) in enumerate(loud):
            transport.pause_reading()
            protocol.on_data = lambda _, index=index: order.append(index)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * READ_BYTES)
            sent = 0
            try:
                while sent < 3 * READ_BYTES:
                    sent += client.send(b"x" * 4096)
            except BlockingIOError:
                pass
            assert sent > READ_BYTES, "the test needs more than one read of each"
        for transport, _, _ in loud:
            transport.resume_reading()
        await until(lambda: len(order) >= 6)
        assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]
        assert max(call for _, protocol, _ in loud for call in protocol.calls) <= READ_BYTES


@on_both_loops
async def test_a_pause_and_its_end() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        transport.pause_reading()
        transport.pause_reading()
        assert not transport.is_reading()
        client.send(b"later")
        await some_iterations()
        assert protocol.received == b""
        transport.resume_reading()
        transport.resume_reading()
        await until(lambda: protocol.received == b"later")


@on_both_loops
async def test_a_pause_within_a_call_holds_the_next_read() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        protocol.on_data = lambda _: transport.pause_reading()
        client.send(b"1")
        await until(lambda: protocol.received == b"1")
        client.send(b"2")
        await some_iterations()
        assert protocol.received == b"1"


@on_both_loops
async def test_epoll_is_told_of_a_pause_only_if_data_arrives() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        watching = transport.events
        transport.pause_reading()
        await some_iterations()
        assert transport.events == watching != 0
        client.send(b"1")
        await until(lambda: transport.events == 0)
        assert protocol.received == b""
        assert watched.poller._epoll.poll(0) == []
        transport.resume_reading()
        await until(lambda: protocol.received == b"1")


@on_both_loops
async def test_a_reset_while_nothing_is_read_keeps_no_processor_busy() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect(tcp=True)
        transport.pause_reading()
        reset(client)
        epoll = watched.poller._epoll
        await some_iterations()
        assert epoll.poll(0) == []
        assert protocol.calls == []
        transport.resume_reading()
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], ConnectionResetError)


@on_both_loops
async def test_a_protocol_with_a_buffer_of_its_own() -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.room = bytearray(8)
            self.sizes: list[int] = []

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.room

        def buffer_updated(self, nbytes: int) -> None:
            self.sizes.append(nbytes)
            if sum(self.sizes) == 10:
                transport.set_protocol(after)

        def eof_received(self) -> None:
            raise AssertionError

    async with polling() as watched:
        buffered, after = Buffered(), Recorder()
        transport, _, client = watched.connect(buffered)
        assert transport.get_protocol() is buffered
        client.send(b"0123456789")
        await until(lambda: transport.get_protocol() is after)
        assert buffered.sizes == [8, 2]
        assert bytes(buffered.room[:2]) == b"89"
        client.send(b"more")
        await until(lambda: after.received == b"more")
        client.close()
        await until(lambda: after.lost)


# --- the end of the client's side ------------------------------------------------------------------------------------


@on_both_loops
async def test_a_client_that_closes_its_side() -> None:
    async with polling() as watched:
        _, protocol, client = watched.connect()
        client.send(b"last")
        client.shutdown(socket.SHUT_WR)
        await until(lambda: protocol.lost)
        assert protocol.calls == [4, "eof", "lost"]
        assert protocol.lost == [None]
        assert await read_to_end(client) == b""


@on_both_loops
async def test_a_half_closed_connection_can_still_be_written() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect(tcp=True)
        protocol.keeps_open = True
        client.shutdown(socket.SHUT_WR)
        await until(lambda: protocol.calls == ["eof"])
        await some_iterations()
        assert watched.poller._epoll.poll(0) == []
        transport.write(b"answer")
        transport.close()
        assert await read_to_end(client) == b"answer"
        assert protocol.calls == ["eof", "lost"]


@on_both_loops
async def test_a_reset() -> None:
    async with polling() as watched:
        _, protocol, client = watched.connect(tcp=True)
        reset(client)
        await until(lambda: protocol.lost)
        assert protocol.calls == ["lost"]
        assert isinstance(protocol.lost[0], ConnectionResetError)


@on_both_loops
async def test_what_the_client_sent_before_a_write_failed_can_be_read() -> None:
    class Last(Recorder):
        def connection_lost(self, exc: Exception | None) -> None:
            self.received += b"".join(unread(self.transport, exc))
            super().connection_lost(exc)

    async with polling() as watched:
        transport, protocol, client = watched.connect(Last())
        client.send(b"DISCONNECT")
        client.close()
        transport.write(b"into the void")
        assert transport.is_closing()
        assert protocol.lost == []  # not within the call
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], BrokenPipeError)
        assert protocol.received == b"DISCONNECT"


# --- writing --------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_full_socket_pauses_the_protocol_until_it_has_drained() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        transport.set_write_buffer_limits(high=300_000, low=100_000)
        fill(transport)
        while transport.get_write_buffer_size() <= 300_000:
            assert protocol.calls == []
            transport.write(b"y" * 10_000)
        assert protocol.calls == ["pause"]
        transport.write(b"z")
        assert protocol.calls == ["pause"]  # once
        found = b""
        while protocol.calls == ["pause"]:
            found += read_all(client)
            await asyncio.sleep(0)
        assert protocol.calls == ["pause", "resume"]
        await until(lambda: (found.__len__() and not transport.get_write_buffer_size()) or read_all(client) is None)
        found += read_all(client)
        assert found.endswith(b"yyyz")
        assert found.count(b"z") == 1
        assert found == found.rstrip(b"yz") + b"y" * found.count(b"y") + b"z"


@on_both_loops
async def test_the_order_of_small_and_large_pieces() -> None:
    async with polling() as watched:
        transport, _, client = watched.connect()
        transport.set_write_buffer_limits(high=100_000_000)
        fill(transport)
        parts = [bytes([65 + index % 26]) * size for index, size in enumerate([1, 10, SMALL, 3, SMALL * 20, 7, 8] * 9)]
        for part in parts:
            transport.write(part)
        transport.close()
        found = await read_to_end(client)
        assert found.lstrip(b"x") == b"".join(parts)


@on_both_loops
async def test_many_small_writes_to_a_full_socket_are_few_pieces() -> None:
    async with polling() as watched:
        transport, _, client = watched.connect()
        transport.set_write_buffer_limits(high=100_000_000)
        waiting = fill(transport)
        for _ in range(100_000):
            transport.write(b"yy")
        assert transport.get_write_buffer_size() == waiting + 200_000
        pieces = transport._pieces
        assert pieces is not None
        assert len(pieces) <= 2 + 200_000 // SMALL + 1
        transport.close()
        assert (await read_to_end(client)).count(b"y") == 200_000


@on_both_loops
async def test_data_that_its_owner_changes_after_write() -> None:
    async with polling() as watched:
        transport, _, client = watched.connect()
        transport.set_write_buffer_limits(high=100_000_000)
        fill(transport)
        mine = bytearray(b"a" * (2 * SMALL))
        transport.write(mine)
        transport.write(memoryview(mine)[:10])
        mine[:] = b"b" * len(mine)
        transport.close()
        found = await read_to_end(client)
        assert found.count(b"a") == 2 * SMALL + 10
        assert found.count(b"b") == 0
        assert len(mine) == 2 * SMALL


@pytest.mark.parametrize(("high", "low", "expected"), [(None, None, 65_536), (None, 100, 400), (1000, None, 1000)])
@on_both_loops
async def test_limits_of_the_buffer(high: int | None, low: int | None, expected: int) -> None:
    async with polling() as watched:
        transport, protocol, _ = watched.connect()
        transport.set_write_buffer_limits(high=high, low=low)
        transport.write(b"x" * 10_000_000)  # more than any socket accepts
        waiting = transport.get_write_buffer_size()
        assert waiting > 65_536
        assert protocol.calls == ["pause"]
        assert transport._high == expected
        assert transport._low == (expected // 4 if low is None else low)


@on_both_loops
async def test_end_of_this_side_after_all_data() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect(tcp=True)
        assert transport.can_write_eof()
        transport.set_write_buffer_limits(high=100_000_000)
        fill(transport)
        transport.write(b"y")
        transport.write_eof()
        transport.write_eof()
        with pytest.raises(RuntimeError):
            transport.write(b"too late")
        assert (await read_to_end(client)).endswith(b"xy")
        client.send(b"still read")
        await until(lambda: protocol.received == b"still read")
        client.close()
        await until(lambda: protocol.lost)


@on_both_loops
async def test_end_of_this_side_of_a_connection_that_was_reset() -> None:
    async with polling() as watched:
        transport, _, client = watched.connect(tcp=True)
        reset(client)
        with pytest.raises(OSError, match="not connected"):
            transport.write_eof()


# --- close and abort ------------------------------------------------------------------------------------------------


@on_both_loops
async def test_close_sends_what_waits() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        transport.set_write_buffer_limits(high=100_000_000)
        fill(transport)
        transport.write(b"end")
        transport.close()
        transport.close()
        await some_iterations()
        assert transport.is_closing() and not transport.is_reading()
        assert protocol.calls == []
        assert (await read_to_end(client)).endswith(b"xend")
        await until(lambda: protocol.lost == [None])


@on_both_loops
async def test_nothing_is_read_after_close() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        fill(transport)
        transport.close()
        client.send(b"ignored")
        await some_iterations()
        transport.resume_reading()
        await some_iterations()
        transport.abort()
        await until(lambda: protocol.lost == [None])
        assert protocol.calls == ["lost"] or protocol.calls == ["pause", "lost"]
        assert protocol.received == b""


@on_both_loops
async def test_abort_discards_what_waits() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        fd = transport.fd
        waiting = fill(transport)
        assert waiting
        transport.abort()
        transport.abort()
        transport.close()
        transport.write(b"nothing")
        assert transport.get_write_buffer_size() == 0
        assert protocol.calls == []  # not within the call
        await until(lambda: protocol.lost)
        assert protocol.lost == [None]
        assert transport.fd == -1
        assert not is_open(fd)
        found = await read_to_end(client)
        assert len(found.replace(b"x", b"")) == 0


@on_both_loops
async def test_a_client_that_never_reads_can_be_aborted_after_close() -> None:
    async with polling() as watched:
        transport, protocol, _ = watched.connect()
        fill(transport)
        transport.close()
        await some_iterations()
        assert protocol.lost == []
        transport.abort()
        await until(lambda: protocol.lost == [None])


@on_both_loops
async def test_a_connection_that_is_closed_in_its_own_read() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()

        def answer_and_close(_: bytes) -> None:
            transport.write(b"bye")
            transport.close()
            assert protocol.lost == []

        protocol.on_data = answer_and_close
        client.send(b"quit")
        assert await read_to_end(client) == b"bye"
        assert protocol.calls == [4, "lost"]


@on_both_loops
async def test_one_client_ends_another_that_is_ready_in_the_same_iteration() -> None:
    async with polling() as watched:
        pairs = [watched.connect() for _ in range(2)]
        for index, (_, protocol, _) in enumerate(pairs):
            other = pairs[1 - index][0]
            protocol.on_data = lambda _, other=other: other.abort()
        for _, _, client in pairs:
            client.send(b"die")
        await until(lambda: sum(len(protocol.lost) for _, protocol, _ in pairs) == 1)
        await some_iterations()
        received = sorted(protocol.received for _, protocol, _ in pairs)
        assert received == [b"", b"die"]
        assert sum(len(protocol.lost) for _, protocol, _ in pairs) == 1


@on_both_loops
async def test_the_number_of_a_closed_socket_is_used_again() -> None:
    async with polling() as watched:
        first, before, client = watched.connect()
        number = first.fd
        client.close()
        await until(lambda: before.lost)
        used = []
        while not used or used[-1][0].fd != number:
            used.append(watched.connect())
            assert len(used) < 20
        _, after, client = used[-1]
        client.send(b"mine")
        await until(lambda: after.received == b"mine")
        assert before.received == b""
        assert first.get_extra_info("peername") is None
        with pytest.raises(OSError, match="Bad file"):
            first.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)  # type: ignore[attr-defined]


@on_both_loops
async def test_a_child_process_with_copies_of_the_sockets_leaves_no_events_behind() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        copy = os.dup(transport.fd)  # as a forked process has one
        try:
            client.send(b"x")
            transport.abort()
            await until(lambda: protocol.lost)
            assert watched.poller._epoll.poll(0) == []
        finally:
            os.close(copy)


@on_both_loops
async def test_close_of_the_poller_ends_all() -> None:
    async with polling() as watched:
        made = [watched.connect() for _ in range(3)]
        fds = [transport.fd for transport, _, _ in made]
        fill(made[1][0])
        made[2][0].close()
        watched.poller.close()
        assert [protocol.lost for _, protocol, _ in made] == [[None]] * 3
        assert not any(map(is_open, fds))
        await some_iterations()
        assert [len(protocol.lost) for _, protocol, _ in made] == [1] * 3
        watched.poller = Poller(asyncio.get_running_loop())


# --- faults ---------------------------------------------------------------------------------------------------------


async def handled(during: Callable[[], Awaitable[None]]) -> list[dict[str, Any]]:
    """The contexts that the loop's exception handler was called with."""
    found: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: found.append(context))
    try:
        await during()
    finally:
        loop.set_exception_handler(before)
    return found


@on_both_loops
async def test_an_error_of_a_protocol_costs_only_its_own_connection() -> None:
    async with polling() as watched:
        broken, protocol, client = watched.connect()
        _, other, others_client = watched.connect()
        fault = ValueError("a fault")

        def fail(_: bytes) -> None:
            raise fault

        protocol.on_data = fail

        async def during() -> None:
            client.send(b"x")
            others_client.send(b"y")
            await until(lambda: protocol.lost and other.received)

        contexts = await handled(during)
        assert protocol.lost == [fault]
        assert other.received == b"y" and not other.lost
        assert [(context["exception"], context["transport"]) for context in contexts] == [(fault, broken)]
        assert await read_to_end(client) == b""


@on_both_loops
async def test_an_error_in_resume_writing() -> None:
    class Broken(Recorder):
        def resume_writing(self) -> None:
            raise ValueError("a fault")

    async with polling() as watched:
        transport, protocol, client = watched.connect(Broken())

        async def during() -> None:
            transport.write(b"x" * 10_000_000)
            while not protocol.lost:
                read_all(client)
                await asyncio.sleep(0)

        contexts = await handled(during)
        assert [str(context["exception"]) for context in contexts] == ["a fault"]
        assert str(protocol.lost[0]) == "a fault"


@on_both_loops
async def test_an_error_in_connection_lost_leaves_the_others_their_end() -> None:
    class Broken(Recorder):
        def connection_lost(self, exc: Exception | None) -> None:
            raise ValueError("a fault")

    async with polling() as watched:
        first, _, _ = watched.connect(Broken())
        second, protocol, _ = watched.connect()
        fds = [first.fd, second.fd]

        async def during() -> None:
            first.abort()
            second.abort()
            await until(lambda: protocol.lost)

        contexts = await handled(during)
        assert [context["message"] for context in contexts] == ["Fatal error: protocol.connection_lost() call failed."]
        assert not any(map(is_open, fds))


@on_both_loops
async def test_a_socket_that_epoll_does_not_accept() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect()
        transport.pause_reading()
        client.send(b"1")
        await until(lambda: transport.events == 0)
        watched.poller._epoll.register(transport.fd, select.EPOLLIN)
        transport.resume_reading()
        assert transport.is_closing()
        await until(lambda: protocol.lost)
        assert isinstance(protocol.lost[0], FileExistsError)


@on_both_loops
async def test_a_socket_that_has_failed_before_it_has_a_transport() -> None:
    async with polling() as watched:
        gone = socket.socket()
        gone.close()
        with pytest.raises(OSError, match="Bad file"):
            watched.poller.open(gone, "")


@on_both_loops
async def test_a_fault_before_the_first_read_closes_the_socket() -> None:
    async with polling() as watched:
        sock, client = socket.socketpair()
        client.setblocking(False)
        transport = watched.poller.open(sock, "")
        fd = transport.fd
        with pytest.raises(ZeroDivisionError):
            transport.start(lambda _: 1 // 0 and None)
        assert await read_to_end(client) == b""
        assert not is_open(fd)
        client.close()


@pytest.mark.parametrize("proxied", [pytest.param(False, marks=pytest.mark.interpreted), True])
@on_both_loops
async def test_a_listener_counts_such_a_socket(proxied: bool) -> None:
    class Failing:
        def open(self, sock: socket.socket, peer: object, name: object = None) -> None:
            sock.close()
            raise OSError(errno.EINVAL, "Invalid argument")

        def close(self) -> None: ...

    async with listening(proxy_protocol=proxied) as listener:
        listener.poller = Failing()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        if proxied:
            writer.write(b"PROXY UNKNOWN\r\n")
        assert await reader.read() == b""
        writer.close()
        assert listener.refused == {"closed_early": 1}
        assert listener.pending == set()
        assert listener.current_connections == 0


# --- several --------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_more_sockets_than_an_iteration_reports() -> None:
    async with polling() as watched:
        made = [watched.connect() for _ in range(200)]
        assert EVENTS >= 200
        for _, _, client in made:
            client.send(b"x")
        watched.poller.poll()
        assert all(protocol.received == b"x" for _, protocol, _ in made)


@on_both_loops
async def test_two_pollers_of_a_process_do_not_see_each_other() -> None:
    async with polling() as one, polling() as other:
        _, first, client = one.connect()
        _, second, _ = other.connect()
        client.send(b"x")
        await until(lambda: first.received == b"x")
        one.poller.close()
        assert first.lost and not second.lost
        one.poller = Poller(asyncio.get_running_loop())


@on_both_loops
async def test_addresses_and_options() -> None:
    async with polling() as watched:
        transport, protocol, client = watched.connect(tcp=True)
        view = transport.get_extra_info("socket")
        assert transport.get_extra_info("peername") == client.getsockname()
        assert transport.get_extra_info("sockname") == client.getpeername()
        assert transport.get_extra_info("ssl_object") is None
        assert transport.get_extra_info("nothing", 5) == 5
        assert view.fileno() == transport.fd  # type: ignore[attr-defined]
        assert view.family == socket.AF_INET  # type: ignore[attr-defined]
        view.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # type: ignore[attr-defined]
        assert view.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1  # type: ignore[attr-defined]
        assert view.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 4) == struct.pack("i", 1)  # type: ignore[attr-defined]
        client.send(b"still open")
        await until(lambda: protocol.received == b"still open")
        transport.abort()
        await until(lambda: protocol.lost)
        assert view.fileno() == -1  # type: ignore[attr-defined]
