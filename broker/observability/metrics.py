"""The node's counters, under EMQX 4.x's names."""

from operator import attrgetter
from typing import Final

# In the order in which EMQX 4.4 defines them, each group followed by what only 4.0-4.3 has; then the rule engine's.
# A name's attribute is the name with "_" for ".".
NAMES: Final[tuple[str, ...]] = (
    "bytes.received",
    "bytes.sent",
    "packets.received",
    "packets.sent",
    "packets.connect.received",
    "packets.connack.sent",
    "packets.connack.error",
    "packets.connack.auth_error",
    "packets.publish.received",
    "packets.publish.sent",
    "packets.publish.inuse",
    "packets.publish.error",
    "packets.publish.auth_error",
    "packets.publish.dropped",
    "packets.puback.received",
    "packets.puback.sent",
    "packets.puback.inuse",
    "packets.puback.missed",
    "packets.pubrec.received",
    "packets.pubrec.sent",
    "packets.pubrec.inuse",
    "packets.pubrec.missed",
    "packets.pubrel.received",
    "packets.pubrel.sent",
    "packets.pubrel.missed",
    "packets.pubcomp.received",
    "packets.pubcomp.sent",
    "packets.pubcomp.inuse",
    "packets.pubcomp.missed",
    "packets.subscribe.received",
    "packets.subscribe.error",
    "packets.subscribe.auth_error",
    "packets.suback.sent",
    "packets.unsubscribe.received",
    "packets.unsubscribe.error",
    "packets.unsuback.sent",
    "packets.pingreq.received",
    "packets.pingresp.sent",
    "packets.disconnect.received",
    "packets.disconnect.sent",
    "packets.auth.received",
    "packets.auth.sent",
    "messages.received",
    "messages.sent",
    "messages.qos0.received",
    "messages.qos0.sent",
    "messages.qos1.received",
    "messages.qos1.sent",
    "messages.qos2.received",
    "messages.qos2.sent",
    "messages.publish",
    "messages.dropped",
    "messages.dropped.await_pubrel_timeout",
    "messages.dropped.expired",
    "messages.dropped.no_subscribers",
    "messages.forward",
    "messages.retained",
    "messages.delayed",
    "messages.delivered",
    "messages.acked",
    "delivery.dropped",
    "delivery.dropped.no_local",
    "delivery.dropped.too_large",
    "delivery.dropped.qos0_msg",
    "delivery.dropped.queue_full",
    "delivery.dropped.expired",
    "client.connect",
    "client.connack",
    "client.connected",
    "client.authenticate",
    "client.check_acl",
    "client.subscribe",
    "client.unsubscribe",
    "client.disconnected",
    "client.auth.success",
    "client.auth.success.anonymous",
    "client.auth.anonymous",
    "client.auth.failure",
    "client.auth.ignore",
    "client.acl.allow",
    "client.acl.deny",
    "client.acl.ignore",
    "client.acl.cache_hit",
    "session.created",
    "session.resumed",
    "session.takeovered",
    "session.discarded",
    "session.terminated",
    "rules.matched",
    "actions.success",
    "actions.failure",
)

# Not counted but worked out on reading, because they are exactly that. They are properties: nobody adds to them.
COMPUTED: Final[frozenset[str]] = frozenset(
    (
        "packets.received",
        "packets.sent",
        "packets.publish.sent",
        "messages.received",
        "messages.sent",
        "messages.dropped",
        "messages.dropped.expired",
        "delivery.dropped",
        "client.auth.success.anonymous",
    )
)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


_read_all = attrgetter(*map(_attribute, NAMES))

MAX_REASONS: Final = 128
OTHER: Final = "other"


