"""WebSocket under a soak client's connection: the bytes of its packets in binary frames, both ways."""

from typing import Protocol

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri


class Carrier(Protocol):
    """The transport below the WebSocket."""

    def write(self, data: bytes) -> None: ...


class WebSocket:
    """One end of a WebSocket connection. Data that is sent during the handshake waits for its end."""

    def __init__(self, transport: Carrier, port: int) -> None:
        self._transport = transport
        self._protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/mqtt"), subprotocols=[Subprotocol("mqtt")])
        self._protocol.send_request(self._protocol.connect())
        self._waiting: list[bytes] | None = []
        self._flush()

    def send(self, data: bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(data)
        elif self._protocol.state is State.OPEN:  # else the node has said its last word
            self._protocol.send_binary(data)
            self._flush()

    def feed(self, data: bytes) -> bytes:
        """Accept bytes from the node; return the bytes of packets in them. Raises ValueError for an invalid WebSocket
        frame."""
        self._protocol.receive_data(data)
        if self._protocol.handshake_exc is not None:
            raise ValueError(f"the handshake failed: {self._protocol.handshake_exc!r}")
        payload = b""
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                if self._protocol.subprotocol != "mqtt":
                    raise ValueError(f"subprotocol {self._protocol.subprotocol!r}")
                waiting, self._waiting = self._waiting or [], None
                for each in waiting:
                    self.send(each)
            elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                payload += event.data
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                raise ValueError("a frame of text")
        self._flush()
        return payload

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
