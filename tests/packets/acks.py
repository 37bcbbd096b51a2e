"""PUBACK, PUBREC, PUBREL and PUBCOMP."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Ack

from .table import ALL, CLIENT, FROM_311, SERVER, V3X, V5, Row, bad, good

_PUBLISH_CODES = (0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASE_CODES = (0x92,)

ROWS: list[Row] = []
for _type, _name, _first, _codes, _tag in (
    (4, "PUBACK", "40", _PUBLISH_CODES, "[MQTT-3.4.2-1]"),
    (5, "PUBREC", "50", _PUBLISH_CODES, "[MQTT-3.5.2-1]"),
    (6, "PUBREL", "62", _RELEASE_CODES, "[MQTT-3.6.2-1]"),
    (7, "PUBCOMP", "70", _RELEASE_CODES, "[MQTT-3.7.2-1]"),
):
    for _side in (CLIENT, SERVER):
        for _id in (1, 10, 256, 65535):
            ROWS += good(
                f"{_name} {_id}", ALL, f"{_first} 02 {_id:04x}", _type << 16 | _id, "[MQTT-2.2.1-5]", sender=_side
            )
        ROWS += good(f"{_name} reason 0", V5, f"{_first} 03 0001 00", _type << 16 | 1, sender=_side, canonical=False)
        ROWS += good(
            f"{_name} reason 0, no properties",
            V5,
            f"{_first} 04 0001 00 00",
            _type << 16 | 1,
            sender=_side,
            canonical=False,
        )
        ROWS += good(
            f"{_name} reason string",
            V5,
            f"{_first} * 0001 00 ( 1f s'why' )",
            Ack(_type, 1, 0, {31: "why"}),
            sender=_side,
        )
        ROWS += good(
            f"{_name} user properties",
            V5,
            f"{_first} * 0001 {_codes[-1]:02x} ( 26 s'a' s'b' 26 s'a' s'b' )",
            Ack(_type, 1, _codes[-1], {38: [("a", "b"), ("a", "b")]}),
            sender=_side,
        )
        for _code in _codes:
            ROWS += good(
                f"{_name} reason 0x{_code:02x}",
                V5,
                f"{_first} 03 0001 {_code:02x}",
                Ack(_type, 1, _code),
                _tag,
                sender=_side,
            )
            ROWS += good(
                f"{_name} reason 0x{_code:02x}, no properties",
                V5,
                f"{_first} 04 0001 {_code:02x} 00",
                Ack(_type, 1, _code),
                _tag,
                sender=_side,
                canonical=False,
            )
    for _code in (0x01, 0x11, 0x7F, 0x81, 0x82, 0x95, 0xFF, 0x92 if _type < 6 else 0x10):
        ROWS += bad(
            f"{_name} reason 0x{_code:02x}", V5, f"{_first} 03 0001 {_code:02x}", 0x82, _tag, error=ProtocolError
        )
    ROWS += bad(f"{_name} packet id 0", ALL, f"{_first} 02 0000", 0x82, "[MQTT-2.2.1-3]", error=ProtocolError)
    ROWS += bad(f"{_name} packet id 0, reason", V5, f"{_first} 03 0000 00", 0x82, "[MQTT-2.2.1-3]", error=ProtocolError)
    ROWS += bad(f"{_name} empty", ALL, f"{_first} 00", 0x81)
    ROWS += bad(f"{_name} half a packet id", ALL, f"{_first} 01 00", 0x81)
    ROWS += bad(f"{_name} too long", V3X, f"{_first} 03 0001 00", 0x81)
    for _nibble in range(16):
        _other = f"{_type << 4 | _nibble:02x}"
        if _other != _first:
            _flags_tag = "[MQTT-3.6.1-1]" if _type == 6 else "[MQTT-2.1.3-1]"
            ROWS += bad(f"{_name} first byte {_other}", FROM_311, f"{_other} 02 0001", 0x81, _flags_tag)
    # 3.1 has DUP in all of these.
    ROWS += good(f"{_name} with DUP", (3,), f"{int(_first, 16) | 8:02x} 02 0001", _type << 16 | 1, canonical=False)
    for _label, _text in (
        ("reason string twice", "1f s'' 1f s''"),
        ("session expiry", "11 00000001"),
        ("topic alias", "23 0001"),
        ("server reference", "1c s'a'"),
    ):
        ROWS += bad(f"{_name} {_label}", V5, f"{_first} * 0001 00 ( {_text} )", 0x82, error=ProtocolError)
    for _label, _text in (
        ("unknown property", "30 00"),
        ("reason string is not UTF-8", "1f 0001 ff"),
        ("reason string runs over", "1f 0005 61"),
        ("user property cut", "26 s'a'"),
    ):
        ROWS += bad(f"{_name} {_label}", V5, f"{_first} * 0001 00 ( {_text} )", 0x81)
    ROWS += bad(f"{_name} properties run over", V5, f"{_first} 04 0001 00 01", 0x81)
    ROWS += bad(f"{_name} bytes behind", V5, f"{_first} 05 0001 00 00 00", 0x81)
