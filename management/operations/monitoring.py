"""Monitoring: the node's counters and gauges, and whether it accepts clients."""

from typing import Final

from taipan.broker.server import Server

from .node_calls import NodeCalls

RULE_ENGINE: Final = ("rules", "actions", "resources")
"""Gauges that the rule engine registers."""


class Monitoring:
    """The counters and gauges of the node, under EMQX's names."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._restored = False
        calls.serve(self.metrics, self.stats)
        server.on_recovered.append(self._on_restored)

    def _on_restored(self) -> None:
        self._restored = True

    @property
    def running(self) -> bool:
        """Return whether clients are served: recovery is complete, and the node was not asked to stop."""
        return self._restored and not self._server.context.closing

    @property
    def stopping(self) -> bool:
        """Return whether the node was asked to stop."""
        return self._server.context.closing

    @property
    def evacuating(self) -> bool:
        """Return whether new clients are redirected to other nodes (``cluster evacuation``)."""
        return self._server.cluster.evacuating

    def metrics(self) -> dict[str, int]:
        """Return every counter since the start, under the specification's names and, if they differ, also under
        those of 4.4."""
        return self._server.metrics.snapshot()

    def stats(self) -> dict[str, int]:
        """Return ``<name>.count`` and ``<name>.max`` of every gauge."""
        return self._server.stats.snapshot()
