"""Slow subscriptions: the ranking of the clients with the longest delivery times."""

import msgspec

from taipan.broker.server import Server

from .node_calls import NodeCalls
from .refusal import UNKNOWN, Refusal


class SlowRecord(msgspec.Struct):
    """A row of the ranking; times are in milliseconds."""

    clientid: str
    node: str
    topic: str
    timespan: int
    last_update_time: int


class SlowRanking:
    """The ranking. All methods raise Refusal while ``slow_subscriptions.enabled`` is off."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.slowest, self.clear_here)

    async def listing(self) -> tuple[list[SlowRecord], list[str]]:
        """Return the slowest of all nodes first, as many as one node keeps; and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.slowest)
        rows = [row for _, slowest in found for row in slowest]
        rows.sort(key=lambda row: -row.timespan)
        return rows[: self._server.slow_subscriptions.settings.top], self._calls.may_lack(missing)

    def slowest(self) -> list[SlowRecord]:
        """Return EMQX's records of this node, slowest first."""
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

    async def clear(self) -> None:
        """Clear the rankings of all nodes."""
        await self._calls.order_all(self.clear_here)

    def clear_here(self) -> None:
        """Clear the ranking of this node."""
        self._check()
        self._server.slow_subscriptions.clear()

    def _check(self) -> None:
        if not self._server.slow_subscriptions.active:
            raise Refusal(UNKNOWN, "slow subscriptions are not tracked (setting slow_subscriptions.enabled)")
