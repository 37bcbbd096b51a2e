"""MqttClient: a client of another broker that connects automatically, and reconnects whenever the connection is
lost."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Connect, Properties, TopicFilter

from ..network.allowed_networks import NOT_TRIED, Networks, reason_of
from .connection import MAX_PACKET_SIZE, RECEIVE_MAXIMUM, BrokerConnection, BrokerUnreachable, MessageReceiver
from .session_state import SessionState
from .stream import Address, open_stream

logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 1.0
_CLEAN_UP: Final = 1.0
"""Maximum seconds for ending a 3.1.1 session on the server."""
_SENDER_EXPIRY: Final = 3600
"""Seconds for which a 5.0 server keeps the state of messages in flight while the client is disconnected."""


class ClientOptions(NamedTuple):
    """How to connect. Times are seconds; ``version``: 3, 4 or 5.

    ``reconnect_interval``: the longest pause between two attempts. ``answer_timeout``: timeout for an acknowledgement.
    ``bridge_mode``: CONNECT marks the client as a bridge (3.x), as Mosquitto's bridges do."""

    address: Address
    version: int
    username: str | None
    password: str | None
    keep_alive: int
    connect_timeout: float
    reconnect_interval: float
    answer_timeout: float
    bridge_mode: bool = False
    tls: ssl.SSLContext | None = None
    server_hostname: str | None = None


class MqttClient:
    """A client that publishes, or one with ``filters`` and a ``receiver``.

    The session of a receiving client stays on the server, so that messages wait there. The session of a publishing
    client only continues across lost connections: messages in flight are sent again with DUP, and at QoS 2 arrive once
    if the server still has the session. If it does not, ``publish`` fails, and another attempt sends a new message."""

    def __init__(
        self,
        client_id: str,
        options: ClientOptions,
        networks: Networks,
        rng: Random,
        on_change: Callable[[], None],
        filters: list[TopicFilter] | None = None,
        receiver: MessageReceiver | None = None,
    ) -> None:
        self.client_id = client_id
        self.reason = NOT_TRIED
        self._options = options
        self._networks = networks
        self._rng = rng
        self._on_change = on_change
        self._filters = filters or []
        self._receiver = receiver
        self._state = SessionState()
        # Whether the session on the server, if there is one, matches ``_state``.
        self._session_known = bool(self._filters)
        self._connection: BrokerConnection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def try_once(self) -> None:
        """Connect and disconnect. Raises BrokerUnreachable."""
        try:
            await self._visit()
        except (OSError, ValueError) as error:
            raise BrokerUnreachable(reason_of(error)) from None

    async def publish(self, key: object, message: Message) -> int:
        """Return the Reason Code of the server's answer when the message is stored there; below 0x80 it was accepted.

        ``key``: the object that identifies the message; with the same key, it is not sent twice within the session.
        Raises BrokerUnreachable."""
        if self._connection is None:
            raise BrokerUnreachable(f"not connected: {self.reason}")
        return await self._connection.publish(key, message)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                connection = await self._connect()
            except (OSError, BrokerUnreachable, ValueError) as error:  # ValueError: the address is invalid
                self.reason = reason_of(error)
                logger.info("bridge_refused client_id=%s reason=%s", self.client_id, self.reason)
                self._on_change()
            else:
                await self._stay(connection)
                if loop.time() - began >= self._options.reconnect_interval:
                    failures = 0
            longest = min(self._options.reconnect_interval, _FIRST_PAUSE * 2.0 ** min(failures, 30))
            failures += 1
            await asyncio.sleep(longest * self._rng.uniform(0.5, 1.0))

    async def _stay(self, connection: BrokerConnection) -> None:
        address = self._options.address
        logger.info("bridge_connected client_id=%s host=%s port=%s", self.client_id, address.host, address.port)
        self._connection = connection
        self.reason = ""
        self._on_change()
        try:
            reason = await connection.ended()
        except asyncio.CancelledError:
            self._connection = None
            await connection.close(session_ends=not self._filters)
            if self._options.version == c.V4 and not self._filters:
                await self._end_session()
            raise
        self._connection = None
        self.reason = reason
        logger.warning("bridge_disconnected client_id=%s reason=%s", self.client_id, reason)
        self._on_change()
        await connection.close()

    # ---------------------------------------------------------------- connecting

    async def _connect(self) -> BrokerConnection:
        """Connect and subscribe. Raises OSError, BrokerUnreachable."""
        options = self._options
        if options.version == c.V4 and not self._session_known:
            # The session of an earlier process: its Packet Identifiers may belong to other messages. Only a CONNECT
            # with Clean Session 1 ends it, and a session with Clean Session 1 does not outlive the connection.
            connection, present = await self._open(self._state, False)
            if not present:
                self._session_known = True
                return connection
            await connection.close()
            await self._visit()
        clean = options.version == c.V5 and not self._session_known
        connection, _ = await self._open(self._state, clean or (options.version == c.V3 and not self._filters))
        self._session_known = True
        return connection

    async def _visit(self) -> None:
        """Connect with a clean session, and disconnect. Raises OSError, BrokerUnreachable."""
        connection, _ = await self._open(SessionState(), True, visit=True)
        await connection.close(session_ends=True)

    async def _end_session(self) -> None:
        """End a 3.1.1 session that will not be used again; otherwise it stays on the server indefinitely."""
        with contextlib.suppress(OSError, BrokerUnreachable):
            async with asyncio.timeout(_CLEAN_UP):
                await self._visit()

    async def _open(self, state: SessionState, clean: bool, visit: bool = False) -> tuple[BrokerConnection, bool]:
        """Return a connection, and whether the server had the session. ``visit``: without subscriptions."""
        options = self._options
        stream = await open_stream(
            options.address,
            self._networks,
            options.connect_timeout,
            options.tls,
            options.server_hostname,
            "mqttv3.1" if options.version == c.V3 else "mqtt",
            MAX_PACKET_SIZE,
        )
        filters = [] if visit else self._filters
        connection = BrokerConnection(stream, options.version, state, self._receiver, options.answer_timeout)
        try:
            async with asyncio.timeout(options.connect_timeout):
                return connection, await connection.connect(self._packet(clean, visit), filters)
        except BaseException as error:
            if not isinstance(error, BrokerUnreachable):
                connection.abort()
            await connection.close()
            raise

    def _packet(self, clean: bool, visit: bool) -> Connect:
        options = self._options
        properties: Properties = {}
        if options.version == c.V5:
            expiry = c.NEVER_EXPIRES if self._filters else _SENDER_EXPIRY
            properties = {
                c.SESSION_EXPIRY_INTERVAL: 0 if visit else expiry,
                c.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM,
                c.MAXIMUM_PACKET_SIZE: MAX_PACKET_SIZE,
            }
        return Connect(
            options.version,
            self.client_id,
            clean,
            options.keep_alive,
            options.username,
            None if options.password is None else options.password.encode(),
            properties=properties,
            is_bridge=options.bridge_mode,
        )
