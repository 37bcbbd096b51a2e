"""NatsClient: ``interface.Nats`` over successive connections: subscriptions, buckets and watches survive reconnects."""

import asyncio
import logging
import ssl
import zlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from ...config import BrokerSettings, ClusterSettings
from .api import check_jetstream, not_clustered
from .buckets import STARTING, NatsBuckets, call_each
from .connection import (
    MAX_UNSENT,
    ConnectionLost,
    Msg,
    NatsConnection,
    NatsServer,
    NatsUnreachable,
    check_credentials,
    tls_context,
)
from .interface import BucketEntry, BucketWrite, NatsRefused, NoAnswer, Unavailable
from .watch import NatsWatch

logger = logging.getLogger(__name__)

ROOM: Final = 4096
"""Bytes by which a message on a link may be larger than the packet in it."""
OLDEST_OF_SEVERAL: Final = (2, 10, 25)
"""The minimum version: earlier servers may accept two compare-and-sets on one key."""
_POLL: Final = 0.1
_SAY_AGAIN: Final = 60.0
"""Seconds between repeated log lines."""
_LONGEST_BACKOFF: Final = 1.0


def largest_packet(settings: BrokerSettings) -> int:
    """Return the maximum size of a packet that a client may send to this node."""
    return max((zone.max_packet_size for zone in settings.listener_zones), default=0)


