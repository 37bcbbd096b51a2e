"""Outcome: the result of a publication, or why a Topic Filter is not granted."""

from dataclasses import dataclass
from typing import Final

from ..mqtt import reason_codes

REFUSED: Final = 0x80


@dataclass(slots=True, eq=False)
class Outcome:
    """``code``: the Reason Code of MQTT 5.0 for the client; from 0x80 on it is a refusal.

    ``setting``: the key of the setting that decided, ``-`` if no operator can change it. ``detail``: additional text
    for the log."""

    code: int
    setting: str = "-"
    detail: str = ""

    @property
    def refused(self) -> bool:
        """Whether the message, filter or subscription was refused."""
        return self.code >= REFUSED


PUBLISHED: Final = Outcome(reason_codes.SUCCESS)
NO_SUBSCRIBERS: Final = Outcome(reason_codes.NO_MATCHING_SUBSCRIBERS)
DELAYED: Final = Outcome(reason_codes.SUCCESS)

RESERVED: Final = Outcome(reason_codes.NOT_AUTHORIZED, "-", "reserved for the server")
NOT_DELAYED: Final = Outcome(reason_codes.TOPIC_NAME_INVALID, "-", "expected $delayed/<seconds>/<topic>")
QUEUE_FULL: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "queue_full")
LINK_FULL: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "cluster.link_queue_messages or cluster.link_queue_bytes", "another node is away"
)
REWRITTEN_INVALID: Final = Outcome(
    reason_codes.TOPIC_NAME_INVALID, "rewrite.rules", "a rule rewrites it to an invalid topic, or it is too long"
)
STORE_TROUBLE: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "node.data_dir", "nothing can be stored at present")
NO_MEMORY: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "limits.memory", "the node has no memory for more")
NO_MEMORY_FOR_QUEUES: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "limits.memory", "memory is used up, and the largest queues are shed"
)
RETAINED_FULL: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "retained.max_messages", "the limit of retained messages has been reached"
)
RETAINED_BYTES_FULL: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "retained.max_bytes", "retained messages use as much memory as is allowed"
)
RETAINED_TOO_LARGE: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "retained.max_payload_size", "the payload is too large to be retained"
)
RETAINED_TOO_LARGE_FOR_NATS: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "max_payload of the NATS server", "the message is too large to be retained"
)

RETAINED_ALONE: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "cluster.servers", "the cluster has no quorum: nothing can be retained at present"
)

UNINSPECTED: Final = "\0"
"""The first character of the topic of a stored message that waited for an answer when the node stopped. No Topic Name
contains it."""

CLIENT_GONE: Final = Outcome(reason_codes.SERVER_UNAVAILABLE, "-", "the client has gone")
"""The client did not wait for its CONNACK. Its session may be elsewhere by now."""
FILTER_INVALID: Final = Outcome(reason_codes.TOPIC_FILTER_INVALID)
FILTER_REWRITTEN_INVALID: Final = Outcome(
    reason_codes.TOPIC_FILTER_INVALID, "rewrite.rules", "a rule rewrites it to an invalid filter, or it is too long"
)
NO_USERNAME: Final = Outcome(
    reason_codes.NOT_AUTHORIZED, "auto_subscribe.topics", "the filter requires an authenticated username"
)
CLIENT_NAME_UNSAFE: Final = Outcome(
    reason_codes.TOPIC_FILTER_INVALID, "auto_subscribe.topics", "the client has a name with + # / or a leading $"
)
FILTER_TOO_DEEP: Final = Outcome(reason_codes.TOPIC_FILTER_INVALID, "max_topic_levels")
FILTER_TOO_LONG: Final = Outcome(reason_codes.TOPIC_FILTER_INVALID, "mountpoint", "too long with the mount point")
NO_SHARED: Final = Outcome(reason_codes.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared_subscription")
NO_EXCLUSIVE: Final = Outcome(reason_codes.TOPIC_FILTER_INVALID, "exclusive_subscription", "$exclusive/ is off")
EXCLUSIVE_TAKEN: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED, "exclusive_subscription", "another client has this exclusive subscription"
)
EXCLUSIVE_ALONE: Final = Outcome(
    reason_codes.QUOTA_EXCEEDED,
    "cluster.servers",
    "the other nodes have not confirmed that no client has this exclusive subscription",
)
NO_WILDCARDS: Final = Outcome(reason_codes.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "wildcard_subscription")


@dataclass(slots=True, eq=False)
class PublisherKind:
    """A kind of publisher, for the intended differences in ``Broker.accept``.

    ``counted``: its messages count as received here; those of clients are counted when their packet arrives, even if it
    is refused or repeated. ``refusable``: it is informed if the store is in trouble or a queue is full.
    ``must_retain``: it is informed if a message of any QoS cannot be retained, and then nothing is published.
    ``rewritten``: the topics of its messages were rewritten before access was checked."""

    counted: bool
    refusable: bool
    must_retain: bool
    rewritten: bool


CLIENT: Final = PublisherKind(False, True, False, True)
OPERATOR: Final = PublisherKind(True, True, True, False)
WILL: Final = PublisherKind(False, False, False, True)
"""Its CONNECT was accepted, which promised the publication of the Will."""
RULE: Final = PublisherKind(True, False, False, False)
"""A rule has no client that could be informed."""
RULE_LATER: Final = PublisherKind(True, False, False, True)
"""A rule, of a message that had to wait before it was accepted."""
SOURCE: Final = PublisherKind(True, True, False, False)
"""A source in another system keeps a message that is refused, and offers it again."""
BRIDGE: Final = PublisherKind(False, False, False, False)
"""A bridge acknowledges a message to the other broker when the message is stored, however long that takes."""
