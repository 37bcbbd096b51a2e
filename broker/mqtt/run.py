"""Run: PUBLISHes of one read that need the same decisions.

    t, QoS 1, "a"    t, QoS 1, "b"    t, QoS 1, "c"    u, QoS 1, "d"
    └────────────── one run ─────────────────────┘    alone

A client that publishes faster than its node reads sends such runs. They are checked, routed and acknowledged
together."""

from typing import Final

from .decoder import Packet
from .message import Message

OVERHEAD: Final = 64
"""Bytes by which a delivery counts in the loop budget in addition to the frame."""


class Run:
    """Two or more messages of one publisher and one moment that are alike: they differ only in payload, Packet
    Identifier and properties. They have the same Topic Name, the same QoS, 0 or 1, RETAIN 0, and neither a Topic Alias
    nor a Message Expiry Interval.

    Only ``next_run`` and ``run_decoder.read_run`` create one, so code that receives a run need not check its messages
    again. ``core.runs`` decides whether something on this node, such as a hook or a rule, needs each single message;
    ``channel.publish.publish_run`` decides whether the client may publish them without another check."""

    __slots__ = ("messages", "qos", "topic")

    def __init__(self, topic: str, qos: int, messages: list[Message]) -> None:
        self.topic = topic
        self.qos = qos
        self.messages = messages

    def keep(self, count: int) -> None:
        """Keep the first messages only."""
        del self.messages[count:]

    def skip(self, count: int) -> None:
        """Remove the first messages."""
        del self.messages[:count]

    def readdress(self, topic: str) -> None:
        """Change the topic of all messages."""
        self.topic = topic
        for message in self.messages:
            message.readdress(topic)

    def release_plain(self) -> None:
        """``Message.release_plain`` of all messages, after all subscribers have received them."""
        first = self.messages[0]
        if first.plain1 is not None or first.plain2 is not None:
            for message in self.messages:
                message.release_plain()

    def budget_bytes(self) -> int:
        """Return how many bytes a delivery of the run adds to the loop budget."""
        messages = self.messages
        size = OVERHEAD * len(messages)
        for message in messages:
            size += len(message.frame)
        return size


def next_run(packets: list[Packet], at: int, most: int) -> Run | None:
    """Return the run of the packets from ``at`` on, at most ``most`` of them. None: the packet at ``at`` is alone."""
    first = packets[at]
    end = min(at + most, len(packets))
    if at + 1 >= end or not isinstance(first, Message):
        return None
    topic = first.topic
    qos = first.qos
    following = packets[at + 1]
    if not isinstance(following, Message) or following.topic is not topic or qos > 1:
        return None
    run: list[Message] = []
    for place in range(at, end):
        packet = packets[place]
        if (
            not isinstance(packet, Message)
            or packet.topic is not topic
            or packet.qos != qos
            or packet.retain
            or packet.has_alias
            or packet.expires
        ):
            break
        run.append(packet)
    return Run(topic, qos, run) if len(run) > 1 else None
