"""WebSocketLayer: MQTT's byte stream in WebSocket frames; the Connection above uses it like a transport."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from websockets.exceptions import NegotiationError
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ..config import ListenerSettings, ZoneSettings
from ..core.before_login import BeforeLogin
from .layer import Layer
from .origins import Origins
from .unread import unread
from .websocket_frames import MAX_HEADER, frame_size, framed, header, size_of, take_plain

if TYPE_CHECKING:
    from .pending_connection import PendingConnection

# The library logs each connection at INFO; the Connection does that.
_library_logger = logging.getLogger(__name__ + ".library")
_library_logger.setLevel(logging.WARNING)

MAX_REQUEST: Final = 16_384  # bytes of an HTTP request, including headers
SLACK: Final = 16_384  # bytes in a frame beyond one packet
MIN_FRAME: Final = 1_048_576  # a frame may contain many packets, even if each must be small
CHUNK: Final = 4_096  # bytes that the library parses at once if extensions hide the length of a frame
CLOSE_TIMEOUT: Final = 2.0  # seconds that a peer has to answer our close frame
WORK_PER_ITERATION: Final = 1_024  # plain frames of one connection per iteration
LIBRARY_WORK: Final = 4  # plain frames that a frame, or a KiB of payload, from the library counts as
DEFLATE_BYTES: Final = 45_000  # approximate memory of compression for each client
LARGE: Final = 65_536  # bytes that are not copied to be sent together with their header
_HANDSHAKE_HEADERS: Final = (
    "Connection",
    "Upgrade",
    "Origin",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
)
_COMPRESSION: Final = ServerPerMessageDeflateFactory(
    server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
)


def _leads_to(asked: str, paths: str | list[str]) -> bool:
    """Return whether one of a listener's paths was requested; a slash at the end is ignored."""
    if isinstance(paths, str):
        return paths == "*" or asked.rstrip("/") == paths.rstrip("/")
    return any(_leads_to(asked, path) for path in paths)


