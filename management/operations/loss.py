"""Loss: the data that the store lacked at the start, and the operator's acceptance of the loss."""

import msgspec

from taipan.broker.server import Server

from .durable_answer import UNSURE, check_store_writable
from .refusal import RPC_ERROR, Refusal


class LossRecord(msgspec.Struct):
    """The data that the store lacked at the start. ``access``: why rows of access control are not reliable; ``tables``:
    the tables of these rows; ``accepted``: clients are accepted. ``batches``: first and last of the batches that are
    missing at its end."""

    accepted: bool
    access: str
    tables: list[str]
    batches: list[int] | None


class LossOfRows:
    """Lost rows, especially those of access control, and acceptance of the loss."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def record(self) -> LossRecord:
        """Return the loss as a record. ``accepted``: clients are accepted, which is also true if nothing was lost."""
        store = self._server.store
        if store is None:
            return LossRecord(True, "", [], None)
        loss = store.loss
        batches = None if loss.batches is None else list(loss.batches)
        return LossRecord(not store.access_lost, loss.access, sorted(loss.tables), batches)

    async def accept(self) -> LossRecord:
        """Accept the loss, now and after every restart. Raises Refusal if that cannot be stored."""
        check_store_writable(self._server.tables)
        if not await self._server.store_alarms.accept_loss():
            raise Refusal(RPC_ERROR, UNSURE)
        return self.record()
