"""A client of the scripted run, which records in ``DiskPromises`` what it sends and reads."""

from collections import deque
from typing import TYPE_CHECKING, Any

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.support.fake_node import FakeClient
from tests.support.wire import Packet, Publish

if TYPE_CHECKING:
    from .disk_run import Run


class ScriptedClient:
    """One client of the script. The answers that it owes are in ``due`` until the script sends them."""

    def __init__(self, run: "Run", client_id: str, version: int, durable: bool, receive_maximum: int = 0) -> None:
        self.run = run
        self.client_id = client_id
        self.version = version
        self.durable = durable
        self.receive_maximum = receive_maximum
        self.peer: FakeClient | None = None
        self.online = False
        self.due: deque[tuple[Ack, str]] = deque()
        self.requests: dict[int, tuple[str, int]] = {}  # SUBSCRIBE and UNSUBSCRIBE: filter and QoS
        self.awaiting: dict[int, str] = {}
        # Packet Identifier -> message, QoS, topic if retained, value; PUBREC came: None
        self.sent: dict[int, tuple[str, int, str, Publish] | None] = {}
        self.will = ""
        self._last = 0
        self._record = run.record

    def connect(self, clean: bool, will: Will | None = None) -> None:
        self.take()
        self.online = False
        properties: dict[int, Any] = {}
        if self.version == 5:
            if self.durable:
                properties[c.SESSION_EXPIRY_INTERVAL] = c.NEVER_EXPIRES
            if self.receive_maximum:
                properties[c.RECEIVE_MAXIMUM] = self.receive_maximum
        if self.durable:
            self._record("connecting", self.client_id, clean)
        if clean or not self.durable:
            self._forget()
        self.peer = self.run.node.open(self.version)
        self.peer.send(
            Connect(self.version, self.client_id, clean or not self.durable, 0, None, None, will, properties)
        )

    def leave(self, end: bool = False) -> None:
        """Send DISCONNECT; with ``end``, the session ends (5.0)."""
        peer = self._read_up() if self.online else None
        if peer is None:
            return
        if end:
            self._record("ending", self.client_id)
            self._forget()
        peer.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0} if end else {}))
        self._gone()

    def vanish(self) -> None:
        peer = self._read_up()
        if peer is not None:
            self._gone()
            peer.vanish()

    def _read_up(self) -> FakeClient | None:
        """Read everything that arrived; return the connection, or None if it has ended."""
        self.take()
        return self.peer

    def _gone(self) -> None:
        self.peer = None
        self.online = False
        self.due.clear()
        self.requests.clear()
        # QoS 1 is not sent again: it would be another message of the same name.
        self.sent = {pid: each for pid, each in self.sent.items() if each is None or each[1] == 2}
        if not self.durable:
            self.sent.clear()

    def _forget(self) -> None:
        self.awaiting.clear()
        self.sent.clear()
        self.due.clear()

    def _id(self) -> int:
        while True:
            self._last = self._last % 30 + 1
            if self._last not in self.sent and self._last not in self.requests:
                return self._last

    # --- what it sends

    def subscribe(self, topic_filter: str, qos: int) -> None:
        if self._asked(topic_filter):
            return
        packet_id = self._id()
        self.requests[packet_id] = (topic_filter, qos)
        if self.durable:
            self._record("subscribing", self.client_id, topic_filter)
        self._send(Subscribe(packet_id, [TopicFilter(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        if self._asked(topic_filter):
            return
        packet_id = self._id()
        self.requests[packet_id] = (topic_filter, -1)
        if self.durable:
            self._record("unsubscribing", self.client_id, topic_filter)
        self._send(Unsubscribe(packet_id, [topic_filter]))

    def _asked(self, topic_filter: str) -> bool:
        return any(each == topic_filter for each, _ in self.requests.values())

    def publish(self, topic: str, qos: int, size: int) -> None:
        if len(self.sent) >= 20:
            return
        name = self.run.new_name(self.client_id)
        packet_id = self._id()
        publish = Publish(topic, name.encode() + b" " * size, qos, False, False, packet_id)
        self.sent[packet_id] = (name, qos, "", publish)
        self._record("sending", name, self.client_id, topic, qos, packet_id if self.durable else 0)
        self._send(publish)

    def retain(self, topic: str, qos: int, clear: bool) -> None:
        if len(self.sent) >= 20 or any(each is not None and each[2] == topic for each in self.sent.values()):
            return
        name = self.run.new_name(self.client_id)
        packet_id = self._id()
        publish = Publish(topic, b"" if clear else name.encode(), qos, True, False, packet_id)
        self.sent[packet_id] = (name, qos, topic, publish)
        self._record("sending", name, self.client_id, f"-{topic}", qos, packet_id if self.durable else 0)
        self._record("retaining", topic, "" if clear else name)
        self._send(publish)

    def answer(self, most: int) -> None:
        """Send at most this number of pending answers."""
        while self.due and most > 0:
            most -= 1
            ack, name = self.due.popleft()
            if ack.type in (c.PUBACK, c.PUBREC):
                if self.durable:
                    self._record("answering", self.client_id, name)
            elif ack.type == c.PUBREL and self.durable:
                self._record("releasing", self.client_id, ack.packet_id)
            self._send(ack)

    def _send(self, packet: Packet) -> None:
        assert self.peer is not None
        self.peer.send(packet)

    # --- what it reads

    def take(self) -> None:
        """Read everything that arrived."""
        peer = self.peer
        if peer is None:
            return
        for packet in peer.received():
            if isinstance(packet, Connack):
                self._connack(packet)
            elif isinstance(packet, Publish):
                self._publish(packet)
            elif isinstance(packet, Ack):
                self._ack(packet)
            elif isinstance(packet, Suback):
                topic_filter, qos = self.requests.pop(packet.packet_id)
                code = packet.reason_codes[0]
                if code < 0x80:
                    assert code == qos, packet
                    if self.durable:
                        self._record("subscribed", self.client_id, topic_filter, qos)
            elif isinstance(packet, Unsuback):
                topic_filter, _ = self.requests.pop(packet.packet_id)
                if self.durable and not (packet.reason_codes and packet.reason_codes[0] >= 0x80):
                    self._record("unsubscribed", self.client_id, topic_filter)
            elif isinstance(packet, Disconnect):
                pass
            else:
                raise AssertionError(packet)
        if peer.closed and self.peer is peer:
            self._gone()

    def _connack(self, packet: Connack) -> None:
        if packet.reason_code:
            self.run.refused += 1
            assert packet.reason_code in (0x97, 3), packet
            return
        self.online = True
        if not packet.session_present:
            self._forget()
        if self.durable:
            self._record("connected", self.client_id, bool(packet.session_present))
        for packet_id, sent in self.sent.items():
            if sent is None:
                self.due.append((Ack(c.PUBREL, packet_id), ""))
            else:
                sent[3].dup = True
                self._send(sent[3])

    def _publish(self, packet: Publish) -> None:
        name = packet.payload.decode().rstrip()
        if packet.qos == 0 or packet.retain:
            self.run.wrong.append(f"{self.client_id} was sent {packet}")
            return
        if packet.qos == 2:
            known = self.awaiting.get(packet.packet_id)
            if known not in (None, name):
                self.run.wrong.append(f"{self.client_id}: packet id {packet.packet_id} is {known}, now {name}")
            self.awaiting[packet.packet_id] = name
        if self.durable:
            self._record("took", self.client_id, name, packet.qos, packet.packet_id)
        self.due.append((Ack(c.PUBREC if packet.qos == 2 else c.PUBACK, packet.packet_id), name))

    def _ack(self, packet: Ack) -> None:
        packet_id = packet.packet_id
        if packet.type == c.PUBREL:
            self.awaiting.pop(packet_id, None)
            if self.durable:
                self._record("released", self.client_id, packet_id)
            self.due.append((Ack(c.PUBCOMP, packet_id), ""))
        elif packet.type == c.PUBCOMP:
            if packet_id in self.sent:
                del self.sent[packet_id]
                if self.durable:
                    self._record("freed", self.client_id, packet_id)
        else:
            self._stored(packet)

    def _stored(self, packet: Ack) -> None:
        sent = self.sent.pop(packet.packet_id, None)
        if sent is None:
            return
        name, _, topic, publish = sent
        if packet.reason_code >= 0x80:
            assert packet.reason_code == 0x97, packet
            self.run.refused += 1
            self._record("refusal", name)
            if topic:
                self._record("retained_refused", topic)
            return
        received = packet.type == c.PUBREC
        self._record("acknowledged", name, self.client_id, packet.packet_id if received and self.durable else 0)
        if topic:
            self._record("retained_acknowledged", topic, publish.payload.decode())
        if self.will and received:
            self._record("will_armed", self.will)
        if received:
            self.sent[packet.packet_id] = None
            self.due.append((Ack(c.PUBREL, packet.packet_id), ""))
