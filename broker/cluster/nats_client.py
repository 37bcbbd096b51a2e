"""NatsClient: ``nats.Nats`` over one connection after the other: subscriptions, buckets and watches last over them.

The buckets are spoken to by the messages of JetStream's API, so that each answer says for certain what was done.
"""

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ..config import BrokerSettings, ClusterSettings
from .nats import (
    BUCKETS,
    Entry,
    NatsRefused,
    NoAnswer,
    NoResponders,
    Unavailable,
    Unknown,
    WrongRevision,
)
from .nats_connection import (
    MAX_UNSENT,
    ConnectionLost,
    Msg,
    NatsConnection,
    Server,
    Unreachable,
    WatchedTls,
    check_credentials,
    credential_of,
    tls_context,
)

logger = logging.getLogger(__name__)

ROOM: Final = 4096
"""What a message on a link may be larger than the packet in it."""
OLDEST_OF_SEVERAL: Final = (2, 10, 25)
"""Before, several servers let two compare-and-sets on one key win."""
DELETIONS_KEPT: Final = 3600.0
"""Seconds after which a deletion itself is removed. A watch that was away for half of it begins anew."""
_FORGOTTEN_AT_ONCE: Final = 100
_MAX_DELETIONS: Final = 1_000_000
ATTEMPT: Final = 1.0
"""Seconds after which a write, or any other question to the buckets, is sent again."""
PAUSE: Final = 0.2
"""Seconds between attempts where there is no leader."""
LONGEST_WRITE: Final = 60.0
_DUPLICATE_WINDOW: Final = 2 * LONGEST_WRITE
_HEARTBEAT: Final = 1.0
"""Seconds between signs of life of a watch's consumer; without three of them it is made anew."""
_POLL: Final = 0.1
_STARTING: Final = 15.0
"""Seconds that a start waits for buckets: servers that have started just now elect their leader first."""
_SAY_AGAIN: Final = 60.0
"""Seconds between lines that say the same."""
_LONGEST_BACKOFF: Final = 1.0
_HEADROOM: Final = 512
"""Bytes of the headers of a write, which count for ``max_payload`` too."""

# err_code of JetStream's API
_NOT_ENABLED: Final = (10039, 10076)
_NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
_NO_MESSAGE: Final = 10037
_NO_PEERS: Final = 10005
_NOT_CLUSTERED: Final = 10074
_WRONG_SEQUENCE: Final = (10071, 10164)
_SAME_ID_UNDER_WAY: Final = 10158


def largest_packet(settings: BrokerSettings) -> int:
    """Bytes of the largest packet that a client may send to this node."""
    return max((zone.max_packet_size for zone in settings.listener_zones), default=0)


class _ApiError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _ApiFailed(Exception):
    def __init__(self, error: _ApiError) -> None:
        super().__init__(error.description)
        self.err_code = error.err_code


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _ApiError | None = None


class _Stored(msgspec.Struct):
    seq: int
    data: bytes = b""
    hdrs: bytes = b""


class _StoredReply(msgspec.Struct):
    message: _Stored | None = None
    error: _ApiError | None = None


class _StreamConfig(msgspec.Struct, frozen=True):
    num_replicas: int = 1


class _StreamState(msgspec.Struct, frozen=True):
    last_seq: int = 0


class _Replica(msgspec.Struct):
    offline: bool = False
    active: int = 0


class _StreamCluster(msgspec.Struct):
    replicas: list[_Replica] = []


class _Stream(msgspec.Struct):
    created: str = ""
    config: _StreamConfig = _StreamConfig()
    state: _StreamState = _StreamState()
    cluster: _StreamCluster | None = None
    error: _ApiError | None = None

    def has_quorum(self) -> bool:
        """Whether its leader hears of most of its replicas."""
        if self.cluster is None or not self.cluster.replicas:
            return True
        near = sum(not each.offline and each.active < 5_000_000_000 for each in self.cluster.replicas)
        return (near + 1) * 2 > len(self.cluster.replicas) + 1


