"""UNSUBACK."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Unsuback

from .table import ALL, CLIENT, SERVER, V3X, V5, Row, bad, good

ROWS: list[Row] = [
    *good("plain", V3X, "b0 02 0001", Unsuback(1, []), sender=SERVER),
    *good("in order", V5, "b0 * 0001 00 00 11", Unsuback(1, [0, 0x11]), "[MQTT-3.11.3-1]", sender=SERVER),
    *good("reason string", V5, "b0 * 0001 ( 1f s'a' ) 00", Unsuback(1, [0], {31: "a"}), sender=SERVER),
    *good("user property", V5, "b0 * 0001 ( 26 s'a' s'b' ) 00", Unsuback(1, [0], {38: [("a", "b")]}), sender=SERVER),
    *bad("packet id 0", ALL, "b0 02 0000", 0x82, error=ProtocolError, sender=SERVER),
    *bad("empty", ALL, "b0 00", 0x81, sender=SERVER),
    *bad("with codes", V3X, "b0 03 0001 00", 0x81, sender=SERVER),
    *bad("no codes", V5, "b0 03 0001 00", 0x82, error=ProtocolError, sender=SERVER),
    *bad("code 1", V5, "b0 04 0001 00 01", 0x82, error=ProtocolError, sender=SERVER),
    *bad("flags", V5, "b2 04 0001 00 00", 0x81, sender=SERVER),
    *bad("from a client", ALL, "b0 02 0001", 0x82, error=ProtocolError, sender=CLIENT),
]
for _code in (0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91):
    ROWS += good(f"code 0x{_code:02x}", V5, f"b0 * 0001 00 {_code:02x}", Unsuback(1, [_code]), sender=SERVER)
