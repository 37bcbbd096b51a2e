"""BufferedRow: one row of a rule in a buffer and on disk."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..functions.undefined import UNDEFINED

OVERHEAD: Final = 500
"""Approximate memory of a row without its request and content: objects in memory, keys and lengths on disk."""

_UNDEFINED: Final = 1
_LARGE_INTEGER: Final = 2
_BROKEN_TEXT: Final = 3


class BufferedRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that an action has put into a buffer. On disk it is an array: the order of the fields is the format.

    ``key``: rows with the same key are delivered one after the other, in order. ``group``: only rows of one group share
    a request, at most ``max_batch`` of them. ``request`` is encoded by the resource, ``row`` is for fallbacks
    (``decode_row``). ``at``: when the rule created it, in Unix seconds. ``until``: when it fails even if the other
    system is merely unreachable; 0: never; equal to ``at``: it has one attempt. ``linger``: seconds that it waits for
    others to share a request; None: ``ruleengine.batch_linger``. ``client``: the client of the event, if ``key`` is not
    the client."""

    action: str
    key: str
    group: str
    max_batch: int
    at: float
    request: bytes
    row: bytes
    until: float = 0.0
    linger: float | None = None
    client: str = ""

    @property
    def client_id(self) -> str:
        """The client of the row's event; for an event without one, the topic or node that orders its rows."""
        return self.client or self.key

    @property
    def single_attempt(self) -> bool:
        """Whether the row has only one attempt, and does not wait for an unreachable system."""
        return 0.0 < self.until <= self.at

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return len(self.request) + len(self.row) + OVERHEAD


def deadline(at: float, retry_for: float | None) -> float:
    """Return ``until`` of a row from ``at`` that is retried for ``retry_for`` seconds; None: without a limit."""
    return 0.0 if retry_for is None else at + retry_for


def encode_row(row: Mapping[str, object]) -> bytes:
    """Encode a row; ``decode_row`` restores any value that a rule can select."""
    try:
        return _encoder.encode(row if type(row) is dict else dict(row))
    except (OverflowError, UnicodeEncodeError):
        return _encoder.encode(_storable(dict(row)))


def decode_row(data: bytes) -> dict[str, object]:
    """Decode a row from ``encode_row``. Raises ValueError."""
    return _decoder.decode(data)


def _storable(value: object) -> object:
    """Return the value with MessagePack extensions for types that MessagePack does not have."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(_LARGE_INTEGER, str(value).encode())
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return msgspec.msgpack.Ext(_BROKEN_TEXT, value.encode("utf-8", "surrogatepass"))
        return value
    if type(value) is list:
        return [_storable(each) for each in value]
    if type(value) is dict:
        return {_printable(key): _storable(each) for key, each in value.items()}
    return value


def _printable(key: str) -> str:
    return key.encode("utf-8", "replace").decode()


def _encode_other(value: object) -> object:
    if value is UNDEFINED:
        return msgspec.msgpack.Ext(_UNDEFINED, b"")
    raise TypeError(f"a {type(value).__name__} is not a valid value in a row")


def _decode_other(code: int, data: memoryview) -> object:
    if code == _UNDEFINED:
        return UNDEFINED
    if code == _LARGE_INTEGER:
        return int(bytes(data))
    if code == _BROKEN_TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    raise ValueError(f"unknown extension {code}")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_decoder: Final = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_decode_other)
