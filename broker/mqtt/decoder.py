"""Incremental decoder from bytes to Control Packets, for MQTT 3.1, 3.1.1 and 5.0. It never raises."""

import sys
from array import array
from io import SEEK_END, BytesIO
from typing import Final

from . import reason_codes as rc
from .connect_decoder import check_authentication, read_connect, read_level
from .constants import (
    AUTH,
    AUTHENTICATION_METHOD,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MAX_PACKET_ID,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    UNSUBACK,
    UNSUBSCRIBE,
    V3,
    V4,
    V5,
)
from .data_types import read_packet_id
from .errors import MalformedPacket, MqttError, PacketTooLarge, ProtocolError, not_mqtt
from .message import Message
from .packets import (
    NO_PROPERTIES,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from .properties import find_block, read, read_last
from .reason_codes import (
    ACK_CODES,
    AUTH_FROM_CLIENT,
    AUTH_FROM_SERVER,
    DISCONNECT_FROM_CLIENT,
    DISCONNECT_FROM_SERVER,
)
from .server_packet_decoder import read_connack, read_suback, read_unsuback
from .subscribe_decoder import read_subscribe, read_unsubscribe
from .topic_names import TopicNames as TopicNames

Packet = (
    Message
    | Connect
    | Connack
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
    | int
    | MqttError
)
"""The results of ``Decoder.feed``. An ``int`` is a plain acknowledgement: ``type << 16 | packet_id``."""

_PINGREQ: Final = Pingreq()
_PINGRESP: Final = Pingresp()

_FROM_SERVER: Final = 1 << CONNACK | 1 << SUBACK | 1 << UNSUBACK | 1 << PINGRESP
_FROM_CLIENT: Final = 1 << CONNECT | 1 << SUBSCRIBE | 1 << UNSUBSCRIBE | 1 << PINGREQ

_PUBACK_0: Final = 0x40020000
"""The bytes of a plain PUBACK as a number, without its Packet Identifier."""
_MANY_ACKS: Final = 32
"""Minimum number of bytes that may be PUBACKs for which checking all of them at once is faster."""

_LARGE_PIECE: Final = 16_384
"""Pieces of at least this size are stored unchanged until their packet is complete."""

_FLAGS: Final = [2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0 for kind in range(16)]
"""Control Packet type -> the low nibble of its first byte; PUBLISH is not included."""


class Decoder:
    """Decodes the bytes of one connection, which arrive in pieces of any size, into Control Packets.

    ``version`` is 0 until the level of CONNECT is read; its rules apply to all later packets. ``server_side=False``
    reads the packets that a server sends; the caller then sets ``version``. ``max_packet_size`` (bytes, whole packet)
    may be changed at any time. ``pending``: number of bytes that have arrived of an incomplete packet."""

    __slots__ = (
        "_dead",
        "_held",
        "_large",
        "_max_connect_size",
        "_needed",
        "_server_side",
        "_topic_names",
        "max_packet_size",
        "pending",
        "version",
    )

    def __init__(
        self, topic_names: TopicNames, max_packet_size: int, max_connect_size: int, server_side: bool = True
    ) -> None:
        self.version = 0
        self.max_packet_size = max_packet_size
        self._max_connect_size = max_connect_size
        self._topic_names = topic_names
        self._server_side = server_side
        self._dead = False
        # The pieces of an incomplete packet that have arrived, and their total size in bytes.
        self._held: list[bytes | bytearray] | None = None
        # The same for a large packet, which is read into this buffer; after the bytes that have arrived there is room
        # for more.
        self._large: BytesIO | None = None
        self.pending = 0
        self._needed = 0

    def feed(self, data: bytes) -> list[Packet]:
        """Return the packets that are complete with ``data``, in order. Never raises.

        If the bytes are invalid, the last item is the ``MqttError``, and the decoder reads nothing more [MQTT-4.13.1-1]
        [3.1.1 MQTT-4.8.0-1]."""
        packets: list[Packet] = []
        if self._dead:
            return packets
        at = 0
        try:
            large = self._large
            if large is not None:
                missing = self._needed - self.pending
                large.seek(self.pending)
                large.write(data[:missing])
                if len(data) < missing:
                    self.pending += len(data)
                    return packets
                at = missing
                self._large = None
                self.pending = 0
                self._parse(large.getvalue(), 0, packets)
            while self._held is not None:
                missing = self._needed - self.pending
                if len(data) - at < missing:
                    self._hold(data[at:])
                    return packets
                # Read only the rest of this packet: its frame then needs no copy, and the bytes after it are not moved.
                whole = b"".join((*self._held, data[at : at + missing]))
                at += missing
                self._held = None
                self.pending = 0
                self._parse(whole, 0, packets)
            if at < len(data):
                self._parse(data, at, packets)
        except MqttError as error:
            self._dead = True
            packets.append(error)
        return packets

    def another(self) -> "Decoder":
        """Return a new decoder with the same limits and the same version."""
        decoder = Decoder(self._topic_names, self.max_packet_size, self._max_connect_size, self._server_side)
        decoder.version = self.version
        return decoder

    @property
    def failed(self) -> bool:
        """Return whether bytes were invalid, so that the decoder reads nothing more."""
        return self._dead

    @property
    def missing(self) -> int:
        """Return how many bytes of the incomplete packet are still missing, as far as this is known."""
        return 0 if self._held is None else self._needed - self.pending

    @property
    def unfinished(self) -> int:
        """Return how many bytes of memory the incomplete packet uses, including the room for the rest of it."""
        return self.pending if self._large is None else self._large.seek(0, SEEK_END)

    def room(self) -> memoryview:
        """Return the memory for the next bytes of the incomplete packet. It is at most as large as the part that has
        arrived, and does not include the packet's last byte, which goes through ``feed``."""
        large = self._large
        if large is None:
            large = self._large = BytesIO()
            large.writelines(self._held or ())
            self._held = None
        at = self.pending
        end = large.seek(0, SEEK_END)
        if at == end:
            end = min(2 * at, self._needed - 1)
            large.seek(end - 1)
            large.write(b"\0")
        return large.getbuffer()[at:end]

    def filled(self, size: int) -> bool:
        """Note that ``size`` bytes were written to ``room()``. Return True if only one byte is missing."""
        self.pending += size
        return self._needed - self.pending == 1

    def _parse(self, data: bytes, at: int, packets: list[Packet]) -> None:
        """Read packets from ``at`` on, and store an incomplete last one."""
        if not self.version and self._server_side:
            at = self._first(data, packets)
            if at < 0:
                self._hold(data)
                return
        size = len(data)
        v5 = self.version == V5
        topic_names = self._topic_names
        known = topic_names.cache
        last = size - 1
        looked = False
        while at < last:
            first = data[at]
            length = data[at + 1]
            body = at + 2
            if length > 0x7F:
                if not 0x30 <= first <= 0x3F:
                    self._refuse_type(first)
                length, body = self._length(data, at)
                if not body:
                    self._needed = size - at + 1
                    self._hold(data[at:])
                    return
            end = body + length
            if end - at > self.max_packet_size:
                self._refuse_type(first)
                raise PacketTooLarge(f"packet of {end - at} bytes, {self.max_packet_size} allowed")
            if end > size:
                self._refuse_type(first)
                self._needed = end - at
                self._hold(data[at:])
                return
            if 0x30 <= first <= 0x3F:
                # PUBLISH. The Topic Name comes first [MQTT-3.3.2-1].
                start = body + 2
                if start > end:
                    raise MalformedPacket("PUBLISH without Topic Name")
                stop = start + (data[body] << 8 | data[body + 1])
                if stop > end:
                    raise MalformedPacket("Topic Name runs over the end of the packet")
                raw = data[start:stop]
                topic = known.get(raw)
                if topic is None:
                    topic = topic_names.resolve(raw) if raw else ""  # which is allowed only with a Topic Alias
                frame = data[at:end] if end - at < size else data  # compiled, even a slice of everything is a copy
                if first == 0x30 and topic and not v5:
                    message = Message(topic, None, 0, False, NO_PROPERTIES, None, 0.0, frame, stop - at)
                    if body == at + 2 or data[body - 1]:
                        # The length is in its shortest form: these bytes can be sent unchanged.
                        message.wire0_v3 = frame
                    packets.append(message)
                elif first == 0x30 and topic and stop < end and not data[stop]:
                    message = Message(topic, None, 0, False, NO_PROPERTIES, None, 0.0, frame, stop - at + 1)
                    message.wire0_v5 = frame
                    packets.append(message)
                else:
                    packets.append(self._publish(first, frame, topic, stop - at, body - at))
            elif length == 2 and (first == 0x40 or first == 0x50 or first == 0x62 or first == 0x70):
                packet_id = data[body] << 8 | data[body + 1]
                if not packet_id:
                    raise ProtocolError("Packet Identifier 0")
                packets.append((first >> 4) << 16 | packet_id)
                if first == 0x40 and not looked and size - end >= _MANY_ACKS:
                    looked = True
                    end = self._pubacks(data, end, packets)
            else:
                packets.append(self._other(first, data, body, end))
            at = end
        if at == last:
            self._refuse_type(data[at])
            self._needed = 2
            self._hold(data[at:])

    def _hold(self, piece: bytes) -> None:
        held = self._held
        if held is None:
            held = self._held = []
        if len(piece) >= _LARGE_PIECE:
            held.append(piece)
        elif held and isinstance(held[-1], bytearray):
            held[-1] += piece
        else:
            held.append(bytearray(piece))  # small pieces are joined: each alone uses many times its size
        self.pending += len(piece)

    def _pubacks(self, data: bytes, at: int, packets: list[Packet]) -> int:
        """Decode the following packets while they are plain PUBACKs; return the position of the first other byte."""
        words = array("I", data[at : at + (len(data) - at & ~3)])
        if sys.byteorder == "little":
            words.byteswap()
        if min(words) <= _PUBACK_0 or max(words) > _PUBACK_0 + MAX_PACKET_ID:
            return at
        packets += [word - _PUBACK_0 + (PUBACK << 16) for word in words]
        return at + 4 * len(words)

    def _first(self, data: bytes, packets: list[Packet]) -> int:
        """Read the CONNECT with which every connection begins. Return its end, or -1 after setting ``_needed``."""
        if not data:
            return 0
        # [MQTT-3.1.0-1], before any announced length is waited for.
        if data[0] != 0x10:
            other = not_mqtt(data)
            if other is not None:
                raise other
        length, body = self._length(data, 0)
        if not body:
            self._needed = len(data) + 1
            return -1
        end = body + length
        if end > self._max_connect_size:
            raise PacketTooLarge(f"CONNECT of {end} bytes, {self._max_connect_size} allowed", "max_connect_size")
        if end > len(data):
            self._needed = end
            return -1
        connect = self._connect(data, body, end)
        packets.append(connect)
        return end

    def _length(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the Remaining Length of the packet at ``at`` and the offset of its body; the offset is 0 if more bytes
        are needed."""
        value = 0
        shift = 0
        size = len(data)
        at += 1
        while at < size:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift and self.version == V5:
                    # Only 5.0 requires the shortest form [MQTT-1.5.5-1].
                    raise MalformedPacket("Remaining Length is not the shortest")
                return value, at
            shift += 7
            if shift == 28:
                raise MalformedPacket("Remaining Length is longer than four bytes")
        return 0, 0

    def _refuse_type(self, first: int) -> None:
        """Refuse a packet that this side never receives by its first byte, before its body arrives."""
        kind = first >> 4
        if kind == 0 or (kind == AUTH and self.version != V5):
            raise ProtocolError(f"reserved packet type {kind}")
        if self._server_side:
            if _FROM_SERVER >> kind & 1:
                raise ProtocolError("packet that only a server sends")
            if kind == CONNECT:
                # [MQTT-3.1.0-2]
                raise ProtocolError("second CONNECT")  # [3.1.1 MQTT-3.1.0-2]
        elif _FROM_CLIENT >> kind & 1:
            raise ProtocolError("packet that only a client sends")

    def _publish(self, first: int, frame: bytes, topic: str, at: int, body: int) -> Message:
        """Read any PUBLISH. In ``frame``, ``at`` is the offset after the Topic Name, and ``body`` the offset after the
        fixed header."""
        qos = first >> 1 & 3
        packet_id = 0
        packet_id_at = 0
        if qos:
            if qos == 3:
                raise MalformedPacket("QoS 3")  # [MQTT-3.3.1-4]
            if at + 2 > len(frame):
                raise MalformedPacket("PUBLISH without Packet Identifier")
            packet_id = frame[at] << 8 | frame[at + 1]
            packet_id_at = at
            at += 2
            if not packet_id:
                raise ProtocolError("Packet Identifier 0")  # [MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1]
        elif first & 8:
            raise MalformedPacket("DUP with QoS 0")  # [MQTT-3.3.1-2]
        properties = NO_PROPERTIES
        block_at = alias_at = expiry_at = 0
        if self.version == V5:
            if at < len(frame) and not frame[at]:
                at += 1
            else:
                strict = self._topic_names.strict
                block_at, behind, alias_at, expiry_at = find_block(frame, at, strict)
                if block_at:
                    at = behind
                else:
                    properties, at = read(frame, at, len(frame), PUBLISH, strict)
                    if self._server_side and SUBSCRIPTION_IDENTIFIER in properties:
                        raise ProtocolError("Subscription Identifier from a client")  # [MQTT-3.3.4-6]
        message = Message(topic, None, qos, first & 1 != 0, properties, None, 0.0, frame, at, packet_id, first & 8 != 0)
        if block_at:
            message.keep_block(block_at, alias_at, expiry_at)
        elif properties and TOPIC_ALIAS in properties:
            message.has_alias = True
        if not topic and not message.has_alias:
            raise ProtocolError("empty Topic Name")  # [MQTT-4.7.3-1]
        if message.has_alias or message.expires:
            return message  # its bytes cannot be shared by all subscribers
        if first == 0x30:
            # It can be sent unchanged (in 5.0, lengths are always in the shortest form here).
            message.wire0_v5 = frame
        elif packet_id and not first & 9:
            if self.version == V5:
                message.frame_version = V5
                message.packet_id_at = packet_id_at
            elif body == 2 or frame[body - 1]:  # the length is in its shortest form
                message.frame_version = V4
                message.packet_id_at = packet_id_at
        return message

    def _other(self, first: int, data: bytes, at: int, end: int) -> Packet:
        """Read any packet except PUBLISH and plain acknowledgements; its body is between ``at`` and ``end``."""
        kind = first >> 4
        self._refuse_type(first)
        # 3.1 defines DUP, QoS and RETAIN bits for all packets, and does not require a check of them.
        # [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1]
        # [3.1.1 MQTT-2.2.2-1] [3.1.1 MQTT-2.2.2-2]
        if first & 0x0F != _FLAGS[kind] and self.version != V3:
            raise MalformedPacket("reserved bits in the first byte")
        if PUBACK <= kind <= PUBCOMP:
            return self._ack(kind, data, at, end)
        if kind == SUBSCRIBE:
            return read_subscribe(data, at, end, self.version, self._topic_names.strict)
        if kind == UNSUBSCRIBE:
            return read_unsubscribe(data, at, end, self.version, self._topic_names.strict)
        if kind == DISCONNECT:
            return self._disconnect(data, at, end)
        if kind == AUTH:
            return self._auth(data, at, end)
        if kind == CONNACK:
            return read_connack(data, at, end, self.version, self._topic_names.strict)
        if kind == SUBACK:
            return read_suback(data, at, end, self.version, self._topic_names.strict)
        if kind == UNSUBACK:
            return read_unsuback(data, at, end, self.version, self._topic_names.strict)
        if at != end:
            raise MalformedPacket("PINGREQ or PINGRESP with a body")
        return _PINGREQ if kind == PINGREQ else _PINGRESP

    def _ack(self, kind: int, data: bytes, at: int, end: int) -> Packet:
        packet_id, at = read_packet_id(data, at, end)
        if at == end:
            return kind << 16 | packet_id
        if self.version != V5:
            raise MalformedPacket("acknowledgement longer than two bytes")
        reason_code = data[at]
        if reason_code not in ACK_CODES[kind]:
            raise ProtocolError(f"Reason Code 0x{reason_code:02x} does not belong in this packet")
        at += 1
        properties = NO_PROPERTIES if at == end else read_last(data, at, end, kind, self._topic_names.strict)
        if not reason_code and not properties:
            return kind << 16 | packet_id
        return Ack(kind, packet_id, reason_code, properties)

    def _connect(self, data: bytes, at: int, end: int) -> Connect:
        version, is_bridge, at = read_level(data, at, end)
        # Set here, so that the response to an invalid CONNECT uses the client's version.
        self.version = version
        if version == V5 and data[1] > 0x7F:
            self._length(data, 0)  # this version requires the shortest form
        return read_connect(data, at, end, version, is_bridge, self._topic_names.strict)

    def _disconnect(self, data: bytes, at: int, end: int) -> Disconnect:
        if at == end:
            return Disconnect(rc.NORMAL_DISCONNECTION, NO_PROPERTIES)
        if self.version != V5:
            raise MalformedPacket("DISCONNECT with a body")
        reason_code = data[at]
        at += 1
        if reason_code not in (DISCONNECT_FROM_CLIENT if self._server_side else DISCONNECT_FROM_SERVER):
            # [MQTT-3.14.2-1]
            raise ProtocolError(f"Reason Code 0x{reason_code:02x} does not belong in this DISCONNECT")
        properties = NO_PROPERTIES if at == end else read_last(data, at, end, DISCONNECT, self._topic_names.strict)
        return Disconnect(reason_code, properties)

    def _auth(self, data: bytes, at: int, end: int) -> Auth:
        reason_code = 0
        if at < end:
            reason_code = data[at]
            at += 1
        if reason_code not in (AUTH_FROM_CLIENT if self._server_side else AUTH_FROM_SERVER):
            # [MQTT-3.15.2-1]
            raise ProtocolError(f"Reason Code 0x{reason_code:02x} does not belong in this AUTH")
        properties = NO_PROPERTIES if at == end else read_last(data, at, end, AUTH, self._topic_names.strict)
        if reason_code and AUTHENTICATION_METHOD not in properties:
            raise ProtocolError("AUTH without Authentication Method")
        check_authentication(properties)
        return Auth(reason_code, properties)
