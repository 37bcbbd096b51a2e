"""LinkWriter: puts the messages of a link's session into frames for another node.

Messages are collected and sent at the end of the loop iteration, as many in a frame as fit. Shortly after a frame with
many messages, they are collected for up to a millisecond. Messages wait here while more bytes are under way than the
link's credit. A message of QoS 2, and all messages after it, wait until it is on disk under its number: after a crash
it must not travel under another one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ...core.broker import Broker
from ...mqtt.constants import MAX_PACKET_ID, V4, V5
from ...mqtt.message import Delivery, Message, Publisher
from ...mqtt.message_ids import MessageIdSource, id_of
from ...mqtt.run import Run
from ...mqtt.run_decoder import RunDecoder
from ...persistence.group_commit import GroupCommit
from ...session.protocols import LINK_FULL, QOS0_MSG
from ...session.session import Session

FRAME_BYTES: Final = 65_536
"""The limit of a frame with more than one message."""
WINDOW: Final = 16_384
"""The limit of unacknowledged messages of QoS 1 and 2. It is far less than there are Packet Identifiers, so that the
sequence number follows from the identifier."""
MOST_HELD: Final = 49_152
"""The same limit if none of the messages is on disk under its identifier: below the number of identifiers, with room to
spare."""
COLLECT_FOR: Final = 0.001
"""Seconds for which messages wait for others to share a frame, shortly after a frame with many messages."""
_SHORTLY: Final = 0.002
MANY: Final = 32
"""Number of messages in a frame after which the next ones are collected."""
_MESSAGE_BYTES: Final = 80
_RETAIN: Final = 4
_NO_IDS: Final[list[str]] = []
_NAMED: Final = 4
"""Number of successive packets on one topic from which on the frame names that topic."""


class _Waiting:
    """``count`` messages that are not sent yet, or not acknowledged: one, or several of one publisher, time, topic and
    QoS with successive ids or without ids.

    Of several messages, only the ``first`` is here, and the PUBLISH ``packets`` of all, which are complete.
    ``version``: of the packets; 0: one message that needs more than its packet. ``delivery``: of that message; None: it
    has no special properties. ``sequence``: of the first message; 0: QoS 0. ``id_number``: of the first message; 0: it
    has no id, or one without a number. ``batch``: must be on disk before. ``size``: in bytes, approximately.
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
        """Return whether a message is one of a run with those of this entry."""
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
        """Remove the first messages, which are acknowledged. ``size`` remains that of all messages."""
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
        """Return all messages, decoded again if only their packets are here."""
        first = self.first
        if self.count == 1 and not self.version:
            return [first]
        number, packets = self.id_number, b"".join(self.packets)
        ids = _NO_IDS if number else self.ids()
        found = RunDecoder().read(packets, self.version, first.publisher, first.timestamp, ids, first.id_prefix, number)
        assert found is not None
        return found


def _version_of(message: Message) -> int:
    """Return the version of the packet in which a message travels unchanged; 0: it needs more than its packet."""
    if message.hops:
        return 0
    if message.qos:
        return message.frame_version if message.packet_id_at else 0
    if message.retain or message.expires:
        return 0
    if message.wire0_v3 is not None and not message.has_properties:
        return V4
    return 0 if message.wire0_v5 is None else V5


def _packet_of(message: Message, version: int) -> bytes:
    """Return that packet."""
    packet = message.frame if message.qos else message.wire0_v3 if version == V4 else message.wire0_v5
    assert packet is not None
    return packet


class _Packets:
    """Successive packets of a frame, as in ``wire.RunRecord``."""

    __slots__ = ("_age", "_entries", "_place", "_qos", "_topic", "_version", "_waited", "packets")

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._entries: list[_Waiting] = []
        self._place = self._version = self._age = self._qos = self._waited = 0
        self._topic = ""

    def takes(self, entry: _Waiting, place: int, age: int, waited: int) -> bool:
        """Return whether the next waiting entry is best sent in this run."""
        if place != self._place or entry.version != self._version or age != self._age or waited != self._waited:
            return False
        first = entry.first
        if first.topic == self._topic and first.qos == self._qos:
            return True
        return len(entry.packets) < _NAMED and (not self._topic or len(self.packets) < _NAMED)

    def add(self, entry: _Waiting, place: int, age: int, waited: int) -> None:
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
        """Return the record of the run. ``before``: the place of the message that follows it."""
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


