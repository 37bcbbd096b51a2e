"""Slow subscriptions: the ranking of who took longest."""

import msgspec

from taipan.broker.server import Server

from .refusal import UNKNOWN, Refusal


class SlowRecord(msgspec.Struct):
    """Milliseconds."""

    clientid: str
    node: str
    topic: str
    timespan: int
    last_update_time: int


class SlowRanking:
    """Raises Refusal while ``slow_subscriptions.enabled`` is off."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def listing(self) -> list[SlowRecord]:
        """EMQX's records, the slowest first; ``timespan`` and ``last_update_time`` in milliseconds."""
        self._check()
        return [
            SlowRecord(
                each.client_id,
                self._server.settings.node.name,
                each.topic,
                round(each.timespan * 1000),
                round((each.updated_at + self._server.clock.skew) * 1000),
            )
            for each in self._server.slow_subscriptions.ranking()
        ]

    def clear(self) -> None:
        self._check()
        self._server.slow_subscriptions.clear()

    def _check(self) -> None:
        if not self._server.slow_subscriptions.active:
            raise Refusal(UNKNOWN, "slow subscriptions are not looked at (setting slow_subscriptions.enabled)")
