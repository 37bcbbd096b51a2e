"""BackpressureSlice: long work in slices that waits for clients' sockets and the disk to accept its output."""

import asyncio
from typing import Final

from taipan.broker.loop.budget import HIGH_WATER
from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.server import Server

_DELIVERIES: Final = 4096
_BYTES: Final = 8_388_608
"""Limit of deliveries, and of bytes of output, that may accumulate before they are written."""
_LOOK_AGAIN: Final = 0.005


class BackpressureSlice(CooperativeSlice):
    """A slice whose checkpoint also waits until output and disk have caught up."""

    __slots__ = ("_server",)

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    @property
    def over(self) -> bool:
        budget = self._server.broker.budget
        return budget.deliveries > _DELIVERIES or budget.bytes > _BYTES or budget.congested or super().over

    async def next(self) -> None:
        budget = self._server.broker.budget
        self._server.flusher.wake()
        await super().next()
        while budget.bytes > HIGH_WATER or budget.congested:
            await asyncio.sleep(_LOOK_AGAIN)
            self.restart()
