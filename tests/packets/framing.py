"""What is wrong by the fixed header alone, or by where the packet stands."""

from taipan.broker.mqtt.errors import ProtocolError

from .table import ALL, CLIENT, SERVER, Row, bad

ROWS: list[Row] = []
for _side in (CLIENT, SERVER):
    for _nibble in (0, 1, 15):
        ROWS += bad(f"type 0 flags {_nibble}", ALL, f"0{_nibble:x} 00", 0x82, error=ProtocolError, sender=_side)
    ROWS += bad("type 0 alone", ALL, "00", 0x82, error=ProtocolError, sender=_side)
    ROWS += bad("type 0 with a length without end", ALL, "00 8080808001", 0x82, error=ProtocolError, sender=_side)
    ROWS += bad("type 0 with a body announced", ALL, "00 ffffff7f", 0x82, error=ProtocolError, sender=_side)

for _first in ("30", "32", "40", "62", "82", "a2", "c0", "e0"):
    ROWS += bad(f"{_first} with a length of five bytes", ALL, f"{_first} ffffffff01", 0x81, "[MQTT-1.5.5-1]")
    ROWS += bad(f"{_first} with a length without end", ALL, f"{_first} 80808080", 0x81, "[MQTT-1.5.5-1]")
for _first in ("30", "40", "82", "c0", "e0"):
    ROWS += bad(f"{_first} length 0 in two bytes", (5,), f"{_first} 8000", 0x81, "[MQTT-1.5.5-1]")

# Packets that only a server sends are refused whatever is in them, and before it is there.
for _first, _name in (("20", "CONNACK"), ("90", "SUBACK"), ("b0", "UNSUBACK"), ("d0", "PINGRESP")):
    for _rest in ("", "00", "02 0000", "03 000100", "ff", "ffffff7f"):
        ROWS += bad(f"{_name} from a client, {_rest or 'alone'}", ALL, f"{_first} {_rest}", 0x82, error=ProtocolError)
ROWS += bad("CONNECT from a server", ALL, "10 00", 0x82, error=ProtocolError, sender=SERVER)

for _versions, _connect in (
    ((3,), "10 * s'MQIsdp' 03 02 0000 s'a'"),
    ((4,), "10 * s'MQTT' 04 02 0000 s'a'"),
    ((5,), "10 * s'MQTT' 05 02 0000 00 s'a'"),
):
    ROWS += bad("second CONNECT", _versions, _connect, 0x82, "[MQTT-3.1.0-2] [3.1.1 MQTT-3.1.0-2]", error=ProtocolError)
ROWS += bad("second CONNECT, its first byte", ALL, "10", 0x82, "[MQTT-3.1.0-2]", error=ProtocolError)

# On a fresh connection there is only CONNECT, decided by the first byte.
for _type in (0, *range(2, 16)):
    ROWS += bad(f"type {_type} first", (4,), f"{_type:x}0", 0x82, "[MQTT-3.1.0-1]", error=ProtocolError, fresh=True)
    ROWS += bad(
        f"type {_type} of 256 MiB first",
        (4,),
        f"{_type:x}0 ffffff7f",
        0x82,
        "[MQTT-3.1.0-1]",
        error=ProtocolError,
        fresh=True,
    )
