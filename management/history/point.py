"""Point: the metrics of one interval, and its time."""

from typing import Final, Literal

import msgspec

Resolution = Literal["second", "minute", "ten_minutes"]

RATES: Final = (
    "messages_received", "messages_sent", "messages_dropped", "deliveries_dropped", "bytes_received", "bytes_sent",
)  # fmt: skip
"""Per second, over the interval of the point."""
COUNTS: Final = ("connections", "sessions", "subscriptions", "topics", "retained")
"""At the end of the interval."""
LONGEST: Final = ("loop_lag", "commit_time")
"""Milliseconds, the maximum of the interval."""
BYTES: Final = ("disk_free", "disk_used", "memory")
"""At the end of the interval."""
FIGURES: Final = (*RATES, *COUNTS, *LONGEST, *BYTES)
COLUMNS: Final = ("at", *FIGURES)
OTHER: Final = "other"
"""The reason for drops that are not listed under their own."""

_FIRST_LONGEST: Final = len(RATES) + len(COUNTS)
_AFTER_LONGEST: Final = _FIRST_LONGEST + len(LONGEST)


class Point(msgspec.Struct, array_like=True, frozen=True):
    """``at``: Unix seconds at the end of the interval, which lasts ``seconds``. ``figures``: the values named by
    ``FIGURES``. ``drops``: drops and refusals per second by reason, without reasons that did not occur."""

    at: int
    seconds: float
    figures: list[int | float]
    drops: dict[str, int | float]

    def row(self) -> list[int | float]:
        """Return the values of ``COLUMNS``; the time is in Unix milliseconds."""
        return [self.at * 1000, *self.figures]


class Sum:
    """Combine consecutive points: rates are averaged, lag and commit time are maxima, other values are the last
    ones."""

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
    """Combine points of several nodes for one moment: lag and commit time are maxima, other values are sums."""
    figures: list[int | float] = []
    for at, each in enumerate(zip(*(point.figures for point in points), strict=True)):
        figures.append(max(each) if _FIRST_LONGEST <= at < _AFTER_LONGEST else rounded(sum(each)))
    drops: dict[str, int | float] = {}
    for point in points:
        for reason, rate in point.drops.items():
            drops[reason] = rounded(drops.get(reason, 0) + rate)
    return Point(points[0].at, max(point.seconds for point in points), figures, drops)


def with_fewer_reasons(point: Point, most: int) -> Point:
    """Return the point with the ``most`` most frequent reasons, and ``OTHER``."""
    reasons = sorted(point.drops, key=lambda reason: -point.drops[reason])
    drops = {reason: point.drops[reason] for reason in reasons[:most]}
    drops[OTHER] = rounded(drops.get(OTHER, 0) + sum(point.drops[reason] for reason in reasons[most:]))
    return msgspec.structs.replace(point, drops=drops)


def rounded(number: float) -> int | float:
    """Return the number with two decimals, or as a whole number if it is one."""
    near = round(number, 2)
    return int(near) if near == int(near) else near


def gaps(points: list[Point], start: int, end: int, step: int) -> list[list[int]]:
    """Return the times between ``start`` and ``end`` without points, as pairs of Unix milliseconds. ``step``: seconds
    between two points; the delay of a busy node is shorter than that."""
    most = step * 1.25
    found: list[list[int]] = []
    known = float(start)
    for point in points:
        begin = point.at - point.seconds
        if begin - known > most:
            found.append([round(known * 1000), round(begin * 1000)])
        known = max(known, float(point.at))
    if end - known > most + step:  # the last point may still arrive
        found.append([round(known * 1000), end * 1000])
    return found
