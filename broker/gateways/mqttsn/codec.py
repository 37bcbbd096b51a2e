"""The messages of MQTT-SN 1.2 as data and bytes. Nothing here knows a socket, a client or the time.

The field names are those of the specification (MQTT-SN Version 1.2, November 14, 2013, chapter 5). A datagram is one
message; ``decode`` raises Malformed for any other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ADVERTISE: Final = 0x00
SEARCHGW: Final = 0x01
GWINFO: Final = 0x02
CONNECT: Final = 0x04
CONNACK: Final = 0x05
WILLTOPICREQ: Final = 0x06
WILLTOPIC: Final = 0x07
WILLMSGREQ: Final = 0x08
WILLMSG: Final = 0x09
REGISTER: Final = 0x0A
REGACK: Final = 0x0B
PUBLISH: Final = 0x0C
PUBACK: Final = 0x0D
PUBCOMP: Final = 0x0E
PUBREC: Final = 0x0F
PUBREL: Final = 0x10
SUBSCRIBE: Final = 0x12
SUBACK: Final = 0x13
UNSUBSCRIBE: Final = 0x14
UNSUBACK: Final = 0x15
PINGREQ: Final = 0x16
PINGRESP: Final = 0x17
DISCONNECT: Final = 0x18
WILLTOPICUPD: Final = 0x1A
WILLTOPICRESP: Final = 0x1B
WILLMSGUPD: Final = 0x1C
WILLMSGRESP: Final = 0x1D
ENCAPSULATED: Final = 0xFE

ACCEPTED: Final = 0x00
CONGESTION: Final = 0x01
INVALID_TOPIC_ID: Final = 0x02
NOT_SUPPORTED: Final = 0x03

NORMAL: Final = 0
"""A topic id of this client, or, in SUBSCRIBE and UNSUBSCRIBE, a topic name."""
PREDEFINED: Final = 1
SHORT: Final = 2
"""A topic name of two characters, in the place of an id."""

PROTOCOL_ID: Final = 1
WITHOUT_CONNECTION: Final = -1
"""The QoS of a PUBLISH from a client without a connection."""

_DUP: Final = 0x80
_RETAIN: Final = 0x10
_WILL: Final = 0x08
_CLEAN: Final = 0x04
_ID_TYPE: Final = 0x03
_LONG: Final = 0x01
_MAX_SHORT: Final = 0xFF


class Malformed(ValueError):
    """A datagram that is not a message of MQTT-SN 1.2; the text says why."""


@dataclass(slots=True)
class SnAdvertise:
    gateway_id: int
    duration: int


@dataclass(slots=True)
class SnSearchGw:
    radius: int


@dataclass(slots=True)
class SnGwInfo:
    gateway_id: int
    address: bytes = b""


@dataclass(slots=True)
class SnConnect:
    """``duration``: Keep Alive in seconds."""

    client_id: str
    clean: bool = True
    will: bool = False
    duration: int = 0
    protocol_id: int = PROTOCOL_ID


@dataclass(slots=True)
class SnConnack:
    code: int


@dataclass(slots=True)
class SnWillTopic:
    """WILLTOPIC, and with ``update`` WILLTOPICUPD. An empty ``topic`` deletes the Will."""

    topic: str
    qos: int = 0
    retain: bool = False
    update: bool = False


@dataclass(slots=True)
class SnWillMsg:
    """WILLMSG, and with ``update`` WILLMSGUPD."""

    payload: bytes
    update: bool = False


@dataclass(slots=True)
class SnRegister:
    topic_id: int
    msg_id: int
    topic: str


@dataclass(slots=True)
class SnRegack:
    topic_id: int
    msg_id: int
    code: int


@dataclass(slots=True)
class SnPublish:
    """``topic_id``: the two bytes as a number, even if they are a short topic name. ``qos`` -1: from a client without a
    connection."""

    topic_id: int
    id_type: int
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    msg_id: int = 0


@dataclass(slots=True)
class SnPuback:
    topic_id: int
    msg_id: int
    code: int


@dataclass(slots=True)
class SnReply:
    """PUBREC, PUBREL, PUBCOMP or UNSUBACK (``type``): a message with nothing but a MsgId."""

    type: int
    msg_id: int


@dataclass(slots=True)
class SnSubscribe:
    """SUBSCRIBE, and with ``remove`` UNSUBSCRIBE. ``topic``: a Topic Filter, or the topic id if ``id_type`` is not
    NORMAL."""

    msg_id: int
    topic: str | int
    id_type: int = NORMAL
    qos: int = 0
    dup: bool = False
    remove: bool = False


@dataclass(slots=True)
class SnSuback:
    """``qos``: the granted one. ``topic_id`` 0: none, because the filter has wildcards."""

    qos: int
    topic_id: int
    msg_id: int
    code: int


@dataclass(slots=True)
class SnPingreq:
    """``client_id``: of a sleeping client; otherwise empty."""

    client_id: str = ""


@dataclass(slots=True)
class SnDisconnect:
    """``duration``: seconds of sleep; None: the client leaves."""

    duration: int | None = None


@dataclass(slots=True)
class SnSimple:
    """WILLTOPICREQ, WILLMSGREQ or PINGRESP (``type``): a message without content."""

    type: int


@dataclass(slots=True)
class SnWillResponse:
    """WILLTOPICRESP or WILLMSGRESP (``type``)."""

    type: int
    code: int


SnPacket = (
    SnAdvertise | SnSearchGw | SnGwInfo | SnConnect | SnConnack | SnWillTopic | SnWillMsg | SnRegister | SnRegack
    | SnPublish | SnPuback | SnReply | SnSubscribe | SnSuback | SnPingreq | SnDisconnect | SnSimple | SnWillResponse
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------ decode


def decode(data: bytes) -> SnPacket:
    """Return the message of a datagram. Raises Malformed."""
    size = len(data)
    if size < 2:
        raise Malformed("shorter than a message")
    length, at = data[0], 1
    if length == _LONG:
        if size < 4:
            raise Malformed("shorter than a message")
        length, at = data[1] << 8 | data[2], 3
    if length != size:
        raise Malformed("Length differs from the size of the datagram")
    kind = data[at]
    at += 1
    if kind == PUBLISH:
        return _publish(data, at, size)
    found = _SHAPES.get(kind)
    if found is None:
        raise Malformed(f"unknown message type 0x{kind:02x}")
    least, most, read = found
    if not least <= size - at <= most:
        raise Malformed(f"{NAMES[kind]} has a wrong length")
    return read(kind, data[at:])


def _publish(data: bytes, at: int, size: int) -> SnPublish:
    if size - at < 5:
        raise Malformed("PUBLISH has a wrong length")
    flags = data[at]
    qos = _qos(flags)
    msg_id = data[at + 3] << 8 | data[at + 4]
    if qos <= 0:
        msg_id = 0  # it has no meaning there
    elif not msg_id:
        raise Malformed("PUBLISH of QoS 1 or 2 with MsgId 0")
    return SnPublish(
        data[at + 1] << 8 | data[at + 2], _id_type(flags), data[at + 5 :], qos, flags & _RETAIN != 0,
        flags & _DUP != 0, msg_id,
    )  # fmt: skip


def _qos(flags: int) -> int:
    qos = flags >> 5 & 3
    return WITHOUT_CONNECTION if qos == 3 else qos


def _id_type(flags: int) -> int:
    found = flags & _ID_TYPE
    if found > SHORT:
        raise Malformed("TopicIdType 0b11 is reserved")
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("not UTF-8") from None


def _number(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _id(data: bytes, at: int) -> int:
    """Return a MsgId, which is not 0."""
    found = _number(data, at)
    if not found:
        raise Malformed("MsgId 0")
    return found


def _connect(kind: int, body: bytes) -> SnConnect:
    flags = body[0]
    return SnConnect(_text(body[4:]), flags & _CLEAN != 0, flags & _WILL != 0, _number(body, 2), body[1])


def _will_topic(kind: int, body: bytes) -> SnWillTopic:
    update = kind == WILLTOPICUPD
    if not body:
        return SnWillTopic("", update=update)
    qos = _qos(body[0])
    if qos < 0:
        raise Malformed("the Will has QoS -1")
    if len(body) == 1:
        raise Malformed("the Will has flags but no topic")
    return SnWillTopic(_text(body[1:]), qos, body[0] & _RETAIN != 0, update)


def _subscribe(kind: int, body: bytes) -> SnSubscribe:
    flags = body[0]
    remove = kind == UNSUBSCRIBE
    qos = _qos(flags)
    if qos < 0 and not remove:
        raise Malformed("SUBSCRIBE has QoS -1")
    id_type = _id_type(flags)
    msg_id = _id(body, 1)
    topic: str | int
    if id_type == NORMAL:
        topic = _text(body[3:])
    elif len(body) != 5:
        raise Malformed(f"{NAMES[kind]} has a wrong length")
    else:
        topic = _number(body, 3)
    return SnSubscribe(msg_id, topic, id_type, 0 if remove else qos, flags & _DUP != 0, remove)


_ANY: Final = 65_535
_Reader = Callable[[int, bytes], SnPacket]
_SHAPES: Final[dict[int, tuple[int, int, _Reader]]] = {
    ADVERTISE: (3, 3, lambda kind, body: SnAdvertise(body[0], _number(body, 1))),
    SEARCHGW: (1, 1, lambda kind, body: SnSearchGw(body[0])),
    GWINFO: (1, _ANY, lambda kind, body: SnGwInfo(body[0], body[1:])),
    CONNECT: (4, _ANY, _connect),
    CONNACK: (1, 1, lambda kind, body: SnConnack(body[0])),
    WILLTOPICREQ: (0, 0, lambda kind, body: SnSimple(kind)),
    WILLTOPIC: (0, _ANY, _will_topic),
    WILLMSGREQ: (0, 0, lambda kind, body: SnSimple(kind)),
    WILLMSG: (0, _ANY, lambda kind, body: SnWillMsg(body)),
    REGISTER: (5, _ANY, lambda kind, body: SnRegister(_number(body, 0), _id(body, 2), _text(body[4:]))),
    REGACK: (5, 5, lambda kind, body: SnRegack(_number(body, 0), _id(body, 2), body[4])),
    PUBACK: (5, 5, lambda kind, body: SnPuback(_number(body, 0), _number(body, 2), body[4])),
    PUBCOMP: (2, 2, lambda kind, body: SnReply(kind, _id(body, 0))),
    PUBREC: (2, 2, lambda kind, body: SnReply(kind, _id(body, 0))),
    PUBREL: (2, 2, lambda kind, body: SnReply(kind, _id(body, 0))),
    SUBSCRIBE: (4, _ANY, _subscribe),
    SUBACK: (6, 6, lambda kind, body: SnSuback(_qos(body[0]), _number(body, 1), _id(body, 3), body[5])),
    UNSUBSCRIBE: (4, _ANY, _subscribe),
    UNSUBACK: (2, 2, lambda kind, body: SnReply(kind, _id(body, 0))),
    PINGREQ: (0, _ANY, lambda kind, body: SnPingreq(_text(body))),
    PINGRESP: (0, 0, lambda kind, body: SnSimple(kind)),
    DISCONNECT: (0, 2, lambda kind, body: _disconnect(body)),
    WILLTOPICUPD: (0, _ANY, _will_topic),
    WILLTOPICRESP: (1, 1, lambda kind, body: SnWillResponse(kind, body[0])),
    WILLMSGUPD: (0, _ANY, lambda kind, body: SnWillMsg(body, True)),
    WILLMSGRESP: (1, 1, lambda kind, body: SnWillResponse(kind, body[0])),
}
"""Type -> the least and the most bytes of its content, and its reader."""


def _disconnect(body: bytes) -> SnDisconnect:
    if len(body) == 1:
        raise Malformed("DISCONNECT has a wrong length")
    return SnDisconnect(_number(body, 0) if body else None)


_NAMES: Final = """ADVERTISE SEARCHGW GWINFO CONNECT CONNACK WILLTOPICREQ WILLTOPIC WILLMSGREQ WILLMSG REGISTER REGACK
PUBACK PUBCOMP PUBREC PUBREL SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK PINGREQ PINGRESP DISCONNECT WILLTOPICUPD
WILLTOPICRESP WILLMSGUPD WILLMSGRESP PUBLISH"""
NAMES: Final = dict(zip((*_SHAPES, PUBLISH), _NAMES.split(), strict=True))
"""Type -> its name in the specification."""

# ------------------------------------------------------------------------------------------------------------ encode


def frame(kind: int, body: bytes) -> bytes:
    """Return a message of this type. Raises ValueError if it is larger than the field Length can express."""
    size = len(body) + 2
    if size <= _MAX_SHORT:
        return bytes((size, kind)) + body
    if size + 2 > _ANY:
        raise ValueError(f"{NAMES[kind]} above 65,535 bytes")
    return b"\x01" + (size + 2).to_bytes(2) + bytes((kind,)) + body


def _two(number: int) -> bytes:
    return number.to_bytes(2)


def publish(
    topic_id: int, id_type: int, payload: bytes, qos: int, retain: bool, dup: bool, msg_id: int
) -> bytes:  # fmt: skip
    """Return a PUBLISH as bytes."""
    flags = (qos & 3) << 5 | id_type | (_RETAIN if retain else 0) | (_DUP if dup else 0)
    head = bytes((flags, topic_id >> 8, topic_id & 0xFF, msg_id >> 8, msg_id & 0xFF))
    size = len(payload) + 7
    if size <= _MAX_SHORT:
        return bytes((size, PUBLISH)) + head + payload
    return frame(PUBLISH, head + payload)


def repeated(data: bytes) -> bytes:
    """Return an encoded PUBLISH with the DUP flag."""
    at = 4 if data[0] == _LONG else 2
    return data[:at] + bytes((data[at] | _DUP,)) + data[at + 1 :]


def encode(packet: SnPacket) -> bytes:
    """Return a message as bytes. Raises ValueError for values that cannot be encoded."""
    match packet:
        case SnPublish():
            return publish(
                packet.topic_id, packet.id_type, packet.payload, packet.qos, packet.retain, packet.dup, packet.msg_id
            )
        case SnPuback():
            return frame(PUBACK, _two(packet.topic_id) + _two(packet.msg_id) + bytes((packet.code,)))
        case SnReply():
            return frame(packet.type, _two(packet.msg_id))
        case SnRegister():
            return frame(REGISTER, _two(packet.topic_id) + _two(packet.msg_id) + packet.topic.encode())
        case SnRegack():
            return frame(REGACK, _two(packet.topic_id) + _two(packet.msg_id) + bytes((packet.code,)))
        case SnConnack():
            return frame(CONNACK, bytes((packet.code,)))
        case SnSuback():
            flags = (packet.qos & 3) << 5
            return frame(SUBACK, bytes((flags,)) + _two(packet.topic_id) + _two(packet.msg_id) + bytes((packet.code,)))
        case SnSimple():
            return frame(packet.type, b"")
        case SnDisconnect():
            return frame(DISCONNECT, b"" if packet.duration is None else _two(packet.duration))
        case SnWillResponse():
            return frame(packet.type, bytes((packet.code,)))
        case SnGwInfo():
            return frame(GWINFO, bytes((packet.gateway_id,)) + packet.address)
        case SnAdvertise():
            return frame(ADVERTISE, bytes((packet.gateway_id,)) + _two(packet.duration))
        case SnSearchGw():
            return frame(SEARCHGW, bytes((packet.radius,)))
        case SnPingreq():
            return frame(PINGREQ, packet.client_id.encode())
        case SnWillMsg():
            return frame(WILLMSGUPD if packet.update else WILLMSG, packet.payload)
        case SnWillTopic():
            kind = WILLTOPICUPD if packet.update else WILLTOPIC
            flags = packet.qos << 5 | (_RETAIN if packet.retain else 0)
            return frame(kind, bytes((flags,)) + packet.topic.encode() if packet.topic else b"")
        case SnSubscribe():
            kind = UNSUBSCRIBE if packet.remove else SUBSCRIBE
            flags = packet.qos << 5 | packet.id_type | (_DUP if packet.dup else 0)
            topic = packet.topic.encode() if isinstance(packet.topic, str) else _two(packet.topic)
            return frame(kind, bytes((flags,)) + _two(packet.msg_id) + topic)
        case SnConnect():
            flags = (_CLEAN if packet.clean else 0) | (_WILL if packet.will else 0)
            head = bytes((flags, packet.protocol_id)) + _two(packet.duration)
            return frame(CONNECT, head + packet.client_id.encode())


# ------------------------------------------------------------------------------------------------------- forwarders


def split(data: bytes) -> tuple[bytes, bytes]:
    """Split a datagram from a forwarder (chapter 5.5): return the bytes that precede the message of the wireless node,
    and the message. For any other datagram, return nothing and the datagram. Raises Malformed."""
    if len(data) < 2 or data[1] != ENCAPSULATED or data[0] == _LONG:
        return b"", data
    size = data[0]
    if size < 4 or size > len(data):
        raise Malformed("a forwarder's header has a wrong length")
    if data[size + 1 : size + 2] == b"\xfe":
        raise Malformed("a forwarded message contains another forwarded message")
    # Of Ctrl, only the radius of a broadcast is defined.
    return bytes((size, ENCAPSULATED, 0)) + data[3:size], data[size:]
