"""Modules: the optional extras of the broker, and which of them work."""

import msgspec

from taipan.broker.extensions.extension import Extension
from taipan.broker.server import Server

from .topic_metrics import TopicCounts


class ModuleRecord(msgspec.Struct):
    name: str
    description: str
    active: bool


class Modules:
    """All there are, loaded or not."""

    def __init__(self, server: Server, topic_metrics: TopicCounts) -> None:
        self._modules: tuple[Extension, ...] = (server.delayed, server.slow_subscriptions, topic_metrics.module)

    def records(self) -> list[ModuleRecord]:
        """By name."""
        return [
            ModuleRecord(each.name, each.description, each.active)
            for each in sorted(self._modules, key=lambda module: module.name)
        ]
