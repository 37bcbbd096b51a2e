"""SUBSCRIBE."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Subscribe, TopicFilter

from .table import ALL, SERVER, V3X, V5, Row, bad, good

ROWS: list[Row] = []
for _versions, _p in ((V3X, ""), (V5, "00")):
    for _qos in (0, 1, 2):
        ROWS += good(
            f"qos {_qos}", _versions, f"82 * 0001 {_p} s'a/b' 0{_qos}", Subscribe(1, [TopicFilter("a/b", _qos)])
        )
    ROWS += good(
        "three filters",
        _versions,
        f"82 * ffff {_p} s'a' 00 s'#' 01 s'+/b' 02",
        Subscribe(65535, [TopicFilter("a", 0), TopicFilter("#", 1), TopicFilter("+/b", 2)]),
    )
    ROWS += good(
        "the same filter twice",
        _versions,
        f"82 * 0001 {_p} s'a' 00 s'a' 02",
        Subscribe(1, [TopicFilter("a", 0), TopicFilter("a", 2)]),
    )
    ROWS += good(
        "longest filter", _versions, f"82 * 0001 {_p} s'{'f' * 65535}' 00", Subscribe(1, [TopicFilter("f" * 65535)])
    )
    # Judged entry by entry further up.
    for _filter in ("a/#/b", "a+", "#a", "$share/g", "$share//a", "$share/+/a"):
        ROWS += good(
            f"filter {_filter}", _versions, f"82 * 0001 {_p} s'{_filter}' 00", Subscribe(1, [TopicFilter(_filter)])
        )
    ROWS += good(
        "shared", _versions, f"82 * 0001 {_p} s'$share/g/a/#' 01", Subscribe(1, [TopicFilter("$share/g/a/#", 1)])
    )
    ROWS += bad(
        "no filter", _versions, f"82 * 0001 {_p}", 0x82, "[MQTT-3.8.3-2] [3.1.1 MQTT-3.8.3-3]", error=ProtocolError
    )
    ROWS += bad(
        "packet id 0",
        _versions,
        f"82 * 0000 {_p} s'a' 00",
        0x82,
        "[MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1]",
        error=ProtocolError,
    )
    ROWS += bad("empty filter", _versions, f"82 * 0001 {_p} s'' 00", 0x82, "[MQTT-4.7.3-1]", error=ProtocolError)
    ROWS += bad("no options", _versions, f"82 * 0001 {_p} s'a'", 0x81)
    ROWS += bad("second without options", _versions, f"82 * 0001 {_p} s'a' 00 s'b'", 0x81)
    ROWS += bad("filter runs over", _versions, f"82 * 0001 {_p} 0005 61", 0x81)
    ROWS += bad("half a filter length", _versions, f"82 * 0001 {_p} s'a' 00 00", 0x81)
    for _options in ("40", "80", "c0", "41"):
        ROWS += bad(f"options {_options}", _versions, f"82 * 0001 {_p} s'a' {_options}", 0x81, "[MQTT-3.8.3-5]")
    for _label, _raw in (
        ("NUL", "0001 00"),
        ("surrogate", "0003 edbfbf"),
        ("0xFF", "0001 ff"),
        ("overlong", "0002 c0af"),
    ):
        ROWS += bad(f"filter {_label}", _versions, f"82 * 0001 {_p} {_raw} 00", 0x81, "[MQTT-3.8.3-1]")
    ROWS += bad("strict filter", _versions, f"82 * 0001 {_p} 0002 6101 00", 0x81, strict=True)
    for _nibble in range(16):
        if _nibble != 2:
            _f = f"8{_nibble:x}"
            if _versions == V3X:
                ROWS += bad(f"first byte {_f}", (4,), f"{_f} * 0001 {_p} s'a' 00", 0x81, "[MQTT-3.8.1-1]")
            else:
                ROWS += bad(f"first byte {_f}", V5, f"{_f} * 0001 {_p} s'a' 00", 0x81, "[MQTT-3.8.1-1]")
ROWS += good("with DUP", (3,), "8a * 0001 s'a' 00", Subscribe(1, [TopicFilter("a")]), canonical=False)
for _options in ("03", "04", "08", "10", "20", "3c"):
    ROWS += bad(f"options {_options}", V3X, f"82 * 0001 s'a' {_options}", 0x81, "[3.1.1 MQTT-3.8.3-4]")
ROWS += bad("empty", ALL, "82 00", 0x81)
ROWS += bad("half a packet id", ALL, "82 01 00", 0x81)
ROWS += bad("from a server", ALL, "82 * 0001 00 s'a' 00", 0x82, error=ProtocolError, sender=SERVER)
ROWS += bad("no property length", V5, "82 * 0001", 0x81)

for _options, _entry in (
    ("04", TopicFilter("a", 0, no_local=True)),
    ("08", TopicFilter("a", 0, retain_as_published=True)),
    ("10", TopicFilter("a", 0, retain_handling=1)),
    ("20", TopicFilter("a", 0, retain_handling=2)),
    ("2e", TopicFilter("a", 2, True, True, 2)),
    ("1d", TopicFilter("a", 1, True, True, 1)),
):
    ROWS += good(f"options {_options}", V5, f"82 * 0001 00 s'a' {_options}", Subscribe(1, [_entry]))
# Section 3.8.3.1 calls QoS 3 and Retain Handling 3 Protocol Errors; reserved bits come first, and are malformed.
for _options in ("03", "30", "33", "07", "3c"):
    ROWS += bad(f"options {_options}", V5, f"82 * 0001 00 s'a' {_options}", 0x82, error=ProtocolError)
ROWS += bad("reserved bits and qos 3", V5, "82 * 0001 00 s'a' ff", 0x81, "[MQTT-3.8.3-5]")
ROWS += bad("shared with no local", V5, "82 * 0001 00 s'$share/g/a' 04", 0x82, "[MQTT-3.8.3-4]", error=ProtocolError)
ROWS += bad(
    "queue with no local", V5, "82 * 0001 00 s'b' 04 s'$queue/a' 05", 0x82, "[MQTT-3.8.3-4]", error=ProtocolError
)
for _text, _value in (("01", 1), ("7f", 127), ("8001", 128), ("808001", 16384), ("ffffff7f", 268435455)):
    ROWS += good(
        f"identifier {_value}", V5, f"82 * 0001 ( 0b {_text} ) s'a' 00", Subscribe(1, [TopicFilter("a")], {11: _value})
    )
ROWS += good(
    "user properties",
    V5,
    "82 * 0001 ( 26 s'a' s'b' 26 s'c' s'd' ) s'a' 00",
    Subscribe(1, [TopicFilter("a")], {38: [("a", "b"), ("c", "d")]}),
)
ROWS += bad("identifier 0", V5, "82 * 0001 ( 0b 00 ) s'a' 00", 0x82, error=ProtocolError)
ROWS += bad("identifier twice", V5, "82 * 0001 ( 0b 01 0b 02 ) s'a' 00", 0x82, error=ProtocolError)
ROWS += bad("identifier of five bytes", V5, "82 * 0001 ( 0b 8080808001 ) s'a' 00", 0x81, "[MQTT-1.5.5-1]")
ROWS += bad("identifier not the shortest", V5, "82 * 0001 ( 0b 8100 ) s'a' 00", 0x81, "[MQTT-1.5.5-1]")
for _label, _text in (
    ("session expiry", "11 00000001"),
    ("topic alias", "23 0001"),
    ("reason string", "1f s'a'"),
    ("unknown property", "55"),
    ("user property is not UTF-8", "26 0001 ff s'a'"),
):
    ROWS += bad(_label, V5, f"82 * 0001 ( {_text} ) s'a' 00", 0x81)
ROWS += bad("properties run over", V5, "82 * 0001 20 s'a' 00", 0x81)
ROWS += bad("body of 3.1.1 in 5.0", V5, "82 * 0001 s'topic' 00", 0x81)