class LinkWriter:
    """Implements ``ClientWriter`` and ``MessageKeeper`` of ``session.protocols``, ``CommitWaiter`` of the group commit.

    ``acked``: all messages up to this sequence number are acknowledged. ``last``: the last assigned sequence number.
    ``frame``: the number of the last frame. ``late_upto``: messages up to this sequence number were in the link while
    it was closed. For each of these, ``since`` returns a time at which it was in the link already; 0: not known.
    """

    def __init__(
        self,
        session: Session,
        broker: Broker,
        commit: GroupCommit | None,
        credit: int,
        ids: MessageIdSource,
        send: Callable[[int, int, int, list[Publisher], list[tuple[object, ...]], list[tuple[object, ...]]], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``send``: is called with number, after, first, publishers, messages and runs of a frame, and returns its
        size. ``ids``: creates ids for messages that have none."""
        self.writable = True
        self.acked = 0
        self.last = 0
        self.frame = 0
        self.late_upto = 0
        self.since: Callable[[int], float] = lambda sequence: 0.0
        self.unacked_bytes = 0
        self._session = session
        self._broker = broker
        self._commit = commit
        self._credit = credit
        self._ids = ids
        self._send = send
        self._loop = loop
        self._scheduled = False
        # Until when messages are collected after a frame with many, and the timer that ends the collecting.
        self._collects_until = 0.0
        self._collecting: asyncio.TimerHandle | None = None
        self._waiting: deque[_Waiting] = deque()
        # The last waiting entry, to which another message may be added.
        self._last: _Waiting | None = None
        # Unacknowledged messages of ``keep``, which no durable session waits for; and their number and bytes.
        self._held: deque[_Waiting] = deque()
        self.held = 0
        self._held_bytes = 0
        # Which batch records that messages in flight in the session are settled; -1: not known.
        self._settled_by = 0
        self._waiting_bytes = 0
        self._sent: deque[tuple[int, int]] = deque()
        # The last sequence number that was sent.
        self._sent_upto = 0

    # ------------------------------------------------------------- ClientWriter

    def flush_now(self) -> None:
        self.flush()

    def send_publish0(self, message: Message) -> None:
        self._add0(message, None)

    def send_run0(self, run: Run) -> None:
        credit = self._credit - self.unacked_bytes
        entry: _Waiting | None = None
        for message in run.messages:
            if entry is None or self._waiting_bytes >= credit:
                self._add0(message, None)
                entry = self._last
            else:
                entry = self._last = self._follow(entry, message, 0)
        self._schedule()

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        if packet_id:
            self._add(delivery, packet_id)
        else:
            self._add0(delivery.message, delivery)
        return True

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        for index, delivery in enumerate(deliveries):
            self._add(delivery, packet_ids[index])
        return []

    # ------------------------------------------------------------ MessageKeeper

    def may_keep(self, count: int) -> bool:
        if self.unacked_bytes + self._waiting_bytes >= self._credit:
            return False
        span = self.last - self.acked + count
        if span <= WINDOW:
            return True
        return span <= MOST_HELD and self._held_bytes < self._credit and not self._session.inflight and self._settled()

    def _settled(self) -> bool:
        """Return whether the disk records that no message is in flight in the session. Otherwise, after a crash, such a
        message would be mistaken for the one that has its Packet Identifier by then."""
        commit = self._commit
        if self._settled_by and commit is not None:
            if self._settled_by < 0:
                self._settled_by = commit.barrier
            if self._settled_by > commit.log.durable_batch:
                return False
        self._settled_by = 0
        return True

    def keep(self, messages: list[Message], packet_id: int) -> int:
        sequence = self.sequence_of(packet_id % MAX_PACKET_ID + 1)
        before = self._waiting_bytes
        entry: _Waiting | None = None
        for message in messages:
            following = self._follow(entry, message, sequence)
            if following is not entry:
                entry = following
                self._held.append(entry)
            sequence += 1
        self._last = None  # a message in flight in the session must not be added to these
        self.held += len(messages)
        self._held_bytes += self._waiting_bytes - before
        self.last = sequence - 1
        self._schedule()
        return self.last % MAX_PACKET_ID or MAX_PACKET_ID

    # ------------------------------------------------------------------ waiting

    def _add0(self, message: Message, delivery: Delivery | None) -> None:
        if self.unacked_bytes + self._waiting_bytes >= self._credit:
            self._broker.delivery_dropped(self._session, delivery or Delivery(message, 0), LINK_FULL)
            return
        self._append(message, delivery, 0, 0)

    def _add(self, delivery: Delivery, packet_id: int) -> None:
        message = delivery.message
        batch = 0
        if message.qos == 2 and self._commit is not None:
            batch = self._commit.barrier
        sequence = self.sequence_of(packet_id)
        if sequence > self.last:
            self.last = sequence
        self._append(message, delivery, sequence, batch)

    def _append(self, message: Message, delivery: Delivery | None, sequence: int, batch: int) -> None:
        """Add any message, to the last entry if it fits there."""
        last = self._last
        special = delivery is not None and (delivery.group or delivery.identifiers)
        if special or last is None or not last.takes(message, sequence, batch):
            self._last = self._begin(message, delivery, 0 if special else _version_of(message), sequence, batch)
        else:
            self._last = self._follow(last, message, sequence)
        self._schedule()

    def _follow(self, entry: _Waiting | None, message: Message, sequence: int) -> _Waiting:
        """Add the next message of a run, to the entry of those before it if it has the same form. Return its entry."""
        version = _version_of(message)
        size = len(message.frame)
        if (
            not version
            or entry is None
            or entry.version != version
            or entry.size + size > FRAME_BYTES
            or not entry.continues(message)
        ):
            return self._begin(message, None, version, sequence, 0 if entry is None else entry.batch)
        entry.add(_packet_of(message, version), size)
        self._waiting_bytes += size
        return entry

    def _begin(self, message: Message, delivery: Delivery | None, version: int, sequence: int, batch: int) -> _Waiting:
        """Add a new entry with this message. ``version``: as in ``_Waiting``."""
        size = len(message.frame) + len(message.topic) + _MESSAGE_BYTES
        entry = _Waiting(message, None if version else delivery, sequence, batch, size)
        if version:
            entry.version = version
            entry.packets.append(_packet_of(message, version))
        self._waiting.append(entry)
        self._waiting_bytes += size
        return entry

    def _schedule(self) -> None:
        self._judge()
        if not self._scheduled:
            self._scheduled = True
            if self._waiting_bytes < FRAME_BYTES and self._collects_until > self._loop.time():
                self._collecting = self._loop.call_later(COLLECT_FOR, self._run)
            else:
                self._loop.call_soon(self._run)
        elif self._collecting is not None and self._waiting_bytes >= FRAME_BYTES:
            self._collecting.cancel()
            self._collecting = None
            self._loop.call_soon(self._run)

    def sequence_of(self, packet_id: int) -> int:
        """Return the sequence number of a message in flight: the first after ``acked`` with this Packet Identifier."""
        return self.acked + 1 + (packet_id - 1 - self.acked) % MAX_PACKET_ID

    def begin(self, acked: int, last: int) -> None:
        """Begin again: all messages up to ``acked`` are acknowledged, and new messages follow ``last``. Unacknowledged
        messages are in flight in the session, which sends them again."""
        self._give_back()
        self.acked = acked
        self.last = last
        self._sent_upto = acked
        for waiting in self._waiting:
            if not waiting.sequence:
                for _ in range(waiting.count):
                    delivery = waiting.delivery or Delivery(waiting.first, 0)
                    self._broker.delivery_dropped(self._session, delivery, QOS0_MSG)
        self._waiting.clear()
        self._last = None
        self._sent.clear()
        self._settled_by = -1
        self._waiting_bytes = 0
        self.unacked_bytes = 0
        self.writable = True

    def _give_back(self) -> None:
        """Move all messages held here to the session, where they are in flight in their order."""
        if not self._held:
            return
        inflight = self._session.inflight
        found = {self.sequence_of(packet_id): delivery for packet_id, delivery in inflight.items()}
        for entry in self._held:
            for place, message in enumerate(entry.messages()):
                found[entry.sequence + place] = message.plain(1)
                message.release_plain()
        inflight.clear()
        for sequence in sorted(found):
            inflight[(sequence - 1) % MAX_PACKET_ID + 1] = found[sequence]
        self._held.clear()
        self.held = self._held_bytes = 0

    # -------------------------------------------------------------------- frames

    def _run(self) -> None:
        self._scheduled = False
        self._collecting = None
        self.flush()

    def flush(self, durable: int = 0) -> None:
        """Send all messages that may be sent now. Batches up to ``durable`` are on disk."""
        waiting = self._waiting
        if self._commit is not None:
            durable = max(durable, self._commit.log.durable_batch)
        while waiting and (self.unacked_bytes < self._credit or not self._sent):
            if not self._send_frame(durable):
                break
        self._judge()

    def _send_frame(self, durable: int) -> bool:
        """Send one frame; return False if the next message waits for the disk."""
        waiting = self._waiting
        publishers: list[Publisher] = []
        places: dict[Publisher, int] = {}
        messages: list[tuple[object, ...]] = []
        runs: list[tuple[object, ...]] = []
        run = _Packets()
        count = 0
        now = self._broker.clock.now()
        size = 0
        first = 0
        upto = self._sent_upto
        while waiting:
            entry = waiting[0]
            if entry.batch > durable:
                assert self._commit is not None
                self._commit.add_waiter(self)
                break
            if 0 < entry.sequence <= self.acked:
                acked = self.acked + 1 - entry.sequence
                if acked >= entry.count:
                    self._take_first()
                    continue
                entry.drop_first(acked)
            if count and size + entry.size > FRAME_BYTES:
                break
            if entry.sequence:
                if first and entry.sequence != upto + 1:
                    break
                first = first or entry.sequence
                upto = entry.sequence + entry.count - 1
            self._take_first()
            size += entry.size
            message = entry.first
            publisher = message.publisher
            place = -1
            if publisher is not None:
                found = places.get(publisher)
                if found is None:
                    place = places[publisher] = len(publishers)
                    publishers.append(publisher)
                else:
                    place = found
            count += entry.count
            age = int((now - message.timestamp) * 1000)
            if age < 0:
                age = 0
            waited = 0
            if self.late_upto and entry.sequence and entry.sequence + entry.count - 1 <= self.late_upto:
                since = self.since(entry.sequence + entry.count - 1)
                if since:
                    waited = max(int((now - since) * 1000), 0)
            if not entry.version:
                if run.packets:
                    runs.append(run.record(len(messages)))
                    run = _Packets()
                messages.append(self._record(message, entry.delivery, place, age, waited))
                continue
            if run.packets and not run.takes(entry, place, age, waited):
                runs.append(run.record(len(messages)))
                run = _Packets()
            run.add(entry, place, age, waited)
        if run.packets:
            runs.append(run.record(len(messages)))
        if not count:
            return False
        if count >= MANY:
            self._collects_until = self._loop.time() + _SHORTLY
        after = self._sent_upto
        self._sent_upto = upto
        self.frame += 1
        sent = self._send(self.frame, after, first or upto + 1, publishers, messages, runs)
        self._sent.append((self.frame, sent))
        self.unacked_bytes += sent
        return True

    def _take_first(self) -> None:
        entry = self._waiting.popleft()
        self._waiting_bytes -= entry.size
        if not self._waiting:
            self._last = None

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

    def probe(self) -> None:
        """Send an empty frame, so that the other node acknowledges it."""
        self.frame += 1
        sent = self._send(self.frame, self._sent_upto, self._sent_upto + 1, [], [], [])
        self._sent.append((self.frame, sent))
        self.unacked_bytes += sent

    def _judge(self) -> None:
        self.writable = self.unacked_bytes + self._waiting_bytes < self._credit and (
            not self.held or self.last - self.acked < WINDOW
        )

    # ---------------------------------------------------------- acknowledgements

    @property
    def credited(self) -> bool:
        """Whether every frame has arrived."""
        return not self._sent

    @property
    def oldest(self) -> int:
        """The first frame that has not arrived."""
        return self._sent[0][0] if self._sent else 0

    def frames_came(self, number: int) -> bool:
        """Note that all frames up to this one have arrived or are lost; return whether that is new."""
        sent = self._sent
        before = len(sent)
        while sent and sent[0][0] <= number:
            self.unacked_bytes -= sent.popleft()[1]
        if len(sent) == before:
            return False
        if self._waiting:
            self.flush()
        else:
            self._judge()
        return True

    def acknowledged(self, sequence: int) -> list[int]:
        """Note that all messages up to this number are on the other node's disk. Return the Packet Identifiers of those
        that may be in flight in the session."""
        if not self.acked < sequence <= self.last:
            return []
        done: list[int] = []
        if self._session.inflight:
            self._settled_by = -1
            done = [(each - 1) % MAX_PACKET_ID + 1 for each in range(self.acked + 1, sequence + 1)]
        held = self._held
        while held and held[0].sequence <= sequence:
            entry = held[0]
            count = min(sequence + 1 - entry.sequence, entry.count)
            self.held -= count
            if count < entry.count:
                entry.drop_first(count)
            else:
                held.popleft()
                self._held_bytes -= entry.size
        self.acked = sequence
        self._sent_upto = max(self._sent_upto, sequence)
        self._judge()
        return done

    # -------------------------------------------------------------- CommitWaiter

    def release(self, upto: int) -> bool:
        self.flush(upto)
        return False

    def abort(self) -> None:
        """Do nothing: there is no connection to close."""