class WebSocketError(ConnectionError):
    """The peer violated the rules of WebSocket; ``code`` is that of the close frame sent to it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"WebSocket {code}: {text}")
        self.code = code


class FrameProtocol(ServerProtocol):
    """The library's protocol with MQTT's subprotocols, and with ``max_size`` for each frame instead of each message."""

    def __init__(self, settings: ListenerSettings, origins: Origins | None, max_size: int) -> None:
        super().__init__(
            origins=origins,
            extensions=[_COMPRESSION] if settings.compress else None,
            logger=_library_logger,
        )
        self._settings = settings
        self.limit(max_size)

    def limit(self, max_size: int) -> None:
        """Set the maximum size of a frame from now on."""
        self.max_size = max_size  # websockets 15
        self.max_message_size: int | None = None  # 16 and later
        self.max_fragment_size: int | None = max_size

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        # [MQTT-6.0.0-3] the Client must offer "mqtt" (or its name in 3.1); [MQTT-6.0.0-4] and receives it in the answer
        for name in self._settings.subprotocols:
            if name in subprotocols:
                return Subprotocol(name)
        if self._settings.subprotocol_required:
            raise NegotiationError("offer one of the subprotocols " + ", ".join(self._settings.subprotocols))
        return None

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        if getattr(self, "cur_size", None):  # websockets 15 limits the whole message, which is as long as the stream
            self.cur_size = 0


class WebSocketLayer(Layer, asyncio.Protocol):
    """Runs the WebSocket handshake of one socket, then carries bytes in both directions in binary frames.

    Plain frames are processed many at a time (``websocket_frames``). The library receives the bytes of all other
    frames, and decides which are invalid. The layer knows where each of these frames ends, so that it recognises plain
    frames after it.

    ``connect()`` creates the Connection after the handshake; ``pending`` is informed how the handshake ended.
    ``origins``: pages that may connect, as ``accepted_origins`` returns them."""

    reads_to_the_end = True

    __slots__ = (
        "_before_login",
        "_begun",
        "_below_paused",
        "_closing",
        "_connect",
        "_connection",
        "_ended",
        "_error",
        "_extended",
        "_limit",
        "_loop",
        "_message_begun",
        "_open",
        "_owed",
        "_paused",
        "_pending",
        "_pong",
        "_protocol",
        "_raw",
        "_scheduled",
        "_settings",
        "_single",
        "_timer",
        "_unframed",
        "_writing_paused",
        "_zone",
    )

    def __init__(
        self,
        settings: ListenerSettings,
        zone: ZoneSettings,
        connect: Callable[[], asyncio.Protocol],
        pending: "PendingConnection",
        origins: Origins | None,
        before_login: BeforeLogin | None = None,
        layers: "set[WebSocketLayer] | None" = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._zone = zone
        self._connect = connect
        self._pending: PendingConnection | None = pending  # until the handshake ended
        self._connection: asyncio.Protocol | None = None
        self._limit = zone.max_connect_size + SLACK  # bytes of one frame
        self._protocol = FrameProtocol(settings, origins, self._limit)
        self._extended = False  # frames are compressed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._raw = b""  # received, not parsed yet
        self._begun = b""  # the library's part of an incomplete header
        self._owed = 0  # bytes of a frame that the library still needs
        self._message_begun = False  # and its last fragment is missing
        self._scheduled = False  # an iteration will continue with _raw
        self._paused = False  # by the Connection
        self._below_paused = False
        self._single = False  # from CONNACK on: before that, output need not be MQTT
        self._unframed = 0  # missing bytes of the packet that was written last
        self._writing_paused = False
        self._pong = b""  # waiting for the peer to read
        self._closing = False  # nothing is passed on any longer
        self._ended = False  # nothing is read any longer
        self._error: WebSocketError | None = None
        # Where it is counted until its client has logged in; and, with all open ones, until its socket is closed.
        self._before_login = before_login
        self._open = set() if layers is None else layers

    # Towards the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.below = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(self._zone.idle_timeout, self._handshake_timed_out)
        self._open.add(self)
        if self._before_login is not None:
            self._before_login.hold(self, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing and self._connection is not None:
            self._raw += b"".join(unread(self.below, exc))
            self._parse_rest()
        closed_by_us, self._closing, self._ended = self._closing, True, True
        self._raw = b""
        # Protocol and parser refer to each other: otherwise a garbage collection would be needed.
        self._protocol.reader.buffer.clear()
        self._protocol.parser.close()
        self._open.discard(self)
        self._logged_in()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            # Errors of a socket that we closed (a peer that answers after close_notify) are ignored.
            connection.connection_lost(self._error or (None if closed_by_us else exc))
        elif self._pending is not None:
            self._refuse("closed_early", "")

    def data_received(self, data: bytes) -> None:
        self._raw = self._raw + data if self._raw else data
        if not self._scheduled and not self._paused:
            self._parse()
        if self._before_login is not None:
            self._before_login.hold(self, self.held_bytes)

    @property
    def held_bytes(self) -> int:
        size = len(self._raw) + len(self._protocol.reader.buffer)
        return size + DEFLATE_BYTES if self._extended else size

    def evict(self) -> None:
        """See ``core.before_login.Newcomer``."""
        evict = getattr(self._connection, "evict", None)
        if evict is not None:
            evict()
        else:
            self._refuse("memory", "limits.memory")
            self.abort()

    def _logged_in(self) -> None:
        if self._before_login is not None:
            self._before_login.leave(self)
            self._before_login = None

    def eof_received(self) -> bool:
        if self._connection is not None:
            self._connection.eof_received()
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._pong:
            self.below.write(self._pong)
            self._pong = b""
        if self._connection is not None:
            self._connection.resume_writing()

    # Reading

    def _parse(self) -> None:
        """Parse received data within an iteration's budget; do not read the socket while some is left."""
        self._scheduled = False
        if self._connection is None and not self._ended:
            self._handshake()
        raw, position, work = self._raw, 0, 0
        while self._connection is not None and position < len(raw) and not self._paused and not self._ended:
            if work >= WORK_PER_ITERATION:
                # Frames of a few bytes cost far more than their bytes: other clients come first.
                self._schedule()
                break
            if not (self._owed or self._begun or self._message_begun or self._closing or self._extended):
                data, position, frames = take_plain(raw, position, self._limit, WORK_PER_ITERATION - work)
                work += frames
                if data:
                    self._connection.data_received(data)
                if frames:
                    continue
            end = self._end_of_frame(raw, position)
            work += LIBRARY_WORK * self._feed(raw[position:end])
            position = end
        if self._ended:
            self._raw = b""
            return
        if position:
            self._raw = raw[position:]
        must_pause = self._paused or self._scheduled
        if must_pause and not self._below_paused:
            self.below.pause_reading()
        elif self._below_paused and not must_pause:
            self.below.resume_reading()
        self._below_paused = must_pause

    def _parse_rest(self) -> None:
        """Pass on everything that was received, regardless of pauses."""
        left = -1
        while self._raw and len(self._raw) != left and not self._ended:
            left = len(self._raw)
            self._paused = False
            self._parse()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._parse)

    def _end_of_frame(self, raw: bytes, position: int) -> int:
        """Return the position up to which the library receives ``raw``: the end of one frame, unless there are
        extensions."""
        if self._extended:
            return min(len(raw), position + CHUNK)
        if not self._owed:
            head = self._begun + raw[position : position + MAX_HEADER - len(self._begun)]
            size = frame_size(head)
            if not size:
                self._begun = head
                return len(raw)
            self._owed = size - len(self._begun)
            self._begun = b""
        end = min(len(raw), position + self._owed)
        self._owed -= end - position
        return end

    def _feed(self, chunk: bytes) -> int:
        """Parse ``chunk`` and pass on the payload of each frame that ended in it; return the amount of work."""
        protocol = self._protocol
        protocol.receive_data(chunk)
        frames = cast(list[Frame], protocol.events_received())
        if self._closing:  # only the answer to our close frame matters
            if b"" in protocol.data_to_send():
                self._end()
            return len(frames)
        payloads: list[bytes | bytearray | memoryview] = []
        for frame in frames:
            if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
                payloads.append(frame.data)
                self._message_begun = not frame.fin
            elif frame.opcode is Opcode.TEXT:
                # [MQTT-6.0.0-1] packets come in binary frames; any other data frame closes the connection
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
                self._error = WebSocketError(CloseCode.UNSUPPORTED_DATA, "text frame")
                break
        if protocol.parser_exc is not None and self._error is None:
            code = protocol.close_sent.code if protocol.close_sent is not None else CloseCode.PROTOCOL_ERROR
            self._error = WebSocketError(code, str(protocol.parser_exc))
        ended = self._send_control()
        size = 0
        if payloads and self._connection is not None:
            # [MQTT-6.0.0-2] a stream of bytes: where frames begin and end means nothing to MQTT
            data = b"".join(payloads)
            size = len(data)
            if data:
                self._connection.data_received(data)
        if ended and not self._ended:
            if self._connection is not None and self._error is None and not self._closing:
                self._connection.eof_received()
            self._end()
        return len(frames) + size // 1024

    def _end(self) -> None:
        """End the conversation, or a handshake without one: close the socket."""
        self._closing = self._ended = True
        self.below.close()

    def _send_control(self) -> bool:
        """Send the pongs and the close frame that reading has caused; return whether the conversation has ended."""
        writes = self._protocol.data_to_send()
        if not writes:
            return False
        ended = writes[-1] == b""
        if self._writing_paused and not ended:
            # A peer that pings and does not read would fill our memory; RFC 6455, 5.5.3: the latest pong is enough.
            self._pong = writes[-1]
        else:
            self.below.write(b"".join(writes))
        return ended

    # The handshake

    def _handshake(self) -> None:
        if self._raw and not (self._raw[:1].isalpha() and self._raw[:16].isascii()):
            self._reject(HTTPStatus.BAD_REQUEST, "This port speaks WebSocket.\n", "websocket_request", "")
            return
        end = self._raw.find(b"\r\n\r\n", 0, MAX_REQUEST)
        if end < 0:
            if len(self._raw) >= MAX_REQUEST:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self._reject(status, f"More than {MAX_REQUEST} bytes.\n", "websocket_request", "")
            return
        head, self._raw = self._raw[: end + 4], self._raw[end + 4 :]
        self._protocol.receive_data(head)
        requests = self._protocol.events_received()
        if not requests:
            if not head.startswith((b"GET ", b"GET\r")):
                self._reject(HTTPStatus.METHOD_NOT_ALLOWED, "WebSocket begins with GET.\n", "websocket_request", "")
            else:
                self._reject(HTTPStatus.BAD_REQUEST, "Not an HTTP/1.1 request.\n", "websocket_request", "")
            return
        request = cast(Request, requests[0])
        if not _leads_to(request.path.partition("?")[0], self._settings.path):
            self._reject(HTTPStatus.NOT_FOUND, "Not found.\n", "websocket_path", "path", request.path)
            return
        if not all(value.isascii() for name in _HANDSHAKE_HEADERS for value in request.headers.get_all(name)):
            self._reject(HTTPStatus.BAD_REQUEST, "Headers must be ASCII.\n", "websocket_request", "")
            return
        response = self._protocol.accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._accept(response)
        elif response.status_code == HTTPStatus.FORBIDDEN:
            self._answer(response, "websocket_origin", "allowed_origins", request.headers.get("Origin", ""))
        elif isinstance(self._protocol.handshake_exc, NegotiationError):
            self._answer(response, "websocket_subprotocol", "subprotocols", str(self._protocol.handshake_exc))
        else:
            self._answer(response, "websocket_request", "", str(self._protocol.handshake_exc))

    def _accept(self, response: Response) -> None:
        self._protocol.send_response(response)
        self._extended = "Sec-WebSocket-Extensions" in response.headers
        self.below.write(b"".join(self._protocol.data_to_send()))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.finish()
        self._connection = self._connect()
        self._connection.connection_made(self)

    def _reject(self, status: HTTPStatus, text: str, reason: str, setting: str, detail: str = "") -> None:
        response = self._protocol.reject(status, text)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "GET"
        self._answer(response, reason, setting, detail)

    def _answer(self, response: Response, reason: str, setting: str, detail: str) -> None:
        self.below.write(response.serialize())
        self._refuse(reason, setting, detail)
        self._end()

    def _refuse(self, reason: str, setting: str, detail: str = "") -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.refuse(reason, setting, detail)

    def _handshake_timed_out(self) -> None:
        self._timer = None
        self._reject(HTTPStatus.REQUEST_TIMEOUT, "Too slow.\n", "websocket_timeout", "idle_timeout")

    # Towards the Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._protocol.state is not OPEN or not data:
            return
        # [MQTT-6.0.0-1] binary frames
        if self._single:
            self._write_single(bytes(data))
        elif self._extended:
            self._protocol.send_binary(cast(bytes, data))
            self.below.write(b"".join(self._protocol.data_to_send()))
        elif len(data) > LARGE:
            self.below.write(header(len(data)))
            self.below.write(data)
        else:
            self.below.write(header(len(data)) + data)

    def write_packets(self, pieces: list[bytes]) -> int:
        if not self._single or self._extended:
            return super().write_packets(pieces)
        size = size_of(pieces)
        if not self._closing and self._protocol.state is OPEN:
            parts, self._unframed = framed(pieces, self._unframed)
            self.below.write(b"".join(parts))
        return size

    def _write_single(self, data: bytes) -> None:
        """Write each packet in a separate frame, all of them in one write."""
        first = 1 if self._unframed else 0
        parts, self._unframed = framed([data], self._unframed)
        if self._extended:
            # The library creates the headers, also for the rest of an incomplete packet.
            for part in parts[:first] + parts[first + 1 :: 2]:
                self._protocol.send_binary(part)
            self.below.write(b"".join(self._protocol.data_to_send()))
        elif len(parts[-1]) > LARGE:
            if len(parts) > 1:
                self.below.write(b"".join(parts[:-1]))
            self.below.write(parts[-1])
        else:
            self.below.write(b"".join(parts))

    def close(self) -> None:
        """Send the written data and a close frame; close the socket when the peer has answered, or is too slow.

        Closing immediately, with unread input, would reset the connection, and the peer might read neither."""
        if self._closing:
            return
        if self._protocol.state is not OPEN or self.below.is_closing():
            self._end()
            return
        self._closing = True
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self.below.write(b"".join(self._protocol.data_to_send()))
        self._timer = self._loop.call_later(CLOSE_TIMEOUT, self.abort)
        self._paused = False
        self._schedule()

    def abort(self) -> None:
        self._closing = self._ended = True
        self.below.abort()

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        # Never reached: Connection half-closes only transports that support it, and asyncio's TLS does not either.
        raise NotImplementedError("WebSocket has no half-closed connections")

    def is_closing(self) -> bool:
        return self._closing or self.below.is_closing()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        if self._closing:
            return
        self._paused = True
        if not self._below_paused:
            self._below_paused = True
            self.below.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._schedule()

    def raise_packet_limit(self, max_packet_size: int) -> None:
        self._logged_in()
        self._single = self._settings.mqtt_piggyback == "single"
        self._limit = max(max_packet_size, MIN_FRAME) + SLACK
        self._protocol.limit(self._limit)