class _Consumer(msgspec.Struct):
    name: str = ""
    num_pending: int = 0
    error: _ApiError | None = None


_decode_ack = msgspec.json.Decoder(_Ack).decode
_decode_stored = msgspec.json.Decoder(_StoredReply).decode
_decode_stream = msgspec.json.Decoder(_Stream).decode
_decode_consumer = msgspec.json.Decoder(_Consumer).decode


class NatsWatch:
    """A running watch: a consumer of the bucket's stream on one connection after the other."""

    def __init__(
        self, client: "NatsClient", bucket: str, on_entry: Callable[[Entry], None], on_current: Callable[[], None]
    ) -> None:
        self.revision = 0
        self.current = False
        self._client = client
        self.bucket = bucket
        self._on_entry = on_entry
        self._on_current = on_current
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._broken = asyncio.Event()
        self._consumed = 0  # messages of the consumer that there is
        self._heard = 0.0
        self._prefix = len(client.subject(bucket, ""))
        self._task = asyncio.create_task(self._run())

    async def reached(self, revision: int, timeout: float) -> bool:
        if self.revision >= revision:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (revision, future)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(waiting)
        return True

    def stop(self) -> None:
        self._task.cancel()
        self._broken.set()
        self._client.remove(self)

    def begin_anew(self, bucket: str) -> None:
        """The data of ``bucket`` is gone."""
        if bucket == self.bucket:
            self.revision = 0
            self.current = False
            self._broken.set()

    async def _run(self) -> None:
        while True:
            connection = await self._client.ready()
            try:
                await self._follow(connection)
            except (ConnectionLost, NoAnswer, NoResponders, Unavailable):
                await asyncio.sleep(PAUSE)
            except _ApiFailed as error:
                if error.err_code == _NO_STREAM:
                    self._client.missing(connection)
                else:
                    logger.warning("nats_watch_failed bucket=%s error=%s", self.bucket, error)
                await asyncio.sleep(PAUSE)
            except Exception:
                logger.exception("nats_watcher_failed bucket=%s", self.bucket)
                await asyncio.sleep(_LONGEST_BACKOFF)

    async def _follow(self, connection: NatsConnection) -> None:
        """Tell what comes until the connection breaks, a message is missing, or the consumer is silent."""
        client, loop = self._client, asyncio.get_running_loop()
        if self.revision and loop.time() - self._heard > DELETIONS_KEPT / 2:
            client.begin_anew(self.bucket)  # deletions may have been forgotten meanwhile
        self._broken = broken = asyncio.Event()
        self._consumed = 0
        inbox = connection.inbox()

        def on_message(message: Msg) -> None:
            if not broken.is_set() and not self._on_message(connection, message):
                broken.set()

        subscription = await connection.subscribe(inbox, on_message)
        name = ""
        try:
            config: dict[str, object] = {
                "deliver_subject": inbox,
                "deliver_policy": "by_start_sequence" if self.revision else "all",
                "ack_policy": "none",
                "max_deliver": 1,
                "flow_control": True,
                "idle_heartbeat": int(_HEARTBEAT * 1e9),
                "inactive_threshold": int(5e9),
                "mem_storage": True,
                "num_replicas": 1,
            }
            if self.revision:
                config["opt_start_seq"] = self.revision + 1
            stream = client.stream(self.bucket)
            asked = {"stream_name": stream, "config": config}
            self._heard = loop.time()
            made = _decode_consumer(await client.api(connection, f"CONSUMER.CREATE.{stream}", asked))
            if made.error is not None:
                raise _ApiFailed(made.error)
            name = made.name
            if made.num_pending == 0:
                self._is_current()
            while not broken.is_set() and not connection.lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT / 2):
                        await broken.wait()
                if loop.time() - self._heard > 3 * _HEARTBEAT:
                    logger.info("nats_watch_silent bucket=%s revision=%s", self.bucket, self.revision)
                    break
        finally:
            broken.set()
            if name:
                connection.publish(f"$JS.API.CONSUMER.DELETE.{client.stream(self.bucket)}.{name}", b"")
            await connection.unsubscribe(subscription)

    def _on_message(self, connection: NatsConnection, message: Msg) -> bool:
        """Whether the consumer goes on."""
        self._heard = asyncio.get_running_loop().time()
        headers = message.headers
        if headers is not None and "Status" in headers:
            if headers["Status"] != "100":
                return False
            if message.reply:  # flow control: how far we are
                connection.publish(message.reply, b"")
                return True
            stalled = headers.get("Nats-Consumer-Stalled")
            if stalled:
                connection.publish(stalled, b"")
            elif int(headers.get("Nats-Last-Consumer", 0)) != self._consumed:
                return False
            else:
                self._is_current()
            return True
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>
        parts = message.reply.split(".")
        first = 5 if len(parts) == 9 else 7
        revision, consumed, pending = int(parts[first]), int(parts[first + 1]), int(parts[first + 3])
        if consumed != self._consumed + 1:
            return False
        self._consumed = consumed
        if revision > self.revision:
            self.revision = revision
            deleted = headers is not None and ("KV-Operation" in headers or "Nats-Marker-Reason" in headers)
            if deleted and not self.current:
                self._client.forget_later(self.bucket, message.subject, revision)  # who deleted it may be gone
            entry = Entry(message.subject[self._prefix :], None if deleted else message.data, revision)
            try:
                self._on_entry(entry)
            except Exception:
                logger.exception("nats_watcher_failed bucket=%s key=%s", self.bucket, entry.key)
            for wanted, future in self._waiting:
                if revision >= wanted and not future.done():
                    future.set_result(None)
        if pending == 0:
            self._is_current()
        return True

    def _is_current(self) -> None:
        if not self.current:
            self.current = True
            try:
                self._on_current()
            except Exception:
                logger.exception("nats_watcher_failed bucket=%s", self.bucket)


