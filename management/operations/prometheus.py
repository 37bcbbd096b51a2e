"""Prometheus: the node's metrics in its text format, and in the JSON groups of EMQX's emqx_prometheus."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from taipan.broker.core.cluster import COPY_STATES, IN_SYNC, STOPPED
from taipan.broker.observability.stats import NAMES as STATS
from taipan.broker.server import Server

from .dashboard_sessions import DashboardSessions
from .listeners import Listeners, identifier
from .monitoring import RULE_ENGINE, Monitoring
from .node_calls import NodeCalls
from .nodes import memory_total, memory_used

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_CPU: Final = Path("/proc/stat")
_CURRENT: Final = frozenset(("messages.retained",))  # gauges, although EMQX has them among the counters

_OURS: Final = frozenset(f"{name}.{kind}" for name in (*STATS, *RULE_ENGINE, "delayed") for kind in ("count", "max"))

Number = int | float
Labels = tuple[tuple[str, str], ...]
Samples = Iterable[tuple[Labels, Number]]

# The groups of EMQX's JSON form; the first word of a metric determines its group.
_GROUPS: Final = {"bytes": "packets", "rules": "metrics", "actions": "metrics", "webhook": "metrics"}


class Prometheus:
    """The content of a scrape. Nothing is counted here."""

    def __init__(
        self,
        server: Server,
        monitoring: Monitoring,
        listeners: Listeners,
        sessions: DashboardSessions,
        calls: NodeCalls,
    ) -> None:
        self._sessions = sessions
        self._server = server
        self._monitoring = monitoring
        self._listeners = listeners
        # Since the start of the machine: processor time in use and in total, at the last scrape.
        self._cpu = (0, 0)
        calls.serve(self.groups, self.text)

    def groups(self) -> dict[str, dict[str, Number]]:
        """Return ``{"stats": {"emqx_connections_count": 3, ...}, "metrics": ..., "packets": ..., ...}``."""
        groups: dict[str, dict[str, Number]] = {
            "stats": {emqx_name(name): value for name, value in self._monitoring.stats().items()},
            "metrics": self._machine(),
            "packets": {},
            "messages": {},
            "delivery": {},
            "client": {},
            "session": {},
        }
        for name, value in self._monitoring.metrics().items():
            first = name.partition(".")[0]
            groups[_GROUPS.get(first, first)][emqx_name(name)] = value
        return groups

    def text(self) -> str:
        """Return the exposition, version 0.0.4."""
        lines: list[str] = []
        for name, value in self._monitoring.stats().items():
            prefix = emqx_name(name) if name in _OURS else taipan_name(name)
            lines += _family(prefix, "gauge", f"gauge {name}", [((), value)])
        for name, value in self._monitoring.metrics().items():
            kind = "gauge" if name in _CURRENT else "counter"
            lines += _family(emqx_name(name), kind, f"metric {name}", [((), value)])
        for name, number in self._machine().items():
            lines += _family(name, "gauge", "see docs/api/metrics.md", [((), number)])
        for name, kind, told, samples in self._own():
            lines += _family(name, kind, told, samples)
        return "\n".join(lines) + "\n"

    def _machine(self) -> dict[str, Number]:
        """Return the closest equivalents of EMQX's metrics of its virtual machine and its cluster."""
        use, idle = self._processor()
        durability = self._server.broker.durability
        return {
            "emqx_vm_cpu_use": use,
            "emqx_vm_cpu_idle": idle,
            "emqx_vm_run_queue": self._server.flusher.waiting,
            "emqx_vm_process_messages_in_queues": 0 if durability is None else durability.commit.pending,
            "emqx_vm_total_memory": memory_total(),
            "emqx_vm_used_memory": memory_used(),
            **self._nodes(),
        }

    def _nodes(self) -> dict[str, Number]:
        running = int(self._monitoring.running)
        stopped = 1 - running
        for member in self._server.cluster.members():
            if member.name != self._server.settings.node.name:
                stopped += member.status == STOPPED
                running += member.status != STOPPED
        return {"emqx_cluster_nodes_running": running, "emqx_cluster_nodes_stopped": stopped}

    def _processor(self) -> tuple[float, float]:
        """Return the machine's processors in use and idle since the last scrape, in per cent; 0 and 0 if unknown."""
        try:
            fields = [int(field) for field in _CPU.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0.0, 0.0
        if len(fields) < 5:
            return 0.0, 0.0
        total = sum(fields)
        used = total - fields[3] - fields[4]  # idle, or waiting for a disk
        before_used, before_total = self._cpu
        self._cpu = (used, total)
        if total <= before_total:
            return 0.0, 100.0
        use = min(100.0, max(0.0, 100.0 * (used - before_used) / (total - before_total)))
        return round(use, 2), round(100.0 - use, 2)

    def _own(self) -> Iterator[tuple[str, str, str, Samples]]:
        """Yield the metrics that only Taipan has: (name, kind, description, samples)."""
        server = self._server
        node = server.settings.node.name
        yield "taipan_info", "gauge", "1, with the version", [((("node", node), ("version", server.version)), 1)]
        lag = server.lag.snapshot()
        told = "delay of the event loop: over the last 38 seconds, and the peak since the start"
        yield "taipan_loop_lag_seconds", "gauge", told, [((("of", key),), lag[key] / 1000) for key in lag]
        yield "taipan_disconnects_total", "counter", "connections ended", _by(server.metrics.disconnects.snapshot())
        yield "taipan_refusals_total", "counter", "refusals", _by(server.metrics.refusals.snapshot())
        sessions = self._sessions
        yield "taipan_dashboard_sessions", "gauge", "dashboard users that are logged in", [((), len(sessions))]
        yield "taipan_dashboard_logins_total", "counter", "logins at the dashboard", [((), sessions.logins)]
        yield "taipan_dashboard_changes_total", "counter", "changes by dashboard users", [((), sessions.changes)]
        yield "taipan_hook_errors_total", "counter", "callbacks that failed", [((), server.hooks.errors)]
        durability = server.broker.durability
        if durability is not None:
            yield "taipan_store_batches_total", "counter", "batches begun", [((), durability.commit.batch)]
            yield (
                "taipan_store_congested",
                "gauge",
                "1 while too much data waits for the disk",
                [((), int(durability.commit.congested))],
            )
        yield from self._of_replicas()
        yield from self._of_listeners()

    def _of_replicas(self) -> Iterator[tuple[str, str, str, Samples]]:
        """Yield the metrics of the copies of this node's data; nothing without ``cluster.replicas``."""
        settings = self._server.settings
        if settings.cluster is None or not settings.cluster.replicas:
            return
        copies = [each for each in self._server.cluster.copies_of_data() if each.node == settings.node.name]
        missing = settings.cluster.replicas - sum(each.state == IN_SYNC for each in copies)
        told = "copies of this node's data that are not complete, of cluster.replicas"
        yield "taipan_replicas_missing", "gauge", told, [((), max(missing, 0))]
        by_follower = [((("follower", each.copy),), each) for each in copies]
        told = "batches that the copy on another node lacks"
        yield "taipan_replica_behind_batches", "gauge", told, [(labels, each.batches) for labels, each in by_follower]
        told = "bytes in memory that the copy on another node lacks"
        yield "taipan_replica_behind_bytes", "gauge", told, [(labels, each.bytes) for labels, each in by_follower]
        told = "1 for the state of the copy on another node, 0 for the other states"
        states = [
            ((*labels, ("state", state)), int(each.state == state))
            for labels, each in by_follower
            for state in COPY_STATES
        ]
        yield "taipan_replica_state", "gauge", told, states
        told = "seconds since the last change of the state of the copy on another node"
        yield "taipan_replica_state_seconds", "gauge", told, [(labels, each.seconds) for labels, each in by_follower]

    def _of_listeners(self) -> Iterator[tuple[str, str, str, Samples]]:
        listeners = [((("listener", identifier(each)),), each) for each in self._server.listeners]
        http_listeners = [((("listener", each.protocol),), each) for each in self._listeners.http_listeners]
        yield (
            "taipan_listener_connections",
            "gauge",
            "connections now",
            [
                *((labels, each.current_connections) for labels, each in listeners),
                *((labels, each.current_connections) for labels, each in http_listeners),
            ],
        )
        yield (
            "taipan_listener_max_connections",
            "gauge",
            "connections allowed",
            [
                *((labels, each.max_connections) for labels, each in listeners),
                *((labels, each.max_connections) for labels, each in http_listeners),
            ],
        )
        yield (
            "taipan_listener_accepted_total",
            "counter",
            "connections accepted",
            [
                *((labels, each.accepted) for labels, each in listeners),
                *((labels, each.accepted) for labels, each in http_listeners),
            ],
        )
        yield (
            "taipan_listener_throttled_total",
            "counter",
            "pauses for accept_rate",
            [(labels, each.throttled) for labels, each in listeners],
        )
        yield (
            "taipan_listener_refused_total",
            "counter",
            "connections refused",
            [
                *(sample for labels, each in listeners for sample in _by(each.refused, labels)),
                *(sample for labels, each in http_listeners for sample in _by(each.refused, labels)),
            ],
        )
        yield (
            "taipan_listener_shutdowns_total",
            "counter",
            "connections ended",
            [sample for labels, each in listeners for sample in _by(each.shutdown_count, labels)],
        )


def emqx_name(name: str) -> str:
    """``packets.publish.received`` -> ``emqx_packets_publish_received``."""
    if name == "packets.connect.received":
        return "emqx_packets_connect"
    return "emqx_" + name.replace(".", "_")


def taipan_name(name: str) -> str:
    """``alarms.count`` -> ``taipan_alarms``: in Prometheus only histograms and summaries have a ``_count``."""
    return "taipan_" + name.removesuffix(".count").replace(".", "_")


def _by(counts: Mapping[str, int], labels: Labels = ()) -> list[tuple[Labels, int]]:
    return [((*labels, ("reason", reason)), count) for reason, count in counts.items()]


def _family(name: str, kind: str, told: str, samples: Samples) -> list[str]:
    lines = [f"{name}{_label_text(labels)} {value}" for labels, value in samples]
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}", *lines] if lines else []


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
