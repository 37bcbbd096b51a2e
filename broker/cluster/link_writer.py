"""LinkWriter: what a link's session sends, as frames for another node.

Messages are collected and sent at the end of the loop iteration, as many in a frame as fit. They wait here while more
is on its way than the link's credit, and one of QoS 2, with all behind it, until it is on disk under its number: after
a crash it must not travel under another one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from ..core.broker import Broker
from ..mqtt.constants import MAX_PACKET_ID, V4, V5
from ..mqtt.message import Delivery, Message, Publisher
from ..mqtt.message_ids import MessageIds
from ..persistence.group_commit import GroupCommit
from ..session.protocols import LINK_FULL, QOS0_MSG
from ..session.session import Session

FRAME_BYTES: Final = 65_536
"""Of a frame with more than one message."""
WINDOW: Final = 16_384
"""Messages of QoS 1 and 2 that are not acknowledged. Far less than there are Packet Identifiers, so that one tells its
sequence number."""
_MESSAGE_BYTES: Final = 80
_RETAIN: Final = 4


class LinkWriter:
    """Implements ``session.protocols.ClientWriter``, and ``CommitWaiter`` of the group commit.

    ``acked``: all up to this sequence number is acknowledged, ``last``: of the last one that was given out. ``frame``:
    number of the last frame.
    """

    def __init__(
        self,
        session: Session,
        broker: Broker,
        commit: GroupCommit | None,
        credit: int,
        ids: MessageIds,
        send: Callable[[int, int, int, list[Publisher], list[tuple[object, ...]], list[tuple[object, ...]]], int],
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        """``send``: number, after, first, publishers, messages and runs of a frame; returns its bytes. ``later``: the
        loop's ``call_soon``. ``ids``: of messages that have none."""
        self.writable = True
        self.acked = 0
        self.last = 0
        self.frame = 0
        self.unacked_bytes = 0
        self._session = session
        self._broker = broker
        self._commit = commit
        self._credit = credit
        self._ids = ids
        self._send = send
        self._later = later
        self._scheduled = False
        # What is not sent yet: message, delivery (None: QoS 0 and nothing special), sequence number (0: QoS 0), the
        # batch that must be on disk before.
        self._waiting: deque[tuple[Message, Delivery | None, int, int]] = deque()
        self._waiting_bytes = 0
        self._sent: deque[tuple[int, int]] = deque()
        # The last sequence number that was sent.
        self._sent_upto = 0

    # ------------------------------------------------------------- ClientWriter

    def flush_now(self) -> None:
        self.flush()

    def send_publish0(self, message: Message) -> None:
        self._add0(message, None)

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

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        return self.send_publish(delivery, packet_id, dup)

    def send_pubrel(self, packet_id: int) -> None:
        raise AssertionError("a link acknowledges in one step")

    # ------------------------------------------------------------------ waiting

    def _add0(self, message: Message, delivery: Delivery | None) -> None:
        if not self.writable:
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
        self._waiting.append((message, delivery, sequence, batch))
        self._waiting_bytes += len(message.topic) + len(message.frame) + _MESSAGE_BYTES
        if self.unacked_bytes + self._waiting_bytes >= self._credit:
            self.writable = False
        if not self._scheduled:
            self._scheduled = True
            self._later(self._run)

    def sequence_of(self, packet_id: int) -> int:
        """Of one in flight: the first after ``acked`` that has this Packet Identifier."""
        return self.acked + 1 + (packet_id - 1 - self.acked) % MAX_PACKET_ID

    def begin(self, acked: int, last: int) -> None:
        """All up to ``acked`` is acknowledged, and what comes anew follows ``last``."""
        self.acked = acked
        self.last = last
        self._sent_upto = acked
        for message, delivery, sequence, _ in self._waiting:
            if not sequence:
                self._broker.delivery_dropped(self._session, delivery or Delivery(message, 0), QOS0_MSG)
        self._waiting.clear()
        self._sent.clear()
        self._waiting_bytes = 0
        self.unacked_bytes = 0
        self.writable = True

    # -------------------------------------------------------------------- frames

    def _run(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self, durable: int = 0) -> None:
        """Send what may go now. Batches up to ``durable`` are on disk."""
        waiting = self._waiting
        if self._commit is not None:
            durable = max(durable, self._commit.log.durable_batch)
        while waiting and (self.unacked_bytes < self._credit or not self._sent):
            if not self._send_frame(durable):
                break
        self._judge()

    def _send_frame(self, durable: int) -> bool:
        """One more frame; False: what is next waits for the disk."""
        waiting = self._waiting
        publishers: list[Publisher] = []
        places: dict[Publisher, int] = {}
        messages: list[tuple[object, ...]] = []
        # Runs of packets, and the one that is being collected.
        runs: list[tuple[object, ...]] = []
        packets: list[bytes] = []
        ids: list[str] = []
        run_place = run_version = run_age = 0
        count = 0
        now = self._broker.clock.now()
        size = 0
        first = 0
        upto = self._sent_upto
        while waiting:
            message, delivery, sequence, batch = waiting[0]
            if batch > durable:
                assert self._commit is not None
                self._commit.add_waiter(self)
                break
            length = len(message.topic) + len(message.frame) + _MESSAGE_BYTES
            if 0 < sequence <= self.acked:
                waiting.popleft()
                self._waiting_bytes -= length
                continue
            if count and size + length > FRAME_BYTES:
                break
            if sequence:
                if first and sequence != upto + 1:
                    break
                first = first or sequence
                upto = sequence
            waiting.popleft()
            self._waiting_bytes -= length
            size += length
            publisher = message.publisher
            place = -1
            if publisher is not None:
                found = places.get(publisher)
                if found is None:
                    place = places[publisher] = len(publishers)
                    publishers.append(publisher)
                else:
                    place = found
            count += 1
            age = int((now - message.timestamp) * 1000)
            if age < 0:
                age = 0
            packet, version = self._packet_of(message, delivery)
            if not version:
                if packets:
                    runs.append((len(messages), run_place, run_version, run_age, ids, b"".join(packets)))
                    packets, ids = [], []
                messages.append(self._record(message, delivery, place, age))
                continue
            if packets and (place != run_place or version != run_version or age != run_age):
                runs.append((len(messages), run_place, run_version, run_age, ids, b"".join(packets)))
                packets, ids = [], []
            if not packets:
                run_place, run_version, run_age = place, version, age
            packets.append(packet)
            if message.id or ids:
                while len(ids) < len(packets) - 1:
                    ids.append("")
                ids.append(message.id)
        if packets:
            runs.append((len(messages), run_place, run_version, run_age, ids, b"".join(packets)))
        if not count:
            return False
        after = self._sent_upto
        self._sent_upto = upto
        self.frame += 1
        sent = self._send(self.frame, after, first or upto + 1, publishers, messages, runs)
        self._sent.append((self.frame, sent))
        self.unacked_bytes += sent
        return True

    def _packet_of(self, message: Message, delivery: Delivery | None) -> tuple[bytes, int]:
        """The PUBLISH packet that says all there is to say of it, and of which version; 0: there is none."""
        if (
            message.has_properties
            or message.hops
            or (delivery is not None and (delivery.group or delivery.identifiers))
        ):
            return b"", 0
        if message.qos:
            return (message.frame, message.frame_version) if message.packet_id_at else (b"", 0)
        if message.retain:
            return b"", 0
        packet = message.wire0_v3
        if packet is not None:
            return packet, V4
        packet = message.wire0_v5
        return (b"", 0) if packet is None else (packet, V5)

    def _record(self, message: Message, delivery: Delivery | None, place: int, age: int) -> tuple[object, ...]:
        """As ``wire.MessageRecord``."""
        if message.qos and not message.id:
            message.id = self._ids.next()
        flags = message.qos | (_RETAIN if message.retain else 0)
        payload = message.frame[message.payload_at :] if message.payload_at else message.frame
        head = (message.topic, payload, flags, place, age, message.id)
        properties = message.properties
        if delivery is not None and (delivery.group or delivery.identifiers):
            return (*head, properties or None, message.hops, delivery.group, delivery.identifiers)
        if message.hops:
            return (*head, properties or None, message.hops)
        return (*head, properties) if properties else head

    def probe(self) -> None:
        """An empty frame, to be acknowledged."""
        self.frame += 1
        sent = self._send(self.frame, self._sent_upto, self._sent_upto + 1, [], [], [])
        self._sent.append((self.frame, sent))
        self.unacked_bytes += sent

    def _judge(self) -> None:
        self.writable = self.unacked_bytes + self._waiting_bytes < self._credit

    # ---------------------------------------------------------- acknowledgements

    @property
    def credited(self) -> bool:
        """Whether every frame has come."""
        return not self._sent

    @property
    def oldest(self) -> int:
        """The first frame that has not come."""
        return self._sent[0][0] if self._sent else 0

    def frames_came(self, number: int) -> bool:
        """All up to this frame have come or are lost; whether it is news."""
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
        """All up to this number is on the other node's disk; the Packet Identifiers of what is news of it."""
        if not self.acked < sequence <= self.last:
            return []
        done = [(each - 1) % MAX_PACKET_ID + 1 for each in range(self.acked + 1, sequence + 1)]
        self.acked = sequence
        self._sent_upto = max(self._sent_upto, sequence)
        return done

    # -------------------------------------------------------------- CommitWaiter

    def release(self, upto: int) -> bool:
        self.flush(upto)
        return False

    def abort(self) -> None:
        """There is no connection to close."""
