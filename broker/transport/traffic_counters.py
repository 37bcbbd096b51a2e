"""Traffic counters: what went over a connection so far."""

from dataclasses import dataclass

from ..channel.channel import Channel
from ..session.client_info import Traffic


@dataclass(slots=True, eq=False)
class TrafficCounters:
    """Of one connection, in both directions; its channel counts the PUBLISH packets received."""

    received_bytes: int = 0
    received_reads: int = 0
    received_packets: int = 0
    sent_bytes: int = 0
    sent_writes: int = 0
    sent_packets: int = 0
    # PUBLISH packets, and those of QoS 1 and of QoS 2 among them.
    sent_messages: int = 0
    sent1: int = 0
    sent2: int = 0

    def traffic(self, channel: Channel, waiting: int, held: int) -> Traffic:
        """All of them, with what ``channel`` has counted. ``waiting``: packets; ``held``: bytes of memory."""
        return Traffic(
            self.received_bytes,
            self.received_reads,
            self.received_packets,
            channel.received_messages - channel.received1 - channel.received2,
            channel.received1,
            channel.received2,
            channel.refused_messages,
            self.sent_bytes,
            self.sent_writes,
            self.sent_packets,
            self.sent_messages - self.sent1 - self.sent2,
            self.sent1,
            self.sent2,
            waiting,
            held,
        )
