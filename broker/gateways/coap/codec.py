"""Encode and decode CoAP messages (RFC 7252, section 3), without sockets, clients or time.

``decode`` reads the one message of a datagram, and raises MalformedCoap if it is not valid. ``read_options`` returns
the options of a request as values, and raises BadOption for an unknown critical option (sections 5.4.1 to 5.4.5)."""

from dataclasses import dataclass
from typing import Final

CON: Final = 0
NON: Final = 1
ACK: Final = 2
RST: Final = 3

EMPTY: Final = 0x00
GET: Final = 0x01
POST: Final = 0x02
PUT: Final = 0x03
DELETE: Final = 0x04
CREATED: Final = 0x41
DELETED: Final = 0x42
CHANGED: Final = 0x44
CONTENT: Final = 0x45
CONTINUE: Final = 0x5F
BAD_REQUEST: Final = 0x80
UNAUTHORIZED: Final = 0x81
BAD_OPTION: Final = 0x82
FORBIDDEN: Final = 0x83
NOT_FOUND: Final = 0x84
METHOD_NOT_ALLOWED: Final = 0x85
NOT_ACCEPTABLE: Final = 0x86
INCOMPLETE: Final = 0x88
TOO_LARGE: Final = 0x8D
INTERNAL_ERROR: Final = 0xA0
NOT_IMPLEMENTED: Final = 0xA1
UNAVAILABLE: Final = 0xA3
NO_PROXYING: Final = 0xA5

URI_HOST: Final = 3
ETAG: Final = 4
OBSERVE: Final = 6
URI_PORT: Final = 7
LOCATION_PATH: Final = 8
URI_PATH: Final = 11
CONTENT_FORMAT: Final = 12
MAX_AGE: Final = 14
URI_QUERY: Final = 15
ACCEPT: Final = 17
BLOCK2: Final = 23
BLOCK1: Final = 27
SIZE2: Final = 28
PROXY_URI: Final = 35
PROXY_SCHEME: Final = 39
SIZE1: Final = 60

LINK_FORMAT: Final = 40
OCTET_STREAM: Final = 42
EXI: Final = 47
JSON: Final = 50

Options = list[tuple[int, bytes]]
"""Option number and value, in the order of the message."""

_VERSION: Final = 1
_MARKER: Final = 0xFF
_MAX_TOKEN: Final = 8
_RESERVED_CLASSES: Final = frozenset((1, 6, 7))
_EXTENDED: Final = (13, 269)
"""The offset of an extended delta or length: of one byte, and of two bytes."""


class MalformedCoap(Exception):
    """The datagram is not a CoAP message.

    ``reset``: message ID of a confirmable message, which is rejected with RST; -1: the datagram is ignored."""

    def __init__(self, text: str, reset: int = -1) -> None:
        super().__init__(text)
        self.reset = reset


class BadOption(Exception):
    """A request has a critical option that is unknown or malformed. ``code`` is the code of the answer."""

    def __init__(self, text: str, code: int = BAD_OPTION) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Packet:
    """A message. ``mid``: its message ID. ``options`` are in the order of their numbers."""

    type: int
    code: int
    mid: int
    token: bytes
    options: Options
    payload: bytes


def is_request(code: int) -> bool:
    return 0 < code < 0x20


def is_error(code: int) -> bool:
    return code >= BAD_REQUEST


def dotted(code: int) -> str:
    """Return a code in dotted notation: ``4.04``."""
    return f"{code >> 5}.{code & 31:02d}"


def uint(value: bytes) -> int:
    """Return the value of an option as a number (section 3.2)."""
    return int.from_bytes(value)


