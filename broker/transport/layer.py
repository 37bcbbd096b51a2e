"""Layer: an object between a socket's transport and the Connection that the Connection uses like a transport."""

import asyncio
from typing import Final

_NO_INFO: Final[dict[str, object]] = {}
"""The ``extra`` of all layers, which answer ``get_extra_info`` themselves: asyncio would create a dict for each."""


class Layer(asyncio.Transport):
    """The few methods of an asyncio transport that a Connection uses, passed on to the transport ``below``."""

    __slots__ = ("below",)

    below: asyncio.Transport

    def __init__(self) -> None:
        super().__init__(_NO_INFO)

    @property
    def held_bytes(self) -> int:
        """Number of received bytes that were not passed on yet."""
        return self.below.held_bytes if isinstance(self.below, Layer) else 0

    reads_to_the_end = False
    """Whether the layer itself passes on data from before a failure of the connection (``unread``)."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.below.write(data)

    def write_packets(self, pieces: list[bytes]) -> int:
        """Write Control Packets, in pieces that begin with a packet or continue one; return how many
        bytes of MQTT these are."""
        data = b"".join(pieces)
        self.write(data)
        return len(data)

    def close(self) -> None:
        """Send the written data, then close."""
        self.below.close()

    def abort(self) -> None:
        """Close immediately; unsent data is lost."""
        self.below.abort()

    def can_write_eof(self) -> bool:
        return self.below.can_write_eof()

    def write_eof(self) -> None:
        self.below.write_eof()

    def is_closing(self) -> bool:
        return self.below.is_closing()

    def is_reading(self) -> bool:
        return self.below.is_reading()

    def pause_reading(self) -> None:
        self.below.pause_reading()

    def resume_reading(self) -> None:
        self.below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.below.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self.below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.below.get_extra_info(name, default)

    def raise_packet_limit(self, max_packet_size: int) -> None:
        """Allow packets of ``max_packet_size`` bytes from now on."""
        raise_packet_limit(self.below, max_packet_size)


def raise_packet_limit(transport: asyncio.BaseTransport, max_packet_size: int) -> None:
    """Allow packets of ``max_packet_size`` bytes in the layers of ``transport``, because its CONNECT was accepted.

    Before that, they store no more than a CONNECT needs. A plain socket stores nothing and needs no call."""
    if isinstance(transport, Layer):
        transport.raise_packet_limit(max_packet_size)
