"""BackpressureSlice: long work in slices, and no faster than clients' sockets and the disk take what comes of it."""

import asyncio
from typing import Final

from taipan.broker.loop.budget import HIGH_WATER
from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.server import Server

_DELIVERIES: Final = 4096
_BYTES: Final = 8_388_608
"""Deliveries and bytes of output that may come together before they are written."""
_LOOK_AGAIN: Final = 0.005


class BackpressureSlice(CooperativeSlice):
    """Its checkpoint also waits until output and disk have caught up."""

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
