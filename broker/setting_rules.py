"""Rules for values that their types do not express: a rule yields a Fault for each error that it finds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

KeyPath = tuple[str | int, ...]


class Fault(NamedTuple):
    """``place``: the keys that lead to the value. ``missing``: a required key is missing."""

    place: KeyPath
    what: str
    missing: bool = False


ValueRule = Callable[[Any], Iterator[Fault]]
"""Yields the faults of a value that has the right type; places are relative to the value."""
ValueRules = Mapping[type[msgspec.Struct], Mapping[str, ValueRule]]
"""By struct and key."""


def parsed(parse: Callable[[Any], object], empty: bool = False) -> ValueRule:
    """Return a rule that accepts the values that ``parse`` accepts. ``empty``: also an empty text, which means that
    there is none."""

    def check(value: object) -> Iterator[Fault]:
        try:
            if value or not empty:
                parse(value)
        except ValueError as error:
            yield Fault((), str(error))

    return check


def filled(words: str) -> ValueRule:
    """Return a rule that rejects empty values; ``words`` describe the value."""

    def check(value: object) -> Iterator[Fault]:
        if not value:
            yield Fault((), f"expected {words}")

    return check


def below(path: KeyPath, faults: Iterator[Fault]) -> Iterator[Fault]:
    """Yield the same faults with their places below ``path``."""
    for fault in faults:
        yield fault._replace(place=path + fault.place)


def check_url(url: str) -> None:
    """Raise ``ValueError`` unless the URL is empty, or valid for requests."""
    if not url:
        return
    from yarl import URL  # imported here: a node without such a service does not need it

    try:
        address = URL(url)
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("expected http://host... or https://host...")
