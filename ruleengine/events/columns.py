"""The columns of an event, computed when a rule reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from ..functions.undefined import UNDEFINED
from ..functions.values import MAX_DEPTH, read_json

_UNREAD: Final = object()
_NONE: Final[Mapping[str, Callable[[object], object]]] = MappingProxyType({})


class Columns(Mapping[str, Any]):
    """The columns of one event, shared by all rules.

    `values` are the columns that are already known (the dictionary then belongs to this object); `makers` compute the
    others from `source` when they are first read. All events of a kind share one such table. Text is `str`; a payload
    that is not UTF-8 is `bytes`."""

    __slots__ = ("_json", "_json_error", "_makers", "_shared", "_source", "_values")

    def __init__(
        self,
        values: dict[str, object],
        makers: Mapping[str, Callable[[Any], object]] = _NONE,
        source: object = None,
    ) -> None:
        self._values = values
        self._makers = makers
        self._source = source
        self._json: object = _UNREAD
        self._json_error = ""
        self._shared: Columns | None = None

    def __getitem__(self, name: str) -> object:
        try:
            return self._values[name]
        except KeyError:
            value = self._values[name] = self._makers[name](self._source)
            return value

    def get(self, name: str, default: object = None) -> object:
        """Return the column, or `default` if the event does not have it."""
        values = self._values
        if name in values:
            return values[name]
        make = self._makers.get(name)
        if make is None:
            return default
        value = values[name] = make(self._source)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._makers

    def __iter__(self) -> Iterator[str]:
        yield from self._makers
        yield from [name for name in self._values if name not in self._makers]

    def __len__(self) -> int:
        return len(self._makers.keys() | self._values.keys())

    def share_payload(self, other: Columns) -> None:
        """Use the decoded payload of another event of the same message."""
        self._shared = other._shared or other

    def payload_json(self) -> object:
        """Return the payload decoded as JSON, once for all rules. Raises ValueError each time if it is not JSON.

        UNDEFINED if the event has no payload; a payload that is not text is already decoded."""
        if self._shared is not None:
            return self._shared.payload_json()
        if self._json is _UNREAD:
            payload = self.get("payload", UNDEFINED)
            if type(payload) is str or type(payload) is bytes:
                try:
                    self._json = _decode(payload)
                except ValueError as error:
                    self._json = None
                    self._json_error = f"the payload is not JSON: {error}"
            else:
                self._json = payload
        if self._json_error:
            raise ValueError(self._json_error)
        return self._json


def _decode(payload: str | bytes) -> object:
    try:
        value = read_json(payload)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    if isinstance(payload, str):
        openings = payload.count("[") + payload.count("{")
    else:
        openings = payload.count(b"[") + payload.count(b"{")
    # Fewer brackets than levels allowed: this is true for nearly every payload, which then need not be walked.
    if openings > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            if type(each) is list:
                inner += [item for item in each if type(item) is list or type(item) is dict]
            elif type(each) is dict:
                inner += [item for item in each.values() if type(item) is list or type(item) is dict]
        if not inner:
            return
        level = inner
    raise ValueError(f"nested deeper than {MAX_DEPTH}")
