"""What the transport tests stand on: an Echo in place of a Connection, a Listener to wait for, both loops."""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from taipan.broker.config import ListenerSettings, ZoneSettings
from taipan.broker.transport.descriptors import UNLIMITED, Descriptors
from taipan.broker.transport.layer import raise_packet_limit
from taipan.broker.transport.listener import Listener
from taipan.broker.transport.poller import HAS_EPOLL, Poller
from taipan.broker.transport.tls import peer_identity
from tests.support.clock import Clock
from tests.support.patience import patience

try:
    from uvloop import new_event_loop as new_uvloop

    LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": new_uvloop}
except ImportError:
    LOOPS = {"asyncio": asyncio.new_event_loop}

TIMEOUT = 40.0


POLLED = " polled"
"""Ending of the name of a loop whose listeners have a Poller for plain sockets."""
_polled: ContextVar[bool] = ContextVar("polled", default=False)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's loop and on uvloop; it fails as well when an exception reaches the loop."""
    return _on(list(LOOPS), test)


def on_every_transport(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on both loops, whose listeners once use the loop's transports and once a Poller."""
    return _on([*LOOPS, *(name + POLLED for name in LOOPS if HAS_EPOLL)], test)


def _on(loops: list[str], test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(loop_name: str, **fixtures: Any) -> None:
        contextvars.copy_context().run(run_in_context, loop_name, fixtures)

    def run_in_context(loop_name: str, fixtures: dict[str, Any]) -> None:
        _polled.set(loop_name.endswith(POLLED))
        unhandled: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=LOOPS[loop_name.removesuffix(POLLED)]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            runner.run(asyncio.wait_for(test(**fixtures), patience(TIMEOUT)))
        assert unhandled == []

    signature = inspect.signature(test)
    loop_name = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(parameters=[loop_name, *signature.parameters.values()])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop_name", loops)(run)


class Echo(asyncio.Protocol):
    """Sends back what it gets and remembers all that it was told. ``quit`` closes, ``die`` aborts, ``grow`` grows."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.received: list[bytes] = []
        self.eof = False
        self.writable = True
        self.echoing = True
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")
        self.transport: Any = transport
        # What is asked of TLS later, when the connection may have ended.
        ssl_object = transport.get_extra_info("ssl_object")
        self.identity = peer_identity(ssl_object)
        self.tls_version = None if ssl_object is None else ssl_object.version()
        self.cipher = None if ssl_object is None else ssl_object.cipher()
        self.listener.opened()

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.received.append(data)
        if data == b"quit":
            self.transport.write(b"bye")
            self.transport.close()
        elif data == b"die":
            self.transport.abort()
        elif data == b"grow":
            raise_packet_limit(self.transport, 2_000_000)
            self.transport.write(b"grown")
        elif self.echoing:
            self.transport.write(data)
        self.changed()

    def eof_received(self) -> None:
        self.eof = True

    def abort(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.freed(self)
        self.listener.closed("normal")
        self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self.writable = False
        self.changed()

    def resume_writing(self) -> None:
        self.writable = True
        self.changed()

    def changed(self) -> None:
        assert isinstance(self.listener, WatchedListener)
        self.listener.changed()


class WatchedListener(Listener):
    """A Listener of Echoes with ``until``: wait for a condition, looked at whenever something happens."""

    def __init__(self, settings: ListenerSettings, zone: ZoneSettings, descriptors: Descriptors = UNLIMITED) -> None:
        self.clock = Clock()
        self.echoes: list[Echo] = []
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        super().__init__(settings, zone, self._echo, self.clock, descriptors=descriptors)

    async def start(self) -> None:
        if _polled.get() and self.poller is None:
            self.poller = Poller(asyncio.get_running_loop())
        await super().start()

    def _echo(self, listener: Listener) -> Echo:
        echo = Echo(listener)
        self.echoes.append(echo)
        return echo

    def changed(self) -> None:
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        if not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((condition, future))
            await asyncio.wait_for(future, TIMEOUT / 2)

    def refuse(self, reason: str, setting: str, peer: tuple[str, int], detail: str = "") -> None:
        super().refuse(reason, setting, peer, detail)
        self.changed()

    def opened(self) -> None:
        super().opened()
        self.changed()

    def closed(self, reason: str) -> None:
        super().closed(reason)
        self.changed()


def listener_settings(**keys: Any) -> ListenerSettings:
    return ListenerSettings(**{"name": "test", "type": "tcp", "bind": "127.0.0.1:0", **keys})


@asynccontextmanager
async def listening(zone: ZoneSettings | None = None, descriptors: Descriptors = UNLIMITED, **keys: Any) -> Any:
    """A started WatchedListener with ``keys`` as its settings."""
    listener = WatchedListener(listener_settings(**keys), zone or ZoneSettings(), descriptors)
    await listener.start()
    try:
        yield listener
    finally:
        if listener.running:
            await listener.stop()
        for echo in listener.echoes:
            if not echo.lost.done():
                echo.transport.abort()
                await echo.lost
        if listener.poller is not None:
            listener.poller.close()


@asynccontextmanager
async def dial(port: int, host: str = "127.0.0.1", **keys: Any) -> Any:
    """A client's StreamReader and StreamWriter."""
    reader, writer = await asyncio.open_connection(host, port, **keys)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # however it ended, it has ended


async def closed_by_peer(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the peer closes, however it does so."""
    rest = b""
    try:
        while chunk := await reader.read(65536):
            rest += chunk
    except ConnectionError:
        pass
    return rest