def uint_bytes(number: int) -> bytes:
    """Return a number as the value of an option, without leading zeros."""
    return number.to_bytes((number.bit_length() + 7) // 8)


def empty(kind: int, mid: int) -> bytes:
    """Return an empty message: an acknowledgement, a reset or a ping."""
    return bytes((_VERSION << 6 | kind << 4, 0, mid >> 8, mid & 0xFF))


def encode(kind: int, code: int, mid: int, token: bytes = b"", options: Options = (), payload: bytes = b"") -> bytes:  # type: ignore[assignment]
    """Return the bytes of a message. The options may have any order; options with the same
    number keep their order."""
    data = bytearray((_VERSION << 6 | kind << 4 | len(token), code, mid >> 8, mid & 0xFF))
    data += token
    last = 0
    for number, value in sorted(options, key=_number) if len(options) > 1 else options:
        size = len(value)
        delta, more_delta = _nibble(number - last)
        length, more_length = _nibble(size)
        data.append(delta << 4 | length)
        data += more_delta
        data += more_length
        data += value
        last = number
    if payload:
        data.append(_MARKER)
        data += payload
    return bytes(data)


def _number(option: tuple[int, bytes]) -> int:
    return option[0]


def _nibble(value: int) -> tuple[int, bytes]:
    if value < _EXTENDED[0]:
        return value, b""
    if value < _EXTENDED[1]:
        return 13, bytes((value - _EXTENDED[0],))
    return 14, (value - _EXTENDED[1]).to_bytes(2)


def decode(data: bytes) -> Packet:
    """Return the message of a datagram. Raises MalformedCoap."""
    size = len(data)
    if size < 4:
        raise MalformedCoap("shorter than 4 bytes")
    first, code = data[0], data[1]
    if first >> 6 != _VERSION:
        raise MalformedCoap("unsupported CoAP version")
    kind, token_length = first >> 4 & 3, first & 15
    mid = data[2] << 8 | data[3]
    reset = mid if kind == CON else -1
    if token_length > _MAX_TOKEN:
        raise MalformedCoap("the token is longer than 8 bytes", reset)
    if code == EMPTY:
        if size > 4:
            raise MalformedCoap("an empty message has content", reset)
        return Packet(kind, code, mid, b"", [], b"")
    if code >> 5 in _RESERVED_CLASSES:
        raise MalformedCoap(f"the code {dotted(code)} has a reserved class", reset)
    at = 4 + token_length
    if at > size:
        raise MalformedCoap("the token is incomplete", reset)
    token = data[4:at]
    options: Options = []
    number = 0
    while at < size:
        head = data[at]
        at += 1
        if head == _MARKER:
            if at == size:
                raise MalformedCoap("no payload after the payload marker", reset)
            return Packet(kind, code, mid, token, options, data[at:])
        delta, length = head >> 4, head & 15
        if delta > 12:
            delta, at = _extended(data, at, delta, reset)
        if length > 12:
            length, at = _extended(data, at, length, reset)
        number += delta
        end = at + length
        if end > size or number > 0xFFFF:
            raise MalformedCoap("an option is incomplete, or its number is too large", reset)
        options.append((number, data[at:end]))
        at = end
    return Packet(kind, code, mid, token, options, b"")


def _extended(data: bytes, at: int, nibble: int, reset: int) -> tuple[int, int]:
    """Return a delta or a length that does not fit into four bits, and where the next byte is."""
    if nibble == 15:
        raise MalformedCoap("an option has a reserved delta or length", reset)
    end = at + nibble - 12
    if end > len(data):
        raise MalformedCoap("an option is incomplete", reset)
    return int.from_bytes(data[at:end]) + _EXTENDED[nibble - 13], end


_KNOWN: Final[dict[int, tuple[bool, int, int]]] = {
    URI_HOST: (False, 1, 255),
    ETAG: (True, 1, 8),
    OBSERVE: (False, 0, 3),
    URI_PORT: (False, 0, 2),
    URI_PATH: (True, 0, 255),
    CONTENT_FORMAT: (False, 0, 2),
    MAX_AGE: (False, 0, 4),
    URI_QUERY: (True, 0, 255),
    ACCEPT: (False, 0, 2),
    BLOCK2: (False, 0, 3),
    BLOCK1: (False, 0, 3),
    SIZE2: (False, 0, 4),
    SIZE1: (False, 0, 4),
}
"""Option of a request -> whether it may be repeated, its minimum and its maximum length."""


class RequestOptions:
    """The options of a request as values. -1 or None: the request does not have the option."""

    __slots__ = ("accept", "block1", "block2", "content_format", "max_age", "observe", "path", "query")

    def __init__(self) -> None:
        self.path: tuple[str, ...] = ()
        self.query: tuple[str, ...] = ()
        self.content_format: int | None = None
        self.accept: int | None = None
        self.observe: int | None = None
        self.max_age: int | None = None
        self.block1 = -1
        self.block2 = -1


def read_options(options: Options) -> RequestOptions:
    """Return the options of a request as values. Raises BadOption."""
    found = RequestOptions()
    path: list[str] = []
    query: list[str] = []
    last = -1
    for number, value in options:
        known = _KNOWN.get(number)
        usable = known is not None and known[1] <= len(value) <= known[2] and (known[0] or number != last)
        last = number
        if not usable:
            if number in (PROXY_URI, PROXY_SCHEME):
                raise BadOption("the node is not a proxy", NO_PROXYING)
            if number & 1:
                raise BadOption(f"option {number} is not supported")
            continue
        if number == URI_PATH:
            path.append(_text(value))
        elif number == URI_QUERY:
            query.append(_text(value))
        elif number in _NUMBERS:
            setattr(found, _NUMBERS[number], uint(value))
    found.path = tuple(path)
    found.query = tuple(query)
    return found


_NUMBERS: Final = {
    OBSERVE: "observe",
    CONTENT_FORMAT: "content_format",
    MAX_AGE: "max_age",
    ACCEPT: "accept",
    BLOCK1: "block1",
    BLOCK2: "block2",
}


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadOption("the path or the query is not UTF-8") from None


def option(options: Options, number: int) -> bytes | None:
    """Return the first value of an option, or None if the message does not have it."""
    for each, value in options:
        if each == number:
            return value
    return None
