"""Listings: pages, places to pause, and what is said of the rest."""

from typing import Any

import pytest

from taipan.management.operations.listing import (
    LOOKED_AT_ONCE,
    PAUSE_EVERY,
    Listing,
    everything,
    found_in,
    narrowed,
    searched,
    window,
)


def row(item: Any) -> dict[str, Any]:
    return {"item": item}


def taken(listing: Listing) -> list[int]:
    return [each["item"] for each in listing if each is not None]


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize(
    ("page", "limit", "items", "has_next"),
    [
        (1, 3, [0, 1, 2], True),
        (3, 3, [6], False),
        (4, 3, [], False),
        (0, 3, [0, 1, 2], True),
        (-1, 7, [0, 1, 2, 3, 4, 5, 6], False),
        (1, 0, [], True),
        (10**18, 10**4, [], False),
    ],
)
def test_a_page(lazily: bool, page: int, limit: int, items: list[int], has_next: bool) -> None:
    listing = Listing(iter(range(7)) if lazily else list(range(7)), page, limit, row, 7)
    assert taken(listing) == items
    assert (listing.has_next, listing.count, listing.page) == (has_next, 7, page)


def test_items_that_begin_with_the_page() -> None:
    listing = Listing(iter(range(7)), 4, 2, row, 100, offset=1)
    assert taken(listing) == [1, 2] and listing.has_next


def test_everything_has_no_page() -> None:
    listing = everything(list(range(20_000)), row)
    assert len(taken(listing)) == 20_000 and not listing.has_next and not listing.meta


def test_many_are_narrowed_at_once_and_no_more_than_are_wanted() -> None:
    looked: list[int] = []

    def odd_and_big(items: list[int]) -> list[int]:
        looked.extend(items)
        return [item for item in items if item % 2 and item > 600]

    items = list(range(10 * PAUSE_EVERY))
    listing = Listing(narrowed(items, odd_and_big), 2, 3, row)
    found = list(listing)
    assert [each["item"] for each in found if each is not None] == [607, 609, 611]
    assert listing.has_next and listing.skipped == 3
    assert found.count(None) == 2 and len(looked) == 2 * PAUSE_EVERY
    none: Listing = Listing(narrowed(items, lambda some: []), 1, 10, row)
    assert list(none) == [None] * 10


def test_there_is_a_place_to_pause_where_nothing_is_found() -> None:
    none = searched(list(range(10 * PAUSE_EVERY)), lambda item: item < 0)
    listing = Listing(none, 1, 10, row)
    assert list(listing) == [None] * 10
    passed = list(Listing(iter(range(10 * PAUSE_EVERY)), 10, PAUSE_EVERY, row))
    assert passed.count(None) == 9


@pytest.mark.parametrize(("skip", "limit"), [(0, 3), (2, 3), (4, 3), (5, 3), (7, 3), (10**18, 10**4), (0, 0), (0, 7)])
def test_a_window_is_the_same_page_of_a_collection_that_changes(skip: int, limit: int) -> None:
    items = dict.fromkeys(range(7))
    whole = Listing(list(items), 1, limit, row, len(items), skip)
    listing = window(items, 1, limit, row, skip)
    items.clear()  # what was copied stays
    assert taken(listing) == taken(whole)
    assert (listing.has_next, listing.count, listing.skipped) == (whole.has_next, 7, whole.skipped)


@pytest.mark.parametrize(("wanted", "is_copied"), [(3, False), (LOOKED_AT_ONCE // 2, False), (LOOKED_AT_ONCE, True)])
def test_a_collection_is_copied_only_where_its_first_items_do_not_do(wanted: int, is_copied: bool) -> None:
    def even(items: list[int]) -> list[int]:
        return [item for item in items if item % 2 == 0]

    items = dict.fromkeys(range(3 * LOOKED_AT_ONCE))
    found = found_in(items, even, wanted)
    assert isinstance(found, list) is not is_copied
    items.clear()
    matching = [item for item in found if item is not None]
    assert matching == list(range(0, (3 if is_copied else 1) * LOOKED_AT_ONCE, 2))


def test_of_a_small_collection_all_is_looked_at_without_a_copy() -> None:
    assert found_in(dict.fromkeys(range(10)), lambda some: some[:1], 5) == [0]
