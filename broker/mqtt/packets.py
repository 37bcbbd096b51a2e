"""One class per Control Packet, for all versions. PUBLISH is ``message.Message``.

The decoder returns acknowledgements that contain only a Packet Identifier as plain integers (``decoder.Packet``), so
that no object is created for them on the publish path."""

from dataclasses import dataclass, field
from typing import Any

Properties = dict[int, Any]
"""Property identifier (``constants``) -> value.

Integers for the byte, two byte, four byte and variable byte integers; ``str`` for UTF-8 strings; ``bytes`` for
binary data. USER_PROPERTY holds ``list[tuple[str, str]]`` in wire order; SUBSCRIPTION_IDENTIFIER holds
``list[int]`` in PUBLISH and one ``int`` in SUBSCRIBE.
"""

NO_PROPERTIES: Properties = {}
"""Shared empty value. Never written to."""


@dataclass(slots=True)
class Will:
    """The Will Message of a CONNECT. Its properties still contain Will Delay Interval."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """``version`` is 3, 4 or 5; ``is_bridge``: the top bit of the level was set (3.x only)."""

    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=dict)
    is_bridge: bool = False


@dataclass(slots=True)
class Connack:
    """``reason_code`` is always a 5.0 Reason Code; the encoder translates it for 3.x."""

    reason_code: int
    session_present: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (``type``) with a Reason Code or properties."""

    type: int
    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class TopicFilter:
    """One entry of a SUBSCRIBE: the Topic Filter as sent (``$share/...`` included) and its options."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    filters: list[TopicFilter]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Suback:
    """One 5.0 Reason Code per filter, in order; the encoder turns every failure into 0x80 for 3.x."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsuback:
    """Response to UNSUBSCRIBE. The encoder leaves out the Reason Codes for 3.x."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pingreq:
    pass


@dataclass(slots=True)
class Pingresp:
    pass


@dataclass(slots=True)
class Disconnect:
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)
