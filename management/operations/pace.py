"""Pace: long work on the loop in slices, and no faster than clients' sockets and the disk take what comes of it."""

import asyncio
import time
from typing import Final

from taipan.broker.server import Server
from taipan.broker.transport.flusher import HIGH_WATER

_SLICE: Final = 0.004
"""Seconds that one stretch of work may take."""
_DELIVERIES: Final = 4096
_OCTETS: Final = 8_388_608
"""Deliveries and bytes of output that may come together before they are written."""
_LOOK_AGAIN: Final = 0.005


class Pace:
    """One for each piece of work. ``await pace.breathe()`` between two steps of it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begun = time.perf_counter()

    async def breathe(self) -> None:
        """Go on at once, or after others had their turn, and after output and disk have caught up."""
        turn = self._server.broker.turn
        crowded = turn.deliveries > _DELIVERIES or turn.octets > _OCTETS or turn.congested
        if not crowded and time.perf_counter() - self._begun < _SLICE:
            return
        self._server.flusher.wake()
        await asyncio.sleep(0)
        while turn.octets > HIGH_WATER or turn.congested:
            await asyncio.sleep(_LOOK_AGAIN)
        self._begun = time.perf_counter()
