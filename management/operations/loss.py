"""Loss: what the store lacked at the start, and the operator's word that it may go on without."""

from taipan.broker.server import Server

from .listing import Row
from .refusal import RPC_ERROR, Refusal
from .stored import UNSURE, ready


class LossOfRows:
    """Of rows that decide who may, above all."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def record(self) -> Row:
        """``accepted``: clients are let in, which is also so where nothing was lost."""
        store = self._server.store
        if store is None:
            return {"accepted": True, "access": "", "tables": [], "batches": None}
        loss = store.loss
        return {
            "accepted": not store.access_lost,
            "access": loss.access,
            "tables": sorted(loss.tables),
            "batches": None if loss.batches is None else list(loss.batches),
        }

    async def accept(self) -> Row:
        """From now on and after every restart. Raises Refusal where that cannot be stored."""
        ready(self._server.tables)
        if not await self._server.accept_loss():
            raise Refusal(RPC_ERROR, UNSURE)
        return self.record()
