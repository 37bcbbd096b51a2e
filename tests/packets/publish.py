"""PUBLISH."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.message import Message

from .table import ALL, CLIENT, SERVER, V3X, V5, Row, bad, good


def _message(
    topic: str,
    payload: bytes = b"",
    qos: int = 0,
    retain: bool = False,
    properties: dict[int, object] | None = None,
    packet_id: int = 0,
    dup: bool = False,
) -> Message:
    return Message(topic, payload, qos, retain, properties or {}, packet_id=packet_id, dup=dup)


ROWS: list[Row] = []
for _side in (CLIENT, SERVER):
    for _versions, _p in ((V3X, ""), (V5, "00")):
        ROWS += good("qos 0", _versions, f"30 * s'a/b' {_p} 'hello'", _message("a/b", b"hello"), sender=_side)
        ROWS += good("empty payload", _versions, f"30 * s'a' {_p}", _message("a"), sender=_side)
        ROWS += good("retain", _versions, f"31 * s'a' {_p} 'x'", _message("a", b"x", 0, True), sender=_side)
        for _qos in (1, 2):
            for _dup in (False, True):
                for _retain in (False, True):
                    _first = 0x30 | (8 if _dup else 0) | _qos << 1 | (1 if _retain else 0)
                    ROWS += good(
                        f"qos {_qos} dup {_dup} retain {_retain}",
                        _versions,
                        f"{_first:02x} * s'a/b' 000a {_p} 'x'",
                        _message("a/b", b"x", _qos, _retain, packet_id=10, dup=_dup),
                        "[MQTT-2.2.1-3]",
                        sender=_side,
                    )
for _versions, _p in ((V3X, ""), (V5, "00")):
    ROWS += good("packet id 65535", _versions, f"32 * s'a' ffff {_p}", _message("a", b"", 1, packet_id=65535))
    ROWS += good("topic of one slash", _versions, f"30 * s'/' {_p}", _message("/"))
    ROWS += good("topic with spaces", _versions, f"30 * s'a b / c' {_p}", _message("a b / c"), "[MQTT-4.7.3-4]")
    ROWS += good("topic with dots", _versions, f"30 * s'a.b.*.>' {_p}", _message("a.b.*.>"), "[MQTT-4.7.3-4]")
    ROWS += good("topic with $", _versions, f"30 * s'$x/y' {_p}", _message("$x/y"))
    ROWS += good("topic above the BMP", _versions, f"30 * s'\U0001f40d/ä' {_p}", _message("\U0001f40d/ä"))
    ROWS += good("topic with BOM", _versions, f"30 * 0004 efbbbf61 {_p}", _message("\ufeffa"), "[MQTT-1.5.4-3]")
    ROWS += good("longest topic", _versions, f"30 * s'{'t' * 65535}' {_p}", _message("t" * 65535), "[MQTT-4.7.3-3]")
    ROWS += good("topic of slashes", _versions, f"30 * s'{'/' * 65535}' {_p}", _message("/" * 65535))
    ROWS += good("topic not cached", _versions, f"30 * s'{'t' * 257}' {_p}", _message("t" * 257))
    ROWS += good("payload of zeros", _versions, f"30 * s'a' {_p} 00000000", _message("a", b"\0\0\0\0"))
    ROWS += good("two byte length", _versions, f"30 * s'a' {_p} '{'x' * 200}'", _message("a", b"x" * 200))
    ROWS += good("three byte length", _versions, f"30 * s'a' {_p} '{'x' * 17000}'", _message("a", b"x" * 17000))
    ROWS += bad(
        "packet id 0 qos 1",
        _versions,
        f"32 * s'a' 0000 {_p}",
        0x82,
        "[MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1]",
        error=ProtocolError,
    )
    ROWS += bad("packet id 0 qos 2", _versions, f"34 * s'a' 0000 {_p}", 0x82, "[MQTT-2.2.1-3]", error=ProtocolError)
    ROWS += bad("qos 3", _versions, f"36 * s'a' 0001 {_p}", 0x81, "[MQTT-3.3.1-4]")
    ROWS += bad("qos 3 dup retain", _versions, f"3f * s'a' 0001 {_p}", 0x81, "[MQTT-3.3.1-4]")
    ROWS += bad("dup with qos 0", _versions, f"38 * s'a' {_p}", 0x81, "[MQTT-3.3.1-2]")
    ROWS += bad("dup with qos 0 retain", _versions, f"39 * s'a' {_p}", 0x81, "[MQTT-3.3.1-2]")
    ROWS += bad("empty topic", _versions, f"30 * s'' {_p} 'x'", 0x82, "[MQTT-4.7.3-1]", error=ProtocolError)
    for _topic in ("+", "#", "a/+", "a/#", "a+", "#/a"):
        ROWS += bad(f"topic {_topic}", _versions, f"30 * s'{_topic}' {_p}", 0x81, "[MQTT-3.3.2-2] [MQTT-4.7.0-1]")
    for _label, _raw in (
        ("NUL", "0003 610062"),
        ("surrogate", "0003 eda080"),
        ("overlong", "0002 c0af"),
        ("above U+10FFFF", "0004 f4908080"),
        ("truncated", "0001 c3"),
        ("0xFF", "0001 ff"),
    ):
        _tag = "[MQTT-4.7.3-2] [MQTT-1.5.4-2]" if _label == "NUL" else "[MQTT-1.5.4-1] [MQTT-3.3.2-1]"
        ROWS += bad(f"topic {_label}", _versions, f"30 * {_raw} {_p}", 0x81, _tag)
    for _label, _raw in (("U+0001", "0001 01"), ("U+0085", "0002 c285"), ("U+FFFE", "0003 efbfbe")):
        ROWS += bad(f"strict topic {_label}", _versions, f"30 * {_raw} {_p}", 0x81, strict=True)

ROWS += bad("empty", ALL, "30 00", 0x81, "[MQTT-3.3.2-1]")
ROWS += bad("half a topic length", ALL, "30 01 00", 0x81, "[MQTT-3.3.2-1]")
ROWS += bad("topic runs over", ALL, "30 * 0005 61", 0x81, "[MQTT-3.3.2-1]")
ROWS += bad("no packet id", ALL, "32 * s'a'", 0x81)
ROWS += bad("half a packet id", ALL, "32 * s'a' 00", 0x81)
ROWS += bad("no property length", V5, "30 * s'a'", 0x81)
ROWS += bad("no property length qos 1", V5, "32 * s'a' 0001", 0x81)
ROWS += good("length not the shortest", V3X, "30 8400 s'a' 'x'", _message("a", b"x"), canonical=False)
ROWS += good("length in four bytes", V3X, "30 84808000 s'a' 'x'", _message("a", b"x"), canonical=False)
ROWS += bad("length not the shortest", V5, "30 8500 s'a' 00 'x'", 0x81, "[MQTT-1.5.5-1]")

for _side in (CLIENT, SERVER):
    for _label, _text, _identifier, _value in (
        ("payload format 0", "01 00", 1, 0),
        ("payload format 1", "01 01", 1, 1),
        ("message expiry", "02 0000003c", 2, 60),
        ("message expiry 0", "02 00000000", 2, 0),
        ("content type", "03 s'json'", 3, "json"),
        ("content type empty", "03 s''", 3, ""),
        ("response topic", "08 s'r/1'", 8, "r/1"),
        ("correlation data", "09 0003 00ff00", 9, b"\x00\xff\x00"),
        ("correlation data empty", "09 0000", 9, b""),
        ("topic alias", "23 0001", 35, 1),
        ("topic alias 65535", "23 ffff", 35, 65535),
        ("user property", "26 s'k' s'v'", 38, [("k", "v")]),
        ("user properties in order", "26 s'b' s'' 26 s'a' s'2' 26 s'b' s'3'", 38, [("b", ""), ("a", "2"), ("b", "3")]),
    ):
        for _qos in (0, 1, 2):
            _id = "0007" if _qos else ""
            ROWS += good(
                f"{_label} qos {_qos}",
                V5,
                f"{0x30 | _qos << 1:02x} * s'a' {_id} ( {_text} ) 'x'",
                _message("a", b"x", _qos, False, {_identifier: _value}, 7 if _qos else 0),
                sender=_side,
            )
ROWS += good("alias without topic", V5, "30 * s'' ( 23 0005 ) 'x'", _message("", b"x", properties={35: 5}))
ROWS += good(
    "all properties",
    V5,
    "33 * s'a' 0001 ( 01 01 02 00000001 03 s'c' 08 s'r' 09 s'd' 26 s'k' s'v' 23 0002 ) 'x'",
    _message("a", b"x", 1, True, {1: 1, 2: 1, 3: "c", 8: "r", 9: b"d", 38: [("k", "v")], 35: 2}, 1),
)
ROWS += good(
    "user properties apart",
    V5,
    "30 * s'a' ( 26 s'k' s'1' 01 00 26 s'k' s'2' )",
    _message("a", b"", properties={38: [("k", "1"), ("k", "2")], 1: 0}),
    canonical=False,
)
ROWS += good(
    "identifiers from a server",
    V5,
    "30 * s'a' ( 0b 01 0b ffffff7f )",
    _message("a", b"", properties={11: [1, 268435455]}),
    sender=SERVER,
)
ROWS += bad("identifier from a client", V5, "30 * s'a' ( 0b 01 )", 0x82, "[MQTT-3.3.4-6]", error=ProtocolError)
ROWS += bad("topic alias 0", V5, "30 * s'a' ( 23 0000 )", 0x94, "[MQTT-3.3.2-8]", error=ProtocolError)
for _label, _text in (
    ("payload format 2", "01 02"),
    ("payload format 255", "01 ff"),
    ("payload format twice", "01 00 01 00"),
    ("message expiry twice", "02 00000001 02 00000001"),
    ("content type twice", "03 s'' 03 s''"),
    ("response topic twice", "08 s'a' 08 s'a'"),
    ("response topic with +", "08 s'a/+'"),
    ("response topic with #", "08 s'a/#'"),
    ("response topic empty", "08 s''"),
    ("correlation data twice", "09 0000 09 0000"),
    ("topic alias twice", "23 0001 23 0001"),
    ("session expiry", "11 00000001"),
    ("will delay", "18 00000001"),
    ("reason string", "1f s'a'"),
    ("receive maximum", "21 0001"),
    ("maximum qos", "24 01"),
):
    _tag = "[MQTT-3.3.2-14]" if "response" in _label else ""
    ROWS += bad(_label, V5, f"30 * s'a' ( {_text} ) 'x'", 0x82, _tag, error=ProtocolError)
for _label, _text in (
    ("unknown property", "7e 00"),
    ("unknown property in two bytes", "ff01 00"),
    ("payload format cut", "01"),
    ("message expiry cut", "02 0000"),
    ("content type is not UTF-8", "03 0001 ff"),
    ("content type with NUL", "03 0001 00"),
    ("response topic is not UTF-8", "08 0002 c328"),
    ("correlation data runs over", "09 0009 00"),
    ("user property without value", "26 s'k'"),
    ("user property value is not UTF-8", "26 s'k' 0001 80"),
):
    _tag = "[MQTT-3.3.2-19]" if "content" in _label else "[MQTT-3.3.2-13]" if "response" in _label else ""
    ROWS += bad(_label, V5, f"30 * s'a' ( {_text} ) 'x'", 0x81, _tag)
ROWS += bad("strict content type", V5, "30 * s'a' ( 03 0001 01 )", 0x81, strict=True)
ROWS += bad("properties run over", V5, "30 * s'a' 05 01 00", 0x81)
ROWS += bad("property length not the shortest", V5, "30 * s'a' 8000", 0x81, "[MQTT-1.5.5-1]")
ROWS += bad("property length of five bytes", V5, "30 * s'a' ffffffff01", 0x81, "[MQTT-1.5.5-1]")
ROWS += bad("property length cut", V5, "30 * s'a' 80", 0x81)
ROWS += bad("property cut by the length", V5, "30 * s'a' 03 02 0000 0000 'x'", 0x81)
