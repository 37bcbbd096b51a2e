"""Modules: the optional extras of the broker, and which of them work."""

from typing import Any

from taipan.broker.extensions.extension import Extension
from taipan.broker.server import Server

from .topic_metrics import TopicCounts


class Modules:
    """All there are, loaded or not."""

    def __init__(self, server: Server, topic_metrics: TopicCounts) -> None:
        self._modules: tuple[Extension, ...] = (server.delayed, server.slow_subscriptions, topic_metrics.module)

    def records(self) -> list[dict[str, Any]]:
        """By name."""
        return [
            {"name": each.name, "description": each.description, "active": each.active}
            for each in sorted(self._modules, key=lambda module: module.name)
        ]
