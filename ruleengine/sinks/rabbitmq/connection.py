"""RabbitConnection: publishes messages over a connection of aiormq, with confirmations of the server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from aiormq.channel import Channel
from aiormq.connection import Connection, TransportFactory
from aiormq.exceptions import ChannelClosed, ChannelNotFoundEntity, DeliveryError, InvalidFrameError, PublishError
from pamqp.commands import Basic
from yarl import URL

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...network.allowed_networks import Networks
from ...resources.lane_connections import LaneConnection
from .message import RabbitMessage

NumberedMessage = tuple[int, RabbitMessage]
_T = TypeVar("_T")
_SHOWN: Final = 300
_EXCHANGES: Final = 1000
"""Exchanges of which a connection remembers that they exist."""
_PERSISTENT: Final = 2
_TRANSIENT: Final = 1


_CLOSE_TIMEOUT: Final = 1.0
_closing: set[asyncio.Task[None]] = set()


class MessageRefused(Exception):
    """The server has closed the channel because of a message. ``missing``: its exchange has been deleted."""

    def __init__(self, reason: str, missing: bool) -> None:
        super().__init__(reason)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class RabbitLogin:
    """The parameters with which a connection is opened. ``heartbeat`` and ``timeout`` are in seconds."""

    host: str
    port: int
    username: str
    password: str
    virtual_host: str
    heartbeat: int
    timeout: float
    tls: ssl.SSLContext | None
    server_name: str


class _CheckedTransport(TransportFactory):
    """Connects to addresses that are allowed."""

    def __init__(self, networks: Networks, login: RabbitLogin) -> None:
        self._networks = networks
        self._login = login

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        login = self._login
        return await self._networks.connect(login.host, login.port, login.timeout, login.tls, login.server_name)


class RabbitConnection(LaneConnection):
    """A connection that has raised OSError is not used again."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._channel: Channel | None = None
        self._exchanges: set[str] = set()

    @classmethod
    async def open(cls, networks: Networks, login: RabbitLogin) -> RabbitConnection:
        """Connect and log in. Raises OSError."""
        user, password, virtual_host = (
            quote(each, safe="") for each in (login.username, login.password, login.virtual_host)
        )
        path = "" if login.virtual_host == "/" else virtual_host
        url = URL(f"amqp://{user}:{password}@localhost/{path}?heartbeat={login.heartbeat}", encoded=True)
        connection = Connection(url, transport_factory=_CheckedTransport(networks, login))
        answer = await _result(connection.connect())
        if isinstance(answer, InvalidFrameError) and "OpenOk" in str(answer):
            # The library does not keep what the server says.
            reason = "it does not exist, or the user may not use it"
            raise OSError(f"RabbitMQ does not open the virtual host {login.virtual_host}: {reason}")
        if isinstance(answer, BaseException):
            raise OSError(one_line(answer))
        return cls(connection, login.timeout)

    @property
    def closed(self) -> bool:
        return not self._connection.is_opened

    def abort(self) -> None:
        # The library sends its farewell first, and the server may not read it.
        _closing.add(closing := asyncio.get_running_loop().create_task(_close(self._connection)))
        closing.add_done_callback(_closing.discard)

    async def check(self) -> None:
        """Ask the server. Raises OSError."""
        channel = await self._open_channel()
        answer = await _result(channel.exchange_declare("amq.direct", exchange_type="direct", passive=True))
        if isinstance(answer, BaseException):
            raise OSError(one_line(answer))

    async def publish(self, messages: list[NumberedMessage], outcomes: list[DeliveryOutcome | None]) -> None:
        """Publish messages in order, and set the outcomes of those about which the server has decided.

        Raises MessageRefused if the server has closed the channel because of one of the others, and OSError."""
        published: list[asyncio.Task[object]] = []
        late: TimeoutError | None = None
        try:
            async with asyncio.timeout(self._timeout) as limit:
                for each in {message.exchange: message for _, message in messages}.values():
                    await self._check_exchange(each)
                channel = await self._open_channel()
                await self._connection.ready()
                progress = _Progress(limit, self._timeout)
                for _, message in messages:
                    published.append(asyncio.ensure_future(_publish(channel, message)))
                    published[-1].add_done_callback(progress)
                await asyncio.wait(published)
        except TimeoutError as error:
            late = error
        finally:
            for task in published:
                task.cancel()
        if late is not None and not published:
            raise late
        answers = await asyncio.gather(*published, return_exceptions=True)
        refusal: BaseException | None = None
        for (at, message), answer in zip(messages, answers, strict=True):
            if isinstance(answer, PublishError):
                reason = f"no queue takes messages with the routing key {message.routing_key}"
                outcomes[at] = DeliveryOutcome(reason[:_SHOWN], aside=True)
            elif isinstance(answer, DeliveryError):
                reason = "RabbitMQ has refused the message (basic.nack): a queue may be full"
                outcomes[at] = DeliveryOutcome(reason, retry=True)
            elif isinstance(answer, Basic.Ack):
                outcomes[at] = DELIVERED
            elif refusal is None or isinstance(answer, ChannelClosed):
                refusal = answer if isinstance(answer, BaseException) else OSError(f"an unexpected answer: {answer}")
        if late is not None:
            raise late
        if refusal is not None:
            raise self._error(refusal)

    async def _check_exchange(self, message: RabbitMessage) -> None:
        """Create the exchange if it does not exist. Raises MessageRefused or OSError."""
        exchange = message.exchange
        if not exchange or exchange in self._exchanges:
            return
        channel = await self._open_channel()
        answer = await _result(channel.exchange_declare(exchange, exchange_type=message.exchange_type, passive=True))
        if isinstance(answer, ChannelNotFoundEntity):
            self._channel = None
            channel = await self._open_channel()
            answer = await _result(
                channel.exchange_declare(exchange, exchange_type=message.exchange_type, durable=message.durable)
            )
        if isinstance(answer, BaseException):
            raise self._error(answer)
        if len(self._exchanges) >= _EXCHANGES:
            self._exchanges.clear()
        self._exchanges.add(exchange)

    async def _open_channel(self) -> Channel:
        if self._channel is None or self._channel.is_closed:
            answer = await _result(self._connection.channel(on_return_raises=True))
            if isinstance(answer, BaseException):
                raise self._error(answer)
            assert isinstance(answer, Channel)
            self._channel = answer
        return self._channel

    def _error(self, error: BaseException) -> MessageRefused | OSError:
        if not isinstance(error, ChannelClosed) or self.closed:
            return OSError(one_line(error))
        self._channel = None
        self._exchanges.clear()
        return MessageRefused(one_line(error), isinstance(error, ChannelNotFoundEntity))


class _Progress:
    """Each confirmation gives the server another ``timeout`` seconds for the next one."""

    def __init__(self, limit: asyncio.Timeout, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout

    def __call__(self, task: asyncio.Task[object]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout)


async def _publish(channel: Channel, message: RabbitMessage) -> object:
    return await channel.basic_publish(
        message.payload,
        exchange=message.exchange,
        routing_key=message.routing_key,
        properties=Basic.Properties(delivery_mode=_PERSISTENT if message.durable else _TRANSIENT),
        mandatory=True,
        wait=False,
    )


async def _result(call: Awaitable[_T]) -> _T | BaseException:
    """Return what a call of the library returns or raises: it also raises CancelledError when a connection ends."""
    (result,) = await asyncio.gather(call, return_exceptions=True)
    return result


async def _close(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await connection.close()


def one_line(error: BaseException) -> str:
    """Return what the server or the library has said."""
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__
