"""The Will of a client: WILLTOPIC and WILLMSG set it before the login, and their updates change it later."""

from ...mqtt.packets import Will
from . import codec as sn


def complete(topic: sn.SnWillTopic, message: sn.SnWillMsg) -> Will:
    """Return the Will of a client that connects."""
    return Will(topic.topic, message.payload, topic.qos, topic.retain)


def with_topic(old: Will | None, update: sn.SnWillTopic) -> Will | None:
    """Return the Will with another topic; an empty one deletes it."""
    if not update.topic:
        return None
    return Will(update.topic, b"" if old is None else old.payload, update.qos, update.retain)


def with_message(old: Will, update: sn.SnWillMsg) -> Will:
    """Return the Will with another message."""
    return Will(old.topic, update.payload, old.qos, old.retain)
