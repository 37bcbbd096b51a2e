"""The connection of an MQTT client over WebSocket."""

import logging
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from taipan.broker.observability.log_text import one_line, shorten

from .stream import Address, SocketStream

_FRAMES: Final = 8_192
"""Bytes of WebSocket frames that are parsed before other tasks run; a frame has at least 2."""
_SLACK: Final = 16_384

# The library logs each connection at INFO and each frame at DEBUG.
_library_logger = logging.getLogger(__name__ + ".library")
_library_logger.setLevel(logging.WARNING)


class WebSocketStream:
    """MQTT's bytes in binary frames [MQTT-6.0.0-1], independent of frame boundaries [MQTT-6.0.0-2]."""

    def __init__(self, below: SocketStream, protocol: ClientProtocol) -> None:
        self._below = below
        self._protocol = protocol

    @classmethod
    async def open(
        cls, below: SocketStream, address: Address, secure: bool, subprotocol: str, max_packet_size: int
    ) -> "WebSocketStream":
        """Return the stream after the handshake."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        protocol = ClientProtocol(
            parse_uri(f"{'wss' if secure else 'ws'}://{host}:{address.port}{address.path}"),
            subprotocols=[Subprotocol(subprotocol)],  # [MQTT-6.0.0-3]
            max_size=max_packet_size + _SLACK,
            logger=_library_logger,
        )
        protocol.send_request(protocol.connect())
        await below.write(b"".join(protocol.data_to_send()))
        while protocol.state is CONNECTING and protocol.handshake_exc is None:
            data = await below.read()
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
        if protocol.handshake_exc is not None:
            raise ConnectionError(f"WebSocket handshake: {protocol.handshake_exc}")
        return cls(below, protocol)

    async def read(self) -> bytes:
        protocol = self._protocol
        while True:
            payload = self._payload()
            answers = b"".join(protocol.data_to_send())  # pongs, and the answer to a close frame
            if answers:
                await self._below.write(answers)
            if payload:
                return payload
            if protocol.parser_exc is not None:
                raise ConnectionError(f"WebSocket: {protocol.parser_exc}")
            if protocol.close_rcvd is not None:
                raise ConnectionResetError(f"WebSocket closed: {one_line(shorten(protocol.close_rcvd))}")
            data = await self._below.read(_FRAMES)
            if not data:
                return b""
            protocol.receive_data(data)

    def _payload(self) -> bytes:
        parts = []
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):  # the response to the handshake
                continue
            if event.opcode is Opcode.TEXT:
                raise ConnectionError("WebSocket: text frame")
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                parts.append(event.data)
        return b"".join(parts)

    async def write(self, data: bytes) -> None:
        if self._protocol.close_rcvd is not None or self._protocol.close_sent is not None:
            raise ConnectionResetError("the WebSocket is closed")
        self._protocol.send_binary(data)
        await self._below.write(b"".join(self._protocol.data_to_send()))

    def abort(self) -> None:
        self._below.abort()

    async def close(self) -> None:
        if self._protocol.close_rcvd is None and self._protocol.close_sent is None:
            self._protocol.send_close(1000)
            await self._below.write(b"".join(self._protocol.data_to_send()))
        await self._below.close()
