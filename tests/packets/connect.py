"""CONNECT."""

from taipan.broker.mqtt.errors import MalformedPacket, ProtocolError, UnknownProtocol
from taipan.broker.mqtt.packets import Connect, Will

from .table import FROM_311, V5, Row, bad, good

ROWS: list[Row] = []

_HEAD = {3: "10 * s'MQIsdp' 03", 4: "10 * s'MQTT' 04", 5: "10 * s'MQTT' 05"}
_NONE = {3: "", 4: "", 5: "00"}
_UNACCEPTABLE = b"\x20\x02\x00\x01"


def _good(name: str, version: int, rest: str, packet: Connect, tag: str = "", *, canonical: bool = True) -> None:
    ROWS.extend(good(name, (version,), f"{_HEAD[version]} {rest}", packet, tag, fresh=True, canonical=canonical))


def _bad(
    name: str,
    version: int,
    rest: str,
    code: int = 0x81,
    tag: str = "",
    error: type[MalformedPacket] | type[ProtocolError] = MalformedPacket,
    *,
    strict: bool = False,
) -> None:
    text = f"{_HEAD[version]} {rest}"
    ROWS.extend(bad(name, (version,), text, code, tag, error=error, fresh=True, strict=strict))


for v in (3, 4, 5):
    p = _NONE[v]
    _good("clean start", v, f"02 003c {p} s'a'", Connect(v, "a", True, 60))
    _good("resume", v, f"00 003c {p} s'a'", Connect(v, "a", False, 60))
    _good("empty client id", v, f"02 0000 {p} s''", Connect(v, ""))
    _good("keep alive 65535", v, f"02 ffff {p} s'a'", Connect(v, "a", True, 65535))
    _good("user name", v, f"82 0000 {p} s'a' s'me'", Connect(v, "a", username="me"), "[MQTT-3.1.2-17]")
    _good(
        "user name and password",
        v,
        f"c2 0000 {p} s'a' s'me' s'secret'",
        Connect(v, "a", username="me", password=b"secret"),
        "[MQTT-3.1.2-19]",
    )
    _good("empty user name and password", v, f"c2 0000 {p} s'a' s'' s''", Connect(v, "a", username="", password=b""))
    _good(
        "password of any bytes",
        v,
        f"c2 0000 {p} s'a' s'me' 0003 ff00c0",
        Connect(v, "a", username="me", password=b"\xff\x00\xc0"),
    )
    for qos in (0, 1, 2):
        for retain in (False, True):
            flags = f"{0x06 | qos << 3 | (0x20 if retain else 0):02x}"
            _good(
                f"will qos {qos} retain {retain}",
                v,
                f"{flags} 0000 {p} s'a' {p} s'will/topic' s'gone'",
                Connect(v, "a", will=Will("will/topic", b"gone", qos, retain)),
                "[MQTT-3.1.2-9]",
            )
    _good(
        "will without payload",
        v,
        f"06 0000 {p} s'a' {p} s'w' s''",
        Connect(v, "a", will=Will("w", b"")),
    )
    _good(
        "will payload of any bytes",
        v,
        f"06 0000 {p} s'a' {p} s'w' 0002 00ff",
        Connect(v, "a", will=Will("w", b"\x00\xff")),
    )
    _good(
        "everything",
        v,
        f"f6 000a {p} s'id' {p} s'w' s'x' s'u' s'p'",
        Connect(v, "id", True, 10, "u", b"p", Will("w", b"x", 2, True)),
        "[MQTT-3.1.3-1]",
    )
    _good("client id of 24 characters", v, f"02 0000 {p} s'{'a' * 24}'", Connect(v, "a" * 24), "[MQTT-3.1.3-5]")
    _good("longest client id", v, f"02 0000 {p} s'{'i' * 65535}'", Connect(v, "i" * 65535))
    _good("client id above the BMP", v, f"02 0000 {p} s'\U0001f40d'", Connect(v, "\U0001f40d"), "[MQTT-3.1.3-4]")
    _good("BOM stays", v, f"02 0000 {p} 0004 efbbbf61", Connect(v, "\ufeffa"), "[MQTT-1.5.4-3]")
    _good("longest password", v, f"c2 0000 {p} s'a' s'u' s'{'p' * 65535}'", Connect(v, "a", True, 0, "u", b"p" * 65535))

    _bad("no flags", v, "", tag="[MQTT-3.1.4-1] [3.1.1 MQTT-3.1.4-1]")
    _bad("no keep alive", v, "02", tag="[MQTT-3.1.4-1]")
    _bad("half a keep alive", v, "02 00", tag="[MQTT-3.1.4-1]")
    _bad("no client id", v, f"02 0000 {p}", tag="[MQTT-3.1.3-3]")
    _bad("half a client id length", v, f"02 0000 {p} 00", tag="[MQTT-3.1.3-3]")
    _bad("client id runs over", v, f"02 0000 {p} 0002 61", tag="[MQTT-3.1.3-3]")
    _bad("bytes behind", v, f"02 0000 {p} s'a' 00", tag="[MQTT-3.1.4-1]")
    _bad("user name without flag", v, f"02 0000 {p} s'a' s'u'", tag="[MQTT-3.1.2-16]")
    _bad("password without flag", v, f"82 0000 {p} s'a' s'u' s'p'", tag="[MQTT-3.1.2-18]")
    _bad("will qos 3", v, f"1e 0000 {p} s'a' {p} s'w' s'x'", tag="[MQTT-3.1.2-12] [3.1.1 MQTT-3.1.2-14]")
    _bad("will without topic", v, f"06 0000 {p} s'a' {p}", tag="[MQTT-3.1.2-9] [3.1.1 MQTT-3.1.2-9]")
    _bad("will without payload field", v, f"06 0000 {p} s'a' {p} s'w'", tag="[MQTT-3.1.2-9]")
    _bad("half a will payload", v, f"06 0000 {p} s'a' {p} s'w' 0005 61", tag="[MQTT-3.1.2-9]")
    for label, topic in (("empty", "s''"), ("plus", "s'a/+'"), ("hash", "s'#'")):
        _bad(f"will topic {label}", v, f"06 0000 {p} s'a' {p} {topic} s'x'", 0x90, "[MQTT-4.7.0-1]", ProtocolError)
    for label, raw in (
        ("surrogate", "0003 eda080"),
        ("NUL", "0003 610062"),
        ("overlong", "0002 c0af"),
        ("overlong NUL", "0002 c080"),
        ("above U+10FFFF", "0004 f4908080"),
        ("lone continuation", "0001 80"),
        ("truncated sequence", "0002 e282"),
        ("0xFF", "0001 ff"),
    ):
        tag = "[MQTT-1.5.4-2]" if label == "NUL" else "[MQTT-1.5.4-1]"
        _bad(f"client id {label}", v, f"02 0000 {p} {raw}", tag=tag)
        _bad(f"user name {label}", v, f"82 0000 {p} s'a' {raw}", tag="[MQTT-3.1.3-12]")
        _bad(f"will topic {label}", v, f"06 0000 {p} s'a' {p} {raw} s'x'", tag="[MQTT-3.1.3-11]")
    for label, raw in (
        ("U+0001", "0001 01"),
        ("U+001F", "0001 1f"),
        ("U+007F", "0001 7f"),
        ("U+0080", "0002 c280"),
        ("U+009F", "0002 c29f"),
        ("U+FDD0", "0003 efb790"),
        ("U+FFFF", "0003 efbfbf"),
        ("U+1FFFE", "0004 f09fbfbe"),
        ("U+10FFFF", "0004 f48fbfbf"),
    ):
        _bad(f"strict client id {label}", v, f"02 0000 {p} {raw}", strict=True)
        _bad(f"strict user name {label}", v, f"82 0000 {p} s'a' {raw}", strict=True)
        _good(f"client id {label}", v, f"02 0000 {p} {raw}", Connect(v, bytes.fromhex(raw[5:]).decode()))

