"""Rules of values that their types do not say: a rule yields a Fault for each mistake that it finds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

KeyPath = tuple[str | int, ...]


class Fault(NamedTuple):
    """``place``: the keys that lead to it. ``missing``: a key that must be there is not."""

    place: KeyPath
    what: str
    missing: bool = False


ValueRule = Callable[[Any], Iterator[Fault]]
"""What is wrong with a value that is of its type; places are below it."""
ValueRules = Mapping[type[msgspec.Struct], Mapping[str, ValueRule]]
"""By struct and key."""


def parsed(parse: Callable[[Any], object], empty: bool = False) -> ValueRule:
    """What ``parse`` takes. ``empty``: an empty text too, which says that there is none."""

    def check(value: object) -> Iterator[Fault]:
        try:
            if value or not empty:
                parse(value)
        except ValueError as error:
            yield Fault((), str(error))

    return check


def filled(words: str) -> ValueRule:
    """A value that is not empty; ``words`` say which."""

    def check(value: object) -> Iterator[Fault]:
        if not value:
            yield Fault((), f"expected {words}")

    return check


def below(path: KeyPath, faults: Iterator[Fault]) -> Iterator[Fault]:
    """The same faults, their places below ``path``."""
    for fault in faults:
        yield fault._replace(place=path + fault.place)


def check_url(url: str) -> None:
    """``ValueError`` unless it is empty or an address that can be asked."""
    if not url:
        return
    from yarl import URL  # here: a node that asks no service needs none of it

    try:
        address = URL(url)
    except ValueError as error:
        raise ValueError(f"no URL: {error}") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError("expected http://host... or https://host...")
