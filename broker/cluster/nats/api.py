"""Requests to JetStream, which keeps the buckets of NATS, and its answers."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ...config import ClusterSettings
from ..wire import UNREADABLE
from .connection import ConnectionLost, NatsConnection, credential_of
from .interface import ATTEMPT, NatsRefused, NoAnswer, NoResponders, Unavailable

PAUSE: Final = 0.2
"""Seconds between attempts if there is no leader."""
ELECTION: Final = 5.0
"""Seconds without any answer after which there is considered to be no quorum: servers that have just started elect a
leader first, and do not answer until then."""

# err_code of JetStream's API
NOT_ENABLED: Final = (10039, 10076)
NO_STREAM: Final = 10059
NAME_IN_USE: Final = 10058
NO_MESSAGE: Final = 10037
NOT_CLUSTERED: Final = 10074
WRONG_SEQUENCE: Final = (10071, 10164)
SAME_ID_UNDER_WAY: Final = 10158

_UNAVAILABLE: Final = 503
"""The ``code`` of the errors ``NOT_ENABLED`` and "no leader"."""


class ApiError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class ApiFailed(Exception):
    def __init__(self, error: ApiError) -> None:
        super().__init__(error.description)
        self.err_code = error.err_code
        self.no_leader = error.code == _UNAVAILABLE and error.err_code not in NOT_ENABLED


class PublishAck(msgspec.Struct):
    seq: int = 0
    error: ApiError | None = None


class _Stored(msgspec.Struct):
    seq: int
    data: bytes = b""
    hdrs: bytes = b""


class _StoredReply(msgspec.Struct):
    message: _Stored | None = None
    error: ApiError | None = None


class _StreamConfig(msgspec.Struct, frozen=True):
    num_replicas: int = 1


class _StreamState(msgspec.Struct, frozen=True):
    last_seq: int = 0


class _Replica(msgspec.Struct):
    offline: bool = False
    active: int = 0


class _StreamCluster(msgspec.Struct):
    replicas: list[_Replica] = []


class StreamInfo(msgspec.Struct):
    created: str = ""
    config: _StreamConfig = _StreamConfig()
    state: _StreamState = _StreamState()
    cluster: _StreamCluster | None = None
    error: ApiError | None = None

    def has_quorum(self) -> bool:
        """Return whether the leader has contact to most of its replicas."""
        if self.cluster is None or not self.cluster.replicas:
            return True
        near = sum(not each.offline and each.active < 5_000_000_000 for each in self.cluster.replicas)
        return (near + 1) * 2 > len(self.cluster.replicas) + 1


class _Consumer(msgspec.Struct):
    name: str = ""
    num_pending: int = 0
    error: ApiError | None = None


KindT = TypeVar("KindT")


def _decoder(kind: type[KindT]) -> Callable[[bytes], KindT]:
    """Return a decoder for answers, which raises ``NoAnswer`` for an unreadable answer."""
    decode = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> KindT:
        try:
            return decode(data)
        except UNREADABLE as error:
            raise NoAnswer(f"it cannot be read: {error}") from None

    return read


decode_ack = _decoder(PublishAck)
decode_stored = _decoder(_StoredReply)
decode_stream = _decoder(StreamInfo)
decode_consumer = _decoder(_Consumer)


async def ask(connection: NatsConnection, call: str, argument: object) -> bytes:
    """Call the API and return its answer."""
    data = b"" if argument is None else msgspec.json.encode(argument)
    return await connection.request(f"$JS.API.{call}", data, ATTEMPT)


async def find_leader(connection: NatsConnection) -> None:
    """:raises ApiFailed: JetStream has none, or there is no JetStream. :raises NoAnswer: it may have none, or is
    electing one. :raises NoResponders: there is no JetStream (yet)."""
    info = decode_ack(await ask(connection, "INFO", None))
    if info.error is not None:
        raise ApiFailed(info.error)


async def check_jetstream(connection: NatsConnection, settings: ClusterSettings) -> None:
    """:raises NatsRefused: this server has no JetStream, or its servers have no quorum."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        try:
            await find_leader(connection)
            return
        except (NoResponders, ConnectionLost, Unavailable):
            raise no_jetstream(connection) from None
        except (NoAnswer, ApiFailed) as error:
            refused = refusal(connection, settings, error)
            if refused is None and has_no_quorum(error, loop.time() - since):
                why = "JetStream has no leader. More than half of its servers must run, and some seconds pass then"
                refused = NatsRefused(f"{connection.server.url} has no quorum yet: {why}", "cluster.servers")
            if refused is not None:
                raise refused from None
            await asyncio.sleep(PAUSE)


def has_no_quorum(error: Exception, waited: float) -> bool:
    """Return whether this error, after this many seconds of similar errors, means that there is no leader and will not
    be one soon."""
    return error.no_leader if isinstance(error, ApiFailed) else isinstance(error, NoAnswer) and waited >= ELECTION


def refusal(connection: NatsConnection, settings: ClusterSettings, error: Exception) -> NatsRefused | None:
    """Return why this server can never be used, or ``None`` if the error does not show that."""
    if isinstance(error, ApiFailed) and error.err_code in NOT_ENABLED:
        return no_jetstream(connection)
    if isinstance(error, NoAnswer) and "ermissions" in connection.error:
        return NatsRefused(f"{connection.server.url}: {connection.error}", credential_of(settings))
    return None


def no_jetstream(connection: NatsConnection) -> NatsRefused:
    what = "has no JetStream: it requires jetstream { } in its configuration, or -js"
    return NatsRefused(f"{connection.server.url} {what}", "cluster.servers")


def not_clustered(connection: NatsConnection, settings: ClusterSettings) -> NatsRefused:
    return NatsRefused(
        f"{connection.server.url} is not in a cluster of NATS servers, but {len(settings.servers)} are configured:"
        " they would not know each other",
        "cluster.servers",
    )
