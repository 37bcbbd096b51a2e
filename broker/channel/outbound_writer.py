"""Outbound PUBLISH: Topic Alias, Subscription Identifiers, Message Expiry, Maximum Packet Size - and the outbox.

An ``OutboundWriter`` sends from a session to its connected client. It only collects bytes; the flusher writes them at
the end of the iteration. There is one class for 3.x, which has no properties, aliases and packet size of the client,
and one for 5.0."""

from collections import deque
from typing import Final, Protocol

from ..core.hooks import Hooks
from ..loop.clock import Clock
from ..mqtt import encoder
from ..mqtt.constants import PUBREL, V4, V5
from ..mqtt.message import Delivery, Message
from ..mqtt.run import Run
from ..persistence.group_commit import GroupCommit
from ..session.protocols import EXPIRED, MEMORY, QUEUE_FULL, TOO_LARGE
from ..session.session import Session

_PUBACK_HEAD: Final = b"\x40\x02"
_QOS: Final = 0x06  # of a PUBLISH


class WriteTarget(Protocol):
    """The target of a writer: ``transport.connection_writer.ConnectionWriter``."""

    def flush(self, further: bool = True) -> None:
        """Write the contents of the writer, and, if ``further``, other output that may follow."""

    def abort(self) -> None:
        """Close immediately."""

    def stored(self) -> None:
        """Nothing in the writer waits for the disk any longer."""


class FlushQueue(Protocol):
    """Makes writers write at the end of the iteration: ``transport.connection_writer.Flusher``."""

    def add(self, writer: "OutboundWriter") -> list[bytes]:
        """Add a writer that has no output yet. Return its new ``parts``, to which the caller adds the output."""

    def withdraw(self, writer: "OutboundWriter") -> None:
        """Remove a writer whose output is being written."""

    def wake(self) -> None:
        """Schedule a flush, even if there is no output."""


