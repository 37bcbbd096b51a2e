"""Frames of any kind in reads of any size: the layer hands on, answers and closes as the library alone does."""

import asyncio
import struct
from typing import Any, NamedTuple, cast

from hypothesis import example, given
from hypothesis import strategies as st
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request

from taipan.broker.config import ZoneSettings
from taipan.broker.transport.websocket import SLACK, FrameProtocol, WebSocketError, WebSocketLayer
from tests.broker.transport.echo import listener_settings
from tests.broker.transport.test_websocket import BINARY, CLOSE, CONT, PING, PONG, TEXT, request

SETTINGS = listener_settings(type="ws")
ZONE = ZoneSettings(max_connect_size=1)
LIMIT = ZONE.max_connect_size + SLACK


def wire(
    opcode: int,
    payload: bytes,
    fin: bool = True,
    masked: bool = True,
    reserved: int = 0,
    form: int = 1,
    mask: bytes = b"\xf0\x9f\x90\x8d",
) -> bytes:
    """A frame as a client may send it. ``form``: in how few of three ways its length may be written."""
    size = len(payload)
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    bit = 0x80 if masked else 0
    if size < 126 and form == 1:
        head += bytes([bit | size])
    elif size < 65536 and form <= 2:
        head += struct.pack("!BH", bit | 126, size)
    else:
        head += struct.pack("!BQ", bit | 127, size)
    if not masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


class Outcome(NamedTuple):
    """``code``: that of the error, where there was one."""

    received: bytes
    written: bytes
    ended: bool
    eof: bool
    code: int | None


masks = st.binary(min_size=4, max_size=4)
payloads = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.builds(
        lambda size, byte: bytes([byte]) * size, st.sampled_from([0, 1, 125, 126, 127, 300]), st.integers(0, 255)
    ),
)
plain = st.builds(wire, st.just(BINARY), payloads, mask=masks)
closing = st.builds(
    wire,
    st.just(CLOSE),
    st.sampled_from(
        [b"", b"\x03\xe8", b"\x03\xe8bye", b"\x03\xe7", b"\x03", b"\x03\xe8\xff", b"\x03\xe8" + b"x" * 124]
    ),
    mask=masks,
)
odd = st.builds(
    wire,
    st.sampled_from([BINARY, BINARY, BINARY, CONT, CONT, PING, PONG, TEXT, CLOSE, 3, 11]),
    payloads,
    fin=st.sampled_from([True, True, False]),
    masked=st.sampled_from([True, True, True, True, False]),
    reserved=st.sampled_from([0, 0, 0, 0, 1, 2, 4]),
    form=st.sampled_from([1, 2, 3]),
    mask=masks,
)
control = st.builds(wire, st.sampled_from([PING, PONG]), st.binary(max_size=125), mask=masks)
fragments = st.builds(
    lambda pieces, mask: b"".join(
        wire(CONT if place else BINARY, piece, fin=place == len(pieces) - 1, mask=mask)
        for place, piece in enumerate(pieces)
    ),
    st.lists(st.binary(max_size=9), min_size=2, max_size=4),
    masks,
)
large = st.builds(
    lambda size, mask: wire(BINARY, b"L" * size, mask=mask), st.sampled_from([LIMIT - 1, LIMIT, LIMIT + 1]), masks
)
wires = st.one_of(plain, plain, plain, plain, plain, control, fragments, odd, closing, large)
# The last one may be cut, and anything may follow it.
streams = st.builds(
    lambda whole, last, cut, rest: [*whole, last[: -cut or None] + rest],
    st.lists(wires, max_size=12),
    wires,
    st.sampled_from([0, 0, 1, 3, 7]),
    st.one_of(st.just(b""), st.binary(max_size=20)),
)
sizes = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 2000), st.just(100_000)), min_size=1, max_size=12)


def judged(stream: list[bytes]) -> Outcome:
    """What the library makes of it, one frame after the other, and the last one byte by byte."""
    protocol = FrameProtocol(SETTINGS, None, LIMIT)
    protocol.receive_data(request())
    protocol.send_response(protocol.accept(cast(Request, protocol.events_received()[0])))
    protocol.data_to_send()
    received, written = b"", b""
    for piece in [*stream[:-1], *(bytes([byte]) for byte in stream[-1])]:
        protocol.receive_data(piece)
        code = None
        for frame in cast(list[Frame], protocol.events_received()):
            if frame.opcode in (Opcode.BINARY, Opcode.CONT):
                received += frame.data
            elif frame.opcode is Opcode.TEXT:
                code = CloseCode.UNSUPPORTED_DATA
                protocol.fail(code, "MQTT needs binary frames")
        if protocol.parser_exc is not None:
            assert protocol.close_sent is not None
            code = CloseCode(protocol.close_sent.code)
        writes = protocol.data_to_send()
        written += b"".join(writes)
        if b"" in writes:
            return Outcome(received, written, True, code is None, code)
    return Outcome(received, written, False, False, None)


class Below(asyncio.Transport):
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


class Reader(asyncio.Protocol):
    """In place of a Connection; ``pauses`` says after which calls it wants nothing for an iteration."""

    def __init__(self, pauses: list[bool]) -> None:
        self.pauses = pauses
        self.received = b""
        self.eof = False
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(WebSocketLayer, transport)

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes and data
        assert not self.lost and not self.eof
        assert self.transport.is_reading()
        self.received += data
        if self.pauses and self.pauses.pop():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    def eof_received(self) -> None:
        self.eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Gate:
    """In place of a PendingConnection."""

    def finish(self) -> None:
        pass


async def handled(stream: bytes, reads: list[int], pauses: list[bool]) -> Outcome:
    """What the layer makes of it, in reads of these sizes, again and again."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    reader, below = Reader(pauses), Below()
    layer = WebSocketLayer(SETTINGS, ZONE, lambda: reader, cast(Any, Gate()), None)
    layer.connection_made(below)
    layer.data_received(request())
    assert below.written.startswith(b"HTTP/1.1 101 ")
    below.written = b""
    position, turn = 0, 0
    while position < len(stream) and not below.closed:
        if below.reading:
            size = reads[turn % len(reads)]
            layer.data_received(stream[position : position + size])
            position += size
            turn += 1
        else:
            await asyncio.sleep(0)
    while not below.reading and not below.closed:
        await asyncio.sleep(0)
    ended = below.closed
    layer.connection_lost(None)
    assert unhandled == []
    (error,) = reader.lost
    assert error is None or isinstance(error, WebSocketError)
    return Outcome(reader.received, below.written, ended, reader.eof, None if error is None else error.code)


ONE_READ = [100_000]


def test_the_layer_does_what_the_library_does() -> None:
    """[MQTT-6.0.0-1] [MQTT-6.0.0-2]"""
    with asyncio.Runner() as runner:

        @given(streams, sizes, st.lists(st.booleans(), max_size=8))
        @example([wire(BINARY, b"x" * 300), wire(TEXT, b"")], [3, 100_000], [])
        @example([wire(BINARY, b"a"), wire(CLOSE, b"\x03\xe8"), wire(BINARY, b"b")], ONE_READ, [])
        @example([wire(BINARY, b"a", fin=False), wire(BINARY, b"b")], ONE_READ, [])
        @example([wire(BINARY, b"xyz")] * 2500, ONE_READ, [True, False, True])
        @example([wire(BINARY, b"L" * (LIMIT + 1))], ONE_READ, [])
        def check(stream: list[bytes], reads: list[int], pauses: list[bool]) -> None:
            assert runner.run(handled(b"".join(stream), reads, list(pauses))) == judged(stream)

        check()
