"""Faults on demand: how a test broker changes the bytes between it and its clients.

This layer is between a socket and the broker's Connection, only in brokers of ``taipan.testing``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from .broker.mqtt import constants as c
from .broker.mqtt import reason_codes
from .broker.transport.layer import Layer

if TYPE_CHECKING:
    from .broker.transport.connection import Connection

_ACKS: Final = frozenset((c.PUBACK, c.PUBREC, c.PUBCOMP, c.SUBACK, c.UNSUBACK))
NO_PACKET: Final = b"\xf0\xff\xff\xff\xff\x01"
"""Bytes that are not a packet: a Remaining Length has at most four bytes."""
REFUSALS: Final = {
    name: code
    for name in ("unspecified_error", "malformed_packet", "protocol_error", "implementation_specific_error",
                 "unsupported_protocol_version", "client_identifier_not_valid", "bad_username_or_password",
                 "not_authorized", "server_unavailable", "server_busy", "banned", "bad_authentication_method",
                 "topic_name_invalid", "packet_too_large", "quota_exceeded", "payload_format_invalid",
                 "retain_not_supported", "qos_not_supported", "use_another_server", "server_moved",
                 "connection_rate_exceeded")
    for code in range(0x80, 0xA3)
    if reason_codes.name(code) == name
}  # fmt: skip
"""The Reason Codes with which a CONNACK can refuse a client, by EMQX's names."""


class Faults:
    """The active faults. Used only on the broker's event loop."""

    def __init__(self) -> None:
        self.wires: set[FaultyConnection] = set()
        self.refusal: int | None = None
        self.refusals_left = 0
        self.ack_delay = 0.0
        self.lose_in = 0
        self.lose_out = 0
        self.duplicate = 0

    def wrap(self, connection: asyncio.Protocol) -> asyncio.Protocol:
        """Return the protocol that a listener uses for a socket in place of a Connection."""
        return FaultyConnection(self, connection)

    def clear(self) -> None:
        """Remove all faults."""
        self.refusal, self.refusals_left, self.ack_delay = None, 0, 0.0
        self.lose_in = self.lose_out = self.duplicate = 0

    def of(self, client_id: str) -> FaultyConnection | None:
        """Return the connection of a client, or None if it is not connected."""
        return next((wire for wire in self.wires if wire.client_id == client_id), None)


class _Frames:
    """A splitter of bytes into whole packets."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterable[bytes]:
        self._rest += data
        while len(self._rest) >= 2:
            size, at = 0, 1
            while True:
                if at > 4:  # no valid length: the broker reports it
                    yield self._rest
                    self._rest = b""
                    return
                if at >= len(self._rest):
                    return
                size |= (self._rest[at] & 0x7F) << 7 * (at - 1)
                at += 1
                if not self._rest[at - 1] & 0x80:
                    break
            if len(self._rest) < at + size:
                return
            yield self._rest[: at + size]
            self._rest = self._rest[at + size :]


class FaultyConnection(asyncio.Protocol):
    """One connection with its faults."""

    def __init__(self, faults: Faults, connection: asyncio.Protocol) -> None:
        self._faults = faults
        self._connection = connection
        self._received = _Frames()
        self._transport: asyncio.Transport | None = None
        self._refused = False

    @property
    def client_id(self) -> str:
        connection = cast("Connection", self._connection)
        return connection.channel.client.client_id if self._transport is not None else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._faults.wires.add(self)
        self._connection.connection_made(_Outgoing(self._transport, self._faults))

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        for packet in self._received.feed(data):
            kind = packet[0] >> 4
            faults = self._faults
            if kind == c.CONNECT and faults.refusal is not None:
                self._refuse(packet, faults.refusal)
                return
            if kind == c.PUBLISH and faults.lose_in:
                faults.lose_in -= 1
                continue
            self._connection.data_received(packet)

    def _refuse(self, connect: bytes, code: int) -> None:
        faults = self._faults
        if faults.refusals_left:
            faults.refusals_left -= 1
            if not faults.refusals_left:
                faults.refusal = None
        self._refused = True
        at = next(index for index in range(1, 5) if not connect[index] & 0x80) + 1
        version = connect[at + 2 + int.from_bytes(connect[at : at + 2], "big")] & 0x7F
        if version >= c.V5:
            self.write(bytes((c.CONNACK << 4, 3, 0, code, 0)))
        else:
            self.write(bytes((c.CONNACK << 4, 2, 0, reason_codes.to_v3_connack(code))))
        assert self._transport is not None
        self._transport.close()

    def write(self, data: bytes) -> None:
        """Send the client bytes that do not come from the broker."""
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """End the connection without a DISCONNECT."""
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._faults.wires.discard(self)
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class _Outgoing(Layer):
    """The transport to which the Connection writes, with faults."""

    def __init__(self, below: asyncio.Transport, faults: Faults) -> None:
        self.below = below
        self._faults = faults
        self._sent = _Frames()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        faults = self._faults
        for packet in self._sent.feed(bytes(data)):
            kind = packet[0] >> 4
            if kind in _ACKS and faults.ack_delay:
                asyncio.get_running_loop().call_later(faults.ack_delay, self._later, packet)
            elif kind == c.PUBLISH and faults.lose_out:
                faults.lose_out -= 1
            else:
                self.below.write(packet)
                if kind == c.PUBLISH and faults.duplicate:
                    faults.duplicate -= 1
                    again = packet[0] | 0x08 if packet[0] & 0x06 else packet[0]
                    self.below.write(bytes((again,)) + packet[1:])

    def _later(self, packet: bytes) -> None:
        if not self.below.is_closing():
            self.below.write(packet)


def on_loop(work: Callable[[], Any]) -> Any:
    """Return ``work`` as a coroutine that a loop can run."""

    async def carry_out() -> Any:
        return work()

    return carry_out()
