"""Large packets: read from the socket to where they stay, and the memory of those that are done is used again."""

import asyncio
from typing import Final, Protocol

from ..mqtt.decoder import Decoder

LARGE_REST: Final = 131_072
LARGE_BEGINNING: Final = 65_536
"""A packet of which so many bytes are still to come, and so many are here, is read where it stays."""
_KEPT: Final = 16_777_216
_kept = False


class PacketReceiver(Protocol):
    """The connection whose packet it is."""

    def piece_received(self, size: int) -> bool:
        """So many bytes of it are here. False: the connection is over, and takes no more."""

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class LargePacket(asyncio.BufferedProtocol):
    """A transport's protocol from where a packet is known to be large until all of it but one byte is here.

    That last byte comes as ever, with what follows it: only then does the transport hold on to the buffer no more, and
    the packet need not be copied out of it.
    """

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
    """Have the C library keep what large packets leave behind for those that come.

    It gives blocks of their size back to the system at once otherwise, and the system clears each page again for the
    next one: a third of what such a packet costs. A block that is freed moves these bounds to its own size and twice
    that (glibc, mallopt(3), M_MMAP_THRESHOLD); what never was written to costs nothing.
    """
    global _kept
    if not _kept:
        _kept = True
        bytes(_KEPT)
