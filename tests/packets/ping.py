"""PINGREQ and PINGRESP."""

from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.packets import Pingreq, Pingresp

from .table import ALL, CLIENT, FROM_311, SERVER, Row, bad, good

ROWS: list[Row] = [
    *good("PINGREQ", ALL, "c0 00", Pingreq()),
    *good("PINGREQ with flags", (3,), "ca 00", Pingreq(), canonical=False),
    *bad("PINGREQ with a body", ALL, "c0 01 00", 0x81),
    *bad("PINGREQ from a server", ALL, "c0 00", 0x82, error=ProtocolError, sender=SERVER),
    *good("PINGRESP", ALL, "d0 00", Pingresp(), sender=SERVER),
    *bad("PINGRESP with a body", ALL, "d0 01 00", 0x81, sender=SERVER),
    *bad("PINGRESP from a client with a body", ALL, "d5 01 00", 0x82, error=ProtocolError, sender=CLIENT),
]
for _nibble in range(1, 16):
    ROWS += bad(
        f"PINGREQ first byte c{_nibble:x}", FROM_311, f"c{_nibble:x} 00", 0x81, "[MQTT-2.1.3-1] [3.1.1 MQTT-2.2.2-2]"
    )
