"""Stored: a change is answered only when it is on disk."""

from broker.core.tables import Tables

from .refusal import RPC_ERROR, Refusal

TROUBLE = "the store is in trouble, nothing can be promised; the log and /alarms tell more"


async def promised(tables: Tables) -> None:
    """Until all that was changed so far is on disk. Raises Refusal where that cannot be."""
    if not await tables.stored():
        raise Refusal(RPC_ERROR, TROUBLE)
