"""LinkReceiver: delivers frames of other nodes to this node's sessions, each message once and in order.

The effects of a message, and the number up to which all messages have been accepted, are written in one batch. An
acknowledgement of that number and of the frame is sent when many bytes have arrived since the last one, or after
``ACK_WITHIN``: an acknowledgement for each frame would cost as much as the frame.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import msgspec

from ...config import ZoneSettings
from ...core.cluster import CallFailed
from ...core.runs import route_local_run, route_packets
from ...loop.budget import DELIVERIES_PER_ITERATION
from ...mqtt.constants import MAX_REMAINING_LENGTH, NEVER_EXPIRES, V4, V5
from ...mqtt.decoder import Packet
from ...mqtt.message import Message
from ...mqtt.packets import NO_PROPERTIES
from ...mqtt.properties import of_publish
from ...mqtt.run import Run, next_run
from ...mqtt.run_decoder import RunDecoder, count_numbered, read_run
from ...mqtt.topics import valid_name
from ...session.client_info import ClientInfo
from ...session.session import Session
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..wire import (
    MALFORMED,
    OLD_INCARNATION,
    UNREADABLE,
    Frame,
    Hello,
    HelloAnswer,
    LinkAck,
    MessageRecord,
    PublisherRecord,
    RunRecord,
)
from .link import HELLO, LinkRow
from .link_writer import WINDOW

logger = logging.getLogger(__name__)

TABLE: Final = "cluster_links"
ASK_AGAIN: Final = 0.1
"""Seconds until this node asks again for missing messages."""
ACK_WITHIN: Final = 0.01
"""Seconds until frames are acknowledged, however few have arrived."""
ACK_BYTES: Final = 65_536
MOST_ACK_BYTES: Final = 262_144
"""Bytes of frames that are acknowledged immediately: an eighth of the default credit, which is the least that a link
has."""
_ACK_NUMBERS: Final = WINDOW // 4
_MAX_PUBLISHERS: Final = 8192
_CONGESTED: Final = 0.005
ROW_EVERY: Final = 8192
"""Numbers after which the row is written in any case. This and the window of a link together are far below the number
of Packet Identifiers, so that sequence numbers follow from Packet Identifiers even if both nodes have died."""
_MAX_AGE: Final = NEVER_EXPIRES * 1000
"""Maximum age in milliseconds of a message whose Message Expiry Interval may still matter."""
_MOST_PARTS: Final = 65_536
_MOST_BYTES: Final = MAX_REMAINING_LENGTH + 1_048_576
"""Maximum size of a frame that arrives in parts: the largest packet, and its publisher."""
_NO_FRAME: Final = -1
_FIRST_0: Final = 0x30  # first byte of a PUBLISH: QoS 0, DUP 0, RETAIN 0
_QOS: Final = 0x06
NOT_TAKEN: Final = "link_not_taken"


class LinkState:
    """The link of one other node to this one."""

    __slots__ = (
        "asked_at", "frame", "gap", "incarnation", "node", "part_bytes", "part_number", "parts", "refused",
        "row", "stored", "storing", "subject", "taken", "told", "uid", "untold", "waiting",
    )  # fmt: skip

    def __init__(self, node: str, uid: str, taken: int, subject: str) -> None:
        self.node = node
        # The subject of acknowledgements to that node.
        self.subject = subject
        self.uid = uid
        self.incarnation = 0
        # The newest frame that has arrived.
        self.frame = 0
        self.taken = self.stored = taken
        # The last number that was acknowledged, and the bytes that have arrived since.
        self.told = taken
        self.untold = 0
        # The number in the row.
        self.row = taken
        # Batches that are not on disk yet, each with the number up to which it has all messages.
        self.storing: deque[tuple[int, int]] = deque()
        self.gap = False
        self.asked_at = 0.0
        self.part_number = 0
        self.parts: list[bytes] = []
        self.part_bytes = 0
        # The last frame with refused messages whose numbers are not certain.
        self.refused = _NO_FRAME
        # Bytes of frames that have arrived and are not taken yet.
        self.waiting = 0


class LinkReceiver:
    """Receives the frames of all other nodes. The group commit calls it as ``CommitWaiter``. Callbacks::

    on_addressed   a message for one member of a Shared Subscription, its record, and the sending node
    on_mark        the mark of a node (``turns``), its record, and the sending node
    on_new_node    a node that has not sent any message yet
    apart          while sessions move: each other message and the sending node; it selects the subscriptions
    """

    def __init__(self, context: ClusterContext, membership: Members, calls: Calls) -> None:
        self._context = context
        self._broker = context.broker
        self._membership = membership
        self._table = context.tables.open(TABLE, LinkRow)
        self._frames = context.wire.reader(Frame)
        self._body = msgspec.msgpack.Decoder(Frame).decode
        self._incoming: dict[str, LinkState] = {}
        self._publishers: dict[PublisherRecord, ClientInfo] = {}
        # Frames that have arrived and are not taken yet, each with the incarnation that sent it and with its size.
        self._queue: deque[tuple[LinkState, int, Frame, int]] = deque()
        self._most_waiting = 2 * context.settings.link_credit
        self._decoder = RunDecoder()
        self._later: asyncio.Handle | None = None
        self._to_tell: dict[LinkState, None] = {}
        self._telling = False
        self._tell_within: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._stopped = False
        self._ack_bytes = max(ACK_BYTES, min(MOST_ACK_BYTES, context.settings.link_credit // 8))
        self._loop: asyncio.AbstractEventLoop
        self.on_addressed: Callable[[Message, MessageRecord, str], None] = self._nobody
        self.on_mark: Callable[[Message, MessageRecord, str], None] = self._nobody
        self.on_new_node: Callable[[str], None] = lambda node: None
        self.apart: Callable[[Message, str], None] | None = None
        self.on_late: Callable[[Message, str, float], None] = lambda message, node, before: None
        calls.serve(HELLO, self._hello)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context.nats.subscribe(self._context.subject("link", self._context.node), self._came)
        self._membership.on_removed.append(lambda peer: self.forget(peer.name))

    def stop(self) -> None:
        """Stop accepting frames, and acknowledge all accepted messages that are on disk."""
        self._stopped = True
        self._queue.clear()
        for handle in (self._later, self._again):
            if handle is not None:
                handle.cancel()
        self._tell()

    def knows(self, node: str, uid: str) -> bool:
        """Return whether a node with this data has opened its link to this one."""
        incoming = self._incoming.get(node)
        return incoming is not None and incoming.uid == uid

    def forget(self, node: str) -> None:
        """Forget that messages of this node were accepted."""
        incoming = self._incoming.pop(node, None)
        if incoming is not None:
            self._drop_waiting(incoming)
            self._to_tell.pop(incoming, None)
        self._table.remove(node)

    def _nobody(self, message: Message, record: MessageRecord, node: str) -> None:
        self._context.refusals.add("link_addressed", node, "-")

    # ---------------------------------------------------------------------- hello

    async def _hello(self, node: str, argument: bytes) -> bytes:
        """Answer with the message at which another node should begin."""
        try:
            hello = msgspec.msgpack.decode(argument, type=Hello)
        except UNREADABLE:
            self._context.refusals.add(MALFORMED, node, "-")
            raise CallFailed("it cannot be read") from None
        after = hello.after
        peer = self._membership.peers.get(node)
        if peer is None or self._stopped:
            raise CallFailed(f"{node} is not a member here")
        incoming = self._incoming.get(node)
        if incoming is not None:
            # Messages that are not taken arrive again, from the first such number. If the other node has restarted,
            # it assigns numbers of waiting messages again, if these were not on its disk.
            self._drop_waiting(incoming)
        if incoming is None or incoming.uid != peer.uid:
            row = self._table.get(node)
            known = row is not None and row.uid == peer.uid
            taken = max(row.taken, hello.acked) if row is not None and known else after
            incoming = self._incoming[node] = LinkState(node, peer.uid, taken, self._context.subject("ack", node))
            if not known:
                self._table.put(node, LinkRow(peer.uid, taken))
                self.on_new_node(node)
        elif hello.acked > incoming.taken:
            # This was acknowledged before a crash of this node, and not stored.
            incoming.taken = incoming.stored = hello.acked
        if incoming.incarnation != peer.incarnation:
            incoming.incarnation = peer.incarnation
            incoming.frame = 0
        incoming.gap = False
        return msgspec.msgpack.encode(HelloAnswer(incoming.taken, incoming.stored))

    def _drop_waiting(self, incoming: LinkState) -> None:
        """Drop all frames of this link that have arrived and have not been accepted."""
        incoming.part_number = 0
        incoming.parts = []
        incoming.refused = _NO_FRAME
        queue = self._queue
        kept = [each for each in queue if each[0] is not incoming]
        dropped = len(queue) - len(kept)
        incoming.waiting = 0
        if dropped:
            queue.clear()
            queue.extend(kept)
            self._context.refusals.add(NOT_TAKEN, incoming.node, "-", dropped)

    # --------------------------------------------------------------------- frames

    def _came(self, data: bytes, _: str) -> None:
        found = self._frames.message(data)
        if found is None or self._stopped:
            return
        header, frame = found
        incoming = self._incoming.get(header.node)
        if incoming is None or incoming.uid != header.uid or incoming.incarnation != header.incarnation:
            self._context.refusals.count("link_without_hello")
            return
        if incoming.waiting >= self._most_waiting:
            self._context.refusals.add(NOT_TAKEN, incoming.node, "cluster.link_credit")
            return  # the gap is noticed, and the frame sent again
        size = len(data)
        incoming.untold += size
        if frame.part is not None:
            whole = self._joined(incoming, frame)
            if whole is None:
                return
            frame = whole
            size = incoming.part_bytes
        incoming.waiting += size
        self._queue.append((incoming, incoming.incarnation, frame, size))
        if self._later is None:
            self._process()

    def _joined(self, incoming: LinkState, frame: Frame) -> Frame | None:
        """Add a part of a frame. Return the whole frame if this was the last missing part, and ``None`` while parts are
        missing. If the frame can never be complete, return the part itself."""
        assert frame.part is not None
        part, parts, data = frame.part
        if part == 0:
            incoming.part_number = frame.number
            incoming.parts = []
            incoming.part_bytes = 0
        if frame.number != incoming.part_number or part != len(incoming.parts):
            return None  # the gap is noticed, and the frame sent again
        incoming.parts.append(data)
        incoming.part_bytes += len(data)
        if parts <= _MOST_PARTS and incoming.part_bytes <= _MOST_BYTES:
            if len(incoming.parts) < parts:
                return None
            try:
                whole = self._body(b"".join(incoming.parts))
                if whole.part is None:
                    frame = whole
            except UNREADABLE:
                pass
        incoming.part_number = 0
        incoming.parts = []
        return frame

    def _process(self) -> None:
        self._later = None
        budget = self._broker.budget
        queue = self._queue
        while queue:
            if budget.congested:
                self._later = self._loop.call_later(_CONGESTED, self._process)
                return
            incoming, incarnation, frame, size = queue.popleft()
            incoming.waiting -= size
            if incarnation != incoming.incarnation:
                self._context.refusals.add(OLD_INCARNATION, incoming.node, "-")
                continue
            self._take(incoming, frame)
            if budget.deliveries > DELIVERIES_PER_ITERATION:  # one read may bring several frames
                self._later = self._loop.call_soon(self._process)
                return

    def _take(self, incoming: LinkState, frame: Frame) -> None:
        fresh = frame.number > incoming.frame
        if fresh:
            incoming.frame = frame.number
        self._tell_later(incoming)
        if not 0 <= frame.after < frame.first:
            self._context.refusals.add(MALFORMED, incoming.node, "-")
            return
        taken = incoming.taken
        if frame.after > taken:
            if frame.number - 1 != incoming.refused:
                incoming.gap = True
                self._tell_soon()
                return
            # The refused messages of the frame before had the numbers up to there. They would be sent again whenever
            # they are missing, and can never be taken.
            incoming.taken = frame.after
        now = self._broker.clock.now()
        commit = self._context.tables.commit
        written = 0 if commit is None else commit.written
        sequence = frame.first - 1
        publishers = [self._publisher(each, incoming.node) for each in frame.publishers]
        place = 0
        end = len(frame.messages)
        if frame.part is not None:
            self._refuse_rest(incoming, frame)
        for run in frame.runs:
            if not place <= run.before <= end:
                self._refuse_rest(incoming, frame)
                break
            sequence = self._take_records(incoming, frame, place, run.before, publishers, sequence, fresh, now)
            place = run.before
            sequence = self._take_run(incoming, frame, run, publishers, sequence, fresh, now)
            if sequence < 0:
                break
        else:
            self._take_records(incoming, frame, place, end, publishers, sequence, fresh, now)
        if incoming.taken == taken:
            return
        incoming.gap = False
        if commit is not None and commit.written == written and incoming.taken - incoming.row < ROW_EVERY:
            # No message of the frame is on disk. If this node dies now, no session remains that should have them.
            if not incoming.storing:
                incoming.stored = incoming.taken
                self._tell_later(incoming)
            else:
                incoming.storing[-1] = (incoming.storing[-1][0], incoming.taken)
            return
        self._store(incoming)

    def _take_records(
        self,
        incoming: LinkState,
        frame: Frame,
        place: int,
        end: int,
        publishers: list[ClientInfo],
        sequence: int,
        fresh: bool,
        now: float,
    ) -> int:
        """Deliver the frame's messages from ``place`` to ``end``, and return the number of the last one. ``fresh``: its
        messages of QoS 0 have not arrived before."""
        for record in frame.messages[place:end] if place or end < len(frame.messages) else frame.messages:
            if record.flags & 3:
                sequence += 1
                if sequence <= incoming.taken:
                    continue
                incoming.taken = sequence
            elif not fresh:
                continue
            publisher = publishers[record.publisher] if 0 <= record.publisher < len(publishers) else None
            self._deliver(record, publisher, incoming.node, now)
        return sequence

    def _take_run(
        self,
        incoming: LinkState,
        frame: Frame,
        run: RunRecord,
        publishers: list[ClientInfo],
        sequence: int,
        fresh: bool,
        now: float,
    ) -> int:
        """Deliver a run of packets in the same way as ``_take_records`` delivers messages. Return -1 as ``_refuse_run``
        does."""
        if (run.version != V4 and run.version != V5) or not 0 <= run.age <= _MAX_AGE:
            return self._refuse_run(incoming, frame, run, sequence)
        broker, apart, node = self._broker, self.apart, incoming.node
        before = now - run.waited / 1000 if run.waited > 0 else 0.0
        together = 0 < run.count <= len(run.packets) and apart is None and not before
        if together and run.packets[0] == _FIRST_0:
            if not fresh:
                return sequence
            if valid_name(run.topic) and route_packets(broker, run.topic, run.packets, run.count, run.version):
                return sequence
        publisher = publishers[run.publisher] if 0 <= run.publisher < len(publishers) else None
        timestamp = now - run.age / 1000
        if together and run.packets[0] & _QOS and not run.ids:
            last = sequence + run.count
            if last <= incoming.taken:
                return last
            found = read_run(run.packets, run.version, run.topic, publisher, timestamp, run.id_prefix, run.id_number)
            if found is not None and len(found.messages) == run.count:
                return self._take_together(incoming, found, sequence)
        messages = self._decoder.read(
            run.packets, run.version, publisher, timestamp, run.ids, run.id_prefix, run.id_number
        )
        if messages is None or (run.count and len(messages) != run.count):
            return self._refuse_run(incoming, frame, run, sequence)
        for message in messages:
            if not message.topic:
                return self._refuse_run(incoming, frame, run, sequence)  # an alias alone has no meaning here
        found = next_run(cast("list[Packet]", messages), 0, len(messages)) if together else None
        if found is not None and len(found.messages) == len(messages):
            return self._take_together(incoming, found, sequence)
        for message in messages:
            if message.qos:
                sequence += 1
                if sequence <= incoming.taken:
                    continue
                incoming.taken = sequence
            elif not fresh:
                continue
            if before and self._is_before_some(message.topic, before):
                self.on_late(message, node, before)
            elif apart is None:
                broker.route_local(message)
            else:
                apart(message, node)
        return sequence

    def _take_together(self, incoming: LinkState, run: Run, sequence: int) -> int:
        if run.qos:
            last = sequence + len(run.messages)
            if last <= incoming.taken:
                return last
            if sequence < incoming.taken:
                run.skip(incoming.taken - sequence)
            incoming.taken = sequence = last
        route_local_run(self._broker, run)
        return sequence

    def _refuse_run(self, incoming: LinkState, frame: Frame, run: RunRecord, sequence: int) -> int:
        """Refuse a run, and return the number of its last message: refused messages have numbers, too. Return -1 if the
        number is unknown; then the rest of the frame is refused, too."""
        self._refuse_rest(incoming, frame)
        count = count_numbered(run.packets)
        if count < 0 or count > run.count > 0:
            return -1
        sequence += count
        if sequence > incoming.taken:
            incoming.taken = sequence
        return sequence

    def _refuse_rest(self, incoming: LinkState, frame: Frame) -> None:
        """Refuse the rest of a frame that is not readable. The next frame shows which numbers it had."""
        self._context.refusals.add(MALFORMED, incoming.node, "-")
        incoming.refused = frame.number

    def _deliver(self, record: MessageRecord, publisher: ClientInfo | None, node: str, now: float) -> None:
        message = _message(record, publisher, now)
        if message is None:
            self._context.refusals.add(MALFORMED, node, "-")
        elif message.expires and message.expired(now):
            self._context.refusals.count("link_expired")
        elif record.group:
            if record.is_mark:
                self.on_mark(message, record, node)
            else:
                self.on_addressed(message, record, node)
        elif record.waited > 0 and self._is_before_some(message.topic, now - record.waited / 1000):
            self.on_late(message, node, now - record.waited / 1000)
        elif self.apart is not None:
            self.apart(message, node)
        else:
            self._broker.route_local(message)

    def _is_before_some(self, topic: str, before: float) -> bool:
        """Return whether this topic has a subscriber whose session ends with its connection and began after
        ``before``."""
        return any(begun_since(each.session, before) for each in self._broker.router.match(topic).targets)

    def _publisher(self, record: PublisherRecord, node: str) -> ClientInfo:
        client = self._publishers.get(record)
        if client is None:
            if len(self._publishers) >= _MAX_PUBLISHERS:
                self._publishers.clear()
            client = ClientInfo(
                node,
                ZoneSettings(),
                listener=record.listener,
                peer_host=record.peer_host,
                client_id=record.client_id,
                username=record.username,
                proto_ver=record.proto_ver,
                proved_by=record.proved_by,
            )
            client.mountpoint = record.mountpoint
            client.is_superuser = record.is_superuser
            self._publishers[record] = client
        return client

    # ------------------------------------------------------------ acknowledgements

    def _store(self, incoming: LinkState) -> None:
        incoming.row = incoming.taken
        self._table.put(incoming.node, LinkRow(incoming.uid, incoming.taken))
        commit = self._context.tables.commit
        if commit is None:
            incoming.stored = incoming.taken
            return
        storing = incoming.storing
        batch = commit.batch
        if storing and storing[-1][0] == batch:
            storing.pop()
        storing.append((batch, incoming.taken))
        commit.add_waiter(self)

    def release(self, upto: int) -> bool:
        waits = False
        for incoming in self._incoming.values():
            storing = incoming.storing
            if storing and storing[0][0] <= upto:
                while storing and storing[0][0] <= upto:
                    incoming.stored = storing.popleft()[1]
                self._tell_later(incoming)
            waits = waits or bool(storing)
        return waits

    def abort(self) -> None:
        """Do nothing: there is no connection to close."""

    def _tell_later(self, incoming: LinkState) -> None:
        self._to_tell[incoming] = None
        if incoming.untold >= self._ack_bytes or incoming.stored - incoming.told >= _ACK_NUMBERS:
            self._tell_soon()
        elif self._tell_within is None:
            self._tell_within = self._loop.call_later(ACK_WITHIN, self._tell)

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        if self._tell_within is not None:
            self._tell_within.cancel()
            self._tell_within = None
        told, self._to_tell = self._to_tell, {}
        for incoming in told:
            self._acknowledge(incoming)

    def _acknowledge(self, incoming: LinkState) -> None:
        gap = False
        if incoming.gap:
            now = self._loop.time()
            gap = now - incoming.asked_at >= ASK_AGAIN
            if gap:
                incoming.asked_at = now
            if self._again is None and not self._stopped:
                self._again = self._loop.call_later(ASK_AGAIN, self._ask_again)
        incoming.told = incoming.stored
        incoming.untold = 0
        ack = LinkAck(incoming.uid, incoming.incarnation, incoming.frame, incoming.stored, gap)
        self._context.nats.publish(incoming.subject, self._context.wire.write(ack))

    def _ask_again(self) -> None:
        self._again = None
        for incoming in self._incoming.values():
            if incoming.gap:
                self._to_tell[incoming] = None
                self._tell_soon()


def begun_since(session: Session, before: float) -> bool:
    """Return whether a session ends with its connection and began after ``before``. Such a session gets no messages
    that another node accepted earlier."""
    return session.created_at > before and not session.persistent and not session.internal


def _message(record: MessageRecord, publisher: ClientInfo | None, now: float) -> Message | None:
    """Return the message of a record, or ``None`` if no client can have published it."""
    flags = record.flags
    if not (0 <= flags <= 6 and flags != 3 and 0 <= record.age <= _MAX_AGE and record.hops >= 0):
        return None
    if not valid_name(record.topic):
        return None
    properties = NO_PROPERTIES
    if record.properties:
        found = of_publish(record.properties)
        if found is None:
            return None
        properties = found
    message = Message(
        record.topic, record.payload, flags & 3, flags & 4 != 0, properties, publisher, now - record.age / 1000
    )
    message.id = record.id
    message.hops = record.hops
    return message
