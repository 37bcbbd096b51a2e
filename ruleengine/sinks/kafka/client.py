"""KafkaClient: the connections to the brokers of a cluster, and which broker leads which partition.

The client of aiokafka, but every address is checked before a socket connects to it, also those that the cluster
names."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from ...network.allowed_networks import Networks
from .connection import KafkaConnectionSettings

ERRORS: Final = (OSError, KafkaError, asyncio.IncompleteReadError)
"""What a connection raises if a broker cannot be reached, refuses the login or answers with an error."""
_CLIENT_ID: Final = "taipan"
_IDLE: Final = 540_000
"""Milliseconds; Kafka itself closes connections after ten minutes."""

# The resource reports each of its errors itself, once.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)


def reason(error: BaseException) -> str:
    """Return an error of aiokafka in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error.__cause__, OSError) and str(error.__cause__):
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


class _Connecting:
    """The loop for one connection of aiokafka: it connects to checked addresses only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, networks: Networks, settings: KafkaConnectionSettings) -> None:
        self._loop = loop
        self._networks = networks
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: ssl.SSLContext | None
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """See ``AbstractEventLoop.create_connection``. Raises OSError."""
        refusal: OSError | None = None
        name = (self._settings.server_name or host) if ssl is not None else None
        for address in await self._networks.addresses(host, port):
            try:
                made = await self._loop.create_connection(factory, address, port, ssl=ssl, server_hostname=name)
            except OSError as error:
                refusal = refusal or error
                continue
            self._set_options(made[0].get_extra_info("socket"))
            return made
        raise refusal or OSError(f"{host} has no address")

    def _set_options(self, sock: socket.socket) -> None:
        settings = self._settings
        if settings.send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)
        if settings.keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, settings.keepalive)


class KafkaClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka is not typed
    """``bootstrap`` connects to the first of the servers that answers; ``close`` ends all connections."""

    def __init__(self, settings: KafkaConnectionSettings, networks: Networks) -> None:
        secure = settings.tls is not None
        protocol = ("SASL_SSL" if secure else "SASL_PLAINTEXT") if settings.mechanism else "SSL" if secure else None
        super().__init__(
            bootstrap_servers=[f"{host}:{port}" for host, port in settings.servers],
            client_id=_CLIENT_ID,
            request_timeout_ms=int(settings.request_timeout * 1000),
            ssl_context=settings.tls,
            security_protocol=protocol or "PLAINTEXT",
            connections_max_idle_ms=_IDLE,
            sasl_mechanism=settings.mechanism or "PLAIN",
            sasl_plain_username=settings.username,
            sasl_plain_password=settings.password,
        )
        self._settings = settings
        self._networks = networks
        self._sync_task: asyncio.Task[None] | None = None
        self._locks: dict[object, asyncio.Lock] = {}
        self._ended = False
        self.failure = ""
        """Why the last connection that was tried was not established."""

    async def bootstrap(self) -> None:
        """Learn the brokers from the first server that answers. A later call ends all connections and starts again.
        Requests that have no answer yet then fail. Raises one of ERRORS."""
        refusal: Exception | None = None
        for each in list(self._conns.values()):
            each.close()
        for host, port in self._settings.servers:
            connection = None
            try:
                connection = await self._open(host, port)
                metadata = await connection.send(MetadataRequest(list(self._topics)))
                if metadata.brokers:
                    self.cluster.update_metadata(metadata)
                    break
                refusal = refusal or OSError(f"{host}:{port} names no broker")
            except ERRORS as error:
                refusal = refusal or error
            finally:
                if connection is not None:
                    connection.close()
        else:
            raise refusal or OSError("there are no servers")
        if self._sync_task is None:
            self._sync_task = self._loop.create_task(self._md_synchronizer())

    async def ping(self) -> None:
        """Ask the brokers, one after the other, until one answers. Raises one of ERRORS."""
        if not await self._metadata_update(self.cluster, self._topics):
            raise OSError(self.failure or "no broker answers")

    async def _open(
        self, host: str, port: int, on_close: Callable[[AIOKafkaConnection, object], None] | None = None
    ) -> AIOKafkaConnection:
        """Connect and log in. Raises one of ERRORS."""
        connection = AIOKafkaConnection(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
            ssl_context=self._ssl_context,
            security_protocol=self._security_protocol,
            max_idle_ms=self._connections_max_idle_ms,
            on_close=on_close,
            sasl_mechanism=self._sasl_mechanism,
            sasl_plain_username=self._sasl_plain_username,
            sasl_plain_password=self._sasl_plain_password,
        )
        connection._loop = _Connecting(self._loop, self._networks, self._settings)
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                await connection.connect()
        except KafkaConnectionError as error:
            if self._settings.tls is None or isinstance(error.__cause__, OSError):
                raise
            # In TLS 1.3, our part of the handshake is complete before the server has checked our certificate.
            why = "closed after the TLS handshake: a client certificate may be required"
            raise OSError(f"{host}:{port}: {why}") from None
        except ERRORS:
            raise
        except Exception as error:  # a refused SCRAM login is a KeyError of aiokafka
            login = "the login was refused" if self._settings.mechanism else "it does not speak the protocol of Kafka"
            raise OSError(f"{host}:{port}: {login} ({type(error).__name__})") from error
        return connection

    async def _get_conn(self, node_id: object, *, group: int = ConnectionGroup.DEFAULT) -> AIOKafkaConnection | None:
        key = (node_id, group)
        # One connection to a broker at a time, but a broker that does not answer delays no other one.
        async with self._locks.setdefault(key, asyncio.Lock()):
            found = self._conns.get(key)
            if found is not None:
                if found.connected():
                    return found
                del self._conns[key]
                found.close()  # its reader may not have noticed yet that the broker has ended it
            broker = self.cluster.broker_metadata(node_id)
            if broker is None:
                self.force_metadata_update()
                return None
            try:
                made = await self._open(broker.host, broker.port, self._on_connection_closed)
            except ERRORS as error:
                self.failure = f"{broker.host}:{broker.port}: {reason(error)}"
                self.force_metadata_update()
                return None
            if self._ended:  # a write was on its way when the client was closed
                made.close()
                return None
            self._conns[key] = made
            return made

    async def close(self) -> None:
        """End all connections, also those that are being established."""
        self._ended = True
        await super().close()

    async def _metadata_update(self, cluster_metadata: Any, topics: Iterable[str] | None) -> bool:
        """Request metadata only for the topics in use, because a cluster may have very many topics."""
        nodes = [each.nodeId for each in self.cluster.brokers()]
        random.shuffle(nodes)
        for node in nodes:
            connection = await self._get_conn(node)
            if connection is None:
                continue
            try:
                metadata = await connection.send(MetadataRequest(list(topics or ())))
            except ERRORS as error:
                self.failure = reason(error)
                if isinstance(error, TimeoutError):
                    connection.close()
                continue
            if metadata.brokers:
                cluster_metadata.update_metadata(metadata)
                return True
        return False


class CheckedConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka is not typed
    """A consumer whose connections are those of a ``KafkaClient``. aiokafka creates a client of its own, and no
    parameter replaces it or checks the addresses that a cluster names
    (docs/decisions/0172-one-module-knows-the-inside-of-aiokafka.md)."""

    def __init__(self, client: KafkaClient, **options: Any) -> None:
        super().__init__(**options)
        if type(vars(self).get("_client")) is not AIOKafkaClient:
            raise RuntimeError("this version of aiokafka is not supported: its consumer uses an unknown client")
        self._client: Any = client
