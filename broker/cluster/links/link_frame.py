"""LinkFrame: the messages of one frame of a link. LinkEntry: one message, or a run of messages, waiting for its frame.

``LinkWriter`` decides which entries may be sent, and adds them to a frame. The frame puts messages that travel
unchanged into records of many packets: twenty PUBLISH packets on one topic are one ``wire.RunRecord``, and a message
with a Subscription Identifier is a ``wire.MessageRecord`` of its own.
"""

from typing import Final

from ...mqtt.constants import V4, V5
from ...mqtt.message import Delivery, Message, Publisher
from ...mqtt.message_ids import MessageIdSource, id_of
from ...mqtt.run_decoder import RunDecoder

_RETAIN: Final = 4
_NO_IDS: Final[list[str]] = []
_NAMED: Final = 4
"""Minimum number of successive packets on one topic for which the frame names that topic once."""


class LinkEntry:
    """One message that is not sent or not acknowledged yet, or a run of ``count`` such messages. A run has one
    publisher, time, topic and QoS, and successive ids or none.

    ``first`` is the first message; a run keeps its other messages as complete PUBLISH ``packets`` only. ``version`` is
    the MQTT version of the packets, or 0 if the entry is one message that needs more than its packet. ``delivery``
    belongs to such a message if it has a group or Subscription Identifiers. ``sequence`` is the sequence number of the
    first message, or 0 at QoS 0. ``id_number`` is the number in its id, or 0 if there is none. ``batch`` must be on
    disk before the entry is sent. ``size`` is in bytes, approximately.
    """

    __slots__ = ("batch", "count", "delivery", "first", "id_number", "packets", "sequence", "size", "version")

    def __init__(self, message: Message, delivery: Delivery | None, sequence: int, batch: int, size: int) -> None:
        self.first = message
        self.count = 1
        self.id_number = message.id_number
        self.delivery = delivery
        self.sequence = sequence
        self.batch = batch
        self.size = size
        self.packets: list[bytes] = []
        self.version = 0

    def takes(self, message: Message, sequence: int, batch: int) -> bool:
        """Return whether a message belongs to a run with those of this entry."""
        first = self.first
        return (
            first.topic == message.topic
            and first.publisher is message.publisher
            and first.timestamp == message.timestamp
            and first.qos == message.qos
            and (not sequence or sequence == self.sequence + self.count)
            and batch == self.batch
        )

    def continues(self, message: Message) -> bool:
        """Return whether the message's id follows those of this entry, or neither has ids."""
        first = self.first
        if self.id_number:
            return message.id_number == self.id_number + self.count and message.id_prefix == first.id_prefix
        return not message.identified and not first.identified

    def add(self, packet: bytes, size: int) -> None:
        self.count += 1
        self.packets.append(packet)
        self.size += size

    def drop_first(self, count: int) -> None:
        """Remove the first messages, which have been acknowledged. ``size`` still includes them."""
        del self.packets[:count]
        self.count -= count
        self.sequence += count
        if self.id_number:
            self.id_number += count

    def ids(self) -> list[str]:
        first, number = self.first, self.id_number
        if number:
            return [id_of(first.id_prefix, each) for each in range(number, number + self.count)]
        return [first.id] if self.count == 1 else [""] * self.count

    def messages(self) -> list[Message]:
        """Return all messages; decode them again if the entry has only their packets."""
        first = self.first
        if self.count == 1 and not self.version:
            return [first]
        number, packets = self.id_number, b"".join(self.packets)
        ids = _NO_IDS if number else self.ids()
        found = RunDecoder().read(packets, self.version, first.publisher, first.timestamp, ids, first.id_prefix, number)
        assert found is not None
        return found


def version_of(message: Message) -> int:
    """Return the version of the packet in which a message travels unchanged, or 0 if it needs more than its packet."""
    if message.hops:
        return 0
    if message.qos:
        return message.frame_version if message.packet_id_at else 0
    if message.retain or message.expires:
        return 0
    if message.wire0_v3 is not None and not message.has_properties:
        return V4
    return 0 if message.wire0_v5 is None else V5


def packet_of(message: Message, version: int) -> bytes:
    """Return that packet."""
    packet = message.frame if message.qos else message.wire0_v3 if version == V4 else message.wire0_v5
    assert packet is not None
    return packet


