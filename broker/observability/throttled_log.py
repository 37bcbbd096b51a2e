"""ThrottledLog: log lines about problems with messages, once a minute for each event, client, reason and setting.

Every refusal and every drop is counted in the metrics. The log adds the setting that caused it, and the number of
occurrences since its last line, without flooding the log.
"""

import logging
from typing import Final

from ..session.protocols import (
    EXPIRED,
    LINK_FULL,
    MEMORY,
    NO_LOCAL,
    QOS0_MSG,
    QUEUE_FULL,
    REVOKED,
    TOO_LARGE,
    UNREADABLE,
)
from .client_events import ClientEvents
from .log_text import shorten
from .refused_clients import RefusedClient, RefusedClients
from .throttle import Throttle
from .top.recent_troubles import RecentTroubles

logger = logging.getLogger(__name__)

_DROPS: Final[dict[str, tuple[int, str]]] = {
    QUEUE_FULL: (logging.WARNING, "max_queued_messages, max_queued_bytes or max_outbox_bytes"),
    TOO_LARGE: (logging.INFO, "the client's Maximum Packet Size"),
    EXPIRED: (logging.INFO, "the message's Message Expiry Interval"),
    QOS0_MSG: (logging.DEBUG, "queue_qos0"),
    NO_LOCAL: (logging.DEBUG, "the subscription's No Local"),
    REVOKED: (logging.WARNING, "the access rules"),
    MEMORY: (logging.WARNING, "limits.memory"),
    UNREADABLE: (logging.ERROR, "node.data_dir"),
}
_AWAY: Final = "cluster.link_queue_messages or cluster.link_queue_bytes"
_INTERNAL_DROPS: Final[dict[str, tuple[int, str]]] = {
    **_DROPS,
    QUEUE_FULL: (logging.WARNING, _AWAY),
    QOS0_MSG: (logging.DEBUG, "cluster.servers, while no connection leads to that node"),
    LINK_FULL: (logging.WARNING, "cluster.link_credit"),
}


class ThrottledLog:
    """Throttled log: each event, client, reason and setting with its count since its last line.

    ``events`` records every event of a client, whatever the log level. ``refused`` records the most recent refusals at
    CONNECT, ``troubles`` the most frequent refusals and drops.
    """

    __slots__ = ("_throttle", "events", "refused", "troubles")

    def __init__(self, events: ClientEvents | None = None) -> None:
        self.events = ClientEvents() if events is None else events
        self.refused = RefusedClients()
        self.troubles = RecentTroubles()
        self._throttle = Throttle()

    @property
    def size(self) -> int:
        """Return approximately how many bytes of memory the events and the troubles use."""
        return self.events.size + self.troubles.size

    def dropped(self, client_id: str, topic: str, reason: str, now: float, internal: bool = False) -> None:
        """Log a delivery that will not happen; ``reason`` as in ``session.protocols``, ``now`` in Unix seconds.

        ``internal``: the client is a part of the node."""
        level, setting = (_INTERNAL_DROPS if internal else _DROPS)[reason]
        self.warn("delivery_dropped", client_id.lstrip("\0"), topic, reason, setting, now, level)

    def refuse_client(self, refused: RefusedClient) -> None:
        """Record a client that was refused at CONNECT."""
        self.refused.add(refused)
        self.troubles.add(
            "client_refused", refused.client_id, refused.reason, refused.setting, refused.at, host=refused.peer_host
        )

    def warn(
        self,
        event: str,
        client_id: str,
        topic: str,
        reason: str,
        setting: str,
        now: float,
        level: int = logging.WARNING,
        detail: str = "",
    ) -> None:
        """Log that ``event`` happened to a message or a filter because of ``setting``."""
        self.events.add(client_id, now, event, reason, setting, topic, detail)
        if reason != NO_LOCAL:  # the subscriber has asked for that
            self.troubles.add(event, client_id, reason, setting, now, topic)
        if not logger.isEnabledFor(level):
            return
        count = self._throttle.due(now, event, shorten(client_id), reason, setting)
        if count:
            line = event + " client_id=%s topic=%s reason=%s setting=%s count=%s detail=%s"
            logger.log(level, line, client_id, topic, reason, setting, count, detail)
