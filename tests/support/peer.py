"""Peer: one MQTT client made of a raw socket, so that a test says exactly what goes over the wire and when.

Nothing reads in the background of a tcp peer: what a test does not ask for stays in the socket.
"""

import asyncio
import itertools
import os
import ssl as tls
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)

from .patience import patience
from .wire import Packet, Publish, Reader, WireError, encode

TIMEOUT = float(os.environ.get("TAIPAN_TEST_TIMEOUT", "40"))
"""Seconds to wait for something that must come, on a machine that has nothing else to do. Only a failing test ever
waits so long."""

P = TypeVar("P")
_numbers = itertools.count(1)


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int
    transport: str = "tcp"  # tcp, ssl, ws, wss, unix: the host is the path
    path: str = "/mqtt"


class Closed(Exception):
    """The broker ended the connection. ``reset``: not by an orderly end but by RST."""

    def __init__(self, reset: bool) -> None:
        super().__init__("reset" if reset else "closed")
        self.reset = reset


class _Tcp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> bytes:
        try:
            data = await self.reader.read(65_536)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed(True) from error
        if not data:
            raise Closed(False)
        return data

    async def write(self, data: bytes) -> None:
        try:
            self.writer.write(data)
            await self.writer.drain()
        except (ConnectionResetError, BrokenPipeError):
            pass  # what the broker said before it closed is still to be read

    def abort(self) -> None:
        self.writer.transport.abort()

    async def hang_up(self) -> None:
        try:
            self.writer.write_eof()
            while await asyncio.wait_for(self.read(), patience(TIMEOUT)):
                pass
        except (Closed, OSError):
            self.abort()

    async def close(self) -> None:
        if not self.writer.is_closing():  # a TLS transport of Python 3.11.2 that is closed twice cannot be aborted
            self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), patience(TIMEOUT))
        except (OSError, tls.SSLError, TimeoutError):
            self.abort()


class _WebSocket:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def read(self) -> bytes:
        try:
            data = await self.socket.recv()
        except ConnectionClosed as error:
            raise Closed(isinstance(error.__cause__, ConnectionResetError)) from error
        if isinstance(data, str):
            raise WireError("a text frame [MQTT-6.0.0-1]")
        return data

    async def write(self, data: bytes) -> None:
        try:
            await self.socket.send(data)
        except ConnectionClosed:
            pass

    def abort(self) -> None:
        self.socket.transport.abort()

    async def hang_up(self) -> None:
        try:
            self.socket.transport.write_eof()
            while await asyncio.wait_for(self.read(), patience(TIMEOUT)):
                pass
        except (Closed, OSError):
            self.abort()

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.socket.close(), patience(TIMEOUT))
        except TimeoutError:
            self.abort()


async def _at_once() -> None:
    """One node has sent what it has when it answers."""


