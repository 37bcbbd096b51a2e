"""What a row of the packet table is, and the notation its bytes are written in.

Bytes are written as text, in tokens with spaces between:

==========  ==========================================================================================
``10 0a``   bytes in hexadecimal, any number of digits pairs in a token
``'abc'``   these characters in UTF-8
``s'abc'``  a UTF-8 Encoded String: two bytes of length in front
``*``       the length of everything that follows it, as a Variable Byte Integer (the Remaining Length)
``( .. )``  properties: what stands between, its length in front
==========  ==========================================================================================

Lengths that are to be wrong are simply written as bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taipan.broker.mqtt.data_types import variable
from taipan.broker.mqtt.errors import MalformedPacket, MqttError
from taipan.broker.mqtt.message import Message

CLIENT = "client"
SERVER = "server"

ALL = (3, 4, 5)
V3X = (3, 4)
FROM_311 = (4, 5)
V5 = (5,)

_TOKEN = re.compile(r"s?'[^']*'|\*|\(|\)|(?:[0-9a-fA-F]{2})+")


@dataclass(frozen=True)
class Bad:
    """The decoder has to answer with this class and Reason Code; ``answer`` is that of ``UnknownProtocol``."""

    error: type[MqttError]
    code: int
    answer: bytes = b""


@dataclass(frozen=True)
class Row:
    """One packet on the wire and what it means.

    ``sender`` is ``"client"`` or ``"server"``. ``version`` is that of the connection it comes on. CONNECT rows come
    on a fresh one (``fresh``); all others after a CONNECT of that version. ``canonical``: encoding the packet gives
    these very bytes. ``strict`` rows want control characters refused.
    """

    name: str
    version: int
    data: bytes
    expect: Any
    tag: str
    sender: str
    fresh: bool
    canonical: bool
    strict: bool

    @property
    def expect_code(self) -> int | None:
        """The Reason Code of a bad row, ``None`` of a good one."""
        return self.expect.code if isinstance(self.expect, Bad) else None

    @property
    def id(self) -> str:
        return f"v{self.version}-{self.name}".replace(" ", "-")


def wire(text: str) -> bytes:
    """The bytes of a row's notation."""
    tokens = _TOKEN.findall(text)
    left_over = _TOKEN.sub("", text).strip()
    if left_over:
        raise ValueError(f"not understood: {left_over!r} in {text!r}")
    data, after = _join(tokens, 0)
    if after != len(tokens):
        raise ValueError(f"unbalanced ) in {text!r}")
    return data


def _join(tokens: Sequence[str], at: int) -> tuple[bytes, int]:
    data = b""
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token == ")":
            return data, at
        if token == "(":
            inner, at = _join(tokens, at)
            if tokens[at - 1] != ")":
                raise ValueError("unbalanced (")
            data += variable(len(inner)) + inner
        elif token == "*":
            rest, at = _join(tokens, at)
            return data + variable(len(rest)) + rest, at
        elif token[0] == "'":
            data += token[1:-1].encode()
        elif token[0] == "s":
            raw = token[2:-1].encode()
            data += len(raw).to_bytes(2, "big") + raw
        else:
            data += bytes.fromhex(token)
    return data, at


def good(
    name: str,
    versions: Sequence[int],
    text: str | bytes,
    packet: Any,
    tag: str = "",
    *,
    sender: str = CLIENT,
    canonical: bool = True,
    fresh: bool = False,
) -> list[Row]:
    """Rows, one for each version, of bytes that are this packet."""
    data = text if isinstance(text, bytes) else wire(text)
    return [Row(name, version, data, packet, tag, sender, fresh, canonical, False) for version in versions]


def bad(
    name: str,
    versions: Sequence[int],
    text: str | bytes,
    code: int,
    tag: str = "",
    *,
    error: type[MqttError] = MalformedPacket,
    answer: bytes = b"",
    sender: str = CLIENT,
    fresh: bool = False,
    strict: bool = False,
) -> list[Row]:
    """Rows, one for each version, of bytes that are refused with this class of error and Reason Code."""
    data = text if isinstance(text, bytes) else wire(text)
    expect = Bad(error, code, answer)
    return [Row(name, version, data, expect, tag, sender, fresh, False, strict) for version in versions]


def comparable(packet: Any) -> Any:
    """Something with ``==``: a ``Message`` as a tuple of what is in the packet, an error as class and code."""
    if isinstance(packet, Message):
        return (
            "PUBLISH",
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            packet.packet_id,
            packet.properties,
        )
    if isinstance(packet, MqttError):
        return Bad(type(packet), packet.reason_code, getattr(packet, "answer", b""))
    return packet
