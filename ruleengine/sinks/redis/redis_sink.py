"""RedisSink: what the resource types of Redis share.

The commands of a batch are a transaction: all are executed, or none. A command that is refused concerns only its
row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import Networks, host_and_port
from ...network.tls import asked_name, client_context
from ...params import ParamError, read_duration
from ...resources.lane_connections import missing, to_first_address
from ...resources.sink import Sink, SinkContext

if TYPE_CHECKING:
    from .connection import RedisLaneConnection

Address = tuple[str, int]
NumberedCommand = tuple[int, list[bytes]]
PORT: Final = 6379
_MAX_SERVERS: Final = 100
_SHOWN: Final = 300

_decode: Final = msgspec.msgpack.Decoder(list[bytes]).decode


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

    async def connect(self) -> None:
        try:
            import redis  # noqa: F401 - a node without such a resource does not need it
        except ImportError:
            raise missing("redis", "redis") from None

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