for v in (4, 5):
    p = _NONE[v]
    _bad("reserved flag", v, f"03 0000 {p} s'a'", tag="[MQTT-3.1.2-3]")
    for flags, label in (("0a", "qos 1"), ("12", "qos 2"), ("1a", "qos 3")):
        _bad(f"will {label} without will", v, f"{flags} 0000 {p} s'a'", tag="[MQTT-3.1.2-11] [3.1.1 MQTT-3.1.2-11]")
    _bad("will retain without will", v, f"22 0000 {p} s'a'", tag="[MQTT-3.1.2-13] [3.1.1 MQTT-3.1.2-15]")
    _bad("user name missing", v, f"82 0000 {p} s'a'", tag="[MQTT-3.1.2-17]")
    _bad("password missing", v, f"c2 0000 {p} s'a' s'u'", tag="[MQTT-3.1.2-19]")
    for first in ("11", "12", "14", "18", "1f"):
        ROWS.extend(
            bad(
                f"first byte {first}",
                (v,),
                f"{first} * s'MQTT' {v:02x} 02 0000 {p} s'a'",
                0x81,
                "[MQTT-2.1.3-1] [3.1.1 MQTT-2.2.2-1]",
                fresh=True,
            )
        )

# 3.1 defines neither a check of the unused bits nor of missing trailing fields.
ROWS.extend(good("first byte 1f", (3,), "1f * s'MQIsdp' 03 02 0000 s'a'", Connect(3, "a"), canonical=False, fresh=True))
_good("reserved flag", 3, "03 0000 s'a'", Connect(3, "a"), canonical=False)
_good("will bits without will", 3, "3a 0000 s'a'", Connect(3, "a"), canonical=False)
_good("user name flag, no user name", 3, "82 0000 s'a'", Connect(3, "a"), canonical=False)
_good("both flags, no password", 3, "c2 0000 s'a' s'u'", Connect(3, "a", username="u"), canonical=False)
_bad("password without user name", 3, "42 0000 s'a' s'p'")
_bad("password without user name", 4, "42 0000 s'a' s'p'", tag="[3.1.1 MQTT-3.1.2-22]")
_good("password without user name", 5, "42 0000 00 s'a' s'p'", Connect(5, "a", password=b"p"))

