"""DISCONNECT."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Disconnect

from .table import ALL, CLIENT, FROM_311, SERVER, V3X, V5, Row, bad, good

_BOTH = (0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
_SERVER_ONLY = (0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3))

ROWS: list[Row] = [
    *good("plain", ALL, "e0 00", Disconnect()),
    *good("plain from a server", V5, "e0 00", Disconnect(), sender=SERVER),
    *good("reason 0", V5, "e0 01 00", Disconnect(), canonical=False),
    *good("reason 0, no properties", V5, "e0 02 00 00", Disconnect(), canonical=False),
    *good("session expiry", V5, "e0 * 00 ( 11 0000003c )", Disconnect(0, {17: 60})),
    *good("reason string", V5, "e0 * 81 ( 1f s'why' )", Disconnect(0x81, {31: "why"})),
    *good("server reference", V5, "e0 * 9c ( 1c s'b:1' )", Disconnect(0x9C, {28: "b:1"}), sender=SERVER),
    *good("user property", V5, "e0 * 04 ( 26 s'a' s'b' )", Disconnect(4, {38: [("a", "b")]})),
    *bad("with a body", V3X, "e0 01 00", 0x81),
    *bad("bytes behind", V5, "e0 03 00 00 00", 0x81),
    *bad("properties run over", V5, "e0 02 00 05", 0x81),
    *bad("session expiry twice", V5, "e0 * 00 ( 11 00000001 11 00000001 )", 0x82, error=ProtocolError),
    *bad("receive maximum", V5, "e0 * 00 ( 21 0001 )", 0x82, error=ProtocolError),
    *bad("topic alias", V5, "e0 * 00 ( 23 0001 )", 0x82, error=ProtocolError),
    *bad("unknown property", V5, "e0 * 00 ( 55 )", 0x81),
    *bad("reason string is not UTF-8", V5, "e0 * 00 ( 1f 0001 ff )", 0x81),
    *bad("session expiry cut", V5, "e0 * 00 ( 11 0000 )", 0x81),
    *bad("will on request from a server", V5, "e0 01 04", 0x82, error=ProtocolError, sender=SERVER),
    *good("reason 0x04", V5, "e0 01 04", Disconnect(4), sender=CLIENT),
]
for _nibble in range(1, 16):
    ROWS += bad(f"first byte e{_nibble:x}", FROM_311, f"e{_nibble:x} 00", 0x81, "[MQTT-3.14.1-1]")
for _code in _BOTH:
    for _side in (CLIENT, SERVER):
        ROWS += good(
            f"reason 0x{_code:02x}", V5, f"e0 01 {_code:02x}", Disconnect(_code), "[MQTT-3.14.2-1]", sender=_side
        )
for _code in _SERVER_ONLY:
    _text = f"e0 01 {_code:02x}"
    ROWS += good(f"reason 0x{_code:02x}", V5, _text, Disconnect(_code), "[MQTT-3.14.2-1]", sender=SERVER)
    ROWS += bad(f"reason 0x{_code:02x} from a client", V5, _text, 0x82, "[MQTT-3.14.2-1]", error=ProtocolError)
for _code in (0x01, 0x10, 0x7F, 0x84, 0x85, 0x8A, 0x8C, 0x91, 0xA3, 0xFF):
    ROWS += bad(f"reason 0x{_code:02x}", V5, f"e0 01 {_code:02x}", 0x82, "[MQTT-3.14.2-1]", error=ProtocolError)
