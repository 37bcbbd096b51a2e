"""Reason Codes of MQTT 5.0 (section 2.4): their names, the packets that may contain them, and the return codes of
3.x."""

from typing import Final

from .constants import PUBACK, PUBCOMP, PUBREC, PUBREL

SUCCESS: Final = 0x00
NORMAL_DISCONNECTION: Final = 0x00
GRANTED_QOS_0: Final = 0x00
GRANTED_QOS_1: Final = 0x01
GRANTED_QOS_2: Final = 0x02
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
RE_AUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_IN_USE: Final = 0x91
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
MAXIMUM_CONNECT_TIME: Final = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

NAMES: Final[dict[int, str]] = {
    0x00: "success",
    0x01: "granted_qos1",
    0x02: "granted_qos2",
    0x04: "disconnect_with_will_message",
    0x10: "no_matching_subscribers",
    0x11: "no_subscription_existed",
    0x18: "continue_authentication",
    0x19: "re_authenticate",
    0x80: "unspecified_error",
    0x81: "malformed_packet",
    0x82: "protocol_error",
    0x83: "implementation_specific_error",
    0x84: "unsupported_protocol_version",
    0x85: "client_identifier_not_valid",
    0x86: "bad_username_or_password",
    0x87: "not_authorized",
    0x88: "server_unavailable",
    0x89: "server_busy",
    0x8A: "banned",
    0x8B: "server_shutting_down",
    0x8C: "bad_authentication_method",
    0x8D: "keepalive_timeout",
    0x8E: "session_taken_over",
    0x8F: "topic_filter_invalid",
    0x90: "topic_name_invalid",
    0x91: "packet_identifier_inuse",
    0x92: "packet_identifier_not_found",
    0x93: "receive_maximum_exceeded",
    0x94: "topic_alias_invalid",
    0x95: "packet_too_large",
    0x96: "message_rate_too_high",
    0x97: "quota_exceeded",
    0x98: "administrative_action",
    0x99: "payload_format_invalid",
    0x9A: "retain_not_supported",
    0x9B: "qos_not_supported",
    0x9C: "use_another_server",
    0x9D: "server_moved",
    0x9E: "shared_subscriptions_not_supported",
    0x9F: "connection_rate_exceeded",
    0xA0: "maximum_connect_time",
    0xA1: "subscription_identifiers_not_supported",
    0xA2: "wildcard_subscriptions_not_supported",
}
"""Reason Code -> its name in EMQX 4.x."""

# CONNACK return codes of MQTT 3.1 and 3.1.1 (MQTT 3.1.1 table 3.1).
V3_ACCEPTED: Final = 0
V3_UNACCEPTABLE_PROTOCOL_VERSION: Final = 1
V3_IDENTIFIER_REJECTED: Final = 2
V3_SERVER_UNAVAILABLE: Final = 3
V3_BAD_USER_NAME_OR_PASSWORD: Final = 4
V3_NOT_AUTHORIZED: Final = 5

V3_SUBACK_FAILURE: Final = 0x80

_TO_V3_CONNACK: Final[dict[int, int]] = {
    SUCCESS: V3_ACCEPTED,
    UNSUPPORTED_PROTOCOL_VERSION: V3_UNACCEPTABLE_PROTOCOL_VERSION,
    CLIENT_IDENTIFIER_NOT_VALID: V3_IDENTIFIER_REJECTED,
    BAD_USER_NAME_OR_PASSWORD: V3_BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED: V3_NOT_AUTHORIZED,
    BANNED: V3_NOT_AUTHORIZED,
    BAD_AUTHENTICATION_METHOD: V3_NOT_AUTHORIZED,
}


def to_v3_connack(reason_code: int) -> int:
    """Return the 3.x CONNACK return code nearest to a 5.0 Reason Code; 3 (server unavailable) if none corresponds."""
    return _TO_V3_CONNACK.get(reason_code, V3_SERVER_UNAVAILABLE)


# The Reason Codes that each Control Packet may contain, by sender; any other is a Protocol Error.
_PUBLISH_CODES: Final = frozenset(
    (
        SUCCESS,
        NO_MATCHING_SUBSCRIBERS,
        UNSPECIFIED_ERROR,
        IMPLEMENTATION_SPECIFIC_ERROR,
        NOT_AUTHORIZED,
        TOPIC_NAME_INVALID,
        PACKET_IDENTIFIER_IN_USE,
        QUOTA_EXCEEDED,
        PAYLOAD_FORMAT_INVALID,
    )
)
_RELEASE_CODES: Final = frozenset((SUCCESS, PACKET_IDENTIFIER_NOT_FOUND))
ACK_CODES: Final = {
    PUBACK: _PUBLISH_CODES,  # [MQTT-3.4.2-1]
    PUBREC: _PUBLISH_CODES,  # [MQTT-3.5.2-1]
    PUBREL: _RELEASE_CODES,  # [MQTT-3.6.2-1]
    PUBCOMP: _RELEASE_CODES,  # [MQTT-3.7.2-1]
}
CONNACK_CODES: Final = frozenset(
    (0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
)
SUBACK_CODES: Final = frozenset((0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
UNSUBACK_CODES: Final = frozenset((0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
DISCONNECT_FROM_CLIENT: Final = frozenset((0, 4, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)))
DISCONNECT_FROM_SERVER: Final = frozenset(
    (0, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)),
)
AUTH_FROM_CLIENT: Final = frozenset((CONTINUE_AUTHENTICATION, RE_AUTHENTICATE))
AUTH_FROM_SERVER: Final = frozenset((SUCCESS, CONTINUE_AUTHENTICATION))

FROM_V3_CONNACK: Final = {
    V3_ACCEPTED: SUCCESS,
    V3_UNACCEPTABLE_PROTOCOL_VERSION: UNSUPPORTED_PROTOCOL_VERSION,
    V3_IDENTIFIER_REJECTED: CLIENT_IDENTIFIER_NOT_VALID,
    V3_SERVER_UNAVAILABLE: SERVER_UNAVAILABLE,
    V3_BAD_USER_NAME_OR_PASSWORD: BAD_USER_NAME_OR_PASSWORD,
    V3_NOT_AUTHORIZED: NOT_AUTHORIZED,
}
"""CONNACK return code of 3.x -> the Reason Code with the same meaning."""


def name(reason_code: int) -> str:
    """Return the Reason Code's name as in EMQX, ``"reason_0x.."`` for a number that the standard does not list."""
    return NAMES.get(reason_code) or f"reason_0x{reason_code:02x}"