class OutboundWriter:
    """For MQTT 3.1 and 3.1.1, and the common part for 5.0.

    ``fast``: a QoS 0 message may be sent in its shared form: the socket is writable, there is no mount point to remove,
    no PUBLISH waits for the disk, and for 5.0 there are neither aliases nor a Maximum Packet Size."""

    __slots__ = (
        "backlog",
        "clock",
        "commit",
        "fast",
        "flusher",
        "held_packets",
        "held_qos0_bytes",
        "held_topics",
        "max_outbox",
        "mountpoint",
        "on_delivered",
        "parts",
        "sent0",
        "sent1",
        "sent2",
        "sent_other",
        "session",
        "target",
        "writable",
    )

    version = V4

    def __init__(self, flusher: FlushQueue, target: WriteTarget, clock: Clock, hooks: Hooks, max_outbox: int) -> None:
        self.flusher = flusher
        self.target = target
        self.clock = clock
        self.on_delivered = hooks.message_delivered
        self.session: Session | None = None
        # Packets that wait for a batch of the journal, in order, and packets that must not overtake them: (batch, 0 if
        # it has none itself; bytes; Topic Name of a PUBLISH, otherwise "").
        self.commit: GroupCommit | None = None
        self.held_packets: deque[tuple[int, bytes, str]] | None = None
        self.held_qos0_bytes = 0  # size of the QoS 0 PUBLISHes among them
        # Topic Names of the PUBLISHes among them, with their numbers; None: there is no PUBLISH.
        self.held_topics: dict[str, int] | None = None
        self.max_outbox = max_outbox
        self.mountpoint = ""
        # Packets, or parts of them, that the next flush writes; None: there is no output.
        self.parts: list[bytes] | None = None
        # Bytes in ``parts`` while the socket is full.
        self.backlog = 0
        self.writable = True
        self.fast = True
        # Packets appended since the last flush, by kind; the connection adds them to the metrics.
        self.sent0 = 0
        self.sent1 = 0
        self.sent2 = 0
        self.sent_other = 0

    def open(self, session: Session, mountpoint: str) -> None:
        """Allow PUBLISH from now on, because the client was accepted."""
        self.session = session
        self.mountpoint = mountpoint
        self._set_fast()

    def _set_fast(self) -> None:
        self.fast = self.writable and not self.mountpoint and self.held_topics is None

    def set_writable(self, writable: bool) -> None:
        """Called by the transport: False means that the socket's buffer is full."""
        self.writable = writable
        self._set_fast()

    def send(self, data: bytes) -> None:
        """Send any encoded packet except PUBLISH."""
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        parts.append(data)
        self.sent_other += 1
        if not self.writable:
            self.backlog += len(data)

    def send_pubacks(self, packet_ids: list[int]) -> None:
        """Send successful PUBACKs for these identifiers."""
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        bytes_of = encoder.PACKET_ID
        for packet_id in packet_ids:
            parts.append(_PUBACK_HEAD)
            parts.append(bytes_of[packet_id])
        self.sent_other += len(packet_ids)
        if not self.writable:
            self.backlog += 4 * len(packet_ids)

    def send_when_durable(self, data: bytes, batch: int) -> None:
        """Send an acknowledgement that makes a promise: not before ``batch`` is on disk (0: immediately), and in
        order."""
        commit = self.commit
        if commit is None or (self.held_packets is None and batch <= commit.log.durable_batch):
            self.send(data)
            return
        self._hold(batch, data, "")

    def _hold(self, batch: int, data: bytes, topic: str) -> None:
        packets = self.held_packets
        if packets is None:
            packets = self.held_packets = deque()
            if self.commit is not None:
                self.commit.add_waiter(self)
        packets.append((batch, data, topic))

    def _hold_publish(self, batch: int, packet: bytes, delivery: Delivery) -> None:
        """Hold a PUBLISH that waits for the disk, or follows one that does: the order of sending is that of resending,
        and a topic has one order for all QoS levels [MQTT-4.6.0-1] [MQTT-4.6.0-6]."""
        topic = delivery.message.topic
        self._hold(batch, packet, topic)
        topics = self.held_topics
        if topics is None:
            topics = self.held_topics = {}
            self.fast = False
        topics[topic] = topics.get(topic, 0) + 1
        self.sent_other -= 1  # ``release`` counts it as one of these
        self._count(delivery)

    def _hold_in_order(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        """Hold a PUBLISH that waits only for those before it. Return False if this client cannot receive it, or not
        now."""
        packet = self._encoded(delivery, packet_id, dup)
        if packet is None:
            return False
        if delivery.qos == 0:
            if self.held_qos0_bytes + len(packet) > self.max_outbox:
                self._drop(delivery, QUEUE_FULL)
                return False
            self.held_qos0_bytes += len(packet)
        self._hold_publish(0, packet, delivery)
        return True

    @property
    def holding(self) -> bool:
        """Whether packets wait for the disk."""
        return self.held_packets is not None

    def abort(self) -> None:
        """Close the connection immediately."""
        self.target.abort()

    def release(self, upto: int) -> bool:
        """Send packets that wait for batches up to ``upto``; return whether more packets wait."""
        packets = self.held_packets
        if packets is None:
            return False
        while packets:
            batch, data, topic = packets[0]
            if batch > upto:
                return True
            packets.popleft()
            if topic:
                self._release_publish(topic, data)
            self.send(data)
        self.held_packets = None
        self.target.stored()
        if self.session is not None:
            self.session.advance(self.clock.now())  # retained messages follow the SUBACK
        return self.holding  # that may have added a QoS 2 PUBLISH

    def _release_publish(self, topic: str, packet: bytes) -> None:
        topics = self.held_topics
        assert topics is not None
        left = topics[topic] - 1
        if left:
            topics[topic] = left
        else:
            del topics[topic]
            if not topics:
                self.held_topics = None
                self._set_fast()
        if not packet[0] & _QOS:
            self.held_qos0_bytes -= len(packet)

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        """Send a QoS 2 PUBLISH whose Packet Identifier is not on disk yet. Return False if this client cannot receive
        it."""
        commit = self.commit
        if commit is None or (self.held_packets is None and batch <= commit.log.durable_batch):
            return self.send_publish(delivery, packet_id, dup)
        packet = self._encoded(delivery, packet_id, dup)
        if packet is None:
            return False
        self._hold_publish(batch, packet, delivery)
        return True

    def _encoded(self, delivery: Delivery, packet_id: int, dup: bool) -> bytes | None:
        """Encode a PUBLISH that is sent later. Return None if this client cannot receive it."""
        if self.mountpoint:
            topic = self._local_topic(delivery.message.topic)
            return encoder.publish(topic, delivery.message, V4, delivery.qos, delivery.retain, dup, packet_id)
        head, tail = encoder.wire(delivery, V4)
        if delivery.qos == 0:
            return head
        return b"".join((_repeated(head) if dup else head, encoder.PACKET_ID[packet_id], tail))

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        """Send several PUBLISHes of QoS 1 for the first time; return the identifiers of those that this client cannot
        receive."""
        if not self.fast:
            return [
                packet_id
                for delivery, packet_id in zip(deliveries, packet_ids, strict=True)
                if not self.send_publish(delivery, packet_id, False)
            ]
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        version = self.version
        wire = encoder.wire
        bytes_of = encoder.PACKET_ID
        for at in range(len(deliveries)):  # compiled, a loop over two lists at once would cost as much as its body
            head, tail = wire(deliveries[at], version)
            parts.append(head)
            parts.append(bytes_of[packet_ids[at]])
            parts.append(tail)
        self.sent1 += len(deliveries)
        if self.on_delivered:
            for delivery in deliveries:
                self._notify_delivered(delivery.message)
        return []

    def flush_now(self) -> None:
        """Write immediately instead of at the end of the iteration."""
        if self.parts is not None and self.writable:
            self.flusher.withdraw(self)
            self.target.flush(further=False)

    def send_publish0(self, message: Message) -> None:
        """Send a QoS 0 PUBLISH with RETAIN 0 and no identifiers."""
        if not self.fast:
            self.send_publish(Delivery(message, 0), 0, False)
            return
        packet = message.wire0_v3
        if packet is None:
            packet = encoder.publish0(message, V4)
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        parts.append(packet)
        self.sent0 += 1
        if self.on_delivered:
            self._notify_delivered(message)

    def send_run0(self, run: Run) -> None:
        """Send several of these."""
        messages = run.messages
        if not self.fast:
            for message in messages:
                self.send_publish0(message)
            return
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        for message in messages:
            packet = message.wire0_v3
            parts.append(encoder.publish0(message, V4) if packet is None else packet)
        self.sent0 += len(messages)

    def send_retained0(self, messages: list[Message], identifiers: tuple[int, ...]) -> int:
        """See ``session.protocols.PacketWriter``."""
        if not self.fast or self.on_delivered:
            for count, message in enumerate(messages, 1):
                self.send_publish(Delivery(message, 0, True, identifiers), 0, False)
                if not self.writable:
                    return count
            return len(messages)
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        version = self.version
        for message in messages:
            if version == V5 and message.expires:
                self.send_publish(Delivery(message, 0, True, identifiers), 0, False)
                continue
            encoder.retained0(parts, message, version, identifiers)
            self.sent0 += 1
        return len(messages)

    def takes_packets(self, version: int) -> bool:
        """Return whether PUBLISH packets of QoS 0 of this version can be sent unchanged."""
        return self.fast and (version == V5) == (self.version == V5)

    def send_packets0(self, packets: bytes, count: int) -> None:
        """Send this number of such packets."""
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        parts.append(packets)
        self.sent0 += count

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        """Send any other PUBLISH. Return False if this client cannot receive it."""
        if self.held_topics is not None and (delivery.qos or delivery.message.topic in self.held_topics):
            return self._hold_in_order(delivery, packet_id, dup)
        if not self.writable and not self._count_unread(delivery):
            return False
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        if self.mountpoint:
            topic = self._local_topic(delivery.message.topic)
            parts.append(encoder.publish(topic, delivery.message, V4, delivery.qos, delivery.retain, dup, packet_id))
        else:
            head, tail = delivery.wire_v3 or encoder.wire(delivery, V4)
            if delivery.qos == 0:
                parts.append(head)
            else:
                if dup:
                    head = _repeated(head)
                parts += (head, encoder.PACKET_ID[packet_id], tail)
        self._count(delivery)
        return True

    def _count(self, delivery: Delivery) -> None:
        qos = delivery.qos
        if qos == 1:
            self.sent1 += 1
        elif qos == 0:
            self.sent0 += 1
        else:
            self.sent2 += 1
        if self.on_delivered:
            self._notify_delivered(delivery.message)

    def send_pubrel(self, packet_id: int) -> None:
        """Repeat the second half of a QoS 2 delivery, after a PUBREC that may not be on disk yet."""
        self.send_when_durable(encoder.ack(PUBREL, packet_id), 0 if self.commit is None else self.commit.barrier)

    def _count_unread(self, delivery: Delivery) -> bool:
        """Count a PUBLISH for a client that does not read; return False (dropped) for QoS 0 beyond
        ``max_outbox_bytes``."""
        size = delivery.size
        session = self.session
        if delivery.qos == 0:
            if session is not None and session.account.level:
                self._drop(delivery, MEMORY)
                return False
            if self.backlog + size > self.max_outbox:
                self._drop(delivery, QUEUE_FULL)
                return False
        self.backlog += size
        if session is not None:
            session.account.unread += size
            self.flusher.wake()  # there is no output, but the memory guard runs at the end of the iteration
        return True

    def _drop(self, delivery: Delivery, reason: str) -> None:
        session = self.session
        if session is not None:
            session.observer.delivery_dropped(session, delivery, reason)

    def _notify_delivered(self, message: Message) -> None:
        if self.session is not None:
            self.on_delivered(self.session.client, message)

    def _local_topic(self, topic: str) -> str:
        mountpoint = self.mountpoint
        return topic[len(mountpoint) :] if mountpoint and topic.startswith(mountpoint) else topic


class OutboundWriter5(OutboundWriter):
    """For MQTT 5.0."""

    __slots__ = ("_aliases", "alias_maximum", "max_packet_size")

    version = V5

    def __init__(self, flusher: FlushQueue, target: WriteTarget, clock: Clock, hooks: Hooks, max_outbox: int) -> None:
        super().__init__(flusher, target, clock, hooks, max_outbox)
        # Limits from the client's CONNECT: number of its aliases [MQTT-3.1.2-26], size of a packet, 0: none.
        self.alias_maximum = 0
        self.max_packet_size = 0
        self._aliases: dict[str, int] | None = None

    def _set_fast(self) -> None:
        plain = not (self.mountpoint or self.alias_maximum or self.max_packet_size)
        self.fast = plain and self.writable and self.held_topics is None

    def send_publish0(self, message: Message) -> None:
        if not self.fast or message.expires:
            self.send_publish(Delivery(message, 0), 0, False)
            return
        packet = message.wire0_v5
        if packet is None:
            packet = encoder.publish0(message, V5)
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        parts.append(packet)
        self.sent0 += 1
        if self.on_delivered:
            self._notify_delivered(message)

    def send_run0(self, run: Run) -> None:
        messages = run.messages
        if not self.fast:
            for message in messages:
                self.send_publish0(message)
            return
        parts = self.parts
        if parts is None:
            parts = self.flusher.add(self)
        for message in messages:
            packet = message.wire0_v5
            parts.append(encoder.publish0(message, V5) if packet is None else packet)
        self.sent0 += len(messages)

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        message = delivery.message
        if self.held_topics is not None and (delivery.qos or message.topic in self.held_topics):
            return self._hold_in_order(delivery, packet_id, dup)
        expires = message.expires
        if not self.writable and not self._count_unread(delivery):
            return False
        if expires or self.alias_maximum or self.mountpoint:
            packet = self._encode(delivery, packet_id, dup, expires)
            if packet is None:
                return False
            parts = self.parts
            if parts is None:
                parts = self.flusher.add(self)
            parts.append(packet)
        else:
            head, tail = delivery.wire_v5 or encoder.wire(delivery, V5)
            if self.max_packet_size and len(head) + len(tail) + (2 if delivery.qos else 0) > self.max_packet_size:
                self._drop(delivery, TOO_LARGE)  # [MQTT-3.1.2-24] [MQTT-3.1.2-25]
                return False
            parts = self.parts
            if parts is None:
                parts = self.flusher.add(self)
            if delivery.qos == 0:
                parts.append(head)
            else:
                if dup:
                    head = _repeated(head)
                parts += (head, encoder.PACKET_ID[packet_id], tail)
        self._count(delivery)
        return True

    def _encoded(self, delivery: Delivery, packet_id: int, dup: bool) -> bytes | None:
        # A message that waits for the disk sets no Topic Alias: one that does not wait may be sent before it.
        return self._encode(delivery, packet_id, dup, delivery.message.expires, may_set_alias=False)

    def _encode(
        self, delivery: Delivery, packet_id: int, dup: bool, expires: bool, may_set_alias: bool = True
    ) -> bytes | None:
        """Encode the form for this client: remaining expiry, alias, mount point removed. Return None if it is too large
        or expired, and so dropped."""
        message = delivery.message
        expiry: int | None = None
        if expires:
            interval = message.expiry_interval or 0
            # [MQTT-3.3.2-6]; an exchange that began before the expiry is completed [MQTT-4.3.3-7]
            expiry = interval - int(self.clock.now() - message.timestamp)
            if expiry <= 0 and interval > 0:
                if not dup:
                    self._drop(delivery, EXPIRED)  # [MQTT-3.3.2-5]
                    return None
                expiry = 1
            expiry = max(expiry, 0)
        topic = self._local_topic(message.topic)
        alias = 0
        sent_topic = topic
        new_alias = False
        if self.alias_maximum:
            aliases = self._aliases
            if aliases is None:
                aliases = self._aliases = {}
            alias = aliases.get(topic, 0)
            if alias:
                sent_topic = ""
            elif may_set_alias and len(aliases) < self.alias_maximum:
                alias = len(aliases) + 1
                new_alias = True
        packet = encoder.publish(
            sent_topic,
            message,
            V5,
            delivery.qos,
            delivery.retain,
            dup,
            packet_id,
            delivery.identifiers,
            alias,
            expiry,
        )
        if self.max_packet_size and len(packet) > self.max_packet_size:
            self._drop(delivery, TOO_LARGE)
            return None
        if new_alias and self._aliases is not None:
            self._aliases[topic] = alias  # only now, because a client must not receive an alias that was never set
        return packet


def _repeated(head: bytes) -> bytes:
    """Return the first part of a PUBLISH with DUP set [MQTT-3.3.1-1]."""
    return bytes((head[0] | 0x08,)) + head[1:]
