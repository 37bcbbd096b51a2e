"""The properties of a row's event that network actions need in addition to the row."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..event import Event


class MessageFacts(NamedTuple):
    """The properties of the message behind an event; an event without a message has no topic, QoS 0 and no RETAIN."""

    topic: str
    qos: int
    retain: bool


def message_facts(event: "Event") -> MessageFacts:
    """Return how the message behind the event was published, if there is one."""
    message = event.message
    return MessageFacts("", 0, False) if message is None else MessageFacts(message.topic, message.qos, message.retain)


def order_key(event: "Event") -> str:
    """Return the key of rows that have to be delivered in order: those of one client."""
    client_id = event.columns.get("clientid", "")
    return client_id if isinstance(client_id, str) else ""
