"""Listeners over real loopback sockets: addresses, limits, stopping, counting."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from contextlib import AsyncExitStack
from typing import Any

import pytest

from taipan.broker.config import ZoneSettings
from taipan.broker.transport import listener as listener_module
from taipan.broker.transport.acceptor import ACCEPT_PAUSE
from taipan.broker.transport.binding import PlainSocket
from taipan.broker.transport.listener import ListenerError
from taipan.broker.transport.tls import TlsError
from tests.broker.transport.echo import (
    WatchedListener,
    closed_by_peer,
    dial,
    listener_settings,
    listening,
    on_both_loops,
    on_every_transport,
)
from tests.support.certificates import Certificates


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@on_every_transport
async def test_bytes_both_ways_and_what_the_listener_says_of_itself() -> None:
    async with listening() as listener, dial(listener.port) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert listener.bind == ("127.0.0.1", listener.port)
        assert listener.port != 0
        assert listener.protocol == "mqtt:tcp"
        assert listener.listen_on == f"127.0.0.1:{listener.port}"
        assert listener.loopback
        transport = listener.echoes[0].transport
        assert transport.get_extra_info("peername") == writer.get_extra_info("sockname")
        assert transport.get_extra_info("sockname") == listener.bind
        assert transport.get_extra_info("ssl_object") is None
        writer.write_eof()
        assert await closed_by_peer(reader) == b""
        assert await listener.echoes[0].lost is None
        assert listener.echoes[0].eof
        assert listener.info() == {
            "name": "test",
            "protocol": "mqtt:tcp",
            "listen_on": f"127.0.0.1:{listener.port}",
            "running": True,
            "max_connections": 1_024_000,
            "current_connections": 0,
            "accepted": 1,
            "refused": {},
            "shutdown_count": {"normal": 1},
        }


@on_every_transport
async def test_close_sends_what_was_written_and_abort_does_not_wait() -> None:
    async with listening() as listener:
        async with dial(listener.port) as (reader, writer):
            writer.write(b"quit")
            assert await closed_by_peer(reader) == b"bye"
        async with dial(listener.port) as (reader, writer):
            writer.write(b"die")
            assert await closed_by_peer(reader) == b""
        assert [await echo.lost for echo in listener.echoes] == [None, None]


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@on_every_transport
async def test_ipv6() -> None:
    async with (
        listening(bind="[::1]:0") as listener,
        dial(listener.port, host="::1") as (reader, writer),
    ):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert listener.loopback
        assert listener.listen_on == f"[::1]:{listener.port}"
        assert listener.echoes[0].transport.get_extra_info("peername")[0] == "::1"


@pytest.mark.parametrize("bind, loopback", [("0.0.0.0:0", False), ("127.0.0.2:0", True), ("localhost:0", True)])
@on_every_transport
async def test_addresses(bind: str, loopback: bool) -> None:
    async with listening(bind=bind) as listener:
        assert listener.loopback is loopback
        host = "127.0.0.2" if bind.startswith("127.0.0.2") else "127.0.0.1"
        async with dial(listener.port, host=host) as (reader, writer):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize("bind", ["", ":1883", "host", "a:65536"])
def test_bad_bind(bind: str) -> None:
    with pytest.raises(ListenerError, match=r"listener test: bind .*: expected "):
        WatchedListener(listener_settings(bind=bind), ZoneSettings())


@on_every_transport
async def test_an_address_in_use_is_said_in_one_line() -> None:
    async with listening() as listener:
        second = WatchedListener(listener_settings(bind=f"127.0.0.1:{listener.port}"), ZoneSettings())
        with pytest.raises(ListenerError, match=f"cannot bind 127.0.0.1:{listener.port}: Address already in use$"):
            await second.start()
        assert not second.running
    await second.start()
    await second.stop()


@on_every_transport
async def test_listeners_share_an_address_where_both_say_so() -> None:
    async with listening(reuse_port=True) as listener:
        bind = f"127.0.0.1:{listener.port}"
        alone = WatchedListener(listener_settings(bind=bind), ZoneSettings())
        with pytest.raises(ListenerError, match=r"Address already in use$"):
            await alone.start()
        async with listening(bind=bind, reuse_port=True) as other, AsyncExitStack() as stack:
            for _ in range(64):
                await stack.enter_async_context(dial(listener.port))
                if listener.accepted and other.accepted:
                    break
            assert listener.accepted and other.accepted
            await listener.stop()
            await stack.enter_async_context(dial(other.port))


@on_every_transport
async def test_an_address_of_somebody_else_is_said_in_one_line() -> None:
    listener = WatchedListener(listener_settings(bind="192.0.2.77:0"), ZoneSettings())
    with pytest.raises(ListenerError, match=r"cannot bind 192\.0\.2\.77:0: Cannot assign requested address$"):
        await listener.start()


@on_every_transport
async def test_start_twice_is_an_error() -> None:
    async with listening() as listener:
        with pytest.raises(ListenerError, match="is running"):
            await listener.start()


@pytest.mark.parametrize("kind", ["ssl", "wss"])
@on_every_transport
async def test_no_tls_without_certificates(kind: str) -> None:
    listener = WatchedListener(listener_settings(type=kind), ZoneSettings())
    with pytest.raises(TlsError, match=f"listener test: type {kind} needs certificates"):
        await listener.start()
    assert not listener.running


@on_every_transport
async def test_no_certificates_without_tls(certificates: Any) -> None:
    listener = WatchedListener(listener_settings(tls=certificates.settings()), ZoneSettings())
    with pytest.raises(TlsError, match="type tcp has no TLS"):
        await listener.start()


@on_every_transport
async def test_more_than_max_connections_are_refused() -> None:
    async with listening(max_connections=2) as listener:
        async with dial(listener.port), dial(listener.port) as (reader, writer):
            await listener.until(lambda: listener.current_connections == 2)
            async with dial(listener.port) as (refused, _):
                assert await closed_by_peer(refused) == b""
            assert listener.refused == {"max_connections": 1}
            writer.write(b"quit")
            assert await closed_by_peer(reader) == b"bye"
            await listener.until(lambda: listener.current_connections == 1)
            async with dial(listener.port) as (reader, writer):
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
        assert listener.accepted == 3


@on_every_transport
async def test_clients_that_come_too_fast_wait_their_turn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taipan.broker.transport.listener")
    async with listening(accept_rate=20) as listener, AsyncExitStack() as open_ones:
        for _ in range(22):  # the clock of the bucket stands still, so two of them find it empty
            await open_ones.enter_async_context(dial(listener.port))
        await listener.until(lambda: listener.current_connections == 22)
        assert listener.throttled == 2
        assert listener.refused == {}
        lines = [record.getMessage() for record in caplog.records if "accept_rate" in record.getMessage()]
        assert len(lines) == 1  # rate-limited itself
        assert lines[0].startswith("listener_limit listener=test reason=accept_rate count=1 setting=accept_rate peer=")


@on_every_transport
async def test_stop_keeps_connections_and_restart_comes_back_to_its_port() -> None:
    async with listening() as listener:
        port = listener.port
        async with dial(port) as (reader, writer):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            await listener.stop()
            assert not listener.running
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            await listener.restart()
            assert listener.port == port
            await listener.restart()
            async with dial(port) as (second_reader, second_writer):
                second_writer.write(b"hello")
                assert await second_reader.readexactly(5) == b"hello"
            assert listener.accepted == 2


@pytest.mark.parametrize(
    "key, value", [("name", "other"), ("type", "ws"), ("bind", "127.0.0.1:1"), ("reuse_port", True)]
)
def test_reload_cannot_change_what_only_a_restart_can(key: str, value: object) -> None:
    listener = WatchedListener(listener_settings(), ZoneSettings())
    with pytest.raises(ListenerError, match=f"{key} cannot change"):
        listener.reload(listener_settings(**{key: value}), ZoneSettings())
    assert listener.settings == listener_settings()


@pytest.mark.parametrize("kind", ["tcp", "ssl"])
@on_every_transport
async def test_a_place_is_free_when_its_connection_is_closed(certificates: Certificates, kind: str) -> None:
    """The next one connects in the very moment, and comes before the end of the first is noticed."""
    keys = {"tls": certificates.settings()} if kind == "ssl" else {}
    secure = {"ssl": ssl.create_default_context(cafile=certificates.ca), "server_hostname": "localhost"} if keys else {}
    async with listening(type=kind, max_connections=1, **keys) as listener:
        for number in range(20):
            async with dial(listener.port, **secure):
                await listener.until(lambda number=number: listener.accepted == number + 1)
        assert listener.refused == {}


@on_every_transport
async def test_as_many_as_places_get_free_come_in_and_no_more() -> None:
    async with listening(max_connections=2) as listener, AsyncExitStack() as stack:
        listener.acceptor.max_waiting = 4
        first = [await stack.enter_async_context(dial(listener.port)) for _ in range(2)]
        await listener.until(lambda: listener.current_connections == 2)
        waiting = [await stack.enter_async_context(dial(listener.port)) for _ in range(6)]
        assert await closed_by_peer(waiting[4][0]) == b"" and await closed_by_peer(waiting[5][0]) == b""
        assert listener.refused == {"max_connections": 2}
        first[0][1].write(b"die")
        await listener.until(lambda: listener.accepted == 3)
        waiting[0][1].write(b"hello")
        assert await waiting[0][0].readexactly(5) == b"hello"
        for reader, _ in waiting[1:4]:
            assert await closed_by_peer(reader) == b""
        assert listener.refused == {"max_connections": 5}
        assert listener.current_connections == 2


@on_every_transport
async def test_sockets_that_wait_for_a_place_end_with_the_listener() -> None:
    async with listening(max_connections=1) as listener, dial(listener.port):
        await listener.until(lambda: listener.current_connections == 1)
        async with dial(listener.port) as (reader, _):
            while not listener.acceptor.waiting:
                await asyncio.sleep(0)
            await listener.stop()
            assert await closed_by_peer(reader) == b""
        assert listener.refused == {}


@on_every_transport
async def test_a_larger_bound_lets_those_in_that_wait() -> None:
    async with listening(max_connections=1) as listener, dial(listener.port):
        await listener.until(lambda: listener.current_connections == 1)
        async with dial(listener.port) as (reader, writer):
            while not listener.acceptor.waiting:
                await asyncio.sleep(0)
            listener.reload(listener_settings(max_connections=2), ZoneSettings())
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"


@on_every_transport
async def test_reload_changes_limits_for_those_to_come() -> None:
    async with listening() as listener, dial(listener.port), dial(listener.port):
        await listener.until(lambda: listener.current_connections == 2)
        listener.reload(listener_settings(max_connections=1, backlog=5), ZoneSettings())
        assert listener.current_connections == 2
        async with dial(listener.port) as (refused, _):
            assert await closed_by_peer(refused) == b""
        assert listener.refused == {"max_connections": 1}


class At:
    """A clock that stands."""

    def __init__(self, time: float) -> None:
        self.time = time

    def now(self) -> float:
        return self.time


@on_every_transport
async def test_probes_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, listener_module.__name__):
        async with listening() as listener:
            began = listener._clock.now()
            for second in (0, 1, 30, 59, 61, 119, 122):
                listener._clock = At(began + second)  # type: ignore[assignment]
                listener.probed(f"10.0.0.1:{second}")
    lines = [line for line in caplog.messages if line.startswith("listener_probed")]
    assert [line.split("count=")[1] for line in lines] == [
        "1 peer=10.0.0.1:0",
        "4 peer=10.0.0.1:61",
        "2 peer=10.0.0.1:122",
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@on_every_transport
async def test_a_client_has_the_address_to_which_it_has_connected(host: str) -> None:
    async with listening(bind=f"{host}:0") as listener, dial(listener.port):
        await listener.until(lambda: listener.current_connections == 1)
        transport = listener.echoes[0].transport
        assert transport.get_extra_info("sockname") == ("127.0.0.1", listener.port)
        assert transport.get_extra_info("socket").getsockname() == ("127.0.0.1", listener.port)


@on_every_transport
async def test_an_accepted_socket_does_not_block() -> None:
    async with listening() as listener, dial(listener.port):
        await listener.until(lambda: listener.current_connections == 1)
        assert not os.get_blocking(listener.echoes[0].transport.get_extra_info("socket").fileno())


@pytest.mark.parametrize("nodelay", [True, False])
@on_every_transport
async def test_nodelay(nodelay: bool) -> None:
    async with listening(nodelay=nodelay) as listener, dial(listener.port):
        await listener.until(lambda: listener.current_connections == 1)
        sock = listener.echoes[0].transport.get_extra_info("socket")
        assert bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is nodelay


@on_every_transport
async def test_without_sockets_the_listener_rests_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as listener:
        later: list[tuple[float, Any]] = []
        accept = PlainSocket.accept

        def exhausted(_: PlainSocket) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(PlainSocket, "accept", exhausted)
        loop = asyncio.get_running_loop()

        class Loop:
            """The running loop, except that what is put off is only noted."""

            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

            def call_later(self, delay: float, callback: Any) -> asyncio.TimerHandle:
                later.append((delay, callback))
                return loop.call_later(3600, callback)

        monkeypatch.setattr("asyncio.get_running_loop", Loop)
        async with dial(listener.port) as (reader, writer):
            await listener.until(lambda: listener.refused == {"no_sockets": 1})
            assert [delay for delay, _ in later] == [ACCEPT_PAUSE]
            monkeypatch.setattr(PlainSocket, "accept", accept)
            later[0][1]()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
        monkeypatch.undo()


@on_every_transport
async def test_many_at_once() -> None:
    async with listening(accept_rate=0) as listener:
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writers.append(writer)
        await listener.until(lambda: listener.current_connections == 200)
        assert listener.pending == set()
        for writer in writers:
            writer.close()
        await listener.until(lambda: listener.current_connections == 0)
        assert listener.shutdown_count == {"normal": 200}
        for writer in writers:
            await writer.wait_closed()


@pytest.mark.parametrize("at_once", [True, False], ids=["at_once", "later"])
@on_both_loops
async def test_a_socket_that_gets_no_transport(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    async with listening() as listener:
        loop = asyncio.get_running_loop()

        class Loop:
            """The running loop, except that it makes no transports."""

            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

            async def connect_accepted_socket(self, _: Any, sock: socket.socket) -> None:
                if at_once:
                    raise OSError(errno.EINVAL, "Invalid argument")
                failed = loop.create_future()
                loop.call_soon(failed.set_exception, OSError(errno.EINVAL, "Invalid argument"))
                try:
                    await failed
                finally:
                    sock.close()

        monkeypatch.setattr("asyncio.get_running_loop", Loop)
        async with dial(listener.port) as (reader, _):
            assert await closed_by_peer(reader) == b""
        assert listener.refused == {"closed_early": 1}
        assert listener.pending == set()
        monkeypatch.undo()
