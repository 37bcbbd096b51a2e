"""Reasons: why clients, messages, sockets and deliveries were refused, dropped or lost, in a sentence, and what helps.

Every reason that the log names stands here (docs/log.md has the same tables, and a test holds that), and those that are
counted alone.
"""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from .advice import ADVICE

Kind = Literal["client", "message", "socket", "delivery", "node", "other"]


class Reason(NamedTuple):
    """``settings``: what may have decided, as the log writes it, ``<n>`` and the like standing for what differs."""

    kind: Kind
    reason: str
    settings: tuple[str, ...]
    text: str


REASONS: Final = (
    Reason("client", "normal", (), "the client said DISCONNECT"),
    Reason("client", "disconnect_with_will_message", (), "the same, and it asked for its Will to be published"),
    Reason("client", "tcp_closed", (), "the connection ended without DISCONNECT: the client or the network failed"),
    Reason(
        "client",
        "keepalive_timeout",
        ("keep_alive_multiplier", "server_keep_alive"),
        "silent for longer than its Keep Alive times the multiplier",
    ),
    Reason(
        "client",
        "takeovered",
        (),
        "a client with the same identifier connected, and resumed the session or asked for a new one. Where "
        "it repeats, two devices share an identifier",
    ),
    Reason(
        "client",
        "discarded",
        (),
        "a client with the same identifier connected, and resumed the session or asked for a new one. Where "
        "it repeats, two devices share an identifier",
    ),
    Reason("client", "kicked", (), "an operator ended it: DELETE /clients/{clientid}, taipan-ctl clients kick"),
    Reason("client", "server_shutting_down", (), "the node stops"),
    Reason("client", "server_unavailable", (), "the node stops"),
    Reason(
        "client",
        "server_unavailable",
        ("cluster.isolated",),
        "the node is without the others, and lets nobody in (refuse_new, close_all); or NATS took no write, "
        "for a session that outlives its connection",
    ),
    Reason(
        "client",
        "use_another_server",
        ("cluster.isolated",),
        "the node is without the others, and closes all (close_all)",
    ),
    Reason("client", "use_another_server", ("taipan-ctl cluster evacuation",), "an operator evacuates the node"),
    Reason(
        "client",
        "server_unavailable",
        ("cluster.takeover", "cluster.takeover_timeout"),
        "the node that has the session does not answer, or not in time",
    ),
    Reason("client", "idle_timeout", ("idle_timeout",), "no complete CONNECT in time, or no AUTH"),
    Reason("client", "token_expired", ("access.jwt",), "the token that it authenticated with has expired"),
    Reason(
        "client", "user_deleted", ("access.users",), "its user was deleted, or is not in the configuration any more"
    ),
    Reason(
        "client",
        "memory",
        ("limits.memory",),
        "the node is short of memory: the client has not logged in, and clients without a login hold too much; or it "
        "has sent most of a packet and not its end, or reads too slowly",
    ),
    Reason(
        "client",
        "slow_reader",
        ("slow_reader_timeout",),
        "its socket was full, and it took less than 1024 bytes in that time",
    ),
    Reason("client", "quota_exceeded", ("queue_full",), "a 3.x publisher waited 60 seconds for room in a full queue"),
    Reason(
        "client",
        "quota_exceeded",
        ("cluster.servers",),
        "a 3.x publisher waited 60 seconds for the acknowledgement of a retained message, without a quorum of NATS",
    ),
    Reason(
        "client",
        "quota_exceeded",
        (),
        "more than 4096 filters in one packet, or more user properties or topic aliases than are kept for a "
        "client; detail says which",
    ),
    Reason(
        "client",
        "bad_username_or_password",
        ("access.users",),
        "unknown user, wrong password, or a user name without one; the log does not say which",
    ),
    Reason(
        "client",
        "bad_username_or_password",
        (),
        "the stored hash of the user is one of bcrypt, which is not installed; detail has the command",
    ),
    Reason(
        "client",
        "bad_username_or_password",
        ("access.jwt", "access.jwt.<key>"),
        "a token that is not valid; detail says why (token_expired, token_claim_sub_differs)",
    ),
    Reason("client", "bad_username_or_password", ("access.http.auth_url",), "the service said no"),
    Reason("client", "bad_username_or_password", ("access.authenticators",), "a user name that no source knows"),
    Reason(
        "client",
        "bad_username_or_password",
        ("allow_anonymous",),
        "a user name where there are no users, and anonymous clients are refused",
    ),
    Reason("client", "not_authorized", ("allow_anonymous",), "no user name, and the listener requires one"),
    Reason("client", "not_authorized", ("access.users",), "did not know the password (SCRAM)"),
    Reason("client", "not_authorized", ("mountpoint",), "no user name, or one that cannot stand in the mount point"),
    Reason(
        "client",
        "not_authorized",
        ("access.rules.<n>", "access.no_match"),
        "did what the rule denies, or what no rule allows, and acl_deny_action is disconnect",
    ),
    Reason("client", "not_authorized", ("access.http.auth_url",), "no user name, and the service said no"),
    Reason(
        "client",
        "session_of_another",
        ("access.session_owner",),
        "the session of its client identifier belongs to another user; detail says to whom (session ownership)",
    ),
    Reason(
        "client",
        "server_unavailable",
        ("access.http.<key>", "access.jwt.jwks_url"),
        "the service did not answer, about the client or about the subscriptions of its session; the keys "
        "were not fetched yet",
    ),
    Reason(
        "client",
        "banned",
        ("/banned/<as>/<who>",),
        "that ban is in force; detail says by whom, until when (unix seconds) and why",
    ),
    Reason("client", "bad_authentication_method", ("access.users",), "not SCRAM-SHA-256, or no user has scram"),
    Reason(
        "client",
        "server_busy",
        ("access.hash_wait",),
        "too many passwords wait to be verified. More access.hash_threads or random secrets help",
    ),
    Reason(
        "client",
        "client_identifier_not_valid",
        ("allow_empty_client_id", "max_client_id_length", "mountpoint"),
        "none, too long, or it cannot stand in the mount point. A 3.x client without one must ask for a clean session",
    ),
    Reason("client", "unsupported_protocol_version", (), "neither 3.1, 3.1.1 nor 5.0"),
    Reason(
        "client",
        "packet_too_large",
        ("max_packet_size", "max_connect_size"),
        "detail has both sizes. -: the client takes no packet as large as the CONNACK, or as the answer to "
        "its SUBSCRIBE or UNSUBSCRIBE, which is then not done",
    ),
    Reason(
        "client",
        "receive_maximum_exceeded",
        ("receive_maximum",),
        "a 5.0 client has more unfinished QoS 2 messages than CONNACK allowed",
    ),
    Reason(
        "client",
        "topic_alias_invalid",
        ("max_topic_alias",),
        "an alias above that; -: 0. One never set is a protocol_error",
    ),
    Reason(
        "client", "qos_not_supported", ("max_qos", "retain_available"), "a message or Will that the CONNACK ruled out"
    ),
    Reason(
        "client",
        "retain_not_supported",
        ("max_qos", "retain_available"),
        "a message or Will that the CONNACK ruled out",
    ),
    Reason("client", "topic_name_invalid", ("max_topic_levels",), "a Will's topic: too many levels; -: wildcards"),
    Reason("client", "internal_error", (), "a bug in the node: the log has it with exception=; report it"),
    Reason("client", "malformed_packet", (), "the client violates the standard; detail says how"),
    Reason("client", "protocol_error", (), "the client violates the standard; detail says how"),
    Reason("client", "malformed_packet", ("strict_strings",), "a control character or non-character in a string"),
    Reason("client", "protocol_error", ("strict_strings",), "a control character or non-character in a string"),
    Reason(
        "client",
        "malformed_packet",
        ("type",),
        "the listener's: detail says that the client speaks TLS, HTTP or WebSocket there",
    ),
    Reason(
        "client",
        "protocol_error",
        ("type",),
        "the listener's: detail says that the client speaks TLS, HTTP or WebSocket there",
    ),
    Reason(
        "client",
        "malformed_packet",
        ("proxy_protocol",),
        "a balancer sends a PROXY header to a listener that does not expect one",
    ),
    Reason(
        "client",
        "protocol_error",
        ("proxy_protocol",),
        "a balancer sends a PROXY header to a listener that does not expect one",
    ),
    Reason(
        "message",
        "not_authorized",
        ("access.rules.<n>",),
        "this rule denies it: the nth [[access.rules]], counted from 0",
    ),
    Reason(
        "message",
        "not_authorized",
        ("/broker_acl/<login>/<topic>", "/acl/clientid/<id>/topic/<topic>"),
        "this stored rule denies it",
    ),
    Reason("message", "not_authorized", ("access.jwt.acl_claim",), "the client's token does not name it"),
    Reason(
        "message",
        "not_authorized",
        ("access.http.acl_url",),
        "the service said no, or gave no answer (access.http.timeout) and on_failure is deny; for a Will "
        "also: the service was not asked at CONNECT",
    ),
    Reason("message", "not_authorized", ("access.no_match",), "no rule matches"),
    Reason(
        "message",
        "not_authorized",
        (),
        "a topic reserved for the server ($SYS/...), or a hook of an extension denied it",
    ),
    Reason("message", "topic_name_invalid", ("max_topic_levels",), "too many levels"),
    Reason("message", "topic_filter_invalid", ("max_topic_levels",), "too many levels"),
    Reason("message", "topic_name_invalid", ("mountpoint",), "too long with the mount point before it"),
    Reason("message", "topic_filter_invalid", ("mountpoint",), "too long with the mount point before it"),
    Reason("message", "topic_name_invalid", (), "not a topic or filter; not $delayed/<seconds>/<topic>"),
    Reason("message", "topic_filter_invalid", (), "not a topic or filter; not $delayed/<seconds>/<topic>"),
    Reason(
        "message",
        "quota_exceeded",
        ("delayed.max_seconds", "delayed.max_messages", "delayed.max_bytes"),
        "the delay is too long, or too many messages wait",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("max_awaiting_rel",),
        "more QoS 2 messages of the client wait for its PUBREL. A 3.x client gets no answer",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("message_rate", "byte_rate"),
        "it waited for its rate when its client left; it was not acknowledged",
    ),
    Reason("message", "quota_exceeded", ("queue_full",), "a subscriber's queue is full, and its zone says refuse"),
    Reason(
        "message",
        "quota_exceeded",
        ("cluster.servers",),
        "NATS has had no quorum for 15 seconds: nothing of QoS 1 or 2 can be retained at present",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("max_subscriptions", "max_subscription_bytes"),
        "the client has as many subscriptions, or as many bytes of filters",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("limits.memory",),
        "the node is short of memory and refuses new subscriptions, delayed messages and Topic Aliases; when memory is "
        "used up, also messages of QoS 1 and 2 that a queue would have to keep",
    ),
    Reason("message", "packet_identifier_in_use", (), "the client uses a Packet Identifier again too early"),
    Reason(
        "message",
        "shared_subscriptions_not_supported",
        ("shared_subscription", "wildcard_subscription"),
        "the CONNACK ruled it out",
    ),
    Reason(
        "message",
        "wildcard_subscriptions_not_supported",
        ("shared_subscription", "wildcard_subscription"),
        "the CONNACK ruled it out",
    ),
    Reason("socket", "max_connections", ("max_connections",), "closed: no place became free within 0.25 seconds"),
    Reason(
        "socket",
        "memory",
        ("limits.memory",),
        "closed before a login: clients without one hold too much memory, or memory is used up",
    ),
    Reason("socket", "accept_rate", ("accept_rate",), "waited, and was accepted later"),
    Reason(
        "socket",
        "no_sockets",
        ("LimitNOFILE", "ulimit -n"),
        "clients use all file descriptors they may have. Accepting pauses for a second; most clients wait "
        "in the backlog",
    ),
    Reason(
        "socket",
        "proxy_protocol_error",
        ("proxy_protocol", "proxy_protocol_timeout"),
        "no header: the balancer does not send one, or a client bypassed it",
    ),
    Reason(
        "socket",
        "proxy_protocol_timeout",
        ("proxy_protocol", "proxy_protocol_timeout"),
        "no header: the balancer does not send one, or a client bypassed it",
    ),
    Reason(
        "socket",
        "tls_handshake",
        ("tls", "tls.handshake_timeout"),
        "WRONG_VERSION_NUMBER: the client does not speak TLS; TLSV1_ALERT_UNKNOWN_CA: it does not know the "
        "authority of certfile",
    ),
    Reason(
        "socket",
        "tls_timeout",
        ("tls", "tls.handshake_timeout"),
        "WRONG_VERSION_NUMBER: the client does not speak TLS; TLSV1_ALERT_UNKNOWN_CA: it does not know the "
        "authority of certfile",
    ),
    Reason(
        "socket",
        "tls_certificate",
        ("tls.verify", "tls.cafile", "tls.crlfile"),
        "no client certificate, or not one of cafile, or revoked",
    ),
    Reason("socket", "websocket_path", ("path",), "answered with 404; detail has the path asked for"),
    Reason(
        "socket",
        "websocket_origin",
        ("allowed_origins",),
        "403; detail has the origin: a page in a browser that is not allowed",
    ),
    Reason(
        "socket", "websocket_subprotocol", ("subprotocols", "subprotocol_required"), "the client offers none of them"
    ),
    Reason("socket", "websocket_request", ("idle_timeout",), "not a WebSocket handshake, or too slow"),
    Reason("socket", "websocket_timeout", ("idle_timeout",), "not a WebSocket handshake, or too slow"),
    Reason(
        "delivery",
        "queue_full",
        ("max_queued_messages", "max_queued_bytes", "max_outbox_bytes"),
        "the client's queue is full, or it reads too slowly for QoS 0; the oldest message made room",
    ),
    Reason("delivery", "too_large", (), "larger than the Maximum Packet Size that the client gave"),
    Reason("delivery", "expired", (), "its Message Expiry Interval was over before it could be sent"),
    Reason(
        "delivery",
        "qos0_msg",
        ("queue_qos0",),
        "QoS 0, and the client is away, or reads too slowly; or its session moved to another node",
    ),
    Reason(
        "delivery", "full", ("cluster.link_credit",), "QoS 0 for another node, to which that many bytes are under way"
    ),
    Reason("delivery", "no_local", (), "the subscriber published it itself, and asked not to get such (No Local)"),
    Reason(
        "delivery",
        "revoked",
        ("access.rules",),
        "it was queued for a subscription that the access rules do not allow any more",
    ),
    Reason("delivery", "memory", ("limits.memory",), "the node is short of memory, and the largest queues were shed"),
    Reason("delivery", "unreadable", ("node.data_dir",), "it was on disk alone, and cannot be read"),
    Reason("node", "truncated", (), "it cannot be decoded, or says what cannot be: it is passed over"),
    Reason("node", "malformed", (), "it cannot be decoded, or says what cannot be: it is passed over"),
    Reason(
        "node",
        "newer_version",
        (),
        "a node writes a form that this version cannot read. Nodes of a cluster are upgraded one after the "
        "other, and not past a version that the other ones cannot read",
    ),
    Reason("node", "older_version", (), "a form that this version reads no more"),
    Reason("node", "other_cluster", (), "it is of a cluster with another cluster.name on the same subjects"),
    Reason("node", "unknown_node", (), "of a node, or of a start of it, that has no record here, or was forced out"),
    Reason(
        "node",
        "not_known_yet",
        (),
        "of a node, or of a start of it, whose record may be on its way: for cluster.stopped_after seconds. So it is "
        "at an ordinary start",
    ),
    Reason("node", "has_left", (), "of a node that has left the cluster less than cluster.stopped_after seconds ago"),
    Reason("node", "own_name", (), "of another node that has this one's name"),
    Reason("node", "old_incarnation", (), "of an earlier start of a node that has started again since"),
    Reason("node", "forced_out", (), "this node was forced out of the cluster"),
    Reason("node", "calls_full", (), "other nodes ask 512 questions at a time"),
    Reason(
        "node",
        "answers_full",
        (),
        "answers of 256 MiB in all wait for other nodes that fetch them in parts: this one was not given",
    ),
    Reason("node", "link_addressed", (), "a message for one session or group that is not here"),
    Reason(
        "node", "group_left", (), "a message for a member of a Shared Subscription, which no node has any more: dropped"
    ),
    Reason(
        "node",
        "retained_too_large",
        (),
        "a retained message is larger than max_payload of the NATS servers, less 512 bytes: this node alone keeps it",
    ),
    Reason(
        "node",
        "row_too_large",
        (),
        "a user, rule or other row is larger than that: this node alone has it, or the operator's change is undone",
    ),
    Reason(
        "node",
        "will_too_large",
        (),
        "a Will is larger than that: should this node die, it is published when the node is back",
    ),
    Reason("node", "link_node_removed", (), "messages that waited for a node that is gone for good"),
    Reason(
        "node",
        "link_node_replaced",
        (),
        "messages that waited for a node when it came with another data directory: they go there, and those for "
        "sessions of the earlier one are dropped there",
    ),
    Reason(
        "node",
        "node_replaced",
        (),
        "a node has another data directory than before, and nobody has forced the earlier one out",
    ),
    Reason("node", "session_of_removed_node", (), "sessions that ended with a node that is gone for good"),
    Reason("node", "session_begun_anew", (), "sessions that were begun anew because their node was away"),
    Reason(
        "node",
        "qos2_of_lost_session",
        (),
        "messages of QoS 2 in flight that a session which was begun anew elsewhere held: whether their "
        "client has them is not known",
    ),
    Reason("node", "link_dropped", (), "messages that waited for other nodes at the start of a node without [cluster]"),
    Reason("node", "link_gap", (), "a frame was lost or came before its link was opened: it is sent again"),
    Reason("node", "link_without_hello", (), "a frame was lost or came before its link was opened: it is sent again"),
    Reason(
        "node",
        "link_not_taken",
        (),
        "frames that waited for this node's slow disk were dropped: more came than may wait, or the link was opened "
        "again. What is to survive is sent again",
    ),
    Reason("node", "link_expired", (), "a message's Message Expiry Interval was over when it came"),
    Reason(
        "other",
        "rate_limited",
        ("message_rate", "byte_rate"),
        "a client sends faster than it may, and its messages wait",
    ),
    Reason(
        "other",
        "publisher_memory",
        ("limits.memory",),
        "the node is short of memory: a publisher is not read for a second at a time",
    ),
    Reason(
        "other",
        "subscription_revoked",
        ("access.rules",),
        "the access rules do not allow a subscription any more, and it was removed",
    ),
    Reason("other", "messages.dropped.no_subscribers", (), "no subscription matched the message's topic"),
    Reason(
        "other",
        "messages.dropped.await_pubrel_timeout",
        ("await_rel_timeout",),
        "PUBREL for a QoS 2 message that was taken did not come in time; its packet identifier is free again",
    ),
    Reason(
        "other", "delayed_expired", (), "the Message Expiry Interval of a delayed message was over before its time came"
    ),
    Reason(
        "other", "delayed_full", ("delayed.max_messages", "delayed.max_bytes"), "as many delayed messages wait as may"
    ),
    Reason("other", "delayed_reserved", (), "a delayed message was for a topic reserved for the server"),
    Reason(
        "other",
        "retained_full",
        ("retained.max_messages",),
        "delivered, but not retained: there are as many retained messages as may be",
    ),
    Reason(
        "other",
        "retained_source_denied",
        ("retained.check_source",),
        "a retained message was not delivered: its publisher may not publish it any more",
    ),
    Reason(
        "other",
        "password_attempt_held",
        ("access.guesses",),
        "after many wrong passwords an attempt has to wait before it is looked at",
    ),
    Reason(
        "other",
        "api_origin",
        ("management.allowed_origins",),
        "a page of another site may have caused a request of the HTTP API",
    ),
    Reason("other", "api_form", (), "a form of another site may have caused a request of the HTTP API"),
    Reason("other", "api_host", ("management.host_names",), "the HTTP API was asked by a name that is not its own"),
    Reason("other", "api_credentials", ("management.apps",), "a wrong AppID or AppSecret"),
    Reason("other", "dashboard_login", ("dashboard.enabled",), "a wrong name or password of a dashboard user"),
    Reason("other", "dashboard_role", (), "a dashboard user's role does not allow the request"),
)

