"""RedisSink: what the resource types of Redis share.

The commands of a batch are a transaction: all are executed, or none. A command that is refused concerns only its
row."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...actions.lookup_subscriptions import LOOKUP, MAX_FOUND, subscribed
from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import Networks, host_and_port
from ...network.tls import asked_name, client_context
from ...params import ParamError, read_duration
from ...resources.lane_connections import missing, to_first_address
from ...resources.sink import Sink, SinkContext

if TYPE_CHECKING:
    from taipan.broker.redis_servers.connection import Command

    from .connection import RedisLaneConnection

Address = tuple[str, int]
NumberedCommand = tuple[int, list[bytes]]
PORT: Final = 6379
_MAX_SERVERS: Final = 100
_SHOWN: Final = 300
_SCANNED: Final = b"1000"
_QOS: Final = (b"0", b"1", b"2")

_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


_SUBSCRIPTIONS: Final = b"mqtt:sub:"
"""The prefix of EMQX's hashes, topic -> QoS, by client ID."""


class CommandRefused(Exception):
    """Redis has refused a command."""


class RedisSink(Sink):
    """The common part of the three types: the login, and how a connection is opened."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self._username: str = config["username"]
        self._password: str = config["password"]
        database = config["database"]
        if not isinstance(database, int):
            raise ParamError("database", "expected a whole number")
        self._database = database
        self.connect_timeout = read_duration("connect_timeout", config["connect_timeout"])
        self.request_timeout = read_duration("request_timeout", config["request_timeout"])
        self._name = asked_name(config)
        self._tls = client_context(config) if config["ssl"] else None
        self.networks = Networks(context.node.settings.refused_networks)
        self.noticed = context.noticed
        self._clients = context.node.clients

    async def connect(self) -> None:
        try:
            import redis  # noqa: F401 - a node without such a resource does not need it
        except ImportError:
            raise missing("redis", "redis") from None

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        if rows[0].group == LOOKUP:
            return [await self._looked_up(each, lane) for each in rows]
        return await self.execute(rows, lane)

    @abstractmethod
    async def execute(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        """Execute the commands of rows; see ``write``."""

    @abstractmethod
    async def ask(self, commands: list[Command], lane: int) -> list[Any]:
        """Return the answers to commands whose second word is their key, including errors. Raises OSError or
        ResourceError."""

    async def answers(self, commands: list[Command], lane: int) -> list[Any]:
        """Return the answers to commands whose second word is their key. Raises CommandRefused, OSError or
        ResourceError."""
        from .connection import passes

        found = await self.ask(commands, lane)
        for each in found:
            if isinstance(each, Exception):
                raise OSError(_reason(each)) if passes(each) else CommandRefused(_reason(each))
        self.noticed()
        return found

    async def _looked_up(self, row: BufferedRow, lane: int) -> DeliveryOutcome:
        async def find(client_id: str) -> list[tuple[object, object]]:
            key = _SUBSCRIPTIONS + client_id.encode()
            found: list[tuple[object, object]] = []
            cursor = b"0"
            while len(found) <= MAX_FOUND:
                ((cursor, fields),) = await self.answers([[b"HSCAN", key, cursor, b"COUNT", _SCANNED]], lane)
                found += [(_text(topic), _number(qos)) for topic, qos in zip(fields[::2], fields[1::2], strict=True)]
                if cursor == b"0":
                    break
            return sorted(dict(found).items(), key=lambda each: str(each[0]))[: MAX_FOUND + 1]

        try:
            return await subscribed(row, self._clients, find)
        except CommandRefused as error:
            return DeliveryOutcome(str(error), aside=True)

    async def open(self, address: Address, data: bool = True) -> RedisLaneConnection:
        """Connect to a server. ``data``: log in and select the database. Raises OSError."""
        from taipan.broker.redis_servers.connection import RedisLogin

        from .connection import RedisLaneConnection

        host, port = address
        user, password, database = (self._username, self._password, self._database) if data else ("", "", 0)
        login = RedisLogin(user, password, database, self._tls, self._name or host)
        made = await to_first_address(self.networks, host, port, lambda ip: RedisLaneConnection.open(ip, port, login))
        usable = not data
        try:
            if data:
                await made.check_transactions()
                usable = True
        finally:
            if not usable:
                made.abort()
        return made


def _text(value: bytes) -> object:
    """Return a text; binary data that is none as it is."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _number(value: bytes) -> object:
    return int(value) if value in _QOS else value


def numbered(rows: list[BufferedRow]) -> list[NumberedCommand]:
    """Return the command of each row with its position."""
    return [(at, _decode(each.request)) for at, each in enumerate(rows)]


async def executed(
    connection: RedisLaneConnection, groups: list[list[NumberedCommand]], outcomes: list[DeliveryOutcome]
) -> dict[int, Exception]:
    """Execute the commands of rows, each group as a transaction, and set the outcomes of the rows.

    A transaction with a refused command is executed without it. Return the errors of the rows that have to wait,
    by position. Raises OSError."""
    from .connection import passes

    waiting: dict[int, Exception] = {}
    while groups:
        answers = await connection.execute([[words for _, words in group] for group in groups])
        again: list[list[NumberedCommand]] = []
        for group, (complete, errors) in zip(groups, answers, strict=True):
            passing = None if complete else next((each for each in errors if each is not None and passes(each)), None)
            if passing is not None:
                for at, _ in group:
                    waiting[at] = passing
                    outcomes[at] = DeliveryOutcome(_reason(passing), retry=True, unreachable=True)
                continue
            left: list[NumberedCommand] = []
            for (at, words), error in zip(group, errors, strict=True):
                outcomes[at] = DELIVERED if error is None else DeliveryOutcome(_reason(error), aside=True)
                if error is None:
                    left.append((at, words))
            if left and not complete:
                again.append(left)
        groups = again
    return waiting


def wait(commands: list[NumberedCommand], reason: str, outcomes: list[DeliveryOutcome]) -> None:
    """Set the outcome of rows that are sent again."""
    for at, _ in commands:
        outcomes[at] = DeliveryOutcome(reason, retry=True, unreachable=True)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__


def addresses(servers: str, default_port: int) -> list[Address]:
    """Return the addresses of a list with commas. Raises ParamError for ``servers``."""
    found = [host_and_port("servers", each, default_port) for each in servers.split(",") if each.strip()]
    if not 0 < len(found) <= _MAX_SERVERS:
        raise ParamError("servers", f"expected 1 to {_MAX_SERVERS} servers as host:port, separated by commas")
    return found
