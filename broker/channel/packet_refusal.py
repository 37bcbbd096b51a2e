"""Refusals of a client's message or filter, counted and logged. ``core.outcome`` has further ones."""

from typing import TYPE_CHECKING, Final

from ..core.outcome import Outcome
from ..mqtt import reason_codes

if TYPE_CHECKING:
    from ..mqtt.message import Message
    from .channel import Channel

TOO_DEEP: Final = Outcome(reason_codes.TOPIC_NAME_INVALID, "max_topic_levels")
MOUNTED_TOO_LONG: Final = Outcome(reason_codes.TOPIC_NAME_INVALID, "mountpoint", "too long with the mount point")
IN_USE: Final = Outcome(reason_codes.PACKET_IDENTIFIER_IN_USE)
TOO_MANY_QOS2: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "max_awaiting_rel")
OVER_QUOTA: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "-", "over the quota set by an operator")
OVER_RATE: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "message_rate", "waited for its rate when its client left")
BEHIND: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "-", "waited for an earlier one when its client left")
UNANSWERED: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "-", "waited for an answer when its client left")
NEEDS_EXTERNAL_CHECK: Final = Outcome(reason_codes.NOT_AUTHORIZED, "-", "an external service must be asked first")


def not_asked(setting: str) -> Outcome:
    """``setting``: the setting of the external source that was not asked."""
    return Outcome(reason_codes.NOT_AUTHORIZED, setting, "the service was not asked at CONNECT")


def note_refusal(channel: "Channel", refusal: Outcome, event: str, topic: str, now: float) -> None:
    """See ``Broker.note_refusal``."""
    channel.context.broker.note_refusal(event, channel.client.client_id, topic, refusal, now)


def drop(channel: "Channel", message: "Message", why: Outcome, now: float) -> None:
    """Count and log a message that is neither published nor acknowledged: with QoS 1 and 2, the client may send it
    again."""
    channel.context.metrics.packets_publish_dropped += 1
    channel.refused_messages += 1
    note_refusal(channel, why, "publish_refused", message.topic, now)
