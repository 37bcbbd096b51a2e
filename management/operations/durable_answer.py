"""Durable answers: which values can be stored, and when a change may be acknowledged: when it is on disk."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from taipan.broker.core.cluster import ELECTION
from taipan.broker.persistence.tables import NotAgreed, RowTooLarge, Tables

from .refusal import RPC_ERROR, WRONG, Refusal, wrong

TROUBLE: Final = "the store cannot write now, and nothing was changed; see the log and /alarms"
UNSURE: Final = "the change applies now, but the store has failed: a restart may undo it; see the log and /alarms"
UNDECIDED: Final = (
    "the change applies on this node, and on the others once the cluster has a quorum again (no quorum in time)"
)

MAX_DEPTH: Final = 32
_MIN_INTEGER: Final = -(2**63)
_MAX_INTEGER: Final = 2**64 - 1


def check_storable(key: str, value: object) -> None:
    """Check that a value can be stored. Raises Refusal if it is nested too deeply or has integers of more than 64
    bits. ``key``: the name of the value."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for each in level:
            if isinstance(each, int) and not _MIN_INTEGER <= each <= _MAX_INTEGER:
                raise wrong(key, "an integer has more than 64 bits")
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return
        level = inner
    raise wrong(key, f"nested deeper than {MAX_DEPTH}")


def check_store_writable(tables: Tables) -> None:
    """Check, before a change, that it can be stored and sent to the cluster. Raises Refusal if not; nothing has changed
    then."""
    if tables.in_trouble:
        raise Refusal(RPC_ERROR, TROUBLE)
    if tables.shared_rows is not None:
        reason = tables.shared_rows.begin()
        if reason:
            raise Refusal(RPC_ERROR, reason)


@contextmanager
def rows_of_a_size() -> Iterator[None]:
    """Context manager that turns the error of a row too large for the cluster into Refusal."""
    try:
        yield
    except RowTooLarge as error:
        raise Refusal(WRONG, str(error)) from None


async def wait_until_decided(decisions: list[asyncio.Future[None]]) -> None:
    """Wait until the nodes of a cluster have agreed about changes of retained messages. Raises Refusal if they have not
    in time."""
    if decisions and (await asyncio.wait(decisions, timeout=ELECTION))[1]:
        raise Refusal(RPC_ERROR, UNDECIDED)


async def wait_until_stored(tables: Tables) -> None:
    """Wait until all changes so far are on disk, and the cluster has them. Raises Refusal if this is not certain, or if
    another node was faster."""
    stored = await tables.stored()
    if tables.shared_rows is not None:
        try:
            await tables.shared_rows.agreed()
        except NotAgreed as error:
            raise Refusal(RPC_ERROR, str(error)) from None
    if not stored:
        raise Refusal(RPC_ERROR, UNSURE)
