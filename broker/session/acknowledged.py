"""Acknowledged: what a session sent to its client, as the client acknowledges it."""

from ..mqtt.errors import ProtocolError
from ..mqtt.message import Delivery, Message
from .inbound import Inbound


class Acknowledged(Inbound):
    """PUBACK, PUBREC and PUBCOMP for what is in ``inflight``."""

    __slots__ = ()

    def puback(self, *packet_ids: int) -> list[Delivery]:
        """QoS 1 deliveries are complete; returns them, without identifiers that are not in use.

        :raises ProtocolError: an identifier belongs to a QoS 2 delivery. Those before it are done.
        """
        inflight = self.inflight
        acknowledged: list[Delivery] = []
        simple = self.sent_at is None and self._resend is None and not self.limits.max_inflight_bytes
        try:
            for packet_id in packet_ids:
                delivery = inflight.get(packet_id)
                if delivery is None or delivery.qos != 1:
                    if packet_id in inflight:
                        raise ProtocolError("PUBACK for a QoS 2 message")
                    continue
                if simple:
                    del inflight[packet_id]
                else:
                    self._finish(packet_id, delivery)
                acknowledged.append(delivery)
        finally:
            if self.diary is not None:
                self.diary.done(self, acknowledged)
        return acknowledged

    def pubrec(self, packet_id: int, failed: bool = False) -> tuple[bool, Delivery | None]:
        """First acknowledgement of QoS 2: (whether the identifier is known, the delivery it concerned).

        A second PUBREC for a released identifier is known, with ``None``. ``failed`` (Reason Code >= 0x80)
        ends the exchange [MQTT-4.4.0-2].

        :raises ProtocolError: the identifier belongs to a QoS 1 delivery.
        """
        inflight = self.inflight
        if packet_id not in inflight:
            return False, None
        delivery = inflight[packet_id]
        if delivery is not None:
            if delivery.qos != 2:
                raise ProtocolError("PUBREC for a QoS 1 message")
            self._finish(packet_id, delivery)
            if not failed:
                if self.sent_at is not None:
                    self.sent_at[packet_id] = self.now
                if self.diary is not None:
                    self.diary.released(self, delivery, packet_id)
                inflight[packet_id] = None  # last in order: PUBRELs are repeated in order of their PUBRECs
            else:
                self._done(delivery)
        elif failed:
            self._forget(packet_id)
            if self.diary is not None:
                self.diary.completed(self, packet_id)
        return True, delivery

    def pubcomp(self, packet_id: int) -> bool:
        """A QoS 2 delivery is complete. False: no such identifier is in use.

        :raises ProtocolError: PUBREL was not sent for it yet.
        """
        inflight = self.inflight
        if packet_id not in inflight:
            return False
        if inflight[packet_id] is not None:
            raise ProtocolError("PUBCOMP before PUBREL")
        self._forget(packet_id)
        if self.diary is not None:
            self.diary.completed(self, packet_id)
        return True

    def note_completion(self, packet_id: int, message: Message) -> None:
        """Keep the message of a released identifier until its PUBCOMP."""
        if self.completions is None:
            self.completions = {}
        self.completions[packet_id] = message

    def completion_of(self, packet_id: int) -> Message | None:
        """The message kept for this identifier, once."""
        return None if self.completions is None else self.completions.pop(packet_id, None)

    def _done(self, delivery: Delivery) -> None:
        """It is not owed any more."""
        if self.diary is not None and delivery.qos:
            self.diary.done(self, (delivery,))

    def _finish(self, packet_id: int, delivery: Delivery) -> None:
        self._forget(packet_id)
        if self.limits.max_inflight_bytes:
            # What came from disk is known exactly only when it is sent.
            self.inflight_bytes = max(0, self.inflight_bytes - delivery.octets) if self.inflight else 0

    def _forget(self, packet_id: int) -> None:
        del self.inflight[packet_id]
        if self.sent_at is not None:
            self.sent_at.pop(packet_id, None)
        if self._resend is not None:
            self._resend.pop(packet_id, None)