# Bridges announce themselves with the top bit of the level.
ROWS.extend(
    good("bridge", (3,), "10 * s'MQIsdp' 83 00 000a s'b'", Connect(3, "b", False, 10, is_bridge=True), fresh=True)
)
ROWS.extend(
    good("bridge", (4,), "10 * s'MQTT' 84 00 000a s'b'", Connect(4, "b", False, 10, is_bridge=True), fresh=True)
)

# Name and level decide first, whatever follows them.
for name in ("MQTTX", "mqtt", "MQT", "MQIsdP", "", "HTTP/1.1", "AMQP"):
    for level in ("03", "04", "05"):
        ROWS.extend(
            bad(
                f"protocol name {name!r} level {level}",
                FROM_311,
                f"10 * s'{name}' {level} 02 0000 s'a'",
                0x84,
                "[MQTT-3.1.2-1] [3.1.1 MQTT-3.1.2-1]",
                error=UnknownProtocol,
                fresh=True,
            )
        )
for name, levels in (
    ("MQTT", (0, 1, 2, 3, 6, 7, 0x7F, 0x80, 0x83, 0x85, 0xFF)),
    ("MQIsdp", (0, 1, 2, 4, 5, 6, 0x80, 0x84, 0xFF)),
):
    for number in levels:
        ROWS.extend(
            bad(
                f"{name} level {number}",
                FROM_311,
                f"10 * s'{name}' {number:02x} 02 0000 00 s'a'",
                0x84,
                "[MQTT-3.1.2-2] [3.1.1 MQTT-3.1.2-2]",
                error=UnknownProtocol,
                answer=_UNACCEPTABLE,
                fresh=True,
            )
        )
