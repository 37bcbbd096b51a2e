"""AUTH."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Auth

from .table import CLIENT, SERVER, V3X, V5, Row, bad, good

_M = "15 s'SCRAM'"

ROWS: list[Row] = [
    *good("continue", V5, f"f0 * 18 ( {_M} )", Auth(0x18, {21: "SCRAM"})),
    *good("continue with data", V5, f"f0 * 18 ( {_M} 16 0001 ff )", Auth(0x18, {21: "SCRAM", 22: b"\xff"})),
    *good("re-authenticate", V5, f"f0 * 19 ( {_M} )", Auth(0x19, {21: "SCRAM"})),
    *good("reason string", V5, f"f0 * 18 ( {_M} 1f s'a' )", Auth(0x18, {21: "SCRAM", 31: "a"})),
    *good("user property", V5, f"f0 * 18 ( {_M} 26 s'a' s'b' )", Auth(0x18, {21: "SCRAM", 38: [("a", "b")]})),
    *good("continue from a server", V5, f"f0 * 18 ( {_M} )", Auth(0x18, {21: "SCRAM"}), sender=SERVER),
    *good("success from a server", V5, f"f0 * 00 ( {_M} )", Auth(0, {21: "SCRAM"}), sender=SERVER),
    *good("short success from a server", V5, "f0 00", Auth(), sender=SERVER),
    *good("success of one byte from a server", V5, "f0 01 00", Auth(), sender=SERVER, canonical=False),
    *bad("short success from a client", V5, "f0 00", 0x82, "[MQTT-3.15.2-1]", error=ProtocolError),
    *bad("success from a client", V5, f"f0 * 00 ( {_M} )", 0x82, "[MQTT-3.15.2-1]", error=ProtocolError),
    *bad(
        "re-authenticate from a server",
        V5,
        f"f0 * 19 ( {_M} )",
        0x82,
        "[MQTT-3.15.2-1]",
        error=ProtocolError,
        sender=SERVER,
    ),
    *bad("without method", V5, "f0 01 18", 0x82, error=ProtocolError),
    *bad("data without method", V5, "f0 * 18 ( 16 s'a' )", 0x82, error=ProtocolError),
    *bad("data without method, success", V5, "f0 * 00 ( 16 s'a' )", 0x82, error=ProtocolError, sender=SERVER),
    *bad("method twice", V5, f"f0 * 18 ( {_M} {_M} )", 0x82, error=ProtocolError),
    *bad("data twice", V5, f"f0 * 18 ( {_M} 16 s'' 16 s'' )", 0x82, error=ProtocolError),
    *bad("session expiry", V5, f"f0 * 18 ( {_M} 11 00000001 )", 0x81),
    *bad("unknown property", V5, f"f0 * 18 ( {_M} 55 )", 0x81),
    *bad("method is not UTF-8", V5, "f0 * 18 ( 15 0001 ff )", 0x81),
    *bad("properties run over", V5, "f0 02 18 09", 0x81),
    *bad("bytes behind", V5, f"f0 * 18 ( {_M} ) 00", 0x81),
    *bad("reserved type", V3X, "f0 00", 0x82, error=ProtocolError),
    *bad("reserved type from a server", V3X, "f0 00", 0x82, error=ProtocolError, sender=SERVER),
]
for _code in (0x01, 0x17, 0x1A, 0x80, 0x87, 0xFF):
    ROWS += bad(f"reason 0x{_code:02x}", V5, f"f0 * {_code:02x} ( {_M} )", 0x82, "[MQTT-3.15.2-1]", error=ProtocolError)
for _nibble in range(1, 16):
    ROWS += bad(f"first byte f{_nibble:x}", V5, f"f{_nibble:x} * 18 ( {_M} )", 0x81, "[MQTT-3.15.1-1]", sender=CLIENT)