class Reasons:
    """How often something happened, by its reason: disconnects, refusals.

    Holds at most ``MAX_REASONS`` different reasons, so that a reason made of a client's words cannot grow it; later
    ones count as ``"other"``.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, reason: str, times: int = 1) -> None:
        """Count ``reason`` once more, or ``times``."""
        counts = self._counts
        if reason not in counts and len(counts) >= MAX_REASONS - 1:
            reason = OTHER
        counts[reason] = counts.get(reason, 0) + times

    def snapshot(self) -> dict[str, int]:
        """Reason -> count: only those that happened, in the order of their first time."""
        return dict(self._counts)


class Metrics:
    """The node's counters since its start, one integer attribute each; the hot path does ``metrics.bytes_sent += n``.

    Whoever counts one packet counts it under its type only (``packets_puback_sent``), one message under its QoS only
    (``messages_qos1_received``): the totals are properties. ``disconnects`` and ``refusals``
    (drops by a bound included), by their reason, are this broker's own.
    """

    __slots__ = (
        "actions_failure",
        "actions_success",
        "bytes_received",
        "bytes_sent",
        "client_acl_allow",
        "client_acl_cache_hit",
        "client_acl_deny",
        "client_acl_ignore",
        "client_auth_anonymous",
        "client_auth_failure",
        "client_auth_ignore",
        "client_auth_success",
        "client_authenticate",
        "client_check_acl",
        "client_connack",
        "client_connect",
        "client_connected",
        "client_disconnected",
        "client_subscribe",
        "client_unsubscribe",
        "delivery_dropped_expired",
        "delivery_dropped_no_local",
        "delivery_dropped_qos0_msg",
        "delivery_dropped_queue_full",
        "delivery_dropped_too_large",
        "disconnects",
        "messages_acked",
        "messages_delayed",
        "messages_delivered",
        "messages_dropped_await_pubrel_timeout",
        "messages_dropped_no_subscribers",
        "messages_forward",
        "messages_publish",
        "messages_qos0_received",
        "messages_qos0_sent",
        "messages_qos1_received",
        "messages_qos1_sent",
        "messages_qos2_received",
        "messages_qos2_sent",
        "messages_retained",
        "packets_auth_received",
        "packets_auth_sent",
        "packets_connack_auth_error",
        "packets_connack_error",
        "packets_connack_sent",
        "packets_connect_received",
        "packets_disconnect_received",
        "packets_disconnect_sent",
        "packets_pingreq_received",
        "packets_pingresp_sent",
        "packets_puback_inuse",
        "packets_puback_missed",
        "packets_puback_received",
        "packets_puback_sent",
        "packets_pubcomp_inuse",
        "packets_pubcomp_missed",
        "packets_pubcomp_received",
        "packets_pubcomp_sent",
        "packets_publish_auth_error",
        "packets_publish_dropped",
        "packets_publish_error",
        "packets_publish_inuse",
        "packets_publish_received",
        "packets_pubrec_inuse",
        "packets_pubrec_missed",
        "packets_pubrec_received",
        "packets_pubrec_sent",
        "packets_pubrel_missed",
        "packets_pubrel_received",
        "packets_pubrel_sent",
        "packets_suback_sent",
        "packets_subscribe_auth_error",
        "packets_subscribe_error",
        "packets_subscribe_received",
        "packets_unsuback_sent",
        "packets_unsubscribe_error",
        "packets_unsubscribe_received",
        "refusals",
        "rules_matched",
        "session_created",
        "session_discarded",
        "session_resumed",
        "session_takeovered",
        "session_terminated",
    )

    def __init__(self) -> None:
        self.bytes_received: int = 0
        self.bytes_sent: int = 0
        self.packets_connect_received: int = 0
        self.packets_connack_sent: int = 0
        self.packets_connack_error: int = 0  # CONNACK with a failure code, authentication's included
        self.packets_connack_auth_error: int = 0
        self.packets_publish_received: int = 0
        self.packets_publish_inuse: int = 0  # QoS 2 with a Packet Identifier still in use
        self.packets_publish_error: int = 0  # PUBLISH that cannot be published
        self.packets_publish_auth_error: int = 0
        self.packets_publish_dropped: int = 0  # beyond receive maximum or max_awaiting_rel
        self.packets_puback_received: int = 0
        self.packets_puback_sent: int = 0
        self.packets_puback_inuse: int = 0
        self.packets_puback_missed: int = 0  # for a Packet Identifier that nobody waits for
        self.packets_pubrec_received: int = 0
        self.packets_pubrec_sent: int = 0
        self.packets_pubrec_inuse: int = 0
        self.packets_pubrec_missed: int = 0
        self.packets_pubrel_received: int = 0
        self.packets_pubrel_sent: int = 0
        self.packets_pubrel_missed: int = 0
        self.packets_pubcomp_received: int = 0
        self.packets_pubcomp_sent: int = 0
        self.packets_pubcomp_inuse: int = 0
        self.packets_pubcomp_missed: int = 0
        self.packets_subscribe_received: int = 0
        self.packets_subscribe_error: int = 0
        self.packets_subscribe_auth_error: int = 0
        self.packets_suback_sent: int = 0
        self.packets_unsubscribe_received: int = 0
        self.packets_unsubscribe_error: int = 0
        self.packets_unsuback_sent: int = 0
        self.packets_pingreq_received: int = 0
        self.packets_pingresp_sent: int = 0
        self.packets_disconnect_received: int = 0
        self.packets_disconnect_sent: int = 0
        self.packets_auth_received: int = 0
        self.packets_auth_sent: int = 0
        self.messages_qos0_received: int = 0  # by PUBLISH packet or through the management API
        self.messages_qos0_sent: int = 0  # one for each PUBLISH packet sent, repeated ones included
        self.messages_qos1_received: int = 0
        self.messages_qos1_sent: int = 0
        self.messages_qos2_received: int = 0
        self.messages_qos2_sent: int = 0
        self.messages_publish: int = 0  # Broker.publish, without $SYS
        self.messages_dropped_await_pubrel_timeout: int = 0
        self.messages_dropped_no_subscribers: int = 0
        self.messages_forward: int = 0  # to other nodes
        self.messages_retained: int = 0
        self.messages_delayed: int = 0
        self.messages_delivered: int = 0
        self.messages_acked: int = 0
        self.delivery_dropped_no_local: int = 0
        self.delivery_dropped_too_large: int = 0
        self.delivery_dropped_qos0_msg: int = 0
        self.delivery_dropped_queue_full: int = 0
        self.delivery_dropped_expired: int = 0
        self.client_connect: int = 0
        self.client_connack: int = 0
        self.client_connected: int = 0
        self.client_authenticate: int = 0
        self.client_check_acl: int = 0
        self.client_subscribe: int = 0
        self.client_unsubscribe: int = 0
        self.client_disconnected: int = 0
        self.client_auth_success: int = 0  # anonymous ones included, as in 4.4
        self.client_auth_anonymous: int = 0
        self.client_auth_failure: int = 0
        self.client_auth_ignore: int = 0  # no source knew the client
        self.client_acl_allow: int = 0
        self.client_acl_deny: int = 0
        self.client_acl_ignore: int = 0  # no rule matched; the default decided
        self.client_acl_cache_hit: int = 0
        self.session_created: int = 0
        self.session_resumed: int = 0
        self.session_takeovered: int = 0
        self.session_discarded: int = 0
        self.session_terminated: int = 0
        self.rules_matched: int = 0
        self.actions_success: int = 0
        self.actions_failure: int = 0
        self.disconnects = Reasons()
        self.refusals = Reasons()

    @property
    def packets_received(self) -> int:
        """Every packet counts under exactly one type."""
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
        """Every packet counts under exactly one type."""
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
        """A message is sent by a PUBLISH packet and in no other way."""
        return self.messages_sent

    @property
    def messages_received(self) -> int:
        """Sum over the QoS; more than ``packets_publish_received`` by what came through the management API."""
        return self.messages_qos0_received + self.messages_qos1_received + self.messages_qos2_received

    @property
    def messages_sent(self) -> int:
        """Sum over the QoS."""
        return self.messages_qos0_sent + self.messages_qos1_sent + self.messages_qos2_sent

    @property
    def messages_dropped(self) -> int:
        """Messages that reached nobody; what single subscribers missed is ``delivery_dropped``."""
        return self.messages_dropped_await_pubrel_timeout + self.messages_dropped_no_subscribers

    @property
    def messages_dropped_expired(self) -> int:
        """The name that 4.0-4.3 has for ``messages_dropped_await_pubrel_timeout``."""
        return self.messages_dropped_await_pubrel_timeout

    @property
    def delivery_dropped(self) -> int:
        """Sum of its parts."""
        return (
            self.delivery_dropped_no_local
            + self.delivery_dropped_too_large
            + self.delivery_dropped_qos0_msg
            + self.delivery_dropped_queue_full
            + self.delivery_dropped_expired
        )

    @property
    def client_auth_success_anonymous(self) -> int:
        """4.4's name for ``client_auth_anonymous``."""
        return self.client_auth_anonymous

    def snapshot(self) -> dict[str, int]:
        """Name -> value for every name, in the order of ``NAMES``."""
        return dict(zip(NAMES, _read_all(self), strict=True))