_COUNTED: Final[dict[str, tuple[str, ...]]] = {
    "message": ("publish_", "subscribe_", "will_"),
    "delivery": ("delivery_", "cluster_link_", "delivery.dropped."),
    "node": ("cluster_",),
}
"""What stands before a reason where it is counted. Those of clients are counted as they are."""
_EVENTS: Final[dict[str, Kind]] = {
    "client_refused": "client",
    "client_disconnected": "client",
    "publish_refused": "message",
    "subscribe_refused": "message",
    "will_refused": "message",
    "delivery_dropped": "delivery",
    "listener_limit": "socket",
    "cluster_refused": "node",
}


class ReasonsQuery(msgspec.Struct):
    """``reason``: one as the log or a counter (``publish_not_authorized``) names it; ``kind``: only of this kind."""

    reason: str | None = None
    kind: Kind | None = None


class ReasonRecord(msgspec.Struct):
    """``settings``: which may have decided, any of them; ``advice``: what helps, or empty; ``counters``: under which
    names it is counted."""

    kind: Kind
    reason: str
    settings: list[str]
    text: str
    advice: str
    counters: list[str]


def explained_reasons(query: ReasonsQuery) -> list[ReasonRecord]:
    """Those that the query leaves."""
    records = [_record(each) for each in REASONS if query.kind is None or each.kind == query.kind]
    wanted = query.reason
    return [each for each in records if wanted is None or wanted == each.reason or wanted in each.counters]


def text_of(event: str, reason: str, setting: str) -> str:
    """Why an event of the log happened, in a sentence; empty where nothing is known."""
    kind = _EVENTS.get(event)
    of_reason = [each for each in REASONS if each.reason == reason and (kind is None or each.kind == kind)]
    decided = [each for each in of_reason if any(_fits(pattern, setting) for pattern in each.settings)]
    plain = [each for each in of_reason if not each.settings]
    return next((each.text for each in (*decided, *plain, *of_reason)), "")


def _fits(pattern: str, setting: str) -> bool:
    """``access.rules.<n>`` fits ``access.rules.3``."""
    return setting == pattern or ("<" in pattern and setting.startswith(pattern.partition("<")[0]))


def _record(reason: Reason) -> ReasonRecord:
    settings, counters = list(reason.settings), list(_counters(reason))
    return ReasonRecord(reason.kind, reason.reason, settings, reason.text, ADVICE.get(reason.reason, ""), counters)


def _counters(reason: Reason) -> Iterator[str]:
    for prefix in _COUNTED.get(reason.kind, ("",)):
        yield prefix + reason.reason
