"""Losses of data from the store, detected with the check file next to it (``persistence.log.check_file``)."""

from dataclasses import dataclass
from typing import Final

from ..persistence.log.check_file import CheckFile, Digests

MARKED: Final = "check_file"
"""A table with one row: the presence of the row shows that this store has had a check file."""


@dataclass(slots=True)
class StoreLoss:
    """The losses found at a start. If all fields are empty, the store is complete.

    ``batches``: first and last number of the batches that are missing at its end. ``access``: why rows of access
    control are not reliable, in one line. ``tables``: the tables of these rows.
    """

    batches: tuple[int, int] | None = None
    access: str = ""
    tables: frozenset[str] = frozenset()


def find_loss(check: CheckFile, last: int, rows: Digests, marked: bool, damaged: bool) -> StoreLoss:
    """Compare the expectations of the check file with a store whose last batch is ``last`` and that has these
    ``rows``.

    ``marked``: the store records that it had a check file. ``damaged``: the store had to be salvaged.
    """
    batches = (last + 1, check.last) if check.last > last else None
    everything = frozenset(rows)
    expected = check.expected
    if expected is None:
        if check.present:
            return StoreLoss(
                batches, f"{check.path.name}, which shows whether they are complete, is damaged", everything
            )
        if marked:
            return StoreLoss(
                batches, f"{check.path.name}, which shows whether they are complete, is missing", everything
            )
        if damaged:
            # A store of an earlier version: what it had is unknown.
            return StoreLoss(batches, f"the store is damaged, and it had no {check.path.name} yet", everything)
        return StoreLoss(batches)
    for candidate in (expected.after, expected.before):
        if candidate is not None and not _differing(candidate, rows):
            return StoreLoss(batches)
    differing = _differing(expected.after, rows)
    texts = [f"{name}: {expected.after[name][0]} rows expected, {rows[name][0]} found" for name in sorted(differing)]
    return StoreLoss(batches, "; ".join(texts), frozenset(differing))


def _differing(expected: Digests, rows: Digests) -> list[str]:
    """Return the tables that differ. Tables that the check file does not know yet are not compared."""
    return [name for name, digest in expected.items() if rows[name] != digest]
