"""The states of a conversation, which of them can follow which, and the return codes of MQTT-SN."""

from typing import Final

from ...mqtt import reason_codes
from . import codec as sn

NEW: Final = 0  # nothing is known of the address
WILL_TOPIC: Final = 1  # a CONNECT with a Will: WILLTOPIC is expected
WILL_MESSAGE: Final = 2  # then WILLMSG
LOGGING_IN: Final = 3  # the broker has the CONNECT
ACTIVE: Final = 4
ASLEEP: Final = 5  # messages wait in the session
AWAKE: Final = 6  # a PINGREQ of a sleeping client: they are delivered, then PINGRESP ends it
PUBLISHER: Final = 7  # logged in for PUBLISH of QoS -1, without a connection that the client knows of
OVER: Final = 8

STATES: Final = ("new", "will_topic", "will_message", "logging_in", "active", "asleep", "awake", "publisher", "over")

FOLLOWS: Final = {
    NEW: (WILL_TOPIC, LOGGING_IN, PUBLISHER, OVER),
    WILL_TOPIC: (NEW, WILL_TOPIC, WILL_MESSAGE, LOGGING_IN, OVER),
    WILL_MESSAGE: (NEW, WILL_TOPIC, WILL_MESSAGE, LOGGING_IN, OVER),
    LOGGING_IN: (ACTIVE, OVER),
    ACTIVE: (ASLEEP, OVER),
    ASLEEP: (ASLEEP, AWAKE, ACTIVE, OVER),
    AWAKE: (ASLEEP, ACTIVE, OVER),
    PUBLISHER: (OVER,),
    OVER: (OVER,),
}
"""State -> the states that can follow it."""


def entered(before: int, after: int) -> int:
    """Return the state after a change."""
    assert after in FOLLOWS[before], f"{STATES[after]} does not follow {STATES[before]}"
    return after


_BUSY: Final = frozenset(
    (reason_codes.SERVER_BUSY, reason_codes.SERVER_UNAVAILABLE, reason_codes.QUOTA_EXCEEDED,
     reason_codes.MESSAGE_RATE_TOO_HIGH)
)  # fmt: skip


def return_code(reason_code: int) -> int:
    """Return the return code of MQTT-SN for a Reason Code."""
    if reason_code < reason_codes.UNSPECIFIED_ERROR:
        return sn.ACCEPTED
    if reason_code in _BUSY:
        return sn.CONGESTION
    return sn.INVALID_TOPIC_ID if reason_code == reason_codes.TOPIC_NAME_INVALID else sn.NOT_SUPPORTED
