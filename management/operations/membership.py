"""Membership: which nodes run and which are stopped, and this node's place among them."""

import msgspec

from taipan.broker.core.cluster import STOPPED, ChangeRefused
from taipan.broker.server import Server

from .node_calls import NodeCalls
from .refusal import RPC_ERROR, Refusal


class ClusterStatus(msgspec.Struct, omit_defaults=True):
    """As ``emqx_ctl`` has it. ``refused``: why this node is no member of it, where it has not left."""

    running_nodes: list[str]
    stopped_nodes: list[str]
    refused: str = ""


class Membership:
    """Which cluster it is stands in the configuration."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self.node = calls.name

    def status(self) -> ClusterStatus:
        """The names of all members, in order."""
        members = self._calls.members()
        return ClusterStatus(
            [each.name for each in members if each.status != STOPPED],
            [each.name for each in members if each.status == STOPPED],
            self._server.cluster.refused,
        )

    async def join(self, node: str) -> None:
        """Take part again, in the cluster that has ``node``. Raises Refusal."""
        try:
            await self._server.cluster.join(node)
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None

    async def leave(self) -> None:
        """Take no part any more, after a restart either, until ``join``. Raises Refusal."""
        try:
            await self._server.cluster.leave()
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None

    async def force_leave(self, node: str) -> None:
        """Remove a node that is stopped and does not come back. Raises Refusal."""
        try:
            await self._server.cluster.force_leave(node)
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None
