"""Session: the state that a Server keeps for one Client Identifier, connected or not.

The path of an outbound QoS 1 or 2 delivery::

    deliver ──► window open ──► inflight[id] = Delivery ──PUBACK──────────────────────► done
       │                               │
       │ window or client shut         └──PUBREC──► inflight[id] = None ──PUBCOMP──► done
       ▼                                            (PUBREL is out)
     queue ──► advance(), when an acknowledgement, a reconnect or a drained socket makes room

On reconnect, all of ``inflight`` is sent again in order, before the queue [MQTT-4.4.0-1] [MQTT-4.6.0-1]."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ..mqtt.constants import MAX_PACKET_ID
from ..mqtt.message import Delivery, Message
from ..mqtt.run import Run
from .client_info import ClientInfo, is_internal
from .limits import MAX_INFLIGHT, Limits
from .memory_account import UNACCOUNTED, MemoryAccount
from .protocols import (
    EXPIRED,
    QOS0_MSG,
    QUEUE_FULL,
    UNREADABLE,
    Cancellable,
    ClientWriter,
    DropObserver,
    MessageKeeper,
    PacketWriter,
    RetainedSource,
    SessionJournal,
)
from .queue import MessageQueue
from .replay import Replay
from .resend import Resend
from .subscription import Subscription

WORTH_HALVING: Final = 16
"""Smaller send windows are sent in one piece."""

_NO_SUBSCRIPTIONS: Final[Mapping[str, Subscription]] = MappingProxyType({})
_NOTHING_IN_FLIGHT: Final[Mapping[int, Delivery | None]] = MappingProxyType({})


class Session:
    """Session State (section 4.1), field by field, and operations on it. Times are Unix seconds."""

    __slots__ = (
        "_inflight",
        "_subscriptions",
        "account",
        "announced",
        "awaiting_rel",
        "client",
        "client_id",
        "completions",
        "created_at",
        "disconnected_at",
        "expiry_interval",
        "expiry_timer",
        "filter_bytes",
        "internal",
        "journal",
        "keeper",
        "last_packet_id",
        "limits",
        "mqueue_dropped",
        "names_size",
        "now",
        "number",
        "observer",
        "owner",
        "packets",
        "queue",
        "replays",
        "resend",
        "sent_at",
        "will",
        "will_number",
        "will_timer",
        "window",
        "writer",
    )  # fmt: skip

    def __init__(
        self, client: ClientInfo, limits: Limits, observer: DropObserver, now: float, expiry_interval: int = 0
    ) -> None:
        self.client_id = client.client_id
        self.internal = is_internal(client.client_id)  # its client is a part of the node (``registry``)
        self.announced = True  # a client has received a CONNACK for it: before that, none can know the session
        self.client = client  # of the last connection
        self.limits = limits
        self.observer = observer
        self.created_at = now
        self.now = now  # the time of the current event, set by the caller
        # Session Expiry Interval in seconds; 0 ends with the connection, 0xFFFFFFFF never.
        self.expiry_interval = expiry_interval
        self.names_size = 0  # size of its names that the registry counts
        self._subscriptions: dict[str, Subscription] | None = None  # None: there have been none
        self.filter_bytes = 0  # characters of these filters
        self._inflight: dict[int, Delivery | None] | None = None  # None: there have been none
        # When each identifier in flight was last sent; only if the zone has a retry interval.
        self.sent_at: dict[int, float] | None = {} if limits.retry_interval else None
        # Messages of released identifiers; only while a hook uses ``delivery.completed``.
        self.completions: dict[int, Message] | None = None
        # Identifiers in flight that the Receive Maximum of a new connection has not yet allowed to be sent again.
        self.resend: Resend | None = None
        # QoS 1 and 2 (and QoS 0, if configured) messages that wait for the window or for the client.
        self.queue: MessageQueue | None = None
        # QoS 2 received and not released (``inbound_qos2``): Packet Identifier -> time.
        self.awaiting_rel: dict[int, float] | None = None
        # Retained messages that still have to be sent because of a SUBSCRIBE.
        self.replays: Replay | None = None
        self.last_packet_id = 0
        # The way to its client, and the members that only some have; None: no client is connected, or it has none.
        self.writer: ClientWriter | None = None
        self.packets: PacketWriter | None = None
        self.keeper: MessageKeeper | None = None
        # Memory of the node's queues.
        self.account: MemoryAccount = UNACCOUNTED
        self.window = min(limits.max_inflight or MAX_INFLIGHT, MAX_INFLIGHT)
        self.mqueue_dropped = 0
        # The journal of its state, and its number there; None and 0 if nothing outlives the process.
        self.journal: SessionJournal | None = None
        self.number = 0
        self.owner = ""  # ``ClientInfo.owner``
        # Stored here for ``core`` and not used: when its client disconnected, the Will Message that waits for its
        # delay, and the two running timers.
        self.disconnected_at = 0.0
        self.will: Message | None = None
        self.will_number = 0
        self.will_timer: Cancellable | None = None
        self.expiry_timer: Cancellable | None = None

    # ---------------------------------------------------------- subscriptions

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Topic Filter, with ``$share/...`` and the mount point (``FilterPlan.filter``) -> Subscription."""
        subscriptions = self._subscriptions
        return _NO_SUBSCRIPTIONS if subscriptions is None else subscriptions

    def put_subscription(self, subscription: Subscription) -> None:
        """Add a subscription, or replace the one to the same filter."""
        subscriptions = self._subscriptions
        if subscriptions is None:
            subscriptions = self._subscriptions = {}
        subscriptions[subscription.filter] = subscription

    def pop_subscription(self, filter: str) -> Subscription | None:
        """Remove a subscription; return None if there was none."""
        subscriptions = self._subscriptions
        return None if subscriptions is None else subscriptions.pop(filter, None)

    def clear_subscriptions(self) -> None:
        self._subscriptions = None

    # -------------------------------------------------------------- in flight

    @property
    def inflight(self) -> Mapping[int, Delivery | None]:
        """QoS 1 and 2 messages that were sent and not completely acknowledged, by Packet Identifier, in order of
        sending; None once PUBREL is sent."""
        inflight = self._inflight
        return _NOTHING_IN_FLIGHT if inflight is None else inflight

    def change_inflight(self) -> dict[int, Delivery | None]:
        """Return ``inflight`` itself, to change it."""
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        return inflight

    def clear_inflight(self) -> None:
        self._inflight = None

    # ------------------------------------------------------------------ state

    @property
    def durable(self) -> bool:
        """Whether the session has a journal: it outlives its connection and, at durability level ``disk``, the
        process."""
        return self.journal is not None

    @property
    def persistent(self) -> bool:
        """Whether the session outlives its connection, or did when it began."""
        return self.expiry_interval > 0 or self.durable

    @property
    def connected(self) -> bool:
        """Whether a client is connected."""
        return self.writer is not None

    @property
    def ready(self) -> bool:
        """Whether a QoS 1 message that is delivered now would be sent immediately."""
        writer = self.writer
        return writer is not None and writer.writable and len(self.inflight) < self.window and not self.queue

    @property
    def busy(self) -> bool:
        """Whether messages wait that an acknowledgement may release."""
        return self.queue is not None or self.resend is not None or self.replays is not None

    @property
    def replaying(self) -> bool:
        """Whether retained messages will follow that wait only for the client's socket."""
        return self.replays is not None and self.queue is None

    @property
    def queued(self) -> int:
        """The number of waiting messages."""
        return 0 if self.queue is None else len(self.queue)

    # ------------------------------------------------------------- outbound

    def deliver(self, message: Message, subscription: Subscription) -> None:
        """Deliver a message that matched: send it, queue it, or drop it and report the reason to the observer."""
        qos = message.qos
        if self.limits.upgrade_qos:
            if subscription.qos > qos:
                qos = subscription.qos
        elif subscription.qos < qos:
            qos = subscription.qos  # [MQTT-3.8.4-8]
        retain = message.retain and subscription.retain_as_published  # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        if subscription.plain or not (retain or subscription.identifiers):
            if qos == 0:
                writer = self.writer
                if writer is not None and self.queue is None and self.resend is None:
                    writer.send_publish0(message)
                else:
                    self._deliver0(Delivery(message, 0))
                return
            journal = self.journal
            self._send_or_queue(message.plain(qos) if journal is None else journal.hold_plain(self, message, qos))
            return
        delivery = Delivery(message, qos, retain, subscription.identifiers)
        if qos == 0:
            self._deliver0(delivery)
        else:
            self._deliver_qos(delivery)

    def deliver_run(self, run: Run, subscription: Subscription) -> None:
        """Do the same as ``deliver`` for each message of a run."""
        if subscription.identifiers or self.limits.upgrade_qos:
            for message in run.messages:
                self.deliver(message, subscription)
            return
        writer = self.writer if self.queue is None and self.resend is None else None
        if subscription.qos == 0 or run.qos == 0:
            if writer is not None:
                writer.send_run0(run)
                return
            for message in run.messages:
                self._deliver0(Delivery(message, 0))
            return
        journal = self.journal
        if journal is None:
            deliveries = [message.plain(1) for message in run.messages]
        else:
            deliveries = [journal.hold_plain(self, message, 1) for message in run.messages]
        sent = 0
        # Repeated, because messages that the client cannot receive leave their places in the window to the next ones.
        while writer is not None and sent < len(deliveries) and writer.writable and len(self.inflight) < self.window:
            last = sent + self.window - len(self.inflight)
            self.send_run(writer, deliveries[sent:last])
            sent = min(last, len(deliveries))
        for delivery in deliveries[sent:]:
            self._enqueue(delivery)

    def deliver_volatile(self, message: Message, subscription: Subscription) -> None:
        """Deliver a QoS 1 message without a durable receiver, which is not written to disk if it can be sent
        immediately."""
        writer = self.writer
        if writer is None or self.queue is not None or self.resend is not None:
            self.deliver(message, subscription)
            return
        if message.qos == 1 and self._is_kept([message]):
            return
        if not writer.writable or len(self.inflight) >= self.window:
            self.deliver(message, subscription)
            return
        packet_id = self._free_id(self.last_packet_id)
        self.last_packet_id = packet_id
        delivery = message.plain(1)
        self.change_inflight()[packet_id] = delivery
        writer.send_publish(delivery, packet_id, False)

    def deliver_volatile_run(self, run: Run, subscription: Subscription) -> None:
        """Do the same as ``deliver_volatile`` for each message of a QoS 1 run."""
        if self.queue is not None or self.resend is not None or not self._is_kept(run.messages):
            self.deliver_run(run, subscription)

    def _is_kept(self, messages: list[Message]) -> bool:
        """Give messages of QoS 1 to the keeper; return False if there is none, or if it has no room."""
        keeper = self.keeper
        if keeper is None or not keeper.may_keep(len(messages)):
            return False
        self.last_packet_id = keeper.keep(messages, self.last_packet_id)
        return True

    def deliver_shared(self, delivery: Delivery) -> None:
        """Deliver a message for which a shared subscription has selected this session."""
        if delivery.message.payload_at < 0:
            self._adopt_paged(delivery)
        elif delivery.qos == 0:
            self._deliver0(delivery)
        else:
            self._deliver_qos(delivery)

    def _adopt_paged(self, delivery: Delivery) -> None:
        """Add a paged QoS 1 or 2 delivery of another durable session that has ended: it is delivered through the
        queue."""
        assert self.journal is not None
        self.journal.hold(self, delivery)
        self._enqueue(delivery)
        self.advance(self.now)

    def _deliver0(self, delivery: Delivery) -> None:
        writer = self.writer
        queue = self.queue
        if writer is None:
            if self.limits.queue_qos0:
                self._enqueue(delivery)
            else:
                self.observer.delivery_dropped(self, delivery, QOS0_MSG)
        elif self.internal and (queue is not None or self.resend is not None):
            self._enqueue(delivery)  # between nodes, no message may overtake another: see ``cluster.turns``
        elif queue is not None and self._waits(queue, delivery.message.topic):
            self._enqueue(delivery)
        else:
            writer.send_publish(delivery, 0, False)

    def _waits(self, queue: MessageQueue, topic: str) -> bool:
        """Return whether a message of this topic waits, which a later one must not overtake [MQTT-4.6.0-6]."""
        if queue.holds(topic):
            return True
        resend = self.resend
        return resend is not None and resend.topics is not None and topic in resend.topics

    def _deliver_qos(self, delivery: Delivery) -> None:
        if self.journal is not None:
            self.journal.hold(self, delivery)
        self._send_or_queue(delivery)

    def _send_or_queue(self, delivery: Delivery) -> None:
        writer = self.writer
        if (
            writer is not None
            and writer.writable
            and self.queue is None
            and self.resend is None
            and len(self.inflight) < self.window
        ):
            self.send(writer, delivery)
        else:
            self._enqueue(delivery)

    def send(self, writer: ClientWriter, delivery: Delivery) -> None:
        inflight = self.change_inflight()
        packet_id = self._free_id(self.last_packet_id)
        # Noted before it is sent, because a hook that is called on sending may publish a message to this session.
        before = self.last_packet_id
        self.last_packet_id = packet_id
        inflight[packet_id] = delivery
        if self.sent_at is not None:
            self.sent_at[packet_id] = max(self.now, delivery.message.timestamp)
        due = 0 if self.journal is None else self.journal.sent(self, delivery, packet_id)
        packets = self.packets if due else None
        if packets is None:
            sent = writer.send_publish(delivery, packet_id, False)
        else:
            sent = packets.send_publish_after(due, delivery, packet_id)
        if not sent:
            self.cannot_send(packet_id, delivery)
            if self.last_packet_id == packet_id:
                self.last_packet_id = before

    def _free_id(self, packet_id: int) -> int:
        """Return the next identifier after this one that is not in use until its exchange ends [MQTT-2.2.1-4]."""
        while True:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if packet_id not in self.inflight:
                return packet_id

    def _enqueue(self, delivery: Delivery) -> None:
        queue = self.queue
        if queue is None:
            queue = self.new_queue()
        if self.journal is not None and delivery.qos:
            self.journal.queued(delivery)
        dropped = queue.push(delivery)
        if dropped:
            self.mqueue_dropped += len(dropped)
            for each in dropped:
                self.done(each)
                self.observer.delivery_dropped(self, each, QUEUE_FULL)

    def new_queue(self) -> MessageQueue:
        """Create and return the queue."""
        limits = self.limits
        bounds = (limits.max_queued_messages, limits.max_queued_bytes)
        keep = limits.refuse_when_full
        durable = self.journal is not None
        queue = MessageQueue(*bounds, limits.priorities, limits.default_priority, keep, self.account, durable)
        self.queue = queue
        return queue

    def advance(self, now: float) -> None:
        """Send waiting messages, as far as window and socket allow: retransmissions, then the queue, then retained
        messages."""
        writer = self.writer
        if writer is None:
            return
        self.now = now
        if self.resend is not None and self.resend.advance(self, writer):
            self.resend = None
        queue = self.queue
        if queue is not None and self.resend is None:
            self._drain(writer, queue, now)
            if not len(queue):
                self.queue = None
        if self.replays is not None and self.queue is None and writer.writable:
            self.replays.advance(self, writer)
            self._end_replay()

    def _drain(self, writer: ClientWriter, queue: MessageQueue, now: float) -> None:
        while writer.writable and len(self.inflight) < self.window:
            room = self.window - len(self.inflight)
            # A client with nothing in flight is idle: half of the window is sent first, so that the client processes
            # one half while the broker prepares the other.
            waits = room == self.window and room >= WORTH_HALVING
            run = queue.pop_run(room // 2 if waits else room)
            if run:
                self.send_run(writer, run)
                if waits:
                    writer.flush_now()
                continue
            delivery = queue.pop()
            if delivery is None:
                return
            if delivery.message.expired(now):
                self.done(delivery)
                self.observer.delivery_dropped(self, delivery, EXPIRED)
            elif delivery.qos == 0:
                writer.send_publish(delivery, 0, False)
            elif delivery.message.payload_at < 0 and self.journal is not None:
                queue.push_front(delivery)
                if self.journal.fetch(self, delivery):
                    return
                queue.pop()
                self.done(delivery)
                self.observer.delivery_dropped(self, delivery, UNREADABLE)
            else:
                self.send(writer, delivery)

    def send_run(self, writer: ClientWriter, run: list[Delivery]) -> None:
        """Send deliveries of QoS 1 for which the window has room."""
        packet_ids = self._number(run)
        if self.sent_at is not None:
            self.sent_at.update(dict.fromkeys(packet_ids, max(self.now, run[0].message.timestamp)))
        if self.journal is not None:
            self.journal.sent_run(self, run, packet_ids)
        for packet_id in writer.send_run(run, packet_ids):
            refused = self.inflight[packet_id]
            assert refused is not None
            self.cannot_send(packet_id, refused)

    def _number(self, run: list[Delivery]) -> list[int]:
        """Return Packet Identifiers for these deliveries, which are in flight from now on."""
        inflight = self.change_inflight()
        packet_ids = []
        packet_id = self.last_packet_id
        for delivery in run:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if packet_id in inflight:
                packet_id = self._free_id(packet_id)
            inflight[packet_id] = delivery
            packet_ids.append(packet_id)
        self.last_packet_id = packet_id
        return packet_ids

    def replay(self, source: RetainedSource, subscription: Subscription) -> None:
        """Add retained messages for a SUBSCRIBE; ``advance`` sends them as the client can receive them."""
        if self.replays is None:
            self.replays = Replay()
        self.replays.add(source, subscription)

    def stop_replay(self, filter: str) -> None:
        """Do not send the remaining retained messages of a SUBSCRIBE to ``filter`` [MQTT-3.10.4-2]."""
        if self.replays is not None:
            self.replays.stop(filter)
            self._end_replay()

    def _end_replay(self) -> None:
        if not self.replays:
            self.replays = None

    def cannot_send(self, packet_id: int, delivery: Delivery) -> None:
        """Drop a delivery that the client cannot receive; it counts as done."""
        self.forget(packet_id)
        self.done(delivery)

    def done(self, delivery: Delivery) -> None:
        """Note that a delivery is done."""
        if self.journal is not None and delivery.qos:
            self.journal.done(self, (delivery,))

    def forget(self, packet_id: int) -> None:
        del self.change_inflight()[packet_id]
        if self.sent_at is not None:
            self.sent_at.pop(packet_id, None)
        if self.resend is not None:
            self.resend.left.pop(packet_id, None)

    # ---------------------------------------------------- connect, disconnect, end

    def attach(
        self,
        writer: ClientWriter,
        window: int,
        limits: Limits,
        now: float,
        packets: PacketWriter | None = None,
        keeper: MessageKeeper | None = None,
    ) -> None:
        """Attach a connected client. ``window``: how many unacknowledged QoS 1 and 2 messages it accepts; nothing is
        sent yet. ``packets``, ``keeper``: the same writer, if it has these members too."""
        self.announced = True
        self.writer = writer
        self.packets = packets
        self.keeper = keeper
        self.window = min(window, MAX_INFLIGHT)
        self.now = now
        if limits is not self.limits:
            self.limits = limits
            self.sent_at = dict.fromkeys(self.inflight, now) if limits.retry_interval else None
            if self.queue is not None:
                self.queue.resize(limits.max_queued_messages, limits.max_queued_bytes, limits.refuse_when_full)
        # [MQTT-4.4.0-1]
        self.resend = Resend(self.inflight) if self.inflight else None

    def undelivered(self) -> list[Delivery]:
        """Return every delivery that the session holds, in flight or queued."""
        held = [delivery for delivery in self.inflight.values() if delivery is not None]
        if self.queue is not None:
            held.extend(self.queue)
        return held

    def leave_empty_queue(self) -> None:
        """Keep the queue while later messages must not overtake those that are sent again."""
        if not self.queue and (self.resend is None or self.resend.topics is None):
            self.queue = None

    def requeue(self, delivery: Delivery) -> None:
        """Queue a delivery that the session held before the node's restart."""
        self._enqueue(delivery)

    def detach(self) -> None:
        """Detach the client; unacknowledged messages stay in flight."""
        self._leave_writer()
        self.resend = None
        if not self.queued:
            self.queue = None

    def end(self) -> list[Delivery]:
        """End the session. Return the deliveries that shared subscriptions must give to another member.

        These are unacknowledged QoS 1 deliveries and all unsent ones; a QoS 2 exchange that has begun ends with its
        session [MQTT-4.8.2-5]."""
        reassignable = [
            delivery
            for delivery in self.inflight.values()
            if delivery is not None and delivery.group and delivery.qos == 1
        ]
        if self.queue is not None:
            reassignable.extend(delivery for delivery in self.queue if delivery.group)
        self.clear_inflight()
        if self.queue is not None:
            self.queue.clear()
            self.queue = None
        self.resend = None
        self.replays = None
        self.awaiting_rel = None
        self.completions = None
        self._leave_writer()
        return reassignable

    def _leave_writer(self) -> None:
        self.writer = None
        self.packets = None
        self.keeper = None

    def __repr__(self) -> str:
        return f"Session({self.client_id!r}, {'connected' if self.connected else 'offline'})"
