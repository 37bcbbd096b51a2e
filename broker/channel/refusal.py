"""RefusalReason: why a message or a filter is not taken, with the setting that an operator would look for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..mqtt import reason_codes

if TYPE_CHECKING:
    from .channel import Channel


@dataclass(slots=True)
class RefusalReason:
    """``code``: the Reason Code for the client. ``setting``: the key of the configuration that decided, ``-`` where
    nothing lets it through. ``detail``: more words for the log."""

    code: int
    setting: str
    detail: str = ""

    def report(self, channel: "Channel", event: str, topic: str, now: float) -> None:
        """Count it under its event and reason, and say so in the log; ``now`` in unix seconds."""
        name = reason_codes.name(self.code)
        context = channel.context
        context.metrics.refusals.add(f"{event.removesuffix('_refused')}_{name}")
        quiet = context.broker.quiet_log
        quiet.say(event, channel.client.client_id, topic, name, self.setting, now, detail=self.detail)


TOO_DEEP: Final = RefusalReason(reason_codes.TOPIC_NAME_INVALID, "max_topic_levels")
TOO_DEEP_FILTER: Final = RefusalReason(reason_codes.TOPIC_FILTER_INVALID, "max_topic_levels")
NO_SHARED: Final = RefusalReason(reason_codes.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared_subscription")
NO_WILDCARDS: Final = RefusalReason(reason_codes.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "wildcard_subscription")
RESERVED: Final = RefusalReason(reason_codes.NOT_AUTHORIZED, "-", "reserved for the server")
NOT_DELAYED: Final = RefusalReason(reason_codes.TOPIC_NAME_INVALID, "-", "expected $delayed/<seconds>/<topic>")
MOUNTED_TOO_LONG: Final = RefusalReason(reason_codes.TOPIC_NAME_INVALID, "mountpoint", "too long with the mount point")
IN_USE: Final = RefusalReason(reason_codes.PACKET_IDENTIFIER_IN_USE, "-")
TOO_MANY_QOS2: Final = RefusalReason(reason_codes.QUOTA_EXCEEDED, "max_awaiting_rel")
QUEUE_FULL: Final = RefusalReason(reason_codes.QUOTA_EXCEEDED, "queue_full")
OVER_QUOTA: Final = RefusalReason(reason_codes.QUOTA_EXCEEDED, "-", "over the quota that an operator has set")
NEEDS_EXTERNAL_CHECK: Final = RefusalReason(reason_codes.NOT_AUTHORIZED, "-", "a service outside must be asked first")
NO_MEMORY: Final = RefusalReason(reason_codes.QUOTA_EXCEEDED, "limits.memory", "the node has no memory for more")
STORE_TROUBLE: Final = RefusalReason(reason_codes.QUOTA_EXCEEDED, "node.data_dir", "nothing can be stored at present")
