"""FigureReader: reads the node's counters and creates a point from their growth."""

from typing import Final

from taipan.broker.observability.metrics import Metrics
from taipan.broker.server import Server

from .disk_space import DiskSpace
from .point import Point, rounded

DROPS: Final = {
    "messages.dropped.no_subscribers": "messages_dropped_no_subscribers",
    "messages.dropped.await_pubrel_timeout": "messages_dropped_await_pubrel_timeout",
    "delivery.dropped.no_local": "delivery_dropped_no_local",
    "delivery.dropped.too_large": "delivery_dropped_too_large",
    "delivery.dropped.qos0_msg": "delivery_dropped_qos0_msg",
    "delivery.dropped.queue_full": "delivery_dropped_queue_full",
    "delivery.dropped.expired": "delivery_dropped_expired",
}
"""Reasons with counters of their own, by their names in ``/metrics``; other reasons are those of
``taipan_refusals_total``."""
_LONGEST_TIME: Final = 10.0


class FigureReader:
    """``read`` returns the metrics since the last call. Each reader has its own state."""

    def __init__(self, server: Server, disk: DiskSpace) -> None:
        self._server = server
        self._disk = disk
        self._read_at = server.clock.now()
        self._totals = _totals(server.metrics)
        self._drops = _drops(server.metrics)

    @property
    def seconds(self) -> float:
        """Seconds since the last read."""
        return self._server.clock.now() - self._read_at

    def read(self) -> Point:
        server = self._server
        metrics, broker = server.metrics, server.broker
        now = server.clock.now()
        seconds = max(now - self._read_at, 0.001)
        totals, before = _totals(metrics), self._totals
        drops, drops_before = _drops(metrics), self._drops
        self._read_at, self._totals, self._drops = now, totals, drops
        durability = broker.durability
        # For a longer time, these are in the points of each second.
        recent = min(seconds, _LONGEST_TIME)
        commit = 0.0 if durability is None else durability.commit.log.longest_commit(recent)
        router = broker.router
        figures = [
            *(rounded((count - earlier) / seconds) for count, earlier in zip(totals, before, strict=True)),
            len(server.context.channels),
            len(broker.sessions),
            router.subscription_count,
            router.route_count(),
            len(broker.retained),
            rounded(server.lag.longest(recent) * 1000),
            rounded(commit * 1000),
            self._disk.free,
            self._disk.used,
            server.memory.used,
        ]
        grown = {
            reason: rounded((count - drops_before.get(reason, 0)) / seconds)
            for reason, count in drops.items()
            if count != drops_before.get(reason, 0)
        }
        # Rounded to the second of the read, because the tick of a timer may come slightly early.
        return Point(int(server.clock.wall() + 0.005), round(seconds, 3), figures, grown)


def _totals(metrics: Metrics) -> tuple[int, ...]:
    return (
        metrics.messages_received,
        metrics.messages_sent,
        metrics.messages_dropped,
        metrics.delivery_dropped,
        metrics.bytes_received,
        metrics.bytes_sent,
    )


def _drops(metrics: Metrics) -> dict[str, int]:
    counts = metrics.refusals.snapshot()
    for name, attribute in DROPS.items():
        counts[name] = getattr(metrics, attribute)
    return counts
