"""Slow subscriptions: the ranking of who took longest."""

import msgspec

from taipan.broker.server import Server

from .node_calls import NodeCalls
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

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.slowest, self.clear_here)

    async def listing(self) -> tuple[list[SlowRecord], list[str]]:
        """The slowest of all nodes first, as many as one node keeps; and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.slowest)
        rows = [row for _, slowest in found for row in slowest]
        rows.sort(key=lambda row: -row.timespan)
        return rows[: self._server.slow_subscriptions.settings.top], self._calls.may_lack(missing)

    def slowest(self) -> list[SlowRecord]:
        """EMQX's records of this node, the slowest first."""
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
        """Forget those of all nodes."""
        await self._calls.order_all(self.clear_here)

    def clear_here(self) -> None:
        """Those of this node."""
        self._check()
        self._server.slow_subscriptions.clear()

    def _check(self) -> None:
        if not self._server.slow_subscriptions.active:
            raise Refusal(UNKNOWN, "slow subscriptions are not tracked (setting slow_subscriptions.enabled)")