class NatsClient:
    """``nats.Nats`` of one node. ``largest``: bytes of the largest packet that it takes from a client."""

    def __init__(self, settings: ClusterSettings, node: str, largest: int) -> None:
        self.connected = False
        self.max_payload = 0
        self.on_connected: list[Callable[[], None]] = []
        self.on_disconnected: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[str], None]] = []
        self._settings = settings
        self._largest = largest
        self._connection: NatsConnection | None = None
        self._quorum = False
        self._handlers: list[tuple[str, Callable[[bytes, str], None]]] = []
        self._watches: list[NatsWatch] = []
        self._deletions: deque[tuple[float, str, str, int]] = deque()  # when to forget it, bucket, subject, revision
        self._created: dict[str, str] = {}  # when the bucket's stream was made
        self._missing = asyncio.Event()
        self._ready = asyncio.Event()  # connected, and the buckets are there
        self._is_connected = asyncio.Event()
        self._refused: NatsRefused | None = None
        self._told_refusal = ""
        self._tell_refusal = 0.0  # when it is told again
        self._settled = asyncio.Event()  # the first connection is ready, or refused
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._tls: WatchedTls  # by start and probe
        servers = [Server(url) for url in settings.servers]
        first = zlib.crc32(node.encode()) % len(servers)  # nodes begin with different ones
        self._servers = servers[first:] + servers[:first]

    @property
    def quorum(self) -> bool:
        return self.connected and self._quorum

    # ------------------------------------------------------------- connection

    async def start(self) -> None:
        """A server that refuses is an error; that none can be reached is not: it may be there later."""
        check_credentials(self._settings)
        self._tls = tls_context(self._settings)
        if not any([await self._probe(server) is None for server in self._servers]):
            logger.warning("nats_unreachable servers=%s setting=cluster.servers", ",".join(self._settings.servers))
            self._settled.set()
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(_STARTING):
                await self._settled.wait()
        if self._refused is not None:
            await self.stop()
            raise self._refused

    async def probe(self) -> str:
        """Connect and leave again: what there is, in one line.

        :raises NatsRefused: it cannot be used, or no server answers.
        """
        check_credentials(self._settings)
        self._tls = tls_context(self._settings)
        found: list[str] = []
        unreachable: list[str] = []
        for server in self._servers:
            try:
                connection = await NatsConnection(self._settings, server).open(self._tls)
            except Unreachable as error:
                unreachable.append(str(error))
                continue
            try:
                self._check(connection)
                await self._check_jetstream(connection)
            finally:
                await connection.close()
            found.append(f"{server.url} ({'.'.join(map(str, connection.version))})")
        if not found:
            raise NatsRefused("; ".join(unreachable), "cluster.servers")
        return f"connected to {', '.join(found)}" + "".join(f"; not reached: {each}" for each in unreachable)

    async def _check_jetstream(self, connection: NatsConnection) -> None:
        try:
            info = _decode_ack(await self.api(connection, "INFO", None))
        except (NoResponders, NoAnswer, ConnectionLost, Unavailable):
            raise _no_jetstream(connection) from None
        if info.error is not None:
            raise _no_jetstream(connection)

    async def stop(self) -> None:
        for watch in list(self._watches):
            watch.stop()
        if self._task is not None:
            while not self._task.done():  # asyncio.wait_for of Python 3.11 loses a cancellation now and then
                self._task.cancel()
                await asyncio.wait([self._task], timeout=_POLL)
            self._task = None
        for calls in (self.on_connected, self.on_disconnected, self.on_lost, self._handlers):
            calls.clear()
        connection, self._connection = self._connection, None
        self.connected = False
        self._ready.clear()
        if connection is not None:
            await connection.finish()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _probe(self, server: Server) -> Unreachable | None:
        """Whether it would be used: every server, as one that is too old breaks the promises of all."""
        try:
            connection = await NatsConnection(self._settings, server).open(self._tls)
        except Unreachable as error:
            logger.warning("nats_unreachable server=%s error=%s setting=cluster.servers", server.url, error)
            return error
        try:
            self._check(connection)
        finally:
            await connection.close()
        return None

    def _check(self, connection: NatsConnection) -> None:
        """:raises NatsRefused: this server cannot be used."""
        several = max(len(self._settings.servers), len(connection.servers)) > 1
        version = connection.version
        if several and version < OLDEST_OF_SEVERAL:
            shown, oldest = (".".join(map(str, each)) for each in (version, OLDEST_OF_SEVERAL))
            raise NatsRefused(
                f"{connection.server.url} is NATS {shown}; more than one server must be {oldest} or newer",
                "cluster.servers",
            )
        if connection.max_payload < self._largest + ROOM:
            raise NatsRefused(
                f"max_payload of {connection.server.url} is {connection.max_payload}: set it to"
                f" {self._largest + ROOM} or more there, or max_packet_size here to at most"
                f" {max(connection.max_payload - ROOM, 0)}",
                "max_packet_size",
            )

    async def _run(self) -> None:
        while True:
            connection = await self._connect()
            self._connection = connection
            self.max_payload = connection.max_payload
            keeping: asyncio.Task[None] | None = None
            try:
                for subject, handler in list(self._handlers):
                    await connection.subscribe(subject, _plain(handler))
                await connection.settle()
                self._learn(connection)
                logger.info(
                    "nats_connected server=%s version=%s max_payload=%s servers=%s",
                    connection.server.url, ".".join(map(str, connection.version)), connection.max_payload,
                    len(self._servers),
                )  # fmt: skip
                self.connected = True
                self._is_connected.set()
                self._call(self.on_connected)
                keeping = asyncio.create_task(self._keep_buckets(connection))
                await asyncio.wait(
                    [keeping, lost := asyncio.ensure_future(connection.lost.wait())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                lost.cancel()
                if keeping.done():
                    keeping.result()
            except ConnectionLost:
                pass
            except NatsRefused as error:
                self._refuse(error)
                await asyncio.sleep(_LONGEST_BACKOFF)
            except Exception:
                logger.exception("nats_client_failed server=%s", connection.server.url)
                await asyncio.sleep(_LONGEST_BACKOFF)
            finally:
                if keeping is not None:
                    keeping.cancel()
                was, self.connected = self.connected, False
                self._ready.clear()
                self._is_connected.clear()
            logger.warning("nats_disconnected server=%s reason=%s", connection.server.url, connection.error or "lost")
            self._connection = None
            self._quorum = False
            self._close(connection)
            if was:
                self._call(self.on_disconnected)
            # The one that broke comes last.
            self._servers.sort(key=lambda each: each.url == connection.server.url)

    async def _connect(self) -> NatsConnection:
        """A connection to the first server that lets us in, however long it takes."""
        loop = asyncio.get_running_loop()
        backoff, told = 0.05, loop.time()
        while True:
            errors: list[str] = []
            for server in list(self._servers):
                try:
                    connection = await NatsConnection(self._settings, server).open(self._tls)
                except Unreachable as error:
                    errors.append(str(error))
                    continue
                except NatsRefused as error:
                    errors.append(str(error))
                    self._refuse(error)
                    continue
                try:
                    self._check(connection)
                except NatsRefused as error:
                    errors.append(str(error))
                    self._close(connection)
                    self._refuse(error)
                    continue
                return connection
            if loop.time() >= told:
                told = loop.time() + _SAY_AGAIN
                logger.warning("nats_unreachable error=%s setting=cluster.servers", "; ".join(errors))
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)

    def _refuse(self, error: NatsRefused) -> None:
        if not self._settled.is_set():
            self._refused = error
            self._settled.set()
        elif (now := asyncio.get_running_loop().time()) >= self._tell_refusal or str(error) != self._told_refusal:
            self._tell_refusal, self._told_refusal = now + _SAY_AGAIN, str(error)
            logger.error("nats_refused error=%s", error)

    def _learn(self, connection: NatsConnection) -> None:
        """The servers that are named, and those that the latest connection knows of."""
        named = {urlsplit(url).netloc for url in self._settings.servers}
        found = [each for each in connection.servers if urlsplit(each.url).netloc not in named]
        self._servers = [each for each in self._servers if each.url in self._settings.servers] + found

    def _close(self, connection: NatsConnection) -> None:
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _call(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in list(calls):
            try:
                call()
            except Exception:
                logger.exception("nats_callback_failed")

    # ---------------------------------------------------------- core messages

    def publish(self, subject: str, data: bytes) -> None:
        connection = self._connection
        if connection is None or not self.connected:
            return
        if len(data) > self.max_payload:
            logger.error("nats_message_dropped subject=%s bytes=%s reason=max_payload", subject, len(data))
        elif not connection.publish(subject, data):
            if self._dropped == 0:
                logger.warning("nats_message_dropped subject=%s reason=unsent_bytes limit=%s", subject, MAX_UNSENT)
            self._dropped += 1
        else:
            self._dropped = 0

    def subscribe(self, subject: str, handler: Callable[[bytes, str], None]) -> None:
        self._handlers.append((subject, handler))
        if self._connection is not None:
            task = asyncio.create_task(self._subscribe(self._connection, subject, handler))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _subscribe(self, connection: NatsConnection, subject: str, handler: Callable[[bytes, str], None]) -> None:
        with suppress(ConnectionLost):  # the next connection has it from its beginning
            await connection.subscribe(subject, _plain(handler))

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        connection = self._connection
        if connection is None or not self.connected:
            raise Unavailable("not connected")
        try:
            return await connection.request(subject, data, timeout)
        except ConnectionLost:
            raise NoAnswer("the connection broke") from None

    # ---------------------------------------------------------------- buckets

    def stream(self, bucket: str) -> str:
        return f"KV_taipan-{self._settings.name}-{bucket}"

    def subject(self, bucket: str, key: str) -> str:
        return f"$KV.taipan-{self._settings.name}-{bucket}.{key}"

    async def api(self, connection: NatsConnection, call: str, argument: object) -> bytes:
        data = b"" if argument is None else msgspec.json.encode(argument)
        return await connection.request(f"$JS.API.{call}", data, ATTEMPT)

    async def ready(self) -> NatsConnection:
        """The connection, when it has its buckets."""
        while True:
            await self._ready.wait()
            if self._connection is not None and not self._connection.lost.is_set():
                return self._connection
            await asyncio.sleep(PAUSE)

    def missing(self, connection: NatsConnection) -> None:
        """A bucket is not there any more."""
        if connection is self._connection:
            self._missing.set()

    def remove(self, watch: NatsWatch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    async def _keep_buckets(self, connection: NatsConnection) -> None:
        """Make those that are missing, now and whenever one is; know whether there is a quorum."""
        since = asyncio.get_running_loop().time()
        number = failures = 0
        while True:
            if not self._ready.is_set():
                try:
                    await self._make_buckets(connection, asyncio.get_running_loop().time() - since)
                except (NoResponders, NoAnswer, Unavailable, _ApiFailed) as error:
                    await self._not_yet(connection, error, asyncio.get_running_loop().time() - since)
                    continue
                self._missing.clear()
                self._quorum = True
                self._ready.set()
                self._settled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._missing.wait()
            await self._forget_deletions(connection)
            number += 1
            bucket = BUCKETS[number % len(BUCKETS)]
            try:
                stream = _decode_stream(await self.api(connection, f"STREAM.INFO.{self.stream(bucket)}", None))
            except (NoResponders, NoAnswer, Unavailable):
                failures += 1
                self._quorum = self._quorum and failures < 2
                continue
            if stream.error is None:
                failures = 0
                self._quorum = stream.has_quorum()
            if self._missing.is_set() or (stream.error is not None and stream.error.err_code == _NO_STREAM):
                since = asyncio.get_running_loop().time()
                self._ready.clear()

    def forget_later(self, bucket: str, subject: str, revision: int) -> None:
        """A deletion stays in its bucket until it is removed: when everybody has heard of it."""
        if len(self._deletions) < _MAX_DELETIONS:  # beyond it, the next start of a node sees those that were left
            due = asyncio.get_running_loop().time() + DELETIONS_KEPT
            self._deletions.append((due, bucket, subject, revision))

    async def _forget_deletions(self, connection: NatsConnection) -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(_FORGOTTEN_AT_ONCE):
            if not self._deletions or self._deletions[0][0] > now:
                return
            _, bucket, subject, revision = self._deletions[0]
            # What was written to the key since has a larger number and stays.
            asked = {"filter": subject, "seq": revision + 1}
            try:
                await self.api(connection, f"STREAM.PURGE.{self.stream(bucket)}", asked)
            except (NoResponders, NoAnswer, Unavailable):
                return
            self._deletions.popleft()

    async def _not_yet(self, connection: NatsConnection, error: Exception, waited: float) -> None:
        """The buckets could not be made: wait a moment, unless they never will."""
        if isinstance(error, _ApiFailed) and error.err_code in _NOT_ENABLED:
            raise _no_jetstream(connection)
        if isinstance(error, NoResponders) and waited > 3.0:
            raise _no_jetstream(connection)
        if isinstance(error, NoAnswer) and "ermissions" in connection.error:
            raise NatsRefused(f"{connection.server.url}: {connection.error}", credential_of(self._settings))
        if isinstance(error, _ApiFailed) and error.err_code == _NOT_CLUSTERED:
            raise NatsRefused(
                f"{connection.server.url} is in no cluster of NATS servers, but"
                f" {len(self._settings.servers)} are named: they would know nothing of each other",
                "cluster.servers",
            )
        logger.debug("nats_buckets_not_there error=%r waited=%.1f", error, waited)
        await asyncio.sleep(PAUSE)

    async def _make_buckets(self, connection: NatsConnection, waited: float) -> None:
        wanted = min(3, max(len(self._settings.servers), len(connection.servers), 1))
        made, replicas = [], set()
        for bucket in BUCKETS:
            stream = await self._stream(connection, bucket)
            if stream is None:
                # Servers that were counted twice, or never come: fewer replicas are better than none.
                stream = await self._make_bucket(connection, bucket, wanted if waited < _STARTING / 2 else 1)
                made.append(bucket)
            elif stream.config.num_replicas < wanted:
                stream = await self._raise_replicas(connection, bucket, stream, wanted)
            replicas.add(stream.config.num_replicas)
            self._note_life(bucket, stream)
        if made or min(replicas) < wanted:
            logger.info(
                "nats_buckets made=%s replicas=%s servers=%s", ",".join(made) or "none",
                min(replicas), max(len(self._settings.servers), len(connection.servers), 1),
            )  # fmt: skip

    async def _stream(self, connection: NatsConnection, bucket: str) -> _Stream | None:
        stream = _decode_stream(await self.api(connection, f"STREAM.INFO.{self.stream(bucket)}", None))
        if stream.error is None:
            return stream
        if stream.error.err_code == _NO_STREAM:
            return None
        raise _ApiFailed(stream.error)

    async def _make_bucket(self, connection: NatsConnection, bucket: str, replicas: int) -> _Stream:
        config = self._config(bucket, replicas)
        made = _decode_stream(await self.api(connection, f"STREAM.CREATE.{self.stream(bucket)}", config))
        if made.error is None:
            return made
        if made.error.err_code == _NAME_IN_USE:  # another node was faster
            stream = await self._stream(connection, bucket)
            if stream is not None:
                return stream
        raise _ApiFailed(made.error)

    async def _raise_replicas(self, connection: NatsConnection, bucket: str, stream: _Stream, wanted: int) -> _Stream:
        config = self._config(bucket, wanted)
        changed = _decode_stream(await self.api(connection, f"STREAM.UPDATE.{self.stream(bucket)}", config))
        if changed.error is None:
            return changed
        logger.warning(
            "nats_replicas_not_raised bucket=%s replicas=%s wanted=%s error=%s",
            bucket, stream.config.num_replicas, wanted, changed.error.description,
        )  # fmt: skip
        return stream

    def _config(self, bucket: str, replicas: int) -> dict[str, object]:
        """A key-value bucket as NATS's own tools make one, with one value for each key."""
        return {
            "name": self.stream(bucket),
            "subjects": [self.subject(bucket, ">")],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "num_replicas": replicas,
            "duplicate_window": int(_DUPLICATE_WINDOW * 1e9),
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }

    def _note_life(self, bucket: str, stream: _Stream) -> None:
        """Whether it is the stream that was there before, with all that was told of it."""
        before = self._created.get(bucket)
        self._created[bucket] = stream.created
        told = max((each.revision for each in self._watches if each.bucket == bucket), default=0)
        if before is None or (before == stream.created and told <= stream.state.last_seq):
            return
        logger.error("nats_bucket_lost bucket=%s", bucket)
        self.begin_anew(bucket)

    def begin_anew(self, bucket: str) -> None:
        """What was told of a bucket does not count any more."""
        self._call([partial(call, bucket) for call in self.on_lost])
        for watch in list(self._watches):
            watch.begin_anew(bucket)

    async def write(
        self, bucket: str, key: str, value: bytes | None, revision: int | None, nonce: str, timeout: float = 5.0
    ) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout, LONGEST_WRITE)
        data = value or b""
        headers = {"Nats-Msg-Id": nonce}
        if value is None:
            headers["KV-Operation"] = "DEL"
        expected = revision
        unanswered = False
        reason = "not connected"
        while (left := deadline - loop.time()) > 0:
            connection = self._connection
            if connection is None or not self.connected:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._is_connected.wait()
                continue
            if len(data) + _HEADROOM > self.max_payload:
                raise Unavailable(f"{len(data)} bytes are more than max_payload of the NATS server allows")
            if expected is not None:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
            try:
                subject = self.subject(bucket, key)
                ack = _decode_ack(await connection.request(subject, data, min(ATTEMPT, left), headers))
            except (NoAnswer, ConnectionLost):
                unanswered = True
                continue
            except NoResponders:
                ack = _Ack(error=_ApiError(description="no quorum"))
            except Unavailable as error:
                ack = _Ack(error=_ApiError(description=str(error)))
            if ack.error is None:
                self._quorum = True
                if value is None:
                    self.forget_later(bucket, subject, ack.seq)
                return ack.seq
            reason = ack.error.description
            if ack.error.err_code in _WRONG_SEQUENCE:
                # One server looks at the revision before it looks whether it has had this nonce.
                try:
                    there, by = await self._last(connection, bucket, key)
                except (NoAnswer, NoResponders, ConnectionLost, Unavailable, _ApiFailed):
                    pass
                else:
                    if there is not None and by == nonce:
                        return there.revision
                    if revision != 0 or (there is not None and there.value is not None):
                        raise WrongRevision(f"{key} is at {there.revision if there else 0}, not {revision}")
                    expected = there.revision if there is not None else 0  # of the deletion
                    continue
            elif ack.error.err_code == _SAME_ID_UNDER_WAY:
                unanswered = True
            else:
                self._quorum = False
            await asyncio.sleep(min(PAUSE, max(deadline - loop.time(), 0.0)))
        if unanswered:
            raise Unknown(f"no answer in {timeout:g} s")
        raise Unavailable(reason)

    async def read(self, bucket: str, key: str) -> Entry | None:
        connection = self._connection
        if connection is None or not self.connected:
            raise Unavailable("not connected")
        try:
            entry, _ = await self._last(connection, bucket, key)
        except (NoResponders, _ApiFailed) as error:
            self._quorum = False
            raise Unavailable(f"no quorum: {error}") from error
        except ConnectionLost:
            raise NoAnswer("the connection broke") from None
        return entry

    async def _last(self, connection: NatsConnection, bucket: str, key: str) -> tuple[Entry | None, str]:
        """What the leader has, and the nonce that it was written with."""
        asked = {"last_by_subj": self.subject(bucket, key)}
        reply = _decode_stored(await self.api(connection, f"STREAM.MSG.GET.{self.stream(bucket)}", asked))
        if reply.error is not None:
            if reply.error.err_code == _NO_MESSAGE:
                return None, ""
            raise _ApiFailed(reply.error)
        assert reply.message is not None
        stored = reply.message
        lines = stored.hdrs.decode("utf-8", "replace").splitlines()
        headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        deleted = "KV-Operation" in headers or "Nats-Marker-Reason" in headers
        return Entry(key, None if deleted else stored.data, stored.seq), headers.get("Nats-Msg-Id", "")

    def watch(self, bucket: str, on_entry: Callable[[Entry], None], on_current: Callable[[], None]) -> NatsWatch:
        made = NatsWatch(self, bucket, on_entry, on_current)
        self._watches.append(made)
        return made


def _plain(handler: Callable[[bytes, str], None]) -> Callable[[Msg], None]:
    return lambda message: handler(message.data, message.reply)


def _no_jetstream(connection: NatsConnection) -> NatsRefused:
    return NatsRefused(f"{connection.server.url} has no JetStream: it is to be started with -js", "cluster.servers")
