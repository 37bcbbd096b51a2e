"""Traffic counters: what went over a connection so far."""

from ..channel.channel import Channel
from ..session.client_info import Traffic


class TrafficCounters:
    """Of one connection, in both directions; its channel counts the PUBLISH packets received."""

    __slots__ = (
        "received_bytes",
        "received_packets",
        "received_reads",
        "sent1",
        "sent2",
        "sent_bytes",
        "sent_messages",
        "sent_packets",
        "sent_writes",
    )

    def __init__(self) -> None:
        self.received_bytes = 0
        self.received_reads = 0
        self.received_packets = 0
        self.sent_bytes = 0
        self.sent_writes = 0
        self.sent_packets = 0
        # PUBLISH packets, and those of QoS 1 and of QoS 2 among them.
        self.sent_messages = 0
        self.sent1 = 0
        self.sent2 = 0

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
