"""Blockwise transfer (RFC 7959): the body of a request from a client (``BlockAssembly``), the body of an answer to it
(``Body``), and a request of the node with its answer (``Transfer``)."""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from . import codec
from .codec import BLOCK1, BLOCK2, CONTINUE, ETAG, OBSERVE, SIZE1, SIZE2, TOO_LARGE, Options, Packet, uint, uint_bytes

SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)
_RESERVED: Final = 7


@dataclass(frozen=True, slots=True)
class Block:
    """The value of an option Block1 or Block2: which block, whether others follow, and its size as an exponent."""

    num: int
    more: bool
    exponent: int

    @property
    def size(self) -> int:
        return 16 << self.exponent

    @property
    def offset(self) -> int:
        return self.num * self.size

    def encoded(self) -> bytes:
        return uint_bytes(self.num << 4 | self.more << 3 | self.exponent)


def block(value: int) -> Block:
    """Return the value of an option. Raises ``codec.BadOption`` for the reserved size."""
    if value & 7 == _RESERVED:
        raise codec.BadOption("the block has the reserved size", codec.BAD_REQUEST)
    return Block(value >> 4, bool(value & 8), value & 7)


def exponent_of(size: int) -> int:
    return SIZES.index(size)


Resource = tuple[int, tuple[str, ...], tuple[str, ...]]
"""Method, path and query: what the blocks of one body have in common."""


class BlockAssembly:
    """The body of a request that comes in blocks. The next one has to begin where the last one ended."""

    __slots__ = ("_data", "resource")

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def add(self, part: Block, payload: bytes) -> int:
        """Add a block. Return 0, or the code of the answer that refuses it."""
        if part.offset != len(self._data):
            return codec.INCOMPLETE
        if len(payload) > part.size or (part.more and len(payload) != part.size):
            return codec.BAD_REQUEST
        self._data += payload
        return 0

    def body(self) -> bytes:
        return bytes(self._data)


class Body:
    """An answer that the client fetches in blocks. The ETag shows the client whether all blocks belong to the same
    state."""

    __slots__ = ("code", "etag", "options", "payload")

    def __init__(self, code: int, options: Options, payload: bytes) -> None:
        self.code = code
        self.payload = payload
        self.options = options
        self.etag = crc32(payload).to_bytes(4)

    def part(self, wanted: Block, exponent: int) -> tuple[Options, bytes] | None:
        """Return the options and the payload of a block, whose size is limited by ``exponent``; None: there is no such
        block."""
        if wanted.exponent > exponent:
            wanted = Block(wanted.offset >> exponent + 4, False, exponent)
        start, end = wanted.offset, wanted.offset + wanted.size
        if start >= len(self.payload) and start:
            return None
        value = Block(wanted.num, end < len(self.payload), wanted.exponent).encoded()
        options = [*self.options, (BLOCK2, value), (ETAG, self.etag)]
        if not wanted.num:
            options.append((SIZE2, uint_bytes(len(self.payload))))
        return options, self.payload[start:end]


class TransferFailed(Exception):
    """The other side violates the rules of blockwise transfer, or its answer is too large."""


class Transfer:
    """A request of the node and its answer, in as many messages as necessary."""

    __slots__ = ("_collected", "_etag", "_exponent", "_last", "_most", "_next", "_sent", "code", "options", "payload")

    def __init__(self, code: int, options: Options, payload: bytes, exponent: int, most: int) -> None:
        self.code = code
        self.options = options
        self.payload = payload
        self._exponent = exponent
        self._most = most
        self._sent = 0  # bytes of the payload that the other side has
        self._last = 0  # bytes of the payload in the last message
        self._collected: bytearray | None = None
        self._next = 0
        self._etag: bytes | None = None

    @property
    def collected(self) -> int:
        """Number of bytes that have arrived of an incomplete answer."""
        return 0 if self._collected is None else len(self._collected)

    def message(self) -> tuple[Options, bytes]:
        """Return the options and the payload of the next message."""
        if self._collected is not None:
            value = Block(self._next, False, self._exponent).encoded()
            kept = [each for each in self.options if each[0] not in (OBSERVE, BLOCK1, SIZE1)]
            return [*kept, (BLOCK2, value)], b""
        size = SIZES[self._exponent]
        if len(self.payload) <= size and not self._sent:
            self._last = len(self.payload)
            return self.options, self.payload
        part = self.payload[self._sent : self._sent + size]
        self._last = len(part)
        more = self._sent + size < len(self.payload)
        options = [*self.options, (BLOCK1, Block(self._sent // size, more, self._exponent).encoded())]
        if not self._sent:
            options.append((SIZE1, uint_bytes(len(self.payload))))
        return options, part

    def answered(self, packet: Packet) -> bytes | None:
        """Process an answer; return its whole payload, or None if another message has to be sent. Raises
        TransferFailed."""
        try:
            return self._answered(packet)
        except codec.BadOption as error:
            raise TransferFailed(str(error)) from None

    def _answered(self, packet: Packet) -> bytes | None:
        accepted = codec.option(packet.options, BLOCK1)
        if accepted is not None and self._collected is None and self._continues(packet.code, block(uint(accepted))):
            return None
        part = codec.option(packet.options, BLOCK2)
        if part is None or codec.is_error(packet.code):
            return packet.payload
        return self._collect(packet, block(uint(part)))

    def _continues(self, code: int, accepted: Block) -> bool:
        """Return whether another block of the request has to be sent."""
        if code == TOO_LARGE and not self._sent and accepted.exponent < self._exponent:
            self._exponent = accepted.exponent
            return True
        if code != CONTINUE:
            return False
        self._sent += self._last
        self._exponent = min(self._exponent, accepted.exponent)
        if self._sent >= len(self.payload):
            raise TransferFailed("2.31 after the last block")
        return True

    def _collect(self, packet: Packet, part: Block) -> bytes | None:
        etag = codec.option(packet.options, ETAG)
        if not part.num:
            self._collected, self._etag = bytearray(), etag
        collected = self._collected
        if collected is None or part.offset != len(collected) or etag != self._etag:
            raise TransferFailed("the block belongs to another state, or is not the next one")
        if part.more and len(packet.payload) != part.size:
            raise TransferFailed("the block is shorter than its size")
        collected += packet.payload
        if len(collected) > self._most:
            raise TransferFailed(f"more than {self._most} bytes")
        if part.more:
            self._exponent = min(self._exponent, part.exponent)
            self._next = len(collected) >> self._exponent + 4
            return None
        self._collected = None
        return bytes(collected)
