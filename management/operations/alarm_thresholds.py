"""Alarm thresholds: figures of the node that raise an alarm above or below a value that operators set."""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from taipan.broker.server import Server

from ..history.figures import FigureReader
from ..history.history import History
from ..history.point import FIGURES, Point
from .durable_answer import check_store_writable, wait_until_stored
from .refusal import not_found, wrong

CHECK_EVERY: Final = 10.0
"""Seconds between two checks."""
CHECKS: Final = 3
"""Consecutive checks after which an alarm begins or ends."""
CERTIFICATE: Final = "certificate_days"
_DAY: Final = 86_400.0
_NO_SUBSCRIBERS: Final = "messages.dropped.no_subscribers"


class _Figure(NamedTuple):
    """``read`` returns the value. ``below``: the alarm is raised below the threshold, not above. ``text``: the figure
    in words."""

    unit: str
    text: str
    read: Callable[[Server, Point], float]
    below: bool = False


def _of_point(name: str) -> Callable[[Server, Point], float]:
    index = FIGURES.index(name)
    return lambda server, point: point.figures[index]


def _free_disk(server: Server, point: Point) -> float:
    free, used = (point.figures[FIGURES.index(name)] for name in ("disk_free", "disk_used"))
    return 100.0 * free / (free + used) if free + used else 100.0


def _memory(server: Server, point: Point) -> float:
    return 100.0 * server.memory.used / server.memory.limit


def _refused(server: Server, point: Point) -> float:
    return sum(rate for reason, rate in point.drops.items() if "." not in reason)


_FIGURES: Final = {
    "disk_free": _Figure("%", "free disk space", _free_disk, below=True),
    "memory": _Figure("%", "memory, of limits.memory,", _memory),
    "connections": _Figure("", "the number of connected clients", _of_point("connections")),
    "deliveries_dropped": _Figure("/s", "the rate of dropped deliveries", _of_point("deliveries_dropped")),
    "refused": _Figure("/s", "the rate of refusals", _refused),
    "loop_lag": _Figure("ms", "the delay of the event loop", _of_point("loop_lag")),
    "commit_time": _Figure("ms", "the time to write to disk", _of_point("commit_time")),
}
_DEFAULTS: Final[dict[str, float | None]] = {
    **dict.fromkeys(_FIGURES),
    CERTIFICATE: 30.0,
}
NAMES: Final = frozenset(_DEFAULTS)
MAX_VALUE: Final = 1e12


class StoredThreshold(msgspec.Struct, array_like=True, frozen=True):
    """The key of the row is the name. ``value``: None: no alarm."""

    value: float | None


class ThresholdRecord(msgspec.Struct):
    """``value``: null: no alarm. ``current``: the value on this node at the last check; null for certificates, which
    have one value each. ``below``: whether the alarm is raised below ``value``."""

    name: str
    value: float | None
    default: float | None
    unit: str
    below: bool
    current: float | None


class Crossing:
    """Whether a figure has crossed its threshold: ``CHECKS`` checks in a row decide, so that a peak of a moment neither
    raises nor ends an alarm."""

    def __init__(self) -> None:
        self.crossed = False
        self._others = 0

    def step(self, crossed: bool) -> bool:
        """Return whether ``crossed`` has changed with this check."""
        if crossed == self.crossed:
            self._others = 0
            return False
        self._others += 1
        if self._others < CHECKS:
            return False
        self.crossed, self._others = crossed, 0
        return True


class AlarmThresholds:
    """The thresholds, which all nodes share. Each node compares its own figures."""

    def __init__(self, server: Server, history: History) -> None:
        self._server = server
        self._history = history
        self._reader: FigureReader | None = None
        self._point: Point | None = None
        self._crossings: dict[str, Crossing] = {}
        self._table = server.tables.open("alarm_thresholds", StoredThreshold, shared=True)
        self._table.on_taken.append(lambda name, old, new: self._changed(name))
        self.on_certificates: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to compare."""
        self._reader = self._history.reader()
        self._server.ticker.every(CHECK_EVERY, self.check)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader = None
            self._server.ticker.remove(self.check)

    @property
    def certificate_seconds(self) -> float:
        """How long before the end of a certificate its alarm begins."""
        days = self._value(CERTIFICATE)
        return -math.inf if days is None else days * _DAY

    def records(self) -> list[ThresholdRecord]:
        """Return all thresholds."""
        found = []
        for name, default in _DEFAULTS.items():
            figure = _FIGURES.get(name)
            unit, below = ("days", True) if figure is None else (figure.unit, figure.below)
            current = None if figure is None or self._point is None else figure.read(self._server, self._point)
            shown = None if current is None else round(current, 2)
            found.append(ThresholdRecord(name, self._value(name), default, unit, below, shown))
        return found

    def record(self, name: str) -> ThresholdRecord:
        """Return a threshold. Raises Refusal."""
        found = next((each for each in self.records() if each.name == name), None)
        if found is None:
            raise not_found("alarm threshold", name)
        return found

    def stored(self) -> list[tuple[str, StoredThreshold]]:
        """Return a copy of the thresholds that were set."""
        return list(self._table.items())

    def stored_threshold(self, name: str) -> StoredThreshold | None:
        """Return the threshold that an import may replace."""
        return self._table.get(name)

    def put(self, name: str, row: StoredThreshold) -> None:
        """Set a threshold for an import."""
        self._table.put(name, row)
        self._changed(name)

    async def set(self, name: str, value: float | None) -> None:
        """Set a threshold; None: no alarm. Raises Refusal."""
        if name not in NAMES:
            raise not_found("alarm threshold", name)
        if value is not None and not 0 <= value <= MAX_VALUE:
            raise wrong("value", "expected a number from 0 to 1e12, or null")
        check_store_writable(self._server.tables)
        self._table.put(name, StoredThreshold(value))
        self._changed(name)
        await wait_until_stored(self._server.tables)

    def check(self, now: float) -> None:
        """Compare all figures, and raise or end alarms."""
        assert self._reader is not None
        point = self._point = self._reader.read()
        for name, figure in _FIGURES.items():
            threshold = self._value(name)
            if threshold is not None:
                self._compare(name, figure, threshold, figure.read(self._server, point))

    def _compare(self, name: str, figure: _Figure, threshold: float, value: float) -> None:
        crossing = self._crossings.setdefault(name, Crossing())
        alarms = self._server.alarms
        if crossing.step(value < threshold if figure.below else value > threshold):
            if not crossing.crossed:
                alarms.deactivate(_alarm(name))
                return
            side = "below" if figure.below else "above"
            message = f"{figure.text} is {_amount(value, figure.unit)}, {side} {_amount(threshold, figure.unit)}"
            alarms.activate(_alarm(name), message, {"value": round(value, 2), "threshold": threshold})
        elif crossing.crossed:
            alarms.amend(_alarm(name), {"value": round(value, 2), "threshold": threshold})

    def _changed(self, name: str) -> None:
        """Handle another threshold: an alarm about the previous one ends."""
        if name == CERTIFICATE:
            self.on_certificates()
        elif self._crossings.pop(name, None) is not None:
            self._server.alarms.deactivate(_alarm(name))

    def _value(self, name: str) -> float | None:
        row = self._table.get(name)
        return _DEFAULTS[name] if row is None else row.value


def _alarm(name: str) -> str:
    return f"threshold/{name}"


def _amount(value: float, unit: str) -> str:
    return f"{value:.6g}{unit if unit in ('%', '/s', '') else ' ' + unit}"
