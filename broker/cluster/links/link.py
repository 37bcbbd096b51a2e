"""Link: a durable session whose client is another node.

Queue, window, paging, limits and journal work as for any session. ``LinkWriter`` sends its messages in frames. The
other node acknowledges two things: the frames that have arrived, which frees the link's credit; and the sequence number
up to which all messages are on its disk. If frames get lost, the link sends again from the first message that is not
acknowledged.
"""

import asyncio
import logging
from bisect import bisect_left
from collections import deque
from math import inf
from typing import Final

import msgspec

from ...config import ClusterSettings, ZoneSettings
from ...core.cluster import LINK_CLOSED, LINK_OPEN, LINK_OPENING, CallFailed, LinkStatus, NodeUnreachable
from ...mqtt.constants import MAX_PACKET_ID
from ...mqtt.message import Publisher
from ...mqtt.message_ids import MessageIdSource
from ...session.client_info import ClientInfo
from ...session.limits import Limits
from ...session.outbound_acks import puback, puback_run
from ...session.protocols import LINK_FULL, QOS0_MSG
from ...session.session import Session
from ...session.subscription import Subscription
from ..calls import Calls
from ..changes import Changes, until
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..wire import MALFORMED, OVERHEAD, UNREADABLE, Hello, HelloAnswer, LinkAck
from .link_writer import WINDOW, LinkWriter
from .routes import ClusterRoutes

logger = logging.getLogger(__name__)

LISTENER: Final = "\0link"
"""The name of the listener of links' sessions."""
PREFIX: Final = "\0link:"
HELLO: Final = "link.hello"
LOOK: Final = 0.5
"""Seconds between two checks that a link makes progress."""
STALLED: Final = 1.5
"""Seconds without an acknowledgement of sent messages after which the link is reopened."""
_HELLO_TIMEOUT: Final = 2.0
_RETRY: Final = 0.2
_RATE_OVER: Final = 20
"""Number of checks over which the message rate is averaged: ten seconds."""
_NOTE_EVERY: Final = 0.5
"""Seconds by which the recorded waiting time of a message may be too short."""
_MOST_NOTES: Final = 256


class LinkRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``cluster_links``: all messages of this node up to this number were accepted."""

    uid: str
    taken: int


def link_limits(settings: ClusterSettings) -> Limits:
    """Return the limits of a link's session."""
    return Limits(
        max_inflight=WINDOW,
        max_queued_messages=settings.link_queue_messages,
        max_queued_bytes=settings.link_queue_bytes,
        refuse_when_full=True,
    )


