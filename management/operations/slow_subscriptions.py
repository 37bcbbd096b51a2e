"""Slow subscriptions: the ranking of who took longest."""

from typing import Any

from taipan.broker.server import Server

from .refusal import UNKNOWN, Refusal


class SlowRanking:
    """Raises Refusal while ``slow_subscriptions.enabled`` is off."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def listing(self) -> list[dict[str, Any]]:
        """EMQX's records, the slowest first; ``timespan`` and ``last_update_time`` in milliseconds."""
        self._check()
        return [
            {
                "clientid": each.client_id,
                "node": self._server.settings.node.name,
                "topic": each.topic,
                "timespan": round(each.timespan * 1000),
                "last_update_time": round((each.updated_at + self._server.clock.skew) * 1000),
            }
            for each in self._server.slow_subscriptions.ranking()
        ]

    def clear(self) -> None:
        self._check()
        self._server.slow_subscriptions.clear()

    def _check(self) -> None:
        if not self._server.slow_subscriptions.active:
            raise Refusal(UNKNOWN, "slow subscriptions are not looked at (setting slow_subscriptions.enabled)")
