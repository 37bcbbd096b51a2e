"""Point: the figures of one moment, and the time that they are about."""

from typing import Final, Literal

import msgspec

Resolution = Literal["second", "minute"]

RATES: Final = (
    "messages_received", "messages_sent", "messages_dropped", "deliveries_dropped", "bytes_received", "bytes_sent",
)  # fmt: skip
"""A second, over the time of the point."""
COUNTS: Final = ("connections", "sessions", "subscriptions", "topics", "retained")
"""At the end of that time."""
LONGEST: Final = ("loop_lag", "commit_time")
"""Milliseconds, the longest of that time."""
BYTES: Final = ("disk_free", "disk_used", "memory")
"""At the end of that time."""
FIGURES: Final = (*RATES, *COUNTS, *LONGEST, *BYTES)
COLUMNS: Final = ("at", *FIGURES)
OTHER: Final = "other"
"""The reason of what is told under none of its own."""

_FIRST_LONGEST: Final = len(RATES) + len(COUNTS)
_AFTER_LONGEST: Final = _FIRST_LONGEST + len(LONGEST)


class Point(msgspec.Struct, array_like=True, frozen=True):
    """``at``: unix seconds, the end of the ``seconds`` that it is about. ``figures``: as ``FIGURES`` names them.
    ``drops``: what was dropped or refused a second, by reason, without reasons of which there was none."""

    at: int
    seconds: float
    figures: list[int | float]
    drops: dict[str, int | float]

    def row(self) -> list[int | float]:
        """As ``COLUMNS`` names them; the time in unix milliseconds."""
        return [self.at * 1000, *self.figures]


class Sum:
    """Points that follow each other, as one: of rates the average, of lag and commit time the longest, else the
    last."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.seconds = 0.0
        self._rates = [0.0] * len(RATES)
        self._longest = [0.0] * len(LONGEST)
        self._last: list[int | float] = []
        self._drops: dict[str, float] = {}

    def add(self, point: Point) -> None:
        seconds = point.seconds
        self.seconds += seconds
        for at, rate in enumerate(point.figures[: len(RATES)]):
            self._rates[at] += rate * seconds
        for at, longest in enumerate(point.figures[_FIRST_LONGEST:_AFTER_LONGEST]):
            self._longest[at] = max(self._longest[at], longest)
        for reason, rate in point.drops.items():
            self._drops[reason] = self._drops.get(reason, 0.0) + rate * seconds
        self._last = point.figures

    def point(self) -> Point:
        seconds = self.seconds or 1.0
        figures = [
            *(rounded(rate / seconds) for rate in self._rates),
            *self._last[len(RATES) : _FIRST_LONGEST],
            *self._longest,
            *self._last[_AFTER_LONGEST:],
        ]
        drops = {reason: rounded(rate / seconds) for reason, rate in self._drops.items()}
        return Point(self.end, round(self.seconds, 3), figures, drops)


def total(points: list[Point]) -> Point:
    """Points of several nodes of one moment, as one: lag and commit time the longest, else the sum."""
    figures: list[int | float] = []
    for at, each in enumerate(zip(*(point.figures for point in points), strict=True)):
        figures.append(max(each) if _FIRST_LONGEST <= at < _AFTER_LONGEST else rounded(sum(each)))
    drops: dict[str, int | float] = {}
    for point in points:
        for reason, rate in point.drops.items():
            drops[reason] = rounded(drops.get(reason, 0) + rate)
    return Point(points[0].at, max(point.seconds for point in points), figures, drops)


def with_fewer_reasons(point: Point, most: int) -> Point:
    """With ``most`` reasons, the most frequent ones, beside ``OTHER``."""
    reasons = sorted(point.drops, key=lambda reason: -point.drops[reason])
    drops = {reason: point.drops[reason] for reason in reasons[:most]}
    drops[OTHER] = rounded(drops.get(OTHER, 0) + sum(point.drops[reason] for reason in reasons[most:]))
    return msgspec.structs.replace(point, drops=drops)


def rounded(number: float) -> int | float:
    """Two decimals; a whole number as one."""
    near = round(number, 2)
    return int(near) if near == int(near) else near


def gaps(points: list[Point], start: int, end: int, step: int) -> list[list[int]]:
    """Times between ``start`` and ``end`` that no point is about, as pairs of unix milliseconds. ``step``: seconds from
    one point to the next; a node that was busy is late by less."""
    most = step * 1.25
    found: list[list[int]] = []
    known = float(start)
    for point in points:
        begin = point.at - point.seconds
        if begin - known > most:
            found.append([round(known * 1000), round(begin * 1000)])
        known = max(known, float(point.at))
    if end - known > most + step:  # the last point may still be to come
        found.append([round(known * 1000), end * 1000])
    return found
