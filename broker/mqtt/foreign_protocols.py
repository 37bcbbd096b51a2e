"""What else a connection begins with: another protocol, named in the error."""

from typing import Final

from .constants import CONNECT
from .errors import MalformedPacket, MqttError, ProtocolError

_HTTP: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"PRI * HTTP")
_PROXY: Final = (b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n")


def not_mqtt(data: bytes) -> MqttError | None:
    """The error of a connection that does not begin with CONNECT; ``None`` where it may be one.

    Judged by what came first: a request that comes in crumbs is told as any other packet.
    """
    # A TLS record of a handshake, 16 03 0x. As a CONNECT it would be of three bytes, which none is.
    if data.startswith(b"\x16\x03"):
        return MalformedPacket("looks like TLS, which this listener does not speak", setting="type")
    if data[0] >> 4 == CONNECT:
        return None
    if data.startswith(_HTTP):
        return ProtocolError("looks like HTTP or WebSocket, which this listener does not speak", setting="type")
    if data.startswith(_PROXY):
        return ProtocolError("begins with a PROXY protocol header", setting="proxy_protocol")
    return ProtocolError("the first packet is not CONNECT")
