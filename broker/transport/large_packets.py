"""Large packets: read from the socket directly into their final buffer; the memory of completed ones is reused."""

import asyncio
from typing import Final, Protocol

from ..mqtt.decoder import Decoder

LARGE_REST: Final = 131_072
LARGE_BEGINNING: Final = 65_536
"""If at least this many bytes of a packet are missing, and this many are here, the packet is read into its final
buffer."""
_KEPT: Final = 16_777_216
_kept = False


class PacketReceiver(Protocol):
    """The connection of a large packet."""

    def piece_received(self, size: int) -> bool:
        """Note that this many bytes have arrived. Return False if the connection has ended and accepts no more."""

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class LargePacket(asyncio.BufferedProtocol):
    """The protocol of a transport from the moment when a packet is known to be large until only one byte is missing.

    That last byte arrives in the usual way, with the data after it: only then does the transport no longer use the
    buffer, so that the packet need not be copied."""

    def __init__(self, connection: PacketReceiver, transport: asyncio.Transport, decoder: Decoder) -> None:
        self._connection = connection
        self._transport = transport
        self._decoder = decoder
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        done = self._decoder.filled(nbytes)
        if not self._connection.piece_received(nbytes) or done:
            self._transport.set_protocol(self._connection)  # type: ignore[arg-type]


def keep_freed_memory() -> None:
    """Make the C library keep the memory of large packets for later ones.

    Otherwise it returns blocks of their size to the system immediately, and the system clears each page again for the
    next one: a third of the cost of such a packet. Freeing a block sets these limits to its size and twice that (glibc,
    mallopt(3), M_MMAP_THRESHOLD); memory that was never written costs nothing."""
    global _kept
    if not _kept:
        _kept = True
        bytes(_KEPT)
