"""The node's counters, under EMQX 4.x's names."""

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

MAX_REASONS: Final = 128
OTHER: Final = "other"


class Reasons:
    """Number of occurrences by reason: disconnects, refusals.

    It holds at most ``MAX_REASONS`` different reasons, so that a reason with a client's words cannot make it grow;
    later reasons are counted as ``"other"``.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, reason: str, times: int = 1) -> None:
        """Add ``times`` to the count of ``reason``."""
        counts = self._counts
        if reason not in counts and len(counts) >= MAX_REASONS - 1:
            reason = OTHER
        counts[reason] = counts.get(reason, 0) + times

    def snapshot(self) -> dict[str, int]:
        """Return the counts of all reasons that occurred, in the order of their first occurrence."""
        return dict(self._counts)


@dataclass(slots=True, eq=False, repr=False)
class Metrics:
    """The node's counters since its start; the hot path executes ``metrics.bytes_sent += n``. They only grow, except
    for ``messages_retained``, the current number, which EMQX has among the counters. ``plugins``: counters of plugins
    that are configured, by EMQX's name.

    They are in the order of EMQX 4.4, each group followed by the counters that only 4.0-4.3 has. A packet is counted
    only under its type (``packets_puback_sent``), a message only under its QoS (``messages_qos1_received``): the
    totals are properties. ``disconnects`` and ``refusals`` by reason (including drops by a limit) are Taipan's own.
    """

    bytes_received: int = 0
    bytes_sent: int = 0
    packets_connect_received: int = 0
    packets_connack_sent: int = 0
    packets_connack_error: int = 0  # CONNACK with a failure code, including authentication failures
    packets_connack_auth_error: int = 0
    packets_publish_received: int = 0
    packets_publish_inuse: int = 0  # QoS 2 with a Packet Identifier still in use
    packets_publish_error: int = 0  # PUBLISH that was not published
    packets_publish_auth_error: int = 0
    packets_publish_dropped: int = 0  # beyond receive maximum or max_awaiting_rel
    packets_puback_received: int = 0
    packets_puback_sent: int = 0
    packets_puback_inuse: int = 0
    packets_puback_missed: int = 0  # for an unknown Packet Identifier
    packets_pubrec_received: int = 0
    packets_pubrec_sent: int = 0
    packets_pubrec_inuse: int = 0
    packets_pubrec_missed: int = 0
    packets_pubrel_received: int = 0
    packets_pubrel_sent: int = 0
    packets_pubrel_missed: int = 0
    packets_pubcomp_received: int = 0
    packets_pubcomp_sent: int = 0
    packets_pubcomp_inuse: int = 0
    packets_pubcomp_missed: int = 0
    packets_subscribe_received: int = 0
    packets_subscribe_error: int = 0
    packets_subscribe_auth_error: int = 0
    packets_suback_sent: int = 0
    packets_unsubscribe_received: int = 0
    packets_unsubscribe_error: int = 0
    packets_unsuback_sent: int = 0
    packets_pingreq_received: int = 0
    packets_pingresp_sent: int = 0
    packets_disconnect_received: int = 0
    packets_disconnect_sent: int = 0
    packets_auth_received: int = 0
    packets_auth_sent: int = 0
    messages_qos0_received: int = 0  # by PUBLISH packet or through the management API
    messages_qos0_sent: int = 0  # one for each PUBLISH packet that is sent, including repeated ones
    messages_qos1_received: int = 0
    messages_qos1_sent: int = 0
    messages_qos2_received: int = 0
    messages_qos2_sent: int = 0
    messages_publish: int = 0  # Broker.publish, without $SYS
    messages_dropped_await_pubrel_timeout: int = 0
    messages_dropped_no_subscribers: int = 0
    messages_forward: int = 0  # to other nodes
    messages_retained: int = 0
    messages_delayed: int = 0
    messages_delivered: int = 0
    messages_acked: int = 0
    delivery_dropped_no_local: int = 0
    delivery_dropped_too_large: int = 0
    delivery_dropped_qos0_msg: int = 0
    delivery_dropped_queue_full: int = 0
    delivery_dropped_expired: int = 0
    client_connect: int = 0
    client_connack: int = 0
    client_connected: int = 0
    client_authenticate: int = 0
    client_check_acl: int = 0
    client_subscribe: int = 0
    client_unsubscribe: int = 0
    client_disconnected: int = 0
    client_auth_success: int = 0  # including anonymous ones, as in 4.4
    client_auth_anonymous: int = 0
    client_auth_failure: int = 0
    client_auth_ignore: int = 0  # no source knew the client
    client_acl_allow: int = 0
    client_acl_deny: int = 0
    client_acl_ignore: int = 0  # no rule matched; the default decided
    client_acl_cache_hit: int = 0
    session_created: int = 0
    session_resumed: int = 0
    session_takeovered: int = 0
    session_discarded: int = 0
    session_terminated: int = 0
    rules_matched: int = 0
    actions_success: int = 0
    actions_failure: int = 0
    disconnects: Reasons = field(default_factory=Reasons)
    refusals: Reasons = field(default_factory=Reasons)
    plugins: dict[str, int] = field(default_factory=dict)

    def count_received(self, qos: int) -> None:
        """Count a message that was accepted without an MQTT packet."""
        if qos == 0:
            self.messages_qos0_received += 1
        elif qos == 1:
            self.messages_qos1_received += 1
        else:
            self.messages_qos2_received += 1

    @property
    def packets_received(self) -> int:
        """The sum over all types; every packet is counted under exactly one type."""
        return (
            self.packets_connect_received
            + self.packets_publish_received
            + self.packets_puback_received
            + self.packets_pubrec_received
            + self.packets_pubrel_received
            + self.packets_pubcomp_received
            + self.packets_subscribe_received
            + self.packets_unsubscribe_received
            + self.packets_pingreq_received
            + self.packets_disconnect_received
            + self.packets_auth_received
        )

    @property
    def packets_sent(self) -> int:
        """The sum over all types; every packet is counted under exactly one type."""
        return (
            self.packets_connack_sent
            + self.packets_publish_sent
            + self.packets_puback_sent
            + self.packets_pubrec_sent
            + self.packets_pubrel_sent
            + self.packets_pubcomp_sent
            + self.packets_suback_sent
            + self.packets_unsuback_sent
            + self.packets_pingresp_sent
            + self.packets_disconnect_sent
            + self.packets_auth_sent
        )

    @property
    def packets_publish_sent(self) -> int:
        """The sent messages: each is sent by one PUBLISH packet."""
        return self.messages_sent

    @property
    def messages_received(self) -> int:
        """The sum over the QoS levels; it exceeds ``packets_publish_received`` by the messages from the management
        API."""
        return self.messages_qos0_received + self.messages_qos1_received + self.messages_qos2_received

    @property
    def messages_sent(self) -> int:
        """The sum over the QoS levels."""
        return self.messages_qos0_sent + self.messages_qos1_sent + self.messages_qos2_sent

    @property
    def messages_dropped(self) -> int:
        """Messages that reached no subscriber; ``delivery_dropped`` counts messages that single subscribers missed."""
        return self.messages_dropped_await_pubrel_timeout + self.messages_dropped_no_subscribers

    @property
    def messages_dropped_expired(self) -> int:
        """``messages_dropped_await_pubrel_timeout`` under its name in EMQX 4.0-4.3."""
        return self.messages_dropped_await_pubrel_timeout

    @property
    def delivery_dropped(self) -> int:
        """The sum of its parts."""
        return (
            self.delivery_dropped_no_local
            + self.delivery_dropped_too_large
            + self.delivery_dropped_qos0_msg
            + self.delivery_dropped_queue_full
            + self.delivery_dropped_expired
        )

    @property
    def client_auth_success_anonymous(self) -> int:
        """``client_auth_anonymous`` under its name in EMQX 4.4."""
        return self.client_auth_anonymous

    def snapshot(self) -> dict[str, int]:
        """Return the values of all names, in the order of ``NAMES``, then those of plugins."""
        return {**dict(zip(NAMES, _read_all(self), strict=True)), **self.plugins}


_TOTALS: Final = {
    "packets_received": "packets_connect_received",
    "packets_sent": "packets_connect_received",
    "packets_publish_sent": "packets_publish_inuse",
    "messages_received": "messages_qos0_received",
    "messages_sent": "messages_qos0_received",
    "messages_dropped": "messages_dropped_await_pubrel_timeout",
    "messages_dropped_expired": "messages_dropped_no_subscribers",
    "delivery_dropped": "delivery_dropped_no_local",
    "client_auth_success_anonymous": "client_auth_anonymous",
}
"""The properties among the counters, each with the counter before which EMQX lists it."""
_TWO_WORDS: Final = (
    "auth_error", "await_pubrel_timeout", "cache_hit", "check_acl", "no_local", "no_subscribers", "qos0_msg",
    "queue_full", "too_large",
)  # fmt: skip
"""Parts of a name that contain an underscore."""


def _attributes() -> list[str]:
    attributes = []
    for each in fields(Metrics):
        if each.type in (int, "int"):
            attributes += [total for total, following in _TOTALS.items() if following == each.name]
            attributes.append(each.name)
    return attributes


def _name(attribute: str) -> str:
    for words in _TWO_WORDS:
        attribute = attribute.replace(words, words.replace("_", "-"))
    return attribute.replace("_", ".").replace("-", "_")


NAMES: Final[tuple[str, ...]] = tuple(map(_name, _attributes()))
_read_all = attrgetter(*_attributes())
