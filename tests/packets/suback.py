"""SUBACK."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Suback

from .table import ALL, CLIENT, FROM_311, SERVER, V3X, V5, Row, bad, good

ROWS: list[Row] = [
    *good("in order", V3X, "90 * 0001 00 01 02 80", Suback(1, [0, 1, 2, 0x80]), "[MQTT-3.9.3-1]", sender=SERVER),
    *good("in order", V5, "90 * 0001 00 00 01 02 80", Suback(1, [0, 1, 2, 0x80]), "[MQTT-3.9.3-1]", sender=SERVER),
    *good("reason string", V5, "90 * 0001 ( 1f s'a' ) 00", Suback(1, [0], {31: "a"}), sender=SERVER),
    *good("user property", V5, "90 * 0001 ( 26 s'a' s'b' ) 00", Suback(1, [0], {38: [("a", "b")]}), sender=SERVER),
    *bad("packet id 0", ALL, "90 * 0000 00 00", 0x82, error=ProtocolError, sender=SERVER),
    *bad("no codes", V3X, "90 02 0001", 0x82, error=ProtocolError, sender=SERVER),
    *bad("no codes", V5, "90 03 0001 00", 0x82, error=ProtocolError, sender=SERVER),
    *bad("empty", ALL, "90 00", 0x81, sender=SERVER),
    *bad("flags", FROM_311, "92 * 0001 00 00", 0x81, sender=SERVER),
    *bad("code 3", ALL, "90 * 0001 00 03", 0x82, error=ProtocolError, sender=SERVER),
    *bad("code 0x87", V3X, "90 * 0001 87", 0x82, error=ProtocolError, sender=SERVER),
    *bad("topic alias", V5, "90 * 0001 ( 23 0001 ) 00", 0x81, sender=SERVER),
    *bad("from a client, its length alone", ALL, "90 80", 0x82, error=ProtocolError, sender=CLIENT),
]
for _code in (0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2):
    ROWS += good(f"code 0x{_code:02x}", V5, f"90 * 0001 00 {_code:02x}", Suback(1, [_code]), sender=SERVER)
