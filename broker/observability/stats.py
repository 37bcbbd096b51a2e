"""Gauges: current values, and their maximum since the node started."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# EMQX 4.4's order. ``channels`` is the same as ``sessions``, ``suboptions`` the same as ``subscriptions``.
NAMES: Final[tuple[str, ...]] = (
    "connections",
    "live_connections",
    "channels",
    "sessions",
    "topics",
    "suboptions",
    "subscribers",
    "subscriptions",
    "subscriptions.shared",
    "routes",
    "retained",
)


@dataclass(slots=True)
class _Gauge:
    read: Callable[[], int]
    count: int = 0
    max: int = 0


class Stats:
    """The gauges of the node. Each reads a number of its package when it is sampled; nothing is counted here.

    A maximum is the maximum of the samples: ``sample`` runs from the node's ticker and before every answer.
    """

    __slots__ = ("_gauges",)

    def __init__(self) -> None:
        self._gauges: dict[str, _Gauge] = {}

    def gauge(self, name: str, read: Callable[[], int]) -> None:
        """Register a gauge, possibly one that is not in ``NAMES`` (``rules``, ``delayed``). Raises ValueError if it
        already exists."""
        if name in self._gauges:
            raise ValueError(f"gauge {name!r} is registered already")
        self._gauges[name] = _Gauge(read)
        places = {each: at for at, each in enumerate(NAMES)}
        self._gauges = dict(sorted(self._gauges.items(), key=lambda item: places.get(item[0], len(places))))

    def remove(self, name: str) -> None:
        """Remove a gauge. Raises KeyError if it does not exist."""
        del self._gauges[name]

    def sample(self, now: float = 0.0) -> None:
        """Read every gauge. The time is ignored; the parameter makes this a sweep for the ticker."""
        for gauge in self._gauges.values():
            count = gauge.count = gauge.read()
            if count > gauge.max:
                gauge.max = count

    def snapshot(self) -> dict[str, int]:
        """Return ``<name>.count`` and ``<name>.max`` of every gauge, sampled now; ``NAMES`` first, in their order."""
        self.sample()
        values: dict[str, int] = {}
        for name, gauge in self._gauges.items():
            values[f"{name}.count"] = gauge.count
            values[f"{name}.max"] = gauge.max
        return values
