"""Stored: a change is answered only when it is on disk."""

from typing import Final

from taipan.broker.persistence.tables import Tables

from .refusal import RPC_ERROR, Refusal

TROUBLE: Final = "the store is in trouble, nothing can be promised; the log and /alarms tell more"
UNSURE: Final = (
    "it counts from now on, but the store is in trouble: a restart may undo it; the log and /alarms tell more"
)


def ready(tables: Tables) -> None:
    """Before a change. Raises Refusal, nothing changed, where it could not be stored."""
    if tables.in_trouble:
        raise Refusal(RPC_ERROR, TROUBLE)


async def promised(tables: Tables) -> None:
    """Until all that was changed so far is on disk. Raises Refusal where that cannot be said."""
    if not await tables.stored():
        raise Refusal(RPC_ERROR, UNSURE)
