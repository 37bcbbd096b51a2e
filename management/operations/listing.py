"""Listing: one page of many records, computed while it is read, so that no listing blocks the loop."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from sys import maxsize
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from .refusal import WRONG, Refusal

Item = TypeVar("Item")
Found = TypeVar("Found")
Record = TypeVar("Record")

EVERYTHING: Final = maxsize // 2
"""Rows per page for a listing without pages."""

FILTERED: Final = -1
"""The count of a listing with conditions: its rows are not counted (specification, Pagination)."""

PAUSE_EVERY: Final = 500
"""Number of items that are checked between two pauses."""

LOOKED_AT_ONCE: Final = 2_000
"""Number of items of a live collection that are checked without a copy of it, and so without a pause."""


class PageQuery(msgspec.Struct, kw_only=True):
    """The query parameters of every listing. ``pages_on_demand``: without ``_limit`` there are no pages and no
    ``meta``."""

    pages_on_demand: ClassVar[bool] = False

    page: int = msgspec.field(default=1, name="_page")
    limit: int | None = msgspec.field(default=None, name="_limit")

    def __post_init__(self) -> None:
        """EMQX returns the first page for page 0 and below; 0 stays in the answer, because EMQX's clients compare the
        page."""
        if self.page < 0:
            self.page = 1

    def rows(self, most: int) -> int:
        """Rows per page, at most ``most`` (``max_row_limit``)."""
        if self.limit is None:
            return most
        if self.limit < 0:
            raise Refusal(WRONG, "_limit: expected 0 or more")
        return min(self.limit, most)


class Listing(Generic[Record]):
    """Records of one page. Iterate over it (``None``: no record yet; let other work run), then read ``has_next``, and
    ``skipped``: the number of records before the page."""

    def __init__(
        self,
        items: Iterable[Item | None],
        page: int,
        limit: int,
        record: Callable[[Item], Record],
        count: int = FILTERED,
        offset: int | None = None,
        meta: bool = True,
    ) -> None:
        """``items``: all matching items in order; ``None`` if the search found nothing for a while. The first page is
        1.

        ``offset``: position of the page's first record in ``items``, if ``items`` does not begin with page 1. ``meta``:
        whether the answer contains the page number."""
        self.page = page
        self.limit = limit
        self.count = count
        self.has_next = False
        self.skipped = 0
        self.meta = meta
        self._items = items
        self._record = record
        skip = offset_of(page, limit) if offset is None else offset
        self._skip = min(skip, maxsize - limit - 1)

    def __iter__(self) -> Iterator[Record | None]:
        skip = self._skip
        items = iter(self._items)
        if isinstance(self._items, list):
            self.skipped += min(skip, len(self._items))
            items = islice(items, skip, skip + self.limit + 1)
            skip = 0
        taken = 0
        for item in items:
            if item is None:
                yield None
            elif skip:
                skip -= 1
                self.skipped += 1
                if skip % PAUSE_EVERY == 0:
                    yield None
            elif taken == self.limit:
                self.has_next = True
                return
            else:
                taken += 1
                yield self._record(item)

    async def __aiter__(self) -> AsyncIterator[Record | None]:
        for record in self:
            yield record


def offset_of(page: int, limit: int) -> int:
    """Return the number of records before a page. A number below 1 means the first page."""
    return (max(page, 1) - 1) * limit


def window(
    items: Collection[Item], page: int, limit: int, record: Callable[[Item], Record], skip: int
) -> Listing[Record]:
    """Return a listing, without conditions, of a live collection. Only the rows of the page are copied."""
    start = min(skip, len(items))
    found = list(islice(items, start, min(start + limit + 1, len(items))))
    listing = Listing(found, page, limit, record, len(items), 0)
    listing.skipped = start
    return listing


def everything(items: Iterable[Item | None], record: Callable[[Item], Record]) -> Listing[Record]:
    """Return all records without pages."""
    return Listing(items, 1, EVERYTHING, record, meta=False)


def searched(items: Iterable[Item], matches: Callable[[Item], bool]) -> Iterator[Item | None]:
    """Yield the items that match, with pauses. The caller passes a copy of a live collection."""
    for looked, item in enumerate(items, 1):
        if looked % PAUSE_EVERY == 0:
            yield None
        if matches(item):
            yield item


def narrowed(items: list[Item], leave: Callable[[list[Item]], Sequence[Found]]) -> Iterator[Found | None]:
    """As ``searched``, for very many items: ``leave`` returns the matching items of a list, so that no function is
    called for each item."""
    for start in range(0, len(items), PAUSE_EVERY):
        yield from leave(items[start : start + PAUSE_EVERY])
        yield None


def found_in(
    items: Collection[Item], leave: Callable[[list[Item]], Sequence[Found]], wanted: int
) -> Iterable[Found | None]:
    """As ``narrowed``, for a live collection. The whole collection is copied only if fewer than ``wanted`` of its first
    items match: copying 200,000 takes as long as searching a third of them."""
    found = list(leave(list(islice(items, LOOKED_AT_ONCE))))
    if len(found) >= wanted or len(items) <= LOOKED_AT_ONCE:
        return found
    return narrowed(list(items), leave)
