"""Errors in a client's bytes. Each error has a Reason Code, which the channel turns into the response."""

from typing import Final

from . import reason_codes
from .constants import CONNECT

_HTTP: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"PRI * HTTP")
_PROXY: Final = (b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n")


class MqttError(Exception):
    """Error of a client that violates the standard or a limit; its connection cannot continue.

    ``reason_code`` is the MQTT 5.0 Reason Code for CONNACK or DISCONNECT. ``str(error)`` describes the error; it goes
    to the log and into the Reason String. It never contains unescaped bytes of the client. ``setting`` is the key of
    the setting that caused the error, for the log; ``""``: the usual setting of the Reason Code."""

    def __init__(self, detail: str, reason_code: int, setting: str = "") -> None:
        super().__init__(detail)
        self.reason_code = reason_code
        self.setting = setting


class MalformedPacket(MqttError):
    """Bytes that the standard does not allow to be parsed (0x81 unless specified)."""

    def __init__(self, detail: str, reason_code: int = reason_codes.MALFORMED_PACKET, setting: str = "") -> None:
        super().__init__(detail, reason_code, setting)


class ProtocolError(MqttError):
    """Bytes that can be parsed, but are not allowed here (0x82 unless specified)."""

    def __init__(self, detail: str, reason_code: int = reason_codes.PROTOCOL_ERROR, setting: str = "") -> None:
        super().__init__(detail, reason_code, setting)


class PacketTooLarge(MqttError):
    """The fixed header announces more bytes than this connection may send (0x95). Raised before the body arrives."""

    def __init__(self, detail: str, setting: str = "max_packet_size") -> None:
        super().__init__(detail, reason_codes.PACKET_TOO_LARGE, setting)


class UnknownProtocol(MqttError):
    """The CONNECT names a protocol or an MQTT level that is not supported (0x84).

    ``answer`` is the CONNACK to send before closing, empty if the standard requires none [MQTT-3.1.2-1]
    [MQTT-3.1.2-2].
    """

    def __init__(self, detail: str, answer: bytes = b"") -> None:
        super().__init__(detail, reason_codes.UNSUPPORTED_PROTOCOL_VERSION)
        self.answer = answer


def not_mqtt(data: bytes) -> MqttError | None:
    """Return the error for a connection that does not begin with CONNECT, or ``None`` if it may begin with one.

    Only the bytes received first are checked. A request that arrives in small pieces gets the error of any other
    packet.
    """
    # A TLS handshake record, 16 03 0x. As a CONNECT it would have three bytes, and no CONNECT is that short.
    if data.startswith(b"\x16\x03"):
        return MalformedPacket("looks like TLS, which this listener does not speak", setting="type")
    if data[0] >> 4 == CONNECT:
        return None
    if data.startswith(_HTTP):
        return ProtocolError("looks like HTTP or WebSocket, which this listener does not speak", setting="type")
    if data.startswith(_PROXY):
        return ProtocolError("begins with a PROXY protocol header", setting="proxy_protocol")
    return ProtocolError("the first packet is not CONNECT")
