"""Decoder for the packets of a run: PUBLISH packets that another node has already read, without a client on this
node."""

from typing import Final

from .constants import PUBLISH, V4, V5
from .data_types import read_variable
from .decoder import Decoder, TopicNames
from .errors import MalformedPacket
from .message import Message, Publisher
from .packets import NO_PROPERTIES
from .run import Run
from .topics import valid_name

_FIRST: Final = 0x32  # first byte: QoS 1, DUP 0, RETAIN 0
_QOS: Final = 0x06  # in the first byte
_MAX_PACKET: Final = 268_435_460
"""Size of the largest possible packet, with its fixed header."""


class RunDecoder:
    """Decodes any PUBLISH packets."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _decoder()

    def read(
        self,
        packets: bytes,
        version: int,
        publisher: Publisher | None,
        timestamp: float,
        ids: list[str],
        prefix: str,
        number: int,
    ) -> list[Message] | None:
        """Return the messages, with these ``ids`` or with numbered ids as in ``read_run``. Return None if one of the
        packets is not a PUBLISH or cannot be read."""
        decoder = self._decoder
        decoder.version = version
        messages: list[Message] = []
        identified = len(ids)
        for packet in decoder.feed(packets):
            if not isinstance(packet, Message):
                break
            index = len(messages)
            packet.publisher = publisher
            packet.timestamp = timestamp
            if index < identified:
                packet.id = ids[index]
            elif number:
                packet.id_prefix = prefix
                packet.id_number = number + index
            messages.append(packet)
        else:
            if not decoder.pending:
                return messages
        self._decoder = _decoder()
        return None


def _decoder() -> Decoder:
    return Decoder(TopicNames(False), _MAX_PACKET, _MAX_PACKET)


def read_run(
    packets: bytes, version: int, topic: str, publisher: Publisher | None, timestamp: float, prefix: str, number: int
) -> Run | None:
    """Read a run of PUBLISH packets with QoS 1 and the same topic, whose ids have this prefix and start from this
    number (0: no ids). Return None if the topic is invalid, or if a packet has another topic, has properties or cannot
    be read; ``RunDecoder`` then has to read them."""
    if not valid_name(topic):
        return None
    name = topic.encode()
    head = len(name).to_bytes(2, "big") + name
    length = len(head)
    size = len(packets)
    v5 = version == V5
    messages: list[Message] = []
    at = 0
    while at < size:
        if size - at < 2 or packets[at] != _FIRST:
            return None
        remaining = packets[at + 1]
        body = at + 2
        if remaining > 0x7F:
            remaining &= 0x7F
            shift = 7
            byte = 0x80
            while byte > 0x7F:
                if body == size or shift == 28:
                    return None
                byte = packets[body]
                body += 1
                remaining |= (byte & 0x7F) << shift
                shift += 7
            if not byte:
                return None  # the length is not in its shortest form
        end = body + remaining
        behind = body + length
        payload = behind + 3 if v5 else behind + 2
        if end > size or payload > end or (v5 and packets[payload - 1]) or packets[body:behind] != head:
            return None
        packet_id = packets[behind] << 8 | packets[behind + 1]
        if not packet_id:
            return None
        frame = packets[at:end]
        message = Message(
            topic, None, 1, False, NO_PROPERTIES, publisher, timestamp, frame, payload - at, packet_id, False
        )
        message.frame_version = V5 if v5 else V4
        message.packet_id_at = behind - at
        if number:
            message.id_prefix = prefix
            message.id_number = number
            number += 1
        messages.append(message)
        at = end
    return Run(topic, 1, messages)


def count_numbered(packets: bytes) -> int:
    """Count the QoS 1 and 2 PUBLISHes among packets that cannot be read. Return -1 if the end of one of them cannot be
    determined."""
    size = len(packets)
    found = 0
    at = 0
    while at < size:
        if packets[at] >> 4 == PUBLISH and packets[at] & _QOS:
            found += 1
        try:
            remaining, at = read_variable(packets, at + 1, size)
        except MalformedPacket:
            return -1
        at += remaining
    return found if at == size else -1
