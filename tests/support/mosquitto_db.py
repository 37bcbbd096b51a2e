"""Writes a mosquitto.db from the description of its format, for tests: format 5 (1.6) and 6 (2.x)."""

import struct
from dataclasses import dataclass, field

from taipan.broker.mqtt import properties as mqtt_properties

MAGIC = b"\x00\xb5\x00mosquitto db"


@dataclass
class DbWriter:
    """Chunks in the order in which they are added."""

    version: int = 6
    chunks: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add(1, struct.pack("<QBB6x", 1000, 1, 8))

    def add(self, kind: int, body: bytes) -> "DbWriter":
        self.chunks.append(struct.pack(">II", kind, len(body)) + body)
        return self

    def message(
        self, store_id: int, topic: str, payload: bytes, qos: int = 0, retain: bool = False, source: str = "src",
        username: str = "", expires: int = 0, port: int = 1883, properties: dict[int, object] | None = None,
    ) -> "DbWriter":  # fmt: skip
        texts = [each.encode() for each in (source, username, topic)]
        sizes = struct.pack(">IHHHHHBB", len(payload), 7, *map(len, texts), port, qos, retain)
        tail = b"" if properties is None else mqtt_properties.write(properties)
        return self.add(2, struct.pack("<Qq", store_id, expires) + sizes + b"".join(texts) + payload + tail)

    def delivery(
        self, client: str, store_id: int, packet_id: int, qos: int, state: int, direction: int = 1,
        retain: bool = False, properties: dict[int, object] | None = None,
    ) -> "DbWriter":  # fmt: skip
        fields = struct.pack(">HHBBBB", packet_id, len(client.encode()), qos, state, retain << 4, direction)
        tail = b"" if properties is None else mqtt_properties.write(properties)
        return self.add(3, struct.pack("<Q", store_id) + fields + client.encode() + tail)

    def retained(self, store_id: int) -> "DbWriter":
        return self.add(4, struct.pack("<Q", store_id))

    def subscription(self, client: str, topic: str, qos: int, options: int = 0, identifier: int = 0) -> "DbWriter":
        texts = client.encode(), topic.encode()
        return self.add(5, struct.pack(">IHHBB2x", identifier, *map(len, texts), qos, options) + b"".join(texts))

    def client(
        self,
        client: str,
        username: str = "",
        expires: int = 0,
        interval: int = 0xFFFF_FFFF,
        last: int = 0,
        port: int = 1883,
    ) -> "DbWriter":
        body = struct.pack("<q", expires) + struct.pack(">IHH", interval, last, len(client.encode()))
        if self.version == 5:
            return self.add(6, body + client.encode())
        more = struct.pack(">HH4x", port, len(username.encode()))
        return self.add(6, body + more + client.encode() + username.encode())

    def bytes(self) -> bytes:
        return MAGIC + struct.pack(">II", 0, self.version) + b"".join(self.chunks)