class _Run:
    """Successive packets of a frame, as in ``wire.RunRecord``."""

    __slots__ = ("_age", "_entries", "_place", "_qos", "_topic", "_version", "_waited", "packets")

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._entries: list[LinkEntry] = []
        self._place = self._version = self._age = self._qos = self._waited = 0
        self._topic = ""

    def takes(self, entry: LinkEntry, place: int, age: int, waited: int) -> bool:
        """Return whether the next waiting entry should be sent in this run."""
        if place != self._place or entry.version != self._version or age != self._age or waited != self._waited:
            return False
        first = entry.first
        if first.topic == self._topic and first.qos == self._qos:
            return True
        return len(entry.packets) < _NAMED and (not self._topic or len(self.packets) < _NAMED)

    def add(self, entry: LinkEntry, place: int, age: int, waited: int) -> None:
        packets = self.packets
        first = entry.first
        if not packets:
            self._place, self._version, self._age, self._qos = place, entry.version, age, first.qos
            self._waited = waited
            self._topic = first.topic
        elif first.topic != self._topic or first.qos != self._qos:
            self._topic = ""
        packets += entry.packets
        self._entries.append(entry)

    def record(self, before: int) -> tuple[object, ...]:
        """Return the record of the run. ``before`` is the index of the message that follows the run in the frame."""
        packets = self.packets
        whole = packets[0] if len(packets) == 1 else b"".join(packets)
        topic, count = self._topic, len(packets)
        if not topic or count < _NAMED or self._qos == 2:
            topic, count = "", 0
        entries = self._entries
        ids = _NO_IDS
        prefix, number = entries[0].first.id_prefix, entries[0].id_number
        following = number
        for entry in entries:
            first = entry.first
            if entry.id_number != following or first.id_prefix != prefix or (not number and first.identified):
                ids = [each for one in entries for each in one.ids()]
                prefix, number = "", 0
                break
            if number:
                following += entry.count
        record = (before, self._place, self._version, self._age, ids, whole, topic, count, prefix, number)
        return (*record, self._waited) if self._waited else record


class LinkFrame:
    """The messages of one frame. ``LinkWriter`` adds entries, and sends ``publishers``, ``messages`` and ``runs``.
    ``ids`` creates ids for messages that have none, and ``now`` is the time of sending. ``count`` is the number of
    messages, and ``size`` is in bytes, approximately."""

    __slots__ = ("_ids", "_now", "_places", "_run", "count", "messages", "publishers", "runs", "size")

    def __init__(self, ids: MessageIdSource, now: float) -> None:
        self._ids = ids
        self._now = now
        self._places: dict[Publisher, int] = {}
        self._run = _Run()
        self.publishers: list[Publisher] = []
        self.messages: list[tuple[object, ...]] = []
        self.runs: list[tuple[object, ...]] = []
        self.count = 0
        self.size = 0

    def add(self, entry: LinkEntry, since: float) -> None:
        """Add an entry. ``since`` is a time at which the entry already waited in the closed link, or 0 if the link was
        open or the time is not known."""
        self.size += entry.size
        self.count += entry.count
        message = entry.first
        publisher = message.publisher
        place = -1
        if publisher is not None:
            found = self._places.get(publisher)
            if found is None:
                place = self._places[publisher] = len(self.publishers)
                self.publishers.append(publisher)
            else:
                place = found
        age = int((self._now - message.timestamp) * 1000)
        if age < 0:
            age = 0
        waited = max(int((self._now - since) * 1000), 0) if since else 0
        run = self._run
        if not entry.version:
            if run.packets:
                self._end_run()
            self.messages.append(self._record(message, entry.delivery, place, age, waited))
            return
        if run.packets and not run.takes(entry, place, age, waited):
            self._end_run()
        self._run.add(entry, place, age, waited)

    def end(self) -> None:
        """Complete the frame after its last entry."""
        if self._run.packets:
            self._end_run()

    def _end_run(self) -> None:
        self.runs.append(self._run.record(len(self.messages)))
        self._run = _Run()

    def _record(
        self, message: Message, delivery: Delivery | None, place: int, age: int, waited: int
    ) -> tuple[object, ...]:
        """Return the fields of a ``wire.MessageRecord``."""
        if message.qos and not message.identified:
            self._ids.give(message)
        flags = message.qos | (_RETAIN if message.retain else 0)
        payload = message.frame[message.payload_at :] if message.payload_at else message.frame
        head = (message.topic, payload, flags, place, age, message.id)
        properties = message.properties
        if waited:
            group, identifiers = ("", ()) if delivery is None else (delivery.group, delivery.identifiers)
            return (*head, properties or None, message.hops, group, identifiers, waited)
        if delivery is not None and (delivery.group or delivery.identifiers):
            return (*head, properties or None, message.hops, delivery.group, delivery.identifiers)
        if message.hops:
            return (*head, properties or None, message.hops)
        return (*head, properties) if properties else head
