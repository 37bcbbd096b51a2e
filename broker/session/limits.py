"""Limits: how many messages a session may hold, queue and have in flight."""

from collections.abc import Mapping
from typing import Final

from ..mqtt.constants import MAX_PACKET_ID

NO_PRIORITIES: Final[Mapping[str, int]] = {}
MAX_INFLIGHT: Final = MAX_PACKET_ID - 4095
"""Maximum of messages in flight, whatever window is configured: if no or only a few identifiers were free, finding one
would take 65,535 steps for each message."""


class Limits:
    """The limits of a session, shared by all sessions of a zone. 0 means no limit."""

    __slots__ = (
        "default_priority",
        "max_awaiting_rel",
        "max_inflight",
        "max_queued_bytes",
        "max_queued_messages",
        "priorities",
        "queue_qos0",
        "refuse_when_full",
        "retry_interval",
        "upgrade_qos",
    )

    def __init__(
        self,
        max_inflight: int = 32,
        max_awaiting_rel: int = 100,
        max_queued_messages: int = 1000,
        max_queued_bytes: int = 67_108_864,
        queue_qos0: bool = False,
        refuse_when_full: bool = False,
        upgrade_qos: bool = False,
        priorities: Mapping[str, int] = NO_PRIORITIES,
        default_priority: int = 0,
        retry_interval: float = 0.0,
    ) -> None:
        self.retry_interval = retry_interval
        self.max_inflight = max_inflight
        self.max_awaiting_rel = max_awaiting_rel
        self.max_queued_messages = max_queued_messages
        self.max_queued_bytes = max_queued_bytes
        self.queue_qos0 = queue_qos0
        self.refuse_when_full = refuse_when_full
        self.upgrade_qos = upgrade_qos
        self.priorities = priorities
        self.default_priority = default_priority