ROWS.extend(
    bad(
        "level 6 and nothing behind",
        V5,
        "10 * s'MQTT' 06",
        0x84,
        "[MQTT-3.1.2-2] [3.1.1 MQTT-3.1.2-2]",
        error=UnknownProtocol,
        answer=_UNACCEPTABLE,
        fresh=True,
    )
)
ROWS.extend(bad("empty", V5, "10 00", 0x81, "[MQTT-3.1.4-1]", fresh=True))
ROWS.extend(bad("half a name length", V5, "10 01 00", 0x81, "[MQTT-3.1.4-1]", fresh=True))
ROWS.extend(bad("name runs over", V5, "10 * 0005 'MQTT'", 0x81, "[MQTT-3.1.4-1]", fresh=True))
ROWS.extend(bad("no level", V5, "10 * s'MQTT'", 0x81, "[MQTT-3.1.4-1]", fresh=True))
ROWS.extend(
    bad(
        "length not the shortest",
        V5,
        "10 8e00 s'MQTT' 05 02 0000 00 s'a'",
        0x81,
        "[MQTT-1.5.5-1]",
        fresh=True,
    )
)
ROWS.extend(
    good(
        "length not the shortest",
        (4,),
        "10 8d00 s'MQTT' 04 02 0000 s'a'",
        Connect(4, "a"),
        canonical=False,
        fresh=True,
    )
)
ROWS.extend(bad("length of five bytes", V5, "10 8080808001", 0x81, fresh=True))

# Properties.
for label, text, identifier, value in (
    ("session expiry 0", "11 00000000", 17, 0),
    ("session expiry never", "11 ffffffff", 17, 0xFFFFFFFF),
    ("receive maximum 1", "21 0001", 33, 1),
    ("receive maximum 65535", "21 ffff", 33, 65535),
    ("maximum packet size 1", "27 00000001", 39, 1),
    ("maximum packet size", "27 ffffffff", 39, 0xFFFFFFFF),
    ("topic alias maximum 0", "22 0000", 34, 0),
    ("topic alias maximum", "22 ffff", 34, 65535),
    ("request response information 0", "19 00", 25, 0),
    ("request response information 1", "19 01", 25, 1),
    ("request problem information 0", "17 00", 23, 0),
    ("request problem information 1", "17 01", 23, 1),
    ("authentication method", "15 s'SCRAM'", 21, "SCRAM"),
    ("user property", "26 s'k' s'v'", 38, [("k", "v")]),
    ("user properties", "26 s'k' s'v' 26 s'' s'' 26 s'k' s'v'", 38, [("k", "v"), ("", ""), ("k", "v")]),
):
    _good(label, 5, f"02 0000 ( {text} ) s'a'", Connect(5, "a", properties={identifier: value}))
_good(
    "authentication method and data",
    5,
    "02 0000 ( 15 s'SCRAM' 16 0002 00ff ) s'a'",
    Connect(5, "a", properties={21: "SCRAM", 22: b"\x00\xff"}),
)
_good(
    "authentication data before method",
    5,
    "02 0000 ( 16 0000 15 s'' ) s'a'",
    Connect(5, "a", properties={22: b"", 21: ""}),
)
for label, text in (
    ("receive maximum 0", "21 0000"),
    ("maximum packet size 0", "27 00000000"),
    ("request response information 2", "19 02"),
    ("request problem information 2", "17 02"),
    ("authentication data without method", "16 s'x'"),
    ("session expiry twice", "11 00000001 11 00000001"),
    ("receive maximum twice", "21 0001 21 0001"),
    ("maximum packet size twice", "27 00000001 27 00000001"),
    ("topic alias maximum twice", "22 0001 22 0001"),
    ("request response information twice", "19 00 19 00"),
    ("request problem information twice", "17 01 17 01"),
    ("authentication method twice", "15 s'a' 15 s'a'"),
    ("authentication data twice", "15 s'a' 16 s'' 16 s''"),
):
    _bad(label, 5, f"02 0000 ( {text} ) s'a'", 0x82, "[MQTT-3.1.4-1]", ProtocolError)
