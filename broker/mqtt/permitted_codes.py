"""Which Reason Codes each Control Packet may carry, by who sends it; any other is a Protocol Error."""

from typing import Final

from . import reason_codes as rc
from .constants import PUBACK, PUBCOMP, PUBREC, PUBREL

_PUBLISH_CODES: Final = frozenset(
    (
        rc.SUCCESS,
        rc.NO_MATCHING_SUBSCRIBERS,
        rc.UNSPECIFIED_ERROR,
        rc.IMPLEMENTATION_SPECIFIC_ERROR,
        rc.NOT_AUTHORIZED,
        rc.TOPIC_NAME_INVALID,
        rc.PACKET_IDENTIFIER_IN_USE,
        rc.QUOTA_EXCEEDED,
        rc.PAYLOAD_FORMAT_INVALID,
    )
)
_RELEASE_CODES: Final = frozenset((rc.SUCCESS, rc.PACKET_IDENTIFIER_NOT_FOUND))
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
AUTH_FROM_CLIENT: Final = frozenset((rc.CONTINUE_AUTHENTICATION, rc.RE_AUTHENTICATE))
AUTH_FROM_SERVER: Final = frozenset((rc.SUCCESS, rc.CONTINUE_AUTHENTICATION))

FROM_V3_CONNACK: Final = {
    rc.V3_ACCEPTED: rc.SUCCESS,
    rc.V3_UNACCEPTABLE_PROTOCOL_VERSION: rc.UNSUPPORTED_PROTOCOL_VERSION,
    rc.V3_IDENTIFIER_REJECTED: rc.CLIENT_IDENTIFIER_NOT_VALID,
    rc.V3_SERVER_UNAVAILABLE: rc.SERVER_UNAVAILABLE,
    rc.V3_BAD_USER_NAME_OR_PASSWORD: rc.BAD_USER_NAME_OR_PASSWORD,
    rc.V3_NOT_AUTHORIZED: rc.NOT_AUTHORIZED,
}
"""CONNACK return code of 3.x -> the Reason Code that means it."""
