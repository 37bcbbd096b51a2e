"""NodeListing: one page of records from several nodes, in the order of the nodes' names.

The nodes are first asked for their number of records. Then the nodes with a part of the page are asked for it, in
pieces, while the page is read. If there are conditions, records are not counted; one node after the other reports how
many records it skipped.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from .listing import FILTERED, Listing, offset_of
from .node_calls import NodeCalls, NodeDoesNotAnswer

Query = TypeVar("Query", contravariant=True)
Record = TypeVar("Record")

PIECE: Final = 1000
"""Number of records that a node is asked for at once."""


class ListingPiece(msgspec.Struct, Generic[Record]):
    """``skipped``: number of matches before ``rows``; ``more``: there are further rows."""

    rows: list[Record]
    skipped: int
    more: bool


async def piece_of(listing: Listing[Record]) -> ListingPiece[Record]:
    """Return the first records of a listing, at most ``PIECE``."""
    listing.limit = min(listing.limit, PIECE)
    rows: list[Record] = []
    work = CooperativeSlice()
    for row in listing:
        if row is not None:
            rows.append(row)
        await work.checkpoint()
    return ListingPiece(rows, listing.skipped, listing.has_next)


class ListedRows(Protocol[Query, Record]):
    """The rows of one kind at a node; ``count`` and ``piece`` are served to other nodes."""

    def count(self, query: Query) -> int:
        """Return the number of records; ``FILTERED`` if there are conditions."""

    def cut(self, query: Query, skip: int, limit: int) -> Listing[Record]:
        """Return the matching rows of this node after the first ``skip``."""

    async def piece(self, query: Query, skip: int, limit: int) -> ListingPiece[Record]:
        """Return the result of ``cut`` for another node."""


class NodeListing(ABC, Generic[Record]):
    """Iterate, then read ``has_next`` and ``missing``: the nodes that did not answer."""

    def __init__(self, page: int, limit: int, count: int, meta: bool, missing: list[str]) -> None:
        self.page = page
        self.limit = limit
        self.count = count
        self.meta = meta
        self.missing = missing
        self.has_next = False

    def __aiter__(self) -> AsyncIterator[Record | None]:
        return self._records()

    @abstractmethod
    def _records(self) -> AsyncIterator[Record | None]: ...


class JoinedListing(NodeListing[Record], Generic[Query, Record]):
    """The rows of one node, followed by those of another. ``counts``: number of rows of each."""

    def __init__(
        self,
        calls: NodeCalls,
        rows: ListedRows[Query, Record],
        query: Query,
        page: int,
        limit: int,
        counts: list[tuple[str, int]],
        missing: list[str],
        meta: bool,
    ) -> None:
        filtered = any(count == FILTERED for _, count in counts)
        super().__init__(page, limit, FILTERED if filtered else sum(count for _, count in counts), meta, missing)
        self._calls = calls
        self._rows = rows
        self._query = query
        self._counts = counts

    async def _records(self) -> AsyncIterator[Record | None]:
        skip, left = offset_of(self.page, self.limit), self.limit
        for node, count in self._counts:
            if 0 <= count <= skip:
                skip -= count
                continue
            if count > 0 and not left:
                self.has_next = True
                return
            taken = 0
            try:
                while True:
                    piece: ListingPiece[Record] = await self._calls.on(
                        node, self._rows.piece, self._query, skip + taken, left
                    )
                    for row in piece.rows:
                        yield row
                    taken += len(piece.rows)
                    left -= len(piece.rows)
                    if not (piece.rows and piece.more and left):
                        break
            except NodeDoesNotAnswer as gone:
                if self._counts == [(node, count)]:
                    raise
                self.missing = self._calls.may_lack([*self.missing, gone.node])
                continue
            if piece.more:
                self.has_next = True
                return
            skip = 0 if taken else max(0, skip - piece.skipped)


class SortedListing(NodeListing[Record]):
    """Rows that were found and sorted before they are listed."""

    def __init__(
        self, rows: list[Record], page: int, limit: int, count: int, has_next: bool, missing: list[str]
    ) -> None:
        super().__init__(page, limit, count, True, missing)
        self._found = rows
        self.has_next = has_next

    async def _records(self) -> AsyncIterator[Record | None]:
        for row in self._found:
            yield row


class CompletedListing(NodeListing[Record]):
    """Rows of this node, each completed with data of the other nodes. ``complete`` receives several rows at a time, and
    returns which nodes did not answer."""

    def __init__(self, listing: Listing[Record], complete: Callable[[list[Record]], Awaitable[list[str]]]) -> None:
        super().__init__(listing.page, listing.limit, listing.count, listing.meta, [])
        self._listing = listing
        self._complete = complete

    async def _records(self) -> AsyncIterator[Record | None]:
        some: list[Record] = []
        for row in self._listing:
            if row is None:
                yield None
                continue
            some.append(row)
            if len(some) == PIECE:
                async for each in self._completed(some):
                    yield each
                some = []
        async for each in self._completed(some):
            yield each
        self.has_next = self._listing.has_next

    async def _completed(self, some: list[Record]) -> AsyncIterator[Record]:
        if some:
            self.missing = await self._complete(some)
        for row in some:
            yield row


Page = Listing[Record] | NodeListing[Record]
"""A listing of one node or of several."""


async def listing_of(
    calls: NodeCalls,
    rows: ListedRows[Query, Record],
    query: Query,
    page: int,
    limit: int,
    node: str | None = None,
    meta: bool = True,
) -> Page[Record]:
    """Return one page of the rows of all running nodes, or of one ``node``. Raises Refusal."""
    if node == calls.name or not calls.clustered:
        listing = rows.cut(query, offset_of(page, limit), limit)
        listing.page = page
        listing.meta = meta
        return listing
    rows.count(query)  # errors in the query are reported before any node is asked
    if node is not None:
        counts = [(node, await calls.on(node, rows.count, query))]
        return JoinedListing(calls, rows, query, page, limit, counts, [], meta)
    found, missing = await calls.everywhere(rows.count, query)
    return JoinedListing(calls, rows, query, page, limit, found, calls.may_lack(missing), meta)
