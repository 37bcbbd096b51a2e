"""Reasons: why clients, messages, sockets and deliveries were refused, dropped or lost, in one sentence each, and what
to do.

Every reason of the log is listed here (docs/log.md has the same tables, and a test compares them), and those that only
counters have."""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from taipan.broker.access.registry import ACCESS_SOURCES, installed_sources

from .advice import ADVICE

Kind = Literal["client", "message", "socket", "delivery", "node", "other"]


class Reason(NamedTuple):
    """The explanation of a reason. ``settings``: the settings that may have decided, as in the log. ``<n>`` and
    similar parts of a setting, and at the end of a reason, are placeholders. ``advice``: what to do; empty: what
    ``ADVICE`` has for the reason."""

    kind: Kind
    reason: str
    settings: tuple[str, ...]
    text: str
    advice: str = ""


def _of_sources(kind: Kind, reason: str) -> Iterator[Reason]:
    """Return the reasons that the built-in sources of access declare."""
    for source in ACCESS_SOURCES:
        yield from (Reason(*each) for each in source.explained() if (each.kind, each.reason) == (kind, reason))


REASONS: Final = (
    Reason("client", "normal", (), "the client sent DISCONNECT"),
    Reason(
        "client", "disconnect_with_will_message", (), "the client sent DISCONNECT and requested publication of its Will"
    ),
    Reason("client", "tcp_closed", (), "the connection closed without DISCONNECT: the client or the network failed"),
    Reason(
        "client",
        "keepalive_timeout",
        ("keep_alive_multiplier", "server_keep_alive"),
        "the client sent nothing for longer than its Keep Alive times the multiplier",
    ),
    Reason(
        "client",
        "takeovered",
        (),
        "another client connected with the same client ID and resumed the session or started a new one. If this "
        "repeats, two devices share a client ID",
    ),
    Reason(
        "client",
        "discarded",
        (),
        "another client connected with the same client ID and resumed the session or started a new one. If this "
        "repeats, two devices share a client ID",
    ),
    Reason(
        "client", "kicked", (), "an operator ended the session: DELETE /clients/{clientid}, taipan-ctl clients kick"
    ),
    Reason("client", "server_shutting_down", (), "the node is shutting down"),
    Reason("client", "server_unavailable", (), "the node is shutting down"),
    Reason(
        "client",
        "server_unavailable",
        ("cluster.isolated",),
        "the node cannot reach the other nodes and accepts no clients (refuse_new, close_all), or NATS accepts "
        "no writes and the session is to outlive its connection",
    ),
    Reason(
        "client",
        "use_another_server",
        ("cluster.isolated",),
        "the node cannot reach the other nodes and has closed all connections (close_all)",
    ),
    Reason("client", "use_another_server", ("taipan-ctl cluster evacuation",), "an operator is evacuating the node"),
    Reason(
        "client",
        "server_unavailable",
        ("cluster.takeover", "cluster.takeover_timeout"),
        "the node that holds the session did not answer in time",
    ),
    Reason("client", "idle_timeout", ("idle_timeout",), "the client sent no complete CONNECT, or no AUTH, in time"),
    *_of_sources("client", "token_expired"),
    Reason(
        "client", "user_deleted", ("access.users",), "the client's user was deleted or removed from the configuration"
    ),
    Reason(
        "client",
        "memory",
        ("limits.memory",),
        "the node is short of memory, and the client has not logged in while such clients hold too much, has "
        "sent only part of a packet, or reads too slowly",
    ),
    Reason(
        "client",
        "slow_reader",
        ("slow_reader_timeout",),
        "the client's socket was full, and the client read less than 1024 bytes in that time",
    ),
    Reason(
        "client",
        "quota_exceeded",
        ("queue_full",),
        "a 3.x publisher waited 60 seconds for space in a full queue",
        'Have the subscribers read faster, or set queue_full = "drop_oldest".',
    ),
    Reason(
        "client",
        "quota_exceeded",
        ("cluster.servers",),
        "a 3.x publisher waited 60 seconds for a retained message to be stored, but NATS had no quorum",
        "Restore the quorum of the NATS servers: see the alarm nats_no_quorum.",
    ),
    Reason(
        "client",
        "quota_exceeded",
        (),
        "more than 4096 topic filters in one packet, or more user properties or topic aliases than the node "
        "keeps for a client; detail names the limit",
        "Have the client send less in one packet.",
    ),
    Reason(
        "client",
        "bad_username_or_password",
        ("access.users",),
        "unknown user, wrong password, or a username without a password; the log does not distinguish these cases",
    ),
    Reason(
        "client",
        "bad_username_or_password",
        (),
        "the user's stored hash uses bcrypt, which is not installed; detail gives the command that installs it",
        "Install the package that the detail names.",
    ),
    *_of_sources("client", "bad_username_or_password"),
    Reason(
        "client", "bad_username_or_password", ("access.authenticators",), "no authentication source knows the username"
    ),
    Reason(
        "client",
        "bad_username_or_password",
        ("allow_anonymous",),
        "the client gave a username, but no users exist and anonymous clients are refused",
        "Create the user, or set allow_anonymous = true in the listener's zone.",
    ),
    Reason(
        "client",
        "not_authorized",
        ("allow_anonymous",),
        "the client gave no username, and the listener requires one",
        "Give the client a username and a password, or set allow_anonymous = true in the listener's zone.",
    ),
    Reason(
        "client",
        "not_authorized",
        ("access.users",),
        "the client could not prove that it knows the password (SCRAM)",
        "Check the password in the client's configuration.",
    ),
    Reason(
        "client",
        "not_authorized",
        ("mountpoint",),
        "the client gave no username, or one that cannot be part of the mount point",
        "Give the client another username, or change mountpoint.",
    ),
    Reason(
        "client",
        "not_authorized",
        ("access.rules.<n>", "access.no_match"),
        "the client did something that this rule denies or that no rule allows, and acl_deny_action is disconnect",
        ADVICE["not_authorized"],
    ),
    *_of_sources("client", "not_authorized"),
    Reason(
        "client",
        "session_of_another",
        ("access.session_owner",),
        "the session with this client ID belongs to another user; detail names that user (session ownership)",
    ),
    *_of_sources("client", "server_unavailable"),
    Reason(
        "client",
        "banned",
        ("/banned/<as>/<who>",),
        "this ban applies to the client, at CONNECT or, with kick, while it was connected; detail names the operator, "
        "the end of the ban and its reason",
    ),
    Reason(
        "client",
        "bad_authentication_method",
        ("access.users",),
        "the method is not SCRAM-SHA-256, or no user has scram",
    ),
    Reason(
        "client",
        "server_busy",
        ("access.hash_wait",),
        "too many passwords are waiting to be verified. More access.hash_threads or random secrets help",
    ),
    Reason(
        "client",
        "client_identifier_not_valid",
        ("allow_empty_client_id", "max_client_id_length", "mountpoint"),
        "the client ID is missing, too long, or cannot be part of the mount point. A 3.x client without a client "
        "ID must request a clean session",
    ),
    Reason("client", "unsupported_protocol_version", (), "the protocol version is not 3.1, 3.1.1 or 5.0"),
    Reason(
        "client",
        "packet_too_large",
        ("max_packet_size", "max_connect_size"),
        "detail gives both sizes. With -, the CONNACK, SUBACK or UNSUBACK would exceed the client's own Maximum "
        "Packet Size; the SUBSCRIBE or UNSUBSCRIBE then has no effect",
    ),
    Reason(
        "client",
        "receive_maximum_exceeded",
        ("receive_maximum",),
        "a 5.0 client has more QoS 2 messages in flight than the CONNACK allowed",
    ),
    Reason(
        "client",
        "topic_alias_invalid",
        ("max_topic_alias",),
        "a topic alias above the limit; with -, the alias 0. An alias that was never set is a protocol_error",
    ),
    Reason(
        "client",
        "qos_not_supported",
        ("max_qos", "retain_available"),
        "the message or Will uses something that the CONNACK declared unsupported",
    ),
    Reason(
        "client",
        "retain_not_supported",
        ("max_qos", "retain_available"),
        "the message or Will uses something that the CONNACK declared unsupported",
    ),
    Reason(
        "client",
        "topic_name_invalid",
        ("max_topic_levels",),
        "the Will's topic has too many levels; with -, it contains wildcards",
    ),
    Reason(
        "client",
        "topic_name_invalid",
        ("rewrite.rules",),
        "a rule of topic rewrite rewrites the Will's topic to an invalid topic, or it is too long",
        "Correct the rewrite rule, or use another topic.",
    ),
    Reason("client", "internal_error", (), "a bug in the node: the log shows it with exception=; please report it"),
    Reason("client", "malformed_packet", (), "the client violates the MQTT standard; detail describes the violation"),
    Reason("client", "protocol_error", (), "the client violates the MQTT standard; detail describes the violation"),
    Reason(
        "client",
        "malformed_packet",
        ("strict_strings",),
        "a string contains a control character or a Unicode non-character",
        "Correct the string in the client, or set strict_strings = false.",
    ),
    Reason(
        "client",
        "protocol_error",
        ("strict_strings",),
        "a string contains a control character or a Unicode non-character",
        "Correct the string in the client, or set strict_strings = false.",
    ),
    Reason(
        "client",
        "malformed_packet",
        ("type",),
        "the client speaks TLS, HTTP or WebSocket, which is not this listener's type; detail names the protocol",
        "Connect the client to a listener of its protocol: the detail names the protocol.",
    ),
    Reason(
        "client",
        "protocol_error",
        ("type",),
        "the client speaks TLS, HTTP or WebSocket, which is not this listener's type; detail names the protocol",
        "Connect the client to a listener of its protocol: the detail names the protocol.",
    ),
    Reason(
        "client",
        "malformed_packet",
        ("proxy_protocol",),
        "a load balancer sends a PROXY header to a listener that does not expect one",
        "Set proxy_protocol = true in the listener, or have the load balancer send no PROXY header.",
    ),
    Reason(
        "client",
        "protocol_error",
        ("proxy_protocol",),
        "a load balancer sends a PROXY header to a listener that does not expect one",
        "Set proxy_protocol = true in the listener, or have the load balancer send no PROXY header.",
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
    *_of_sources("message", "not_authorized"),
    Reason("message", "not_authorized", ("access.no_match",), "no rule matches"),
    Reason(
        "message",
        "not_authorized",
        (),
        "the topic is reserved for the server ($SYS/...), or an extension's hook denied it",
        "Use another topic: the server alone publishes below $SYS.",
    ),
    Reason(
        "message",
        "not_authorized",
        ("auto_subscribe.topics",),
        "the filter contains %u, and the client has no authenticated username",
        "Give the client a username and a password.",
    ),
    Reason("message", "topic_name_invalid", ("max_topic_levels",), "the topic or filter has too many levels"),
    Reason("message", "topic_filter_invalid", ("max_topic_levels",), "the topic or filter has too many levels"),
    Reason(
        "message",
        "topic_name_invalid",
        ("mountpoint",),
        "the topic or filter is too long once the mount point is prepended",
        "Use a shorter topic, or a shorter mountpoint.",
    ),
    Reason(
        "message",
        "topic_filter_invalid",
        ("mountpoint",),
        "the topic or filter is too long once the mount point is prepended",
        "Use a shorter topic filter, or a shorter mountpoint.",
    ),
    Reason(
        "message",
        "topic_name_invalid",
        ("rewrite.rules",),
        "a rule of topic rewrite rewrites it to an invalid topic or filter, or it is too long to be rewritten",
        "Correct the rewrite rule, or use another topic.",
    ),
    Reason(
        "message",
        "topic_filter_invalid",
        ("rewrite.rules",),
        "a rule of topic rewrite rewrites it to an invalid topic or filter, or it is too long to be rewritten",
        "Correct the rewrite rule, or use another topic filter.",
    ),
    Reason(
        "message",
        "topic_name_invalid",
        (),
        "the topic or filter is not valid, or is not of the form $delayed/<seconds>/<topic>",
    ),
    Reason(
        "message",
        "topic_filter_invalid",
        ("auto_subscribe.topics",),
        "the client ID or username in the filter contains + # or /, or begins with $",
        "Change the client ID or the username, or the filter in auto_subscribe.topics.",
    ),
    Reason(
        "message",
        "topic_filter_invalid",
        ("exclusive_subscription",),
        "exclusive subscriptions are off in the client's zone",
        "Set exclusive_subscription = true in the zone, or subscribe without $exclusive.",
    ),
    Reason(
        "message",
        "topic_filter_invalid",
        ("mqtt_sub",),
        "the row of a database from which the client was to be subscribed has another QoS than 0, 1 or 2",
        "Correct the row; the next connection of the client reads it again.",
    ),
    Reason(
        "message",
        "topic_filter_invalid",
        (),
        "the topic or filter is not valid, or is not of the form $delayed/<seconds>/<topic>",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("delayed.max_seconds", "delayed.max_messages", "delayed.max_bytes"),
        "the delay is too long, or too many delayed messages are waiting",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("max_awaiting_rel",),
        "too many of the client's QoS 2 messages are waiting for its PUBREL. A 3.x client gets no answer",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("message_rate", "byte_rate"),
        "the message was waiting for its rate limit when its client disconnected; it was not acknowledged",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("queue_full",),
        'a subscriber\'s queue is full, and its zone has queue_full = "refuse"',
        'Have the subscribers read faster, or set queue_full = "drop_oldest".',
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("retained.max_payload_size", "retained.max_messages", "retained.max_bytes"),
        "the message cannot be retained, so it was not published. Only QoS 1 and 2 messages of 5.0 clients are refused",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("cluster.servers",),
        "NATS has no quorum: QoS 1 and 2 messages cannot be retained, and exclusive subscriptions cannot be granted at "
        "present",
        "Restore the quorum of the NATS servers: see the alarm nats_no_quorum.",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("exclusive_subscription",),
        "another client has this exclusive subscription",
        "Wait until the other client unsubscribes. The dashboard's page Topics names that client.",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("max_subscriptions", "max_subscription_bytes"),
        "the client has reached its limit of subscriptions or of filter bytes",
    ),
    Reason(
        "message",
        "quota_exceeded",
        ("limits.memory",),
        "the node is short of memory and refuses new subscriptions, delayed messages and topic aliases. When "
        "memory is used up, it also refuses QoS 1 and 2 messages that would have to be queued",
    ),
    Reason("message", "packet_identifier_in_use", (), "the client reused a Packet Identifier that is still in use"),
    Reason(
        "message",
        "shared_subscriptions_not_supported",
        ("shared_subscription", "wildcard_subscription"),
        "the CONNACK declared this kind of subscription unsupported",
    ),
    Reason(
        "message",
        "wildcard_subscriptions_not_supported",
        ("shared_subscription", "wildcard_subscription"),
        "the CONNACK declared this kind of subscription unsupported",
    ),
    Reason(
        "socket",
        "max_connections",
        ("max_connections",),
        "the limit was reached, and no connection ended within 0.25 seconds: the socket was closed, or, on a datagram "
        "listener, the datagram was ignored",
    ),
    Reason(
        "socket",
        "memory",
        ("limits.memory",),
        "closed before login: clients that have not logged in hold too much memory, or memory is used up",
    ),
    Reason(
        "socket",
        "accept_rate",
        ("accept_rate",),
        "the connection had to wait and was accepted later; on a datagram listener, the datagram was ignored",
    ),
    Reason(
        "socket",
        "newcomers",
        (),
        "a datagram listener has 1024 clients without a login, and a new one replaced the oldest: many clients "
        "connect at once, or their addresses are forged",
    ),
    Reason(
        "socket",
        "amplification",
        (),
        "a datagram was not sent: until its address is proved, a client receives no more bytes than it has sent",
    ),
    Reason(
        "socket",
        "datagrams_dropped",
        ("limits.memory",),
        "a datagram was dropped while the node did not read from its client, because of a rate or of limits.memory",
    ),
    Reason("socket", "datagrams_unsent", (), "the system did not accept a datagram: detail has its reason"),
    Reason(
        "socket",
        "malformed_datagram",
        (),
        "a datagram was ignored: it breaks the rules of its protocol; detail has the rule",
    ),
    Reason(
        "socket",
        "unexpected_datagram",
        (),
        "a datagram was ignored: it has no meaning at this moment; it may be late, repeated or forged",
    ),
    Reason(
        "socket",
        "qos3_off",
        ("enable_qos3",),
        "a PUBLISH of MQTT-SN with QoS -1 was ignored: the gateway does not accept them",
    ),
    Reason(
        "socket",
        "waiting_for_client",
        ("max_waiting_bytes",),
        "a QoS 0 message was dropped, because too many others already wait for the MQTT-SN client to answer REGISTER, "
        "or for the CoAP client to acknowledge a notification",
    ),
    Reason(
        "socket",
        "not_observed",
        (),
        "a message was dropped: its topic is not one that the CoAP client observes, but one to which an operator has"
        " subscribed it, or whose observation has just ended",
    ),
    Reason(
        "socket",
        "topic_refused",
        (),
        "a message was dropped: the MQTT-SN client has refused its topic",
    ),
    Reason(
        "socket",
        "no_answer",
        ("max_retries", "max_retransmit"),
        "a client has not answered any of the repetitions of a message. It was disconnected, unless it is a device "
        "of LwM2M",
    ),
    Reason(
        "socket",
        "exchanges_forgotten",
        ("max_exchanges",),
        "a CoAP request was forgotten to make room for another one: a repetition of it would be carried out again",
    ),
    Reason(
        "socket",
        "body_too_large",
        ("max_body_bytes",),
        "a CoAP request in blocks was refused with 4.13: it is too large",
    ),
    Reason(
        "socket",
        "bodies_full",
        ("max_bodies_bytes",),
        "a CoAP message was refused with 5.03: too many bytes are being transferred in blocks on this listener",
    ),
    Reason(
        "socket",
        "transfer_failed",
        ("max_body_bytes",),
        "an answer in blocks from a CoAP client was dropped: it is too large, or its blocks do not fit together",
    ),
    Reason(
        "socket",
        "registration_refused",
        (),
        "a device of LwM2M could not register, or update its registration: detail has the reason",
    ),
    Reason(
        "socket",
        "command_subscription_refused",
        ("topics.command",),
        "a device of LwM2M was registered without commands: the access rules deny its subscription",
    ),
    Reason(
        "socket",
        "command_dropped",
        (
            "max_queued_commands",
            "max_queued_bytes",
            "max_requests",
        ),
        "a command for a device of LwM2M was dropped, and answered with 5.03: too many have no answer",
    ),
    Reason(
        "socket",
        "observation_refused",
        ("max_observations",),
        "a device of LwM2M has as many observations as it may; the command was answered with 5.03",
    ),
    Reason(
        "socket",
        "answer_too_large",
        ("max_packet_size",),
        "the answer of a device of LwM2M was not published, but 4.13: it is larger than a packet may be",
    ),
    Reason(
        "socket",
        "commands_unanswered",
        (),
        "a device of LwM2M left with commands that it had not answered",
    ),
    Reason(
        "socket",
        "no_sockets",
        ("LimitNOFILE", "ulimit -n"),
        "clients use all the file descriptors available to them. The node pauses accepting for a second; most "
        "clients wait in the backlog",
    ),
    Reason(
        "socket",
        "proxy_protocol_error",
        ("proxy_protocol", "proxy_protocol_timeout"),
        "the PROXY header is missing: the load balancer does not send one, or a client bypassed it",
    ),
    Reason(
        "socket",
        "proxy_protocol_timeout",
        ("proxy_protocol", "proxy_protocol_timeout"),
        "the PROXY header is missing: the load balancer does not send one, or a client bypassed it",
    ),
    Reason(
        "socket",
        "tls_handshake",
        ("tls", "tls.handshake_timeout"),
        "the TLS handshake failed. WRONG_VERSION_NUMBER: the client does not speak TLS; TLSV1_ALERT_UNKNOWN_CA: "
        "the client does not trust the authority that signed certfile",
    ),
    Reason(
        "socket",
        "tls_timeout",
        ("tls", "tls.handshake_timeout"),
        "the TLS handshake failed. WRONG_VERSION_NUMBER: the client does not speak TLS; TLSV1_ALERT_UNKNOWN_CA: "
        "the client does not trust the authority that signed certfile",
    ),
    Reason(
        "socket",
        "tls_certificate",
        ("tls.verify", "tls.cafile", "tls.crlfile"),
        "the client certificate is missing, not signed by cafile, or revoked",
    ),
    Reason(
        "socket",
        "tls_psk",
        ("tls.psk_file",),
        "the identity of the client is not in psk_file, or its key is another one; detail has the identity",
    ),
    Reason("socket", "websocket_path", ("path",), "answered with 404; detail has the requested path"),
    Reason(
        "socket",
        "websocket_origin",
        ("allowed_origins",),
        "answered with 403: a web page of an origin that is not allowed; detail has the origin",
    ),
    Reason(
        "socket",
        "websocket_subprotocol",
        ("subprotocols", "subprotocol_required"),
        "the client offers none of the listener's subprotocols",
    ),
    Reason(
        "socket",
        "websocket_request",
        ("idle_timeout",),
        "the request was not a WebSocket handshake, or it was too slow",
    ),
    Reason(
        "socket",
        "websocket_timeout",
        ("idle_timeout",),
        "the request was not a WebSocket handshake, or it was too slow",
    ),
    Reason(
        "delivery",
        "queue_full",
        ("max_queued_messages", "max_queued_bytes", "max_outbox_bytes"),
        "the client's queue is full, or the client reads too slowly for QoS 0; the oldest message was dropped",
    ),
    Reason("delivery", "too_large", (), "the message is larger than the client's Maximum Packet Size"),
    Reason("delivery", "expired", (), "the Message Expiry Interval passed before the message could be sent"),
    Reason(
        "delivery",
        "qos0_msg",
        ("queue_qos0",),
        "a QoS 0 message, and the client is offline, reads too slowly, or its session moved to another node",
    ),
    Reason(
        "delivery",
        "full",
        ("cluster.link_credit",),
        "a QoS 0 message for another node, and that many bytes are already in transit to it",
    ),
    Reason("delivery", "no_local", (), "the subscriber published the message itself and subscribed with No Local"),
    Reason(
        "delivery",
        "revoked",
        ("access.rules",),
        "the message was queued for a subscription that the access rules no longer allow",
    ),
    Reason(
        "delivery",
        "memory",
        ("limits.memory",),
        "the node is short of memory and dropped messages from the largest queues",
    ),
    Reason("delivery", "unreadable", ("node.data_dir",), "the message existed only on disk, and cannot be read"),
    Reason("node", "truncated", (), "the data cannot be decoded or is inconsistent; the node skips it"),
    Reason("node", "malformed", (), "the data cannot be decoded or is inconsistent; the node skips it"),
    Reason(
        "node",
        "newer_version",
        (),
        "another node writes a format that this version cannot read. Upgrade the nodes one after the other, and "
        "not past a version that the others cannot read",
    ),
    Reason("node", "older_version", (), "a format that this version no longer reads"),
    Reason("node", "other_cluster", (), "the data is from a cluster with another cluster.name on the same subjects"),
    Reason(
        "node",
        "unknown_node",
        (),
        "the data is from a node, or an incarnation of a node, that is unknown here or was forced out",
    ),
    Reason(
        "node",
        "not_known_yet",
        (),
        "the data is from a node, or an incarnation of a node, whose record may still arrive within "
        "cluster.stopped_after seconds. This is normal when a node starts",
    ),
    Reason(
        "node",
        "has_left",
        (),
        "the data is from a node that left the cluster less than cluster.stopped_after seconds ago",
    ),
    Reason("node", "own_name", (), "the data is from another node that uses this node's name"),
    Reason("node", "old_incarnation", (), "the data is from a node before its last restart"),
    Reason("node", "forced_out", (), "this node was forced out of the cluster"),
    Reason("node", "calls_full", (), "other nodes already have 4,096 requests open to this node"),
    Reason(
        "node",
        "answers_full",
        (),
        "answers of 256 MiB in total are waiting to be fetched by other nodes in parts; this request was refused",
    ),
    Reason("node", "link_addressed", (), "the message is for a session or group that does not exist on this node"),
    Reason(
        "node",
        "group_left",
        (),
        "the message is for a Shared Subscription that no longer has a member on any node; it was dropped",
    ),
    Reason(
        "node",
        "retained_too_large",
        (),
        "a retained message is larger than max_payload of the NATS servers, less 512 bytes; only this node keeps it, "
        "from before it joined",
    ),
    Reason(
        "node",
        "row_too_large",
        (),
        "a user, rule or other row is larger than that; only this node has it, or the operator's change is undone",
    ),
    Reason(
        "node",
        "will_too_large",
        (),
        "a Will is larger than that; if this node fails, the Will is published when the node is back",
    ),
    Reason("node", "link_node_removed", (), "messages that were waiting for a node that has been removed"),
    Reason(
        "node",
        "link_node_replaced",
        (),
        "messages that were waiting for a node that returned with another data directory. They are sent to it, "
        "and it drops those for sessions that it does not have",
    ),
    Reason(
        "node",
        "node_replaced",
        (),
        "a node has another data directory than before, and the previous one was not forced out",
    ),
    Reason(
        "node",
        "replica_refused",
        ("replicas",),
        "a node requests a copy of its data here, but another node has started it from its copy, or this node has a "
        "copy of other data of that name",
    ),
    Reason(
        "node", "replica_deleted", (), "copies of other nodes' data that this node deleted, because they are not needed"
    ),
    Reason("node", "replica_left", ("replica_timeout",), "copies of this node's data that no longer count"),
    Reason(
        "node",
        "replica_batch_damaged",
        (),
        "batches of this node's store that are damaged on its disk and could not be copied",
    ),
    Reason("node", "session_of_removed_node", (), "sessions that ended because their node was removed"),
    Reason("node", "session_begun_anew", (), "sessions that were started again from empty because their node was down"),
    Reason(
        "node",
        "qos2_of_lost_session",
        (),
        "QoS 2 messages in flight of a session that was started again on another node: whether the client "
        "received them is not known",
    ),
    Reason(
        "node",
        "link_dropped",
        (),
        "messages that were waiting for other nodes when this node started without [cluster]",
    ),
    Reason("node", "link_gap", (), "a frame was lost or arrived before its link was opened; it is sent again"),
    Reason(
        "node", "link_without_hello", (), "a frame was lost or arrived before its link was opened; it is sent again"
    ),
    Reason(
        "node",
        "link_not_taken",
        (),
        "frames that were waiting for this node's slow disk were dropped, because too many were waiting or the "
        "link was reopened. Those that must survive are sent again",
    ),
    Reason("node", "link_expired", (), "the Message Expiry Interval had passed when the message arrived"),
    Reason(
        "other",
        "rate_limited",
        ("message_rate", "byte_rate"),
        "a client sends faster than its limit, so its messages are delayed",
    ),
    Reason(
        "other",
        "publisher_memory",
        ("limits.memory",),
        "the node is short of memory and stops reading from a publisher for a second at a time",
    ),
    Reason(
        "other",
        "subscription_revoked",
        ("access.rules",),
        "the access rules no longer allow a subscription, and it was removed",
    ),
    Reason(
        "other",
        "exclusive_subscription_lost",
        ("exclusive_subscription",),
        "this node was without the cluster, and a client of another node has the exclusive subscription now",
    ),
    Reason("other", "messages.dropped.no_subscribers", (), "no subscription matched the message's topic"),
    Reason(
        "other",
        "messages.dropped.await_pubrel_timeout",
        ("await_rel_timeout",),
        "the PUBREL for an accepted QoS 2 message did not arrive in time; its Packet Identifier can be used again",
    ),
    Reason(
        "other",
        "delayed_expired",
        (),
        "the Message Expiry Interval of a delayed message passed before the message was due",
    ),
    Reason(
        "other",
        "delayed_full",
        ("delayed.max_messages", "delayed.max_bytes"),
        "the limit of delayed messages has been reached",
    ),
    Reason("other", "delayed_banned", ("/banned/<as>/<who>",), "a ban dropped a delayed message of its client"),
    Reason("other", "will_banned", ("/banned/<as>/<who>",), "a ban dropped the Will of its client"),
    Reason(
        "other",
        "retained_publisher_banned",
        ("/banned/<as>/<who>",),
        "a ban keeps back a retained message of its client while the ban lasts",
    ),
    Reason("other", "delayed_reserved", (), "a delayed message had a topic that is reserved for the server"),
    Reason(
        "other",
        "retained_full",
        ("retained.max_messages", "retained.max_bytes"),
        "the message was delivered but not retained: the limit of retained messages has been reached. The earlier "
        "retained message of the topic was removed",
    ),
    Reason(
        "other",
        "retained_too_large",
        ("retained.max_payload_size",),
        "the message was delivered but not retained: its payload is too large. The earlier retained message of the "
        "topic was removed",
    ),
    Reason(
        "other",
        "retained_memory",
        ("limits.memory",),
        "the message was delivered but not retained: the node is short of memory. The earlier retained message of the "
        "topic was removed",
    ),
    Reason(
        "other",
        "retained_source_denied",
        ("retained.check_source",),
        "a retained message was not delivered: its publisher is no longer allowed to publish it",
    ),
    Reason(
        "other",
        "password_attempt_held",
        ("access.guesses",),
        "after many wrong passwords, a login attempt has to wait before it is checked",
    ),
    Reason(
        "other",
        "api_origin",
        ("management.allowed_origins",),
        "a web page of another site may have sent a request to the HTTP API",
    ),
    Reason("other", "api_form", (), "a form on another site may have sent a request to the HTTP API"),
    Reason(
        "other",
        "api_host",
        ("management.host_names",),
        "a request to the HTTP API used a hostname that is not one of its own",
    ),
    Reason("other", "api_credentials", ("management.apps",), "a wrong AppID or AppSecret"),
    Reason("other", "api_scope", (), "the scopes of an application do not allow the request"),
    Reason("other", "dashboard_login", ("dashboard.enabled",), "a dashboard login with a wrong username or password"),
    Reason(
        "other", "alarm_notice_dropped", (), "a notice to an alarm target was given up after a day, or too many wait"
    ),
    Reason("other", "dashboard_role", (), "a dashboard user's role does not allow the request"),
    Reason(
        "other",
        "dashboard_openid_state",
        ("dashboard.openid.dashboard_url",),
        "an answer of the OpenID Connect provider to a login that this browser did not begin here within ten minutes",
    ),
    Reason(
        "other",
        "dashboard_openid_denied",
        ("dashboard.openid",),
        "the OpenID Connect provider refused the login, or the user cancelled it",
    ),
    Reason(
        "other",
        "dashboard_openid_provider",
        ("dashboard.openid.issuer", "dashboard.openid.client_secret", "dashboard.openid.timeout"),
        "the OpenID Connect provider did not answer, or its answer cannot be used",
    ),
    Reason(
        "other",
        "dashboard_openid_token",
        ("dashboard.openid", "dashboard.openid.client_id", "dashboard.openid.leeway"),
        "the ID token or the code of a login by OpenID Connect is not valid; detail gives the cause",
    ),
    Reason(
        "other",
        "dashboard_openid_user",
        ("dashboard.openid.username_claim",),
        "the OpenID Connect provider gave no usable name for the user",
    ),
    Reason(
        "other",
        "dashboard_openid_role",
        ("dashboard.openid.roles_claim",),
        "no group of the user at the OpenID Connect provider gives a role",
    ),
    Reason(
        "other",
        "dashboard_openid_busy",
        ("dashboard.openid",),
        "too many logins by OpenID Connect at a time, or too many that wait after wrong ones",
    ),
    Reason("other", "dashboard_login_busy", ("access.guesses",), "too many dashboard logins at a time"),
    Reason(
        "other",
        "live_streams",
        ("management.max_live_streams",),
        "too many readers of GET /live at a time, such as open pages of the dashboard",
    ),
    Reason(
        "other",
        "rule_row_buffer_full",
        ("ruleengine.buffer_messages", "ruleengine.buffer_bytes"),
        "a row was not accepted: too many rows wait for its resource",
    ),
    Reason(
        "other",
        "rule_row_refused",
        (),
        "the other system refused a row",
        "Rules > Resources shows the resource's last error, and its dead letters.",
    ),
    Reason(
        "other",
        "rule_row_retry_attempts",
        ("ruleengine.retry_attempts",),
        "the other system answered all attempts to deliver a row with an error",
        "Rules > Resources shows the resource's last error, and its dead letters.",
    ),
    Reason(
        "other",
        "rule_row_retry_for",
        ("retry_for",),
        "a row was not delivered within the retry_for of its action",
    ),
    Reason(
        "other",
        "rule_row_dead_letters",
        ("ruleengine.dead_letters", "ruleengine.dead_letter_bytes"),
        "the oldest dead letter of a resource was deleted: the limit has been reached",
    ),
    Reason(
        "other",
        "rules_chained_rate",
        ("ruleengine.max_chained_rate",),
        "actions failed: too many messages that rules publish for messages of other rules",
        "Look for rules that publish to each other's topics.",
    ),
    Reason(
        "other",
        "webhook_dropped_queue_full",
        ("webhook.max_queued", "webhook.max_queued_bytes"),
        "an event was dropped: too many wait for the web hook's server",
    ),
    Reason("other", "webhook_dropped_memory", ("limits.memory",), "events of the web hook were dropped to save memory"),
    Reason(
        "other",
        "webhook_dropped_stopped",
        ("ruleengine.close_timeout",),
        "the node stopped before all events of the web hook were sent",
    ),
    Reason(
        "other",
        "webhook_failed_<reason>",
        ("webhook.url",),
        "the web hook's server gave no answer, or an error; an event is sent once",
    ),
    Reason(
        "other",
        "exhook_dropped_queue_full",
        ("exhook.max_queued", "exhook.max_queued_bytes"),
        "an event was dropped: too many wait for a provider of exhook",
    ),
    Reason("other", "exhook_dropped_memory", ("limits.memory",), "events of exhook were dropped to save memory"),
    Reason(
        "other",
        "exhook_dropped_stopped",
        ("ruleengine.close_timeout",),
        "the node stopped before all events of exhook were sent",
    ),
    Reason(
        "other", "exhook_dropped_down", ("exhook.servers",), "an event was dropped: the exhook provider is disconnected"
    ),
    Reason(
        "other",
        "exhook_failed_<reason>",
        ("exhook.servers", "exhook.request_timeout"),
        "an exhook provider gave no answer, or one that cannot be used",
    ),
    Reason("other", "exhook_message_stopped", ("exhook.servers",), "an exhook provider stopped a message"),
    Reason(
        "other",
        "bridge_<reason>",
        ("ingress.local_topic",),
        "a message from the remote broker of an MQTT bridge was not accepted",
    ),
    Reason(
        "other",
        "kafka_<reason>",
        (),
        "a record from Kafka was skipped: it cannot be published, or was refused",
    ),
)

_COUNTED: Final[dict[str, tuple[str, ...]]] = {
    "message": ("publish_", "subscribe_", "will_"),
    "delivery": ("delivery_", "cluster_link_", "delivery.dropped."),
    "node": ("cluster_",),
}
"""The prefix of a reason's counter. Reasons of clients have no prefix."""
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
    """``reason``: a reason as in the log or in a counter (``publish_not_authorized``); ``kind``: only reasons of this
    kind."""

    reason: str | None = None
    kind: Kind | None = None


class ReasonRecord(msgspec.Struct):
    """``settings``: the settings, any of which may have decided; ``advice``: what to do, or empty; ``counters``: the
    names of its counters."""

    kind: Kind
    reason: str
    settings: list[str]
    text: str
    advice: str
    counters: list[str]


def _reasons() -> Iterator[Reason]:
    """Return all reasons; those of sources from other packages come last."""
    yield from REASONS
    for source in installed_sources():
        yield from (Reason(*each) for each in source.explained())


def explained_reasons(query: ReasonsQuery) -> list[ReasonRecord]:
    """Return the reasons that match the query."""
    records = [_record(each) for each in _reasons() if query.kind is None or each.kind == query.kind]
    wanted = query.reason
    if wanted is None:
        return records
    return [each for each in records if any(_fits(name, wanted) for name in (each.reason, *each.counters))]


def text_of(event: str, reason: str, setting: str) -> str:
    """Return why an event of the log happened, in a sentence; empty if the reason is unknown."""
    found = _found(event, reason, setting)
    return "" if found is None else found.text


def advice_of(event: str, reason: str, setting: str) -> str:
    """Return what to do about an event of the log, or an empty string."""
    found = _found(event, reason, setting)
    return _advice(event, reason) if found is None else found.advice or _advice(event, reason)


def _found(event: str, reason: str, setting: str) -> Reason | None:
    """Return the explanation that fits the setting best, if the reason is known."""
    kind = _EVENTS.get(event)
    of_reason = [each for each in _reasons() if each.reason == reason and (kind is None or each.kind == kind)]
    decided = [each for each in of_reason if any(_fits(pattern, setting) for pattern in each.settings)]
    plain = [each for each in of_reason if not each.settings]
    return next(iter((*decided, *plain, *of_reason)), None)


def _advice(event: str, reason: str) -> str:
    return ADVICE.get(f"{event}.{reason}") or ADVICE.get(reason, "")


def _fits(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern: ``access.rules.<n>`` matches ``access.rules.3``."""
    return name == pattern or ("<" in pattern and name.startswith(pattern.partition("<")[0]))


def _record(reason: Reason) -> ReasonRecord:
    event = next((name for name, kind in _EVENTS.items() if kind == reason.kind), "")
    return ReasonRecord(
        kind=reason.kind,
        reason=reason.reason,
        settings=list(reason.settings),
        text=reason.text,
        advice=reason.advice or _advice(event, reason.reason),
        counters=list(_counters(reason)),
    )


def _counters(reason: Reason) -> Iterator[str]:
    for prefix in _COUNTED.get(reason.kind, ("",)):
        yield prefix + reason.reason