for label, text in (
    ("unknown property 0", "00"),
    ("unknown property 4", "04 00"),
    ("unknown property 43", "2b 01"),
    ("unknown property 127", "7f"),
    ("unknown property 128", "8001"),
    ("property identifier not the shortest", "9100 00000000"),
    ("property identifier of five bytes", "8080808001"),
    ("message expiry", "02 00000001"),
    ("payload format", "01 00"),
    ("topic alias", "23 0001"),
    ("subscription identifier", "0b 01"),
    ("assigned client identifier", "12 s'a'"),
    ("server keep alive", "13 0001"),
    ("maximum qos", "24 00"),
    ("reason string", "1f s'a'"),
    ("server reference", "1c s'a'"),
    ("will delay", "18 00000001"),
    ("session expiry cut", "11 000000"),
    ("receive maximum cut", "21 00"),
    ("flag cut", "17"),
    ("user property without value", "26 s'k'"),
    ("user property cut in the value", "26 s'k' 0005 61"),
    ("user property without key", "26"),
    ("authentication method runs over", "15 0005 61"),
    ("authentication data runs over", "15 s'a' 16 0005 61"),
    ("authentication method is not UTF-8", "15 0001 ff"),
    ("user property key is not UTF-8", "26 0001 ff s'v'"),
    ("user property value is not UTF-8", "26 s'k' 0001 ff"),
    ("user property value with NUL", "26 s'k' 0001 00"),
):
    _bad(label, 5, f"02 0000 ( {text} ) s'a'", tag="[MQTT-1.5.7-1]" if "user" in label else "")
_bad("no property length", 5, "02 0000")
_bad("properties run over", 5, "02 0000 7f s'a'")
_bad("property length not the shortest", 5, "02 0000 8000 s'a'", tag="[MQTT-1.5.5-1]")
_bad("property length of five bytes", 5, "02 0000 8080808001 s'a'")
_bad("strict user property", 5, "02 0000 ( 26 s'k' 0001 01 ) s'a'", strict=True)

# Will Properties.
for label, text, identifier, content in (
    ("will delay", "18 0000000a", 24, 10),
    ("payload format 0", "01 00", 1, 0),
    ("payload format 1", "01 01", 1, 1),
    ("message expiry", "02 0000000a", 2, 10),
    ("content type", "03 s'text/plain'", 3, "text/plain"),
    ("response topic", "08 s'a/b'", 8, "a/b"),
    ("correlation data", "09 0002 00ff", 9, b"\x00\xff"),
    ("user properties", "26 s'b' s'1' 26 s'a' s'2'", 38, [("b", "1"), ("a", "2")]),
):
    _good(
        f"will {label}",
        5,
        f"06 0000 00 s'a' ( {text} ) s'w' s'x'",
        Connect(5, "a", will=Will("w", b"x", properties={identifier: content})),
        "[MQTT-3.1.3-10]" if "user" in label else "",
    )
for label, text in (
    ("payload format 2", "01 02"),
    ("response topic with +", "08 s'a/+'"),
    ("response topic with #", "08 s'#'"),
    ("response topic empty", "08 s''"),
    ("delay twice", "18 00000001 18 00000001"),
    ("message expiry twice", "02 00000001 02 00000001"),
    ("content type twice", "03 s'' 03 s''"),
):
    _bad(f"will {label}", 5, f"06 0000 00 s'a' ( {text} ) s'w' s'x'", 0x82, "[MQTT-3.1.4-1]", ProtocolError)
for label, text in (
    ("topic alias", "23 0001"),
    ("session expiry", "11 00000001"),
    ("subscription identifier", "0b 01"),
    ("content type is not UTF-8", "03 0001 ff"),
    ("response topic with NUL", "08 0001 00"),
    ("unknown property", "05 00"),
):
    _bad(f"will {label}", 5, f"06 0000 00 s'a' ( {text} ) s'w' s'x'")
_bad("will property length missing", 5, "06 0000 00 s'a'")
_bad("will properties run over", 5, "06 0000 00 s'a' 50 s'w' s'x'")
