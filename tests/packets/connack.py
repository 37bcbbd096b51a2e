"""CONNACK."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Connack

from .table import ALL, FROM_311, SERVER, V3X, V5, Row, bad, good

_V3_CODES = {0: 0, 1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
_V5_CODES = (0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)

ROWS: list[Row] = [
    *good("session present", (4,), "20 02 01 00", Connack(0, True), sender=SERVER),
    *good("session present", (3,), "20 02 01 00", Connack(0, True), sender=SERVER, canonical=False),
    *good("session present", V5, "20 * 01 00 00", Connack(0, True), "[MQTT-2.2.2-1]", sender=SERVER),
    *bad("reserved flag", FROM_311, "20 * 02 00 00", 0x81, "[MQTT-3.2.2-1]", sender=SERVER),
    *bad("empty", ALL, "20 00", 0x81, sender=SERVER),
    *bad("one byte", ALL, "20 01 00", 0x81, sender=SERVER),
    *bad("too long", V3X, "20 03 00 00 00", 0x81, sender=SERVER),
    *bad("return code 6", V3X, "20 02 00 06", 0x82, error=ProtocolError, sender=SERVER),
    *bad("no properties", V5, "20 02 00 00", 0x81, sender=SERVER),
    *bad("bytes behind", V5, "20 * 00 00 00 00", 0x81, sender=SERVER),
    *bad("reason code 0x01", V5, "20 * 00 01 00", 0x82, error=ProtocolError, sender=SERVER),
    *bad("reason code 0x8b", V5, "20 * 00 8b 00", 0x82, error=ProtocolError, sender=SERVER),
    *bad("maximum qos 2", V5, "20 * 00 00 ( 24 02 )", 0x82, error=ProtocolError, sender=SERVER),
    *bad("retain available 2", V5, "20 * 00 00 ( 25 02 )", 0x82, error=ProtocolError, sender=SERVER),
    *bad("receive maximum 0", V5, "20 * 00 00 ( 21 0000 )", 0x82, error=ProtocolError, sender=SERVER),
    *bad("maximum packet size 0", V5, "20 * 00 00 ( 27 00000000 )", 0x82, error=ProtocolError, sender=SERVER),
    *bad("maximum qos twice", V5, "20 * 00 00 ( 24 01 24 01 )", 0x82, error=ProtocolError, sender=SERVER),
    *bad("will delay", V5, "20 * 00 00 ( 18 00000000 )", 0x81, sender=SERVER),
    *bad("topic alias", V5, "20 * 00 00 ( 23 0001 )", 0x81, sender=SERVER),
]
for _code, _meaning in _V3_CODES.items():
    ROWS += good(f"return code {_code}", V3X, f"20 02 00 {_code:02x}", Connack(_meaning), sender=SERVER)
for _code in _V5_CODES:
    ROWS += good(f"reason code 0x{_code:02x}", V5, f"20 * 00 {_code:02x} 00", Connack(_code), sender=SERVER)
for _label, _text, _identifier, _value in (
    ("session expiry", "11 0000003c", 17, 60),
    ("receive maximum", "21 0014", 33, 20),
    ("maximum qos 0", "24 00", 36, 0),
    ("maximum qos 1", "24 01", 36, 1),
    ("retain available", "25 00", 37, 0),
    ("maximum packet size", "27 00200000", 39, 2 * 1024 * 1024),
    ("assigned client identifier", "12 s'auto-1'", 18, "auto-1"),
    ("topic alias maximum", "22 000a", 34, 10),
    ("reason string", "1f s'why'", 31, "why"),
    ("user properties", "26 s'a' s'b' 26 s'a' s'b'", 38, [("a", "b"), ("a", "b")]),
    ("wildcard available", "28 00", 40, 0),
    ("identifier available", "29 00", 41, 0),
    ("shared available", "2a 00", 42, 0),
    ("server keep alive", "13 003c", 19, 60),
    ("response information", "1a s'resp/'", 26, "resp/"),
    ("server reference", "1c s'other:1883'", 28, "other:1883"),
    ("authentication method", "15 s'SCRAM'", 21, "SCRAM"),
    ("authentication data", "16 s'abc'", 22, b"abc"),
):
    ROWS += good(_label, V5, f"20 * 00 00 ( {_text} )", Connack(0, False, {_identifier: _value}), sender=SERVER)
