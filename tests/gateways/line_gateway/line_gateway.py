"""A gateway for a protocol of lines of text (docs/recipes/add-a-gateway.md).

A client sends ``WILL topic text``, ``CONNECT client_id [username password]``, ``SUB filter``, ``PUB topic text``,
``PING`` and ``BYE``. It gets ``OK``, ``NO code``, ``MSG topic text``, ``PONG`` and ``END code``. With
``line-udp``, each datagram has a line.
"""

import msgspec

from taipan.gateway import (
    Connect,
    Disconnect,
    Gateway,
    GatewayError,
    GatewayLink,
    ListenerKind,
    Message,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Will,
)


class LineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    greeting: str = ""
    keep_alive: int = 60
    version: int = 5


class LineChannel:
    def __init__(self, link: GatewayLink, settings: LineSettings) -> None:
        self._link = link
        self._settings = settings
        self._will: Will | None = None
        self._packet_id = 0
        if settings.greeting:
            self._say(settings.greeting)

    def received(self, data: bytes) -> int:
        end = data.rfind(b"\n") + 1
        for line in data[:end].decode("utf-8", "replace").splitlines():
            self._take(line.split(" ", 2))
        return end

    def _take(self, words: list[str]) -> None:
        match words:
            case ["WILL", topic, text]:
                self._will = Will(topic, text.encode())
            case ["CONNECT", client_id, *login]:
                name, _, password = " ".join(login).partition(" ")
                self._link.send(
                    Connect(
                        self._settings.version, client_id, keep_alive=self._settings.keep_alive, will=self._will,
                        username=name or None, password=password.encode() if password else None,
                    )
                )  # fmt: skip
            case ["SUB", topic_filter]:
                self._link.send(Subscribe(self._next(), [TopicFilter(topic_filter)]))
            case ["PUB", topic, text]:
                self._link.publish(topic, text.encode(), qos=1, packet_id=self._next())
            case ["PING"]:
                self._link.send(Pingreq())
            case ["BYE"]:
                self._link.send(Disconnect())
            case ["BREAK"]:
                raise RuntimeError("a fault of this gateway")
            case _:
                raise GatewayError(f"no such request: {words[0][:20]}")

    def _next(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def packet(self, packet: Packet) -> None:
        match packet:
            case Message():
                self._say(f"MSG {packet.topic} {packet.payload.decode('utf-8', 'replace')}")
            case Pingresp():
                self._say("PONG")
            case Disconnect():
                self._say(f"END {packet.reason_code}")
            case Suback():
                self._answer(packet.reason_codes[0])
            case _:
                self._answer(packet.reason_code)

    def _answer(self, code: int) -> None:
        self._say("OK" if code < 0x80 else f"NO {code}")

    def _say(self, text: str) -> None:
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")  # else payloads could add lines
        self._link.write(text.encode() + b"\n")

    def closed(self) -> None:
        pass


GATEWAY = Gateway(
    name="line",
    listener=ListenerKind(name="line", protocol="line:tcp", scheme="line", port=2883),
    channel=LineChannel,
    settings=LineSettings,
    proto_name="LINE",
    proto_ver=1,
)

DATAGRAMS = Gateway(
    name="line-udp",
    listener=ListenerKind(name="line-udp", protocol="line:udp", scheme="line", port=2883, datagram=True),
    channel=LineChannel,
    settings=LineSettings,
    proto_name="LINE",
    proto_ver=1,
)
