"""LinkWriter: decides when the messages of a link's session are sent to another node (``link_frame``: in which form).

Messages are collected and sent at the end of the loop iteration, as many in a frame as fit. Shortly after a frame with
many messages, they are collected for up to a millisecond. Messages wait here while more bytes are in transit than the
link's credit allows. A message of QoS 2, and all messages after it, wait until it is on disk under its number: after a
crash it must not be sent under another one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ...core.broker import Broker
from ...mqtt.constants import MAX_PACKET_ID
from ...mqtt.message import Delivery, Message, Publisher
from ...mqtt.message_ids import MessageIdSource
from ...mqtt.run import Run
from ...persistence.group_commit import GroupCommit
from ...session.protocols import LINK_FULL, QOS0_MSG
from ...session.session import Session
from .link_frame import LinkEntry, LinkFrame, packet_of, version_of

FRAME_BYTES: Final = 65_536
"""Maximum size of a frame with more than one message."""
WINDOW: Final = 16_384
"""Maximum number of unacknowledged QoS 1 and 2 messages. It is far below the number of Packet Identifiers, so that the
sequence number follows from the identifier."""
MOST_HELD: Final = 49_152
"""The same limit if none of the messages is on disk under its identifier: well below the number of identifiers."""
COLLECT_FOR: Final = 0.001
"""Seconds for which messages wait for others to share a frame, shortly after a frame with many messages."""
_SHORTLY: Final = 0.002
MANY: Final = 32
"""Number of messages in a frame after which the following messages are collected."""
_MESSAGE_BYTES: Final = 80


class LinkWriter:
    """Sends the messages of a link's session. ``Link`` creates it, and the session calls it as ``ClientWriter`` and
    ``MessageKeeper`` (``session.protocols``); the group commit calls it as ``CommitWaiter``.

    All messages up to sequence number ``acked`` are acknowledged, and ``last`` is the last number that was assigned.
    ``frame`` is the number of the last frame, and ``sent`` the number of messages in all frames. Messages up to
    ``late_upto`` were in the link while it was closed. For the sequence number of such a message, ``since`` returns a
    time at which it was already in the link, or 0 if none is known.
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
        """``send`` sends a frame and returns its size. Its arguments are the frame's number, the sequence number before
        its first message and that of its first message, its publishers, messages and runs. ``ids`` creates ids for
        messages that have none."""
        self.writable = True
        self.acked = 0
        self.last = 0
        self.frame = 0
        self.sent = 0
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
        self._waiting: deque[LinkEntry] = deque()
        # The last waiting entry, to which another message may be added.
        self._last: LinkEntry | None = None
        # Unacknowledged messages of ``keep``, which no durable session waits for; and their number and bytes.
        self._held: deque[LinkEntry] = deque()
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
        entry: LinkEntry | None = None
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
        message would be mistaken for a later one with the same Packet Identifier."""
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
        entry: LinkEntry | None = None
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
        """Add a message: to the last entry if it fits there, otherwise to a new one."""
        last = self._last
        special = delivery is not None and (delivery.group or delivery.identifiers)
        if special or last is None or not last.takes(message, sequence, batch):
            self._last = self._begin(message, delivery, 0 if special else version_of(message), sequence, batch)
        else:
            self._last = self._follow(last, message, sequence)
        self._schedule()

    def _follow(self, entry: LinkEntry | None, message: Message, sequence: int) -> LinkEntry:
        """Add the next message of a run: to ``entry``, if the message has the same form, or to a new entry. Return the
        entry."""
        version = version_of(message)
        size = len(message.frame)
        if (
            not version
            or entry is None
            or entry.version != version
            or entry.size + size > FRAME_BYTES
            or not entry.continues(message)
        ):
            return self._begin(message, None, version, sequence, 0 if entry is None else entry.batch)
        entry.add(packet_of(message, version), size)
        self._waiting_bytes += size
        return entry

    def _begin(self, message: Message, delivery: Delivery | None, version: int, sequence: int, batch: int) -> LinkEntry:
        """Add a new entry with this message. ``version`` is that of ``LinkEntry``."""
        size = len(message.frame) + len(message.topic) + _MESSAGE_BYTES
        entry = LinkEntry(message, None if version else delivery, sequence, batch, size)
        if version:
            entry.version = version
            entry.packets.append(packet_of(message, version))
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
        """Start again: all messages up to ``acked`` are acknowledged, and new messages follow ``last``. Unacknowledged
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
        """Move all messages held here to the session, where they are in flight in the same order."""
        if not self._held:
            return
        inflight = self._session.change_inflight()
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
        """Send all messages that can be sent now that batches up to ``durable`` are on disk."""
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
        frame = LinkFrame(self._ids, self._broker.clock.now())
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
            if frame.count and frame.size + entry.size > FRAME_BYTES:
                break
            since = 0.0
            if entry.sequence:
                if first and entry.sequence != upto + 1:
                    break
                first = first or entry.sequence
                upto = entry.sequence + entry.count - 1
                if upto <= self.late_upto:
                    since = self.since(upto)
            self._take_first()
            frame.add(entry, since)
        if not frame.count:
            return False
        frame.end()
        if frame.count >= MANY:
            self._collects_until = self._loop.time() + _SHORTLY
        after = self._sent_upto
        self._sent_upto = upto
        self.frame += 1
        self.sent += frame.count
        sent = self._send(self.frame, after, first or upto + 1, frame.publishers, frame.messages, frame.runs)
        self._sent.append((self.frame, sent))
        self.unacked_bytes += sent
        return True

    def _take_first(self) -> None:
        entry = self._waiting.popleft()
        self._waiting_bytes -= entry.size
        if not self._waiting:
            self._last = None

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

    @property
    def bytes_to_arrive(self) -> int:
        """The number of bytes that are waiting here, or that may not have arrived."""
        return self.unacked_bytes + self._waiting_bytes

    @property
    def waiting_since(self) -> float:
        """The time of the first message that is waiting or held here, or 0 if there is none."""
        first = [each[0].first.timestamp for each in (self._held, self._waiting) if each]
        return min(first, default=0.0)

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
