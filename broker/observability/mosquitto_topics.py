"""``$SYS/broker/...``: metrics of the node under Mosquitto's names, for dashboards and exporters that read these.

As in Mosquitto, every message is retained, has QoS 0, and is published if the value has changed since the last round.
In a cluster, each node publishes its own metrics to its own clients.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from ..loop.timers import DatedTimeSource
from ..mqtt.message import Message
from .metrics import Metrics
from .stats import Stats

_PREFIX: Final = "$SYS/broker/"
_COUNTERS: Final = {
    "bytes/received": "bytes.received",
    "bytes/sent": "bytes.sent",
    "messages/received": "packets.received",
    "messages/sent": "packets.sent",
    "publish/messages/dropped": "delivery.dropped",
    "publish/messages/received": "packets.publish.received",
    "publish/messages/sent": "packets.publish.sent",
}
_GAUGES: Final = {
    "clients/total": "sessions.count",
    "clients/maximum": "connections.max",
    "clients/connected": "connections.count",
    "clients/active": "connections.count",
    "heap/current size": "memory.used.count",
    "heap/maximum size": "memory.used.max",
    "retained messages/count": "retained.count",
    "subscriptions/count": "subscriptions.count",
}
_LOADS: Final = {
    "messages/received": "packets.received",
    "messages/sent": "packets.sent",
    "publish/dropped": "delivery.dropped",
    "publish/received": "packets.publish.received",
    "publish/sent": "packets.publish.sent",
    "bytes/received": "bytes.received",
    "bytes/sent": "bytes.sent",
    "connections": "packets.connect.received",
}
_SOCKETS: Final = "sockets"
_MINUTES: Final = (1, 5, 15)


class MosquittoTopics:
    """Publish the metrics through ``publish``. ``listeners``: the counters of each listener by name, for
    ``load/sockets``."""

    def __init__(
        self,
        publish: Callable[[Message], object],
        metrics: Metrics,
        stats: Stats,
        clock: DatedTimeSource,
        version: str,
        listeners: Callable[[], Mapping[str, Mapping[str, int]]] | None = None,
    ) -> None:
        self._publish = publish
        self._metrics = metrics
        self._stats = stats
        self._clock = clock
        self._version = version
        self._listeners = listeners
        self._started_at = clock.now()
        self._latest: dict[str, str] = {}
        self._counted_at = self._started_at
        self._counted: dict[str, int] = {}
        self._loads = {(name, minutes): 0.0 for name in (*_LOADS, _SOCKETS) for minutes in _MINUTES}

    def publish_round(self, now: float) -> None:
        """Publish every value that has changed."""
        metrics, stats = self._metrics.snapshot(), self._stats.snapshot()
        self._send("version", f"taipan version {self._version}")
        self._send("uptime", f"{int(now - self._started_at)} seconds")
        for topic, name in _COUNTERS.items():
            self._send(topic, str(metrics[name]))
        for topic, name in _GAUGES.items():
            if name in stats:
                self._send(topic, str(stats[name]))
        away = str(max(stats["sessions.count"] - stats["connections.count"], 0))
        self._send("clients/disconnected", away)
        self._send("clients/inactive", away)
        self._send_loads(now, metrics)

    def _send_loads(self, now: float, metrics: Mapping[str, int]) -> None:
        """Publish the averages per minute over the last 1, 5 and 15 minutes: exponential ones, as Mosquitto computes
        them."""
        counted = {name: metrics[of] for name, of in _LOADS.items()}
        listeners = {} if self._listeners is None else self._listeners()
        counted[_SOCKETS] = sum(each.get("accepted", 0) for each in listeners.values())
        seconds = now - self._counted_at
        if seconds > 0:
            for name, total in counted.items():
                rate = max(total - self._counted.get(name, 0), 0) * 60 / seconds
                for minutes in _MINUTES:
                    weight = 1 - math.exp(-seconds / (60 * minutes))
                    self._loads[name, minutes] += weight * (rate - self._loads[name, minutes])
            self._counted_at, self._counted = now, counted
        for (name, minutes), load in self._loads.items():
            self._send(f"load/{name}/{minutes}min", f"{load:.2f}")

    def _send(self, name: str, text: str) -> None:
        if self._latest.get(name) != text:
            self._latest[name] = text
            self._publish(Message(_PREFIX + name, text.encode(), retain=True, timestamp=self._clock.now()))
