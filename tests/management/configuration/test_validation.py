"""What is allowed, in words."""

from typing import Annotated, Any

import pytest
from msgspec import Meta

from taipan.management.api.apps import Expired
from taipan.management.api.banned import Time
from taipan.management.configuration.validation import expected
from taipan.management.operations.clients import When


@pytest.mark.parametrize(
    "kind, words",
    [
        (dict[str, Any] | list[dict[str, Any]], "an object or a list, each an object"),
        (list[dict[str, Any]] | dict[str, Any], "an object or a list, each an object"),
        (dict[str, Any] | Annotated[list[Any], Meta(max_length=0)], "an object or an empty list"),
        (Annotated[list[int], Meta(max_length=100_000)], "a list of at most 100000, each a whole number"),
        (Annotated[list[str], Meta(min_length=1)], "a list of 1 or more, each a string"),
        (Annotated[list[Any], Meta(min_length=1, max_length=3)], "a list of at most 3 and not empty"),
        (Annotated[str, Meta(max_length=3)], "a string of at most 3 characters"),
        (list[Any], "a list"),
    ],
)
def test_lists_are_counted_in_members_and_stand_last(kind: Any, words: str) -> None:
    assert expected(kind, "object") == words


def test_dates_of_requests_have_their_unit() -> None:
    assert expected(Time) == "a whole number of Unix seconds from 0 to 253402300799"
    assert expected(When) == "a whole number of Unix milliseconds from 0 to 253402300799999"
    assert expected(Expired) == expected(Time) + ' or one of "undefined", ""'
