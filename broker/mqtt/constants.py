"""Numbers from the standard: Control Packet types, protocol versions, QoS, property identifiers, limits."""

from typing import Final

# Control Packet types, the high nibble of the first byte (MQTT 5.0 section 2.1.2).
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

# Protocol Level bytes. MQTT 3.1 is named "MQIsdp" on the wire, the later two "MQTT".
V3: Final = 3
V4: Final = 4
V5: Final = 5
BRIDGE_BIT: Final = 0x80

# Property identifiers (MQTT 5.0 table 2-4).
PAYLOAD_FORMAT_INDICATOR: Final = 1
MESSAGE_EXPIRY_INTERVAL: Final = 2
CONTENT_TYPE: Final = 3
RESPONSE_TOPIC: Final = 8
CORRELATION_DATA: Final = 9
SUBSCRIPTION_IDENTIFIER: Final = 11
SESSION_EXPIRY_INTERVAL: Final = 17
ASSIGNED_CLIENT_IDENTIFIER: Final = 18
SERVER_KEEP_ALIVE: Final = 19
AUTHENTICATION_METHOD: Final = 21
AUTHENTICATION_DATA: Final = 22
REQUEST_PROBLEM_INFORMATION: Final = 23
WILL_DELAY_INTERVAL: Final = 24
REQUEST_RESPONSE_INFORMATION: Final = 25
RESPONSE_INFORMATION: Final = 26
SERVER_REFERENCE: Final = 28
REASON_STRING: Final = 31
RECEIVE_MAXIMUM: Final = 33
TOPIC_ALIAS_MAXIMUM: Final = 34
TOPIC_ALIAS: Final = 35
MAXIMUM_QOS: Final = 36
RETAIN_AVAILABLE: Final = 37
USER_PROPERTY: Final = 38
MAXIMUM_PACKET_SIZE: Final = 39
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 40
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 41
SHARED_SUBSCRIPTION_AVAILABLE: Final = 42

MAX_REMAINING_LENGTH: Final = 268_435_455
MAX_PACKET_ID: Final = 65_535
MAX_STRING: Final = 65_535
NEVER_EXPIRES: Final = 0xFFFF_FFFF
