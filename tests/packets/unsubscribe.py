"""UNSUBSCRIBE."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Unsubscribe

from .table import ALL, SERVER, V3X, V5, Row, bad, good

ROWS: list[Row] = []
for _versions, _p in ((V3X, ""), (V5, "00")):
    ROWS += good("one filter", _versions, f"a2 * 0001 {_p} s'a/b'", Unsubscribe(1, ["a/b"]))
    ROWS += good("three filters", _versions, f"a2 * 0010 {_p} s'a' s'#' s'a'", Unsubscribe(16, ["a", "#", "a"]))
    ROWS += good("shared", _versions, f"a2 * 0001 {_p} s'$share/g/a'", Unsubscribe(1, ["$share/g/a"]))
    ROWS += good("longest filter", _versions, f"a2 * 0001 {_p} s'{'f' * 65535}'", Unsubscribe(1, ["f" * 65535]))
    ROWS += bad("no filter", _versions, f"a2 * 0001 {_p}", 0x82, "[MQTT-3.10.3-2]", error=ProtocolError)
    ROWS += bad("packet id 0", _versions, f"a2 * 0000 {_p} s'a'", 0x82, "[MQTT-2.2.1-3]", error=ProtocolError)
    ROWS += bad("empty filter", _versions, f"a2 * 0001 {_p} s''", 0x82, "[MQTT-4.7.3-1]", error=ProtocolError)
    ROWS += bad("filter runs over", _versions, f"a2 * 0001 {_p} 0005 61", 0x81)
    ROWS += bad("half a filter length", _versions, f"a2 * 0001 {_p} s'a' 00", 0x81)
    for _label, _raw in (("NUL", "0001 00"), ("surrogate", "0003 eda080"), ("0xFF", "0001 ff")):
        ROWS += bad(f"filter {_label}", _versions, f"a2 * 0001 {_p} {_raw}", 0x81, "[MQTT-3.10.3-1]")
    ROWS += bad("strict filter", _versions, f"a2 * 0001 {_p} 0001 1f", 0x81, strict=True)
    for _nibble in range(16):
        if _nibble != 2:
            _f = f"a{_nibble:x}"
            _where = (4,) if _versions == V3X else V5
            ROWS += bad(f"first byte {_f}", _where, f"{_f} * 0001 {_p} s'a'", 0x81, "[MQTT-3.10.1-1]")
ROWS += good("with DUP", (3,), "aa * 0001 s'a'", Unsubscribe(1, ["a"]), canonical=False)
ROWS += bad("empty", ALL, "a2 00", 0x81)
ROWS += bad("half a packet id", ALL, "a2 01 00", 0x81)
ROWS += bad("no property length", V5, "a2 02 0001", 0x81)
ROWS += bad("from a server", ALL, "a2 * 0001 00 s'a'", 0x82, error=ProtocolError, sender=SERVER)
ROWS += good(
    "user properties",
    V5,
    "a2 * 0001 ( 26 s'k' s'v' 26 s'' s'' ) s'a'",
    Unsubscribe(1, ["a"], {38: [("k", "v"), ("", "")]}),
)
for _label, _text in (
    ("subscription identifier", "0b 01"),
    ("reason string", "1f s'a'"),
    ("session expiry", "11 00000001"),
    ("unknown property", "55"),
    ("user property cut", "26 s'a'"),
):
    ROWS += bad(_label, V5, f"a2 * 0001 ( {_text} ) s'a'", 0x81)
ROWS += bad("properties run over", V5, "a2 * 0001 20 s'a'", 0x81)