class Peer:
    """One connection. Methods named after packets send them; ``expect...`` methods read and assert.

    ``connack`` is the answer to ``connect``; ``client_id`` the identifier in use (an assigned one included). ``settle``
    waits until nothing is on its way to its node from another one.
    """

    def __init__(self, address: Address, version: int = 5, ssl: tls.SSLContext | None = None) -> None:
        self.address = address
        self.version = version
        self.ssl = ssl
        self.settle: Callable[[], Awaitable[None]] = _at_once
        self.client_id = ""
        self.connack = Connack(0)
        self.raw = b""  # bytes of the packet that was read last
        self._stream: _Tcp | _WebSocket | None = None
        self._reader = Reader(version)
        self._backlog: deque[tuple[Packet, bytes]] = deque()
        self._packet_ids = itertools.cycle(range(1, 65_536))

    # --- the connection ----------------------------------------------------------------------------------------------

    async def open(self, **options: Any) -> "Peer":
        """Opens the network connection and sends nothing."""
        host, port, transport, path = self.address
        if transport in ("ws", "wss"):
            options.setdefault("subprotocols", [Subprotocol("mqtt")])
            socket = await connect(
                f"{transport}://{host}:{port}{path}", ssl=self.ssl, compression=None, ping_interval=None, max_size=None,
                open_timeout=patience(TIMEOUT), close_timeout=1, proxy=None, **options,
            )  # fmt: skip
            self._stream = _WebSocket(socket)
        elif transport == "unix":
            self._stream = _Tcp(*await asyncio.open_unix_connection(host, **options))
        else:
            if self.ssl is not None:
                # Else the end of a connection that the broker does not read waits half a minute for its answer.
                options.setdefault("ssl_shutdown_timeout", 1)
            self._stream = _Tcp(*await asyncio.open_connection(host, port, ssl=self.ssl, **options))
        return self

    @property
    def stream(self) -> _Tcp | _WebSocket:
        assert self._stream is not None, "not open"
        return self._stream

    async def send(self, *what: Packet | bytes) -> None:
        """Sends packets or raw bytes, all in one write (one WebSocket frame)."""
        await self.stream.write(
            b"".join(each if isinstance(each, bytes) else encode(each, self.version) for each in what)
        )

    async def drop(self) -> None:
        """Ends the network connection without DISCONNECT (FIN), and waits until the broker has seen that."""
        await self.stream.hang_up()

    def abort(self) -> None:
        """Breaks the network connection (RST); the broker sees it some time later. Harmless in whatever state."""
        if self._stream is not None:
            self._stream.abort()

    async def close(self) -> None:
        """Closes the network connection without DISCONNECT; harmless on one that is closed already."""
        if self._stream is not None:
            await self._stream.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _more(self, timeout: float) -> None:
        async with asyncio.timeout(timeout if timeout < TIMEOUT else patience(timeout)):
            self._backlog.extend(self._reader.feed(await self.stream.read()))

    async def receive(self, timeout: float = TIMEOUT) -> Packet:
        """The next packet; ``Closed`` if there is none any more."""
        while not self._backlog:
            await self._more(timeout)
        packet, self.raw = self._backlog.popleft()
        return packet

    async def expect(self, kind: type[P], timeout: float = TIMEOUT, **fields: Any) -> P:
        """The next packet, which must be a ``kind`` with these fields."""
        try:
            packet = await self.receive(timeout)
        except (Closed, TimeoutError) as error:
            raise AssertionError(f"{self}: {kind.__name__} expected, got {error!r}") from error
        assert isinstance(packet, kind), f"{self}: {kind.__name__} expected, got {packet!r}"
        for name, value in fields.items():
            assert getattr(packet, name) == value, f"{self}: {name}={value!r} expected in {packet!r}"
        return packet

    async def answer(self, kind: type[P], **fields: Any) -> P:
        """The next packet of this kind with these fields, wherever it stands; others stay for later."""
        seen = 0
        try:
            async with asyncio.timeout(patience(TIMEOUT)):
                while True:
                    for index in range(seen, len(self._backlog)):
                        packet, raw = self._backlog[index]
                        if isinstance(packet, kind) and all(getattr(packet, n) == v for n, v in fields.items()):
                            del self._backlog[index]
                            self.raw = raw
                            return packet
                    seen = len(self._backlog)
                    await self._more(TIMEOUT)
        except (Closed, TimeoutError) as error:
            waiting = [packet for packet, _ in self._backlog]
            raise AssertionError(f"{self}: {kind.__name__} {fields} expected, got {error!r} after {waiting}") from error

    async def expect_ack(self, kind: int, packet_id: int, reason_code: int | None = 0) -> Ack:
        """The next packet: PUBACK, PUBREC, PUBREL or PUBCOMP (``kind`` as in ``constants``)."""
        ack = await self.expect(Ack, type=kind, packet_id=packet_id)
        if reason_code is not None and self.version == 5:
            # "no matching subscribers" is success too, and few scenarios care
            wanted = (0x00, 0x10) if reason_code == 0 else (reason_code,)
            assert ack.reason_code in wanted, f"{self}: {ack!r}, wanted {reason_code:#x}"
        return ack

    async def expect_publish(
        self,
        topic: str | None = None,
        payload: bytes | None = None,
        qos: int | None = None,
        *,
        acknowledge: bool = True,
        **fields: Any,
    ) -> Publish:
        """The next packet, a PUBLISH; its acknowledgement (for QoS 2 the whole handshake) is done unless told not."""
        for name, value in (("topic", topic), ("payload", payload), ("qos", qos)):
            if value is not None:
                fields[name] = value
        packet = await self.expect(Publish, **fields)
        if acknowledge and packet.qos == 1:
            await self.puback(packet.packet_id)
        elif acknowledge and packet.qos == 2:
            await self.pubrec(packet.packet_id)
            await self.answer(Ack, type=c.PUBREL, packet_id=packet.packet_id)
            await self.pubcomp(packet.packet_id)
        return packet

    async def expect_closed(self, timeout: float = TIMEOUT) -> None:
        """The next thing is an orderly end: nothing before it, and no reset."""
        try:
            packet = await self.receive(timeout)
        except Closed as closed:
            if closed.reset:
                raise AssertionError(f"{self}: reset instead of an orderly end") from closed
            return
        except TimeoutError as error:
            raise AssertionError(f"{self}: still open") from error
        raise AssertionError(f"{self}: closing expected, got {packet!r}")

    async def expect_disconnect(self, *reason_codes: int, timeout: float = TIMEOUT) -> Disconnect | None:
        """5.0: DISCONNECT with one of these Reason Codes, then an orderly end. Before 5.0: the end alone."""
        packet = None
        if self.version == 5:
            packet = await self.expect(Disconnect, timeout)
            assert packet.reason_code in reason_codes, f"{self}: {packet!r}, wanted {[hex(r) for r in reason_codes]}"
        await self.expect_closed(timeout)
        return packet

    async def nothing(self) -> None:
        """Nothing has been sent to this peer: the answer to PINGREQ is the very next packet."""
        await self.settle()
        await self.send(Pingreq())
        await self.expect(Pingresp)

    # --- the conversation --------------------------------------------------------------------------------------------

    async def connect(
        self,
        client_id: str | None = None,
        clean_start: bool = True,
        keep_alive: int = 0,
        *,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties | None = None,
        is_bridge: bool = False,
        expect: int | None = 0,
        session_present: bool | None = None,
    ) -> Connack:
        """CONNECT on an open connection (opened here if it is not) and its CONNACK, whose code must be ``expect``.

        ``client_id=None`` makes up a unique one. For 3.x give ``expect`` as the return code of that version. After a
        refusal the orderly end is awaited too.
        """
        if self._stream is None:
            await self.open()
        self.client_id = f"peer-{next(_numbers)}" if client_id is None else client_id
        packet = Connect(
            self.version, self.client_id, clean_start, keep_alive, username, password, will, properties or {}, is_bridge
        )
        await self.send(packet)
        self.connack = await self.expect(Connack)
        self.client_id = self.connack.properties.get(c.ASSIGNED_CLIENT_IDENTIFIER, self.client_id)
        if expect is not None:
            assert self.connack.reason_code == expect, f"{self}: {self.connack!r}, wanted {expect:#x}"
        if session_present is not None:
            assert self.connack.session_present is (session_present and self.version > 3), f"{self}: {self.connack!r}"
        if self.connack.reason_code:
            await self.expect_closed()
        return self.connack

    async def subscribe(
        self,
        *filters: str | TopicFilter,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int | None = None,
        properties: Properties | None = None,
        expect: list[int] | None = None,
    ) -> Suback:
        """One SUBSCRIBE and its SUBACK, which must grant what was asked unless ``expect`` says otherwise."""
        entries = [
            each
            if isinstance(each, TopicFilter)
            else TopicFilter(each, qos, no_local, retain_as_published, retain_handling)
            for each in filters
        ]
        properties = dict(properties or {})
        if identifier is not None:
            properties[c.SUBSCRIPTION_IDENTIFIER] = identifier
        packet_id = next(self._packet_ids)
        await self.send(Subscribe(packet_id, entries, properties))
        suback = await self.answer(Suback, packet_id=packet_id)
        wanted = [each.qos for each in entries] if expect is None else expect
        assert suback.reason_codes == wanted, f"{self}: {suback!r}, wanted {wanted}"
        return suback

    async def unsubscribe(self, *filters: str, expect: list[int] | None = None) -> Unsuback:
        """One UNSUBSCRIBE and its UNSUBACK; every filter must have been there unless ``expect`` says otherwise."""
        packet_id = next(self._packet_ids)
        await self.send(Unsubscribe(packet_id, list(filters)))
        unsuback = await self.answer(Unsuback, packet_id=packet_id)
        if self.version == 5:
            wanted = [0] * len(filters) if expect is None else expect
            assert unsuback.reason_codes == wanted, f"{self}: {unsuback!r}, wanted {wanted}"
        return unsuback

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties | None = None,
        packet_id: int | None = None,
        dup: bool = False,
        expect: int | tuple[int, ...] | None = (0x00, 0x10),
    ) -> int:
        """PUBLISH with its whole handshake; the Reason Code of PUBACK or PUBREC, 0 for QoS 0.

        When it returns, the broker has taken the message: QoS 0 is followed by a PINGREQ and its answer.
        """
        if packet_id is None:
            packet_id = next(self._packet_ids) if qos else 0
        await self.send(Publish(topic, payload, qos, retain, dup, packet_id, properties or {}))
        if qos == 0:
            await self.ping()
            return 0
        ack = await self.answer(Ack, type=c.PUBACK if qos == 1 else c.PUBREC, packet_id=packet_id)
        if expect is not None:
            wanted = expect if isinstance(expect, tuple) else (expect,)
            assert ack.reason_code in wanted, f"{self}: {ack!r}, wanted {[hex(each) for each in wanted]}"
        if qos == 2 and ack.reason_code < 0x80:
            await self.pubrel(packet_id)
            await self.answer(Ack, type=c.PUBCOMP, packet_id=packet_id, reason_code=0)
        return ack.reason_code

    def next_packet_id(self) -> int:
        """A Packet Identifier that this peer has not used."""
        return next(self._packet_ids)

    async def puback(self, packet_id: int, reason_code: int = 0) -> None:
        await self.send(Ack(c.PUBACK, packet_id, reason_code))

    async def pubrec(self, packet_id: int, reason_code: int = 0) -> None:
        await self.send(Ack(c.PUBREC, packet_id, reason_code))

    async def pubrel(self, packet_id: int, reason_code: int = 0) -> None:
        await self.send(Ack(c.PUBREL, packet_id, reason_code))

    async def pubcomp(self, packet_id: int, reason_code: int = 0) -> None:
        await self.send(Ack(c.PUBCOMP, packet_id, reason_code))

    async def ping(self) -> None:
        """PINGREQ and PINGRESP; whatever else came stays to be read."""
        await self.send(Pingreq())
        await self.answer(Pingresp)

    async def auth(self, reason_code: int, properties: Properties) -> None:
        await self.send(Auth(reason_code, properties))

    async def disconnect(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        """DISCONNECT, then waits until the broker has closed, so that what follows from it has happened."""
        await self.send(Disconnect(reason_code, properties or {}))
        try:
            while True:
                await self.receive()
        except Closed:
            await self.close()

    def __repr__(self) -> str:
        return f"Peer({self.client_id!r}, v{self.version}, {self.address.transport})"