class NatsClient:
    """``nats.Nats`` of one node. ``largest``: maximum size of a packet from a client."""

    def __init__(self, settings: ClusterSettings, node: str, largest: int) -> None:
        self.connected = False
        self.max_payload = 0
        self.on_connected: list[Callable[[], None]] = []
        self.on_disconnected: list[Callable[[], None]] = []
        self.on_unreadable: Callable[[], None] = lambda: None
        self._settings = settings
        self._largest = largest
        self._connection: NatsConnection | None = None
        self._handlers: list[tuple[str, Callable[[bytes, str], None]]] = []
        self._refused: NatsRefused | None = None
        self._told_refusal = ""
        self._tell_refusal = 0.0  # when it is logged again
        self._settled = asyncio.Event()  # the first connection is ready, refused, or without a quorum
        self._buckets = NatsBuckets(settings, self._settled.set)
        self.on_lost = self._buckets.on_lost
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext  # by start and probe
        servers = [NatsServer(url) for url in settings.servers]
        first = zlib.crc32(node.encode()) % len(servers)  # nodes begin with different ones
        self._servers = servers[first:] + servers[:first]

    @property
    def quorum(self) -> bool:
        return self.connected and self._buckets.quorum

    def another(self, node: str) -> "NatsClient":
        return NatsClient(self._settings, node, self._largest)

    # ------------------------------------------------------------- connection

    async def start(self) -> None:
        """Start the client. A server that rejects the node is an error. Unreachable servers are not, because one may
        appear later."""
        check_credentials(self._settings)
        self._tls = tls_context(self._settings)
        if not any([await self._probe(server) is None for server in self._servers]):
            logger.warning("nats_unreachable servers=%s setting=cluster.servers", ",".join(self._settings.servers))
            self._settled.set()
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(STARTING):
                await self._settled.wait()
        if self._refused is not None:
            await self.stop()
            raise self._refused

    async def probe(self) -> str:
        """Connect and disconnect again; return the result in one line.

        :raises NatsRefused: the server cannot be used, or no server answers."""
        check_credentials(self._settings)
        self._tls = tls_context(self._settings)
        found: list[str] = []
        unreachable: list[str] = []
        for server in self._servers:
            try:
                connection = await NatsConnection(self._settings, server).open(self._tls)
            except NatsUnreachable as error:
                unreachable.append(str(error))
                continue
            try:
                self._check(connection)
                await check_jetstream(connection, self._settings)
            finally:
                await connection.close()
            found.append(f"{server.url} ({'.'.join(map(str, connection.version))})")
        if not found:
            raise NatsRefused("; ".join(unreachable), "cluster.servers")
        return f"connected to {', '.join(found)}" + "".join(f"; not reached: {each}" for each in unreachable)

    async def stop(self) -> None:
        self._buckets.stop()
        if self._task is not None:
            while not self._task.done():  # asyncio.wait_for of Python 3.11 sometimes loses a cancellation
                self._task.cancel()
                await asyncio.wait([self._task], timeout=_POLL)
            self._task = None
        for calls in (self.on_connected, self.on_disconnected, self.on_lost, self._handlers):
            calls.clear()
        connection, self._connection = self._connection, None
        self.connected = False
        self._buckets.detach()
        if connection is not None:
            await connection.finish()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _probe(self, server: NatsServer) -> NatsUnreachable | None:
        """Check every server, because a single outdated server breaks the guarantees of all."""
        try:
            connection = await NatsConnection(self._settings, server).open(self._tls)
        except NatsUnreachable as error:
            logger.warning("nats_unreachable server=%s error=%s setting=cluster.servers", server.url, error)
            return error
        try:
            self._check(connection)
        finally:
            await connection.close()
        return None

    def _check(self, connection: NatsConnection) -> None:
        """:raises NatsRefused: this server cannot be used."""
        several = len(self._settings.servers) > 1 or bool(connection.servers)
        version = connection.version
        if several and version < OLDEST_OF_SEVERAL:
            shown, oldest = (".".join(map(str, each)) for each in (version, OLDEST_OF_SEVERAL))
            raise NatsRefused(
                f"{connection.server.url} is NATS {shown}; more than one server must be {oldest} or newer",
                "cluster.servers",
            )
        # JetStream reports this only when it has to create a bucket: with existing ones, each server would continue
        # alone.
        if len(self._settings.servers) > 1 and not connection.clustered:
            raise not_clustered(connection, self._settings)
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
                self._buckets.attach(connection)
                call_each(self.on_connected)
                keeping = asyncio.create_task(self._buckets.keep(connection))
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
                self._buckets.detach()
            logger.warning("nats_disconnected server=%s reason=%s", connection.server.url, connection.error or "lost")
            self._connection = None
            self._close(connection)
            if was:
                call_each(self.on_disconnected)
            # The server whose connection broke is tried last.
            self._servers.sort(key=lambda each: each.url == connection.server.url)

    async def _connect(self) -> NatsConnection:
        """Connect to the first server that accepts the node, however long it takes."""
        loop = asyncio.get_running_loop()
        backoff, told = 0.05, loop.time()
        while True:
            errors: list[str] = []
            for server in list(self._servers):
                try:
                    connection = await NatsConnection(self._settings, server, lambda: self.on_unreadable()).open(
                        self._tls
                    )
                except NatsUnreachable as error:
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
        """Update the list of servers: the configured ones, and those that the latest connection knows."""
        named = {urlsplit(url).netloc for url in self._settings.servers}
        found = [each for each in connection.servers if urlsplit(each.url).netloc not in named]
        self._servers = [each for each in self._servers if each.url in self._settings.servers] + found

    def _close(self, connection: NatsConnection) -> None:
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

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
        return await self.send_request(subject, data, timeout)

    def send_request(self, subject: str, data: bytes, timeout: float) -> Coroutine[Any, Any, bytes]:
        connection = self._connection
        if connection is None or not self.connected:
            raise Unavailable("not connected")
        return self._answered(connection.send_request(subject, data, timeout))

    async def _answered(self, answer: asyncio.Future[bytes]) -> bytes:
        try:
            return await answer
        except ConnectionLost:
            raise NoAnswer("the connection broke") from None

    # ---------------------------------------------------------------- buckets

    async def write(
        self,
        bucket: str,
        key: str,
        value: bytes | None,
        revision: int | None,
        nonce: str,
        timeout: float = 5.0,
        about: bytes = b"",
    ) -> int:
        return await self._buckets.write(bucket, key, value, revision, nonce, timeout, about)

    async def write_many(self, bucket: str, writes: Sequence[BucketWrite]) -> list[int | None]:
        return await self._buckets.write_many(bucket, writes)

    async def read(self, bucket: str, key: str) -> BucketEntry | None:
        return await self._buckets.read(bucket, key)

    def watch(self, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]) -> NatsWatch:
        return self._buckets.watch(bucket, on_entry, on_current)


def _plain(handler: Callable[[bytes, str], None]) -> Callable[[Msg], None]:
    return lambda message: handler(message.data, message.reply)
