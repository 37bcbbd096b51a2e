"""What a network action needs of the event that its row came from, beside the row."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..events import Event


class Origin(NamedTuple):
    """Of the message behind an event; an event without a message has no topic, QoS 0 and no RETAIN."""

    client_id: str
    topic: str
    qos: int
    retain: bool


def origin_of(event: "Event") -> Origin:
    """Who sent what, where there was a message."""
    columns = event.columns
    client_id = columns.get("clientid", "")
    topic = columns.get("topic", "")
    qos = columns.get("qos", 0)
    flags = columns.get("flags", {})
    return Origin(
        client_id if isinstance(client_id, str) else "",
        topic if isinstance(topic, str) else "",
        qos if isinstance(qos, int) and qos in (0, 1, 2) else 0,
        isinstance(flags, dict) and flags.get("retain") is True,
    )