class Link:
    """The messages for one other node. ``open`` is set once that node has reported which message it expects first.
    ``Links`` has one for each node."""

    def __init__(
        self, context: ClusterContext, membership: Members, calls: Calls, routes: ClusterRoutes, peer: Peer
    ) -> None:
        self._context = context
        self._membership = membership
        self._calls = calls
        self.peer = peer
        broker = context.broker
        client = ClientInfo(context.node, ZoneSettings(), listener=LISTENER, client_id=PREFIX + peer.name)
        self._limits = link_limits(context.settings)
        self.session = broker.life.open_internal(client, self._limits, context.clock.now())
        commit = None if broker.durability is None else broker.durability.commit
        self._loop = asyncio.get_running_loop()
        self._writer = LinkWriter(
            self.session,
            broker,
            commit,
            context.settings.link_credit,
            MessageIdSource(context.rng),
            self._send,
            self._loop,
        )
        self._subject = context.subject("link", peer.name)
        self.open = False
        # Uid and incarnation of the node that the link was opened to.
        self.of = ("", 0)
        self._numbered = False
        self._opening: asyncio.Task[None] | None = None
        # Acknowledgements of earlier frames report gaps that are being filled already.
        self._resent_from = 0
        self._progress = (0, 0)
        self._progress_at = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        # While the link is open: a time, and how many messages had been sent by then.
        self._sent: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER)
        # While the link is closed: a time, how many messages waited then, and how many had been dropped by then.
        self._waited: list[tuple[float, int, int]] = []
        self._waited_every = _NOTE_EVERY
        self._noting: asyncio.TimerHandle | None = None
        # The same for numbered messages: up to which number messages were in the link, the time, and the drops.
        self._late: list[tuple[int, float, int]] = []
        self._writer.since = self._since
        # Of ``idle``.
        self.changes = Changes()
        self._note_regularly()
        routes.attach(peer.key, Subscription(self.session, "#", 1, retain_as_published=True))

    # -------------------------------------------------------------- open, close

    def update(self) -> None:
        """Close and reopen the link, because the other node, or the path to it, has changed."""
        self.close()
        if self._wanted and (self._opening is None or self._opening.done()):
            self._opening = self._loop.create_task(self._keep_opening())

    @property
    def _wanted(self) -> bool:
        return self.peer.running and self._context.nats.connected and self._membership.joined

    def close(self) -> None:
        """Stop sending for now; the session queues messages."""
        if self.open:
            self.open = False
            self.session.detach()
            self._writer.begin(self._writer.acked, self._writer.last)
            self._note_regularly()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self.changes.tell()

    # ------------------------------------------------------------------ how long messages have waited

    def note(self) -> None:
        """Note which messages are in the link now: they are older than any later event."""
        if self.open:
            return
        self._waited.append((self._context.clock.now(), self.session.queued, self._dropped))
        if len(self._waited) > _MOST_NOTES:
            del self._waited[::2]
            self._waited_every *= 2

    def _note_regularly(self) -> None:
        self.note()
        self._noting = self._loop.call_later(self._waited_every, self._note_regularly)

    @property
    def _dropped(self) -> int:
        """The number of messages that left the session without a sequence number."""
        dropped = self.session.client.dropped or {}
        return sum(count for reason, count in dropped.items() if reason not in (QOS0_MSG, LINK_FULL))

    def _note_numbers(self) -> None:
        """Convert the notes to sequence numbers when the link opens: waiting messages get the next numbers, in
        order."""
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        self.note()
        writer, dropped = self._writer, self._dropped
        found = [(writer.last + queued - dropped + before, when, dropped) for when, queued, before in self._waited]
        self._late = [each for each in [*self._late, *found] if each[0] > writer.acked][-_MOST_NOTES:]
        writer.late_upto = max((upto for upto, _, _ in self._late), default=0)
        self._waited.clear()
        self._waited_every = _NOTE_EVERY

    def _since(self, sequence: int) -> float:
        dropped = self._dropped
        late = self._late
        place = bisect_left(late, sequence, key=lambda each: each[0] - dropped + each[2])
        return late[place][1] if place < len(late) else 0.0

    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self.close()
        if self._noting is not None:
            self._noting.cancel()

    async def _keep_opening(self) -> None:
        while self._wanted and not self.open:
            incarnation = (self.peer.uid, self.peer.incarnation)
            acked = self._writer.acked if self._numbered else 0
            question = msgspec.msgpack.encode(Hello(self._before_first, acked))
            try:
                answer = await self._calls.call(self.peer.name, HELLO, question, _HELLO_TIMEOUT)
            except (NodeUnreachable, CallFailed) as error:
                logger.debug("link_hello_failed node=%s error=%s", self.peer.name, error)
                await asyncio.sleep(_RETRY)
                continue
            if incarnation == (self.peer.uid, self.peer.incarnation) and self._wanted:
                try:
                    came = msgspec.msgpack.decode(answer, type=HelloAnswer)
                except UNREADABLE:
                    self._context.refusals.add(MALFORMED, self.peer.name, "-")
                    await asyncio.sleep(_RETRY)
                    continue
                self._number(came.taken)
                if self._writer.acked > max(came.taken, acked):
                    continue  # it has forgotten in a crash what it had acknowledged: the next HELLO says so
                self._begin(came)

    @property
    def _before_first(self) -> int:
        """The number before the first message that the link has to send, as far as this node knows."""
        if self._numbered:
            return self._writer.acked
        first = next(iter(self.session.inflight), 0)
        return first - 1 if first else self.session.last_packet_id

    def _number(self, taken: int) -> None:
        """Derive sequence numbers from Packet Identifiers: after a restart, only these are known. They are unambiguous,
        because there are far more identifiers than messages in flight."""
        if self._numbered:
            return
        first = next(iter(self.session.inflight), 0)
        acked = taken
        if first:
            ahead = (first - taken) % MAX_PACKET_ID
            acked = taken + (ahead if ahead <= MAX_PACKET_ID // 2 else ahead - MAX_PACKET_ID) - 1
        self._writer.acked = acked
        self._numbered = True

    def _begin(self, answer: HelloAnswer) -> None:
        """Open the link: the other node has all messages up to ``answer.stored`` on disk, and has accepted all up to
        ``answer.taken``."""
        session, writer = self.session, self._writer
        inflight = list(session.inflight)
        numbers = [writer.sequence_of(packet_id) for packet_id in inflight]
        puback(session, *[each for each, number in zip(inflight, numbers, strict=True) if number <= answer.stored])
        acked = max(writer.acked, answer.stored)
        last = max([acked, answer.taken, writer.last, *numbers])
        session.last_packet_id = (last - 1) % MAX_PACKET_ID + 1 if last else 0
        writer.begin(acked, last)
        self._note_numbers()
        self._resent_from = writer.frame + 1
        self.open = True
        self.of = (self.peer.uid, self.peer.incarnation)
        self._progress_at = self._loop.time()
        self._sent.clear()
        self._sent.append((self._progress_at, writer.sent))
        self._watchdog = self._loop.call_later(LOOK, self._look)
        logger.info(
            "link_opened node=%s incarnation=%s from=%s inflight=%s queued=%s",
            self.peer.name,
            self.peer.incarnation,
            acked + 1,
            len(session.inflight),
            session.queued,
        )
        self._attach()

    def _attach(self) -> None:
        now = self._context.clock.now()
        self.session.attach(self._writer, WINDOW, self._limits, now, keeper=self._writer)
        self.session.advance(now)

    # --------------------------------------------------------------------- frames

    def _send(
        self,
        number: int,
        after: int,
        first: int,
        publishers: list[Publisher],
        messages: list[tuple[object, ...]],
        runs: list[tuple[object, ...]],
    ) -> int:
        for each in self._context.before_frame:
            each()
        who = [
            (
                each.client_id,
                each.username,
                each.proved_by,
                each.mountpoint,
                each.listener,
                each.peer_host,
                each.proto_ver,
                each.is_superuser,
            )
            for each in publishers
        ]
        wire, nats = self._context.wire, self._context.nats
        data = wire.write((number, after, first, who, messages, runs))
        most = nats.max_payload
        if len(data) <= most:
            nats.publish(self._subject, data)
            return len(data)
        body = wire.body((number, after, first, who, messages, runs))
        step = most - OVERHEAD
        parts = -(-len(body) // step)
        for part in range(parts):
            piece = (part, parts, body[part * step : (part + 1) * step])
            nats.publish(self._subject, wire.write((number, after, first, (), (), (), piece)))
        return len(body)

    def acknowledged(self, ack: LinkAck) -> None:
        """Handle an acknowledgement of the other node."""
        if not self.open:
            return
        session, writer = self.session, self._writer
        news = writer.frames_came(ack.frame)
        acked = writer.acked
        done = writer.acknowledged(ack.sequence)
        if writer.late_upto and writer.acked >= writer.late_upto:
            writer.late_upto = 0
            self._late.clear()
        if done:
            puback_run(session, done)
        if ack.gap and ack.frame >= self._resent_from:
            self._go_back()
        elif writer.acked != acked or news:
            session.advance(self._context.clock.now())
        self.changes.tell()

    def _go_back(self) -> None:
        """Send all unacknowledged messages again."""
        writer = self._writer
        self._context.refusals.count("link_gap")
        self.session.detach()
        writer.begin(writer.acked, writer.last)
        self._resent_from = writer.frame + 1
        self._attach()

    def _look(self) -> None:
        """Check whether the last frames, or their acknowledgement, were lost: the other node cannot notice that."""
        self._watchdog = self._loop.call_later(LOOK, self._look)
        writer = self._writer
        now = self._loop.time()
        self._sent.append((now, writer.sent))
        progress = (writer.acked, writer.oldest)
        if progress != self._progress or (writer.credited and not self._unacknowledged):
            self._progress = progress
            self._progress_at = now
        elif now - self._progress_at > STALLED:
            self._progress_at = now
            if writer.credited:
                writer.probe()
            else:
                logger.info("link_stalled node=%s inflight=%s", self.peer.name, self._unacknowledged)
                self.update()

    @property
    def _unacknowledged(self) -> int:
        """The number of unacknowledged QoS 1 and 2 messages, including those that will be sent at the end of the
        iteration."""
        return len(self.session.inflight) + self._writer.held

    @property
    def idle(self) -> bool:
        """Whether the link has nothing to do: no message is waiting or unacknowledged, or none can be sent at
        present."""
        return not self.open or (not self._unacknowledged and not self.session.queued and self._writer.credited)

    def status(self) -> LinkStatus:
        """Return the figures of the link for operators."""
        session, writer = self.session, self._writer
        queue = session.queue
        since = writer.waiting_since
        for delivery in (next(iter(session.inflight.values()), None), next(iter(queue or ()), None)):
            if delivery is not None:
                since = min(since or inf, delivery.message.timestamp)
        size = 0 if queue is None else queue.size
        rate = 0.0
        if self.open:
            at, sent = self._sent[0]
            rate = (writer.sent - sent) / max(self._loop.time() - at, LOOK)
            size += writer.bytes_to_arrive
        else:
            size += sum(each.size for each in session.inflight.values() if each is not None)
        return LinkStatus(
            node=self._context.node,
            to=self.peer.name,
            state=LINK_OPEN if self.open else LINK_OPENING if self._wanted else LINK_CLOSED,
            rate=round(rate, 2),
            sent=writer.sent,
            waiting=self._unacknowledged + session.queued,
            waiting_bytes=size,
            oldest=round(max(0.0, self._context.clock.now() - since), 3) if since else None,
            dropped=sum((session.client.dropped or {}).values()),
        )


class Links:
    """The links to all other nodes, by their names."""

    def __init__(self, context: ClusterContext, membership: Members, calls: Calls, routes: ClusterRoutes) -> None:
        self._context = context
        self._membership = membership
        self._calls = calls
        self._routes = routes
        self._acks = context.wire.reader(LinkAck)
        self.links: dict[str, Link] = {}
        self._ended: list[asyncio.Task[None]] = []

    def start(self) -> None:
        nats = self._context.nats
        nats.subscribe(self._context.subject("ack", self._context.node), self._acked)
        nats.on_connected.append(self._update)
        nats.on_disconnected.append(self._update)
        self._membership.on_joined.append(self._update)
        self._membership.on_isolated.append(self._note)
        self._membership.on_refused.append(self._update)
        self._membership.on_replaced.append(self._replaced)
        self._membership.on_change.append(self._changed)
        self._membership.on_removed.append(self._removed)
        self._membership.on_current.append(self._end_links_to_nobody)

    async def stop(self, timeout: float) -> None:
        """Wait until all published messages have been sent, for at most ``timeout`` seconds."""
        links = list(self.links.values())
        await until(lambda: all(each.idle for each in links), *(each.changes for each in links), timeout=timeout)
        for link in self.links.values():
            await link.stop()

    def _note(self) -> None:
        for link in self.links.values():
            link.note()

    def _update(self) -> None:
        for link in self.links.values():
            link.update()

    def _changed(self, peer: Peer, before: str) -> None:
        link = self.links.get(peer.name)
        if link is None:
            link = self.links[peer.name] = Link(self._context, self._membership, self._calls, self._routes, peer)
        elif link.peer is not peer:
            link.peer = peer
        if link.open and peer.running and link.of == (peer.uid, peer.incarnation):
            return
        link.update()

    def _replaced(self, peer: Peer) -> None:
        """Count waiting messages as dropped: the node has new data, and the messages were for sessions in its earlier
        data."""
        link = self.links.get(peer.name)
        if link is None:
            return
        link.close()
        held = link.session.queued + len(link.session.inflight)
        if held:
            self._context.refusals.add("link_node_replaced", peer.name, "node.data_dir", held)

    def recovered(self, node: str) -> Session | None:
        """Return the session of the link to a node, if it existed before the restart."""
        return self._context.broker.sessions.internal.get(PREFIX + node)

    def _removed(self, peer: Peer) -> None:
        link = self.links.pop(peer.name, None)
        if link is not None:
            link.close()
            self._ended.append(asyncio.get_running_loop().create_task(link.stop()))
            self._end(PREFIX + peer.name)

    def _end_links_to_nobody(self) -> None:
        """End the recovered links to nodes that are not members, when all members are known."""
        for client_id in list(self._context.broker.sessions.internal):
            if client_id.startswith(PREFIX) and client_id.removeprefix(PREFIX) not in self.links:
                self._end(client_id)

    def _end(self, client_id: str) -> None:
        broker = self._context.broker
        session = broker.sessions.internal.get(client_id)
        if session is None:
            return
        node = client_id.removeprefix(PREFIX)
        held = len(session.undelivered())
        if held:
            self._context.refusals.add("link_node_removed", node, "taipan-ctl cluster force-leave", held)
        logger.info("link_ended node=%s dropped=%s", node, held)
        broker.life.end_session(session, "node_removed", self._context.clock.now())

    def _acked(self, data: bytes, _: str) -> None:
        found = self._acks.message(data)
        if found is None:
            return
        header, ack = found
        wire = self._context.wire
        link = self.links.get(header.node)
        if link is not None and ack.uid == wire.uid and ack.incarnation == wire.incarnation:
            link.acknowledged(ack)
