"""Membership: which nodes are running and which are stopped, and the role of this node."""

import msgspec

from taipan.broker.core.cluster import STOPPED, ChangeRefused, CopyStatus, HostedStatus, LinkStatus
from taipan.broker.server import Server

from .node_calls import NodeCalls
from .refusal import RPC_ERROR, Refusal

LinkRecord = LinkStatus
"""A row of ``/cluster_links``."""


class ClusterStatus(msgspec.Struct, omit_defaults=True):
    """The cluster status in the form of ``emqx_ctl``. ``refused``: why this node is not a member, unless it has
    left. ``hosted_nodes``: lost nodes that other nodes run from their copies, with those nodes."""

    running_nodes: list[str]
    stopped_nodes: list[str]
    refused: str = ""
    hosted_nodes: dict[str, str] = {}


class Replicas(msgspec.Struct):
    """The copies of all nodes' data, and the lost nodes that other nodes run from their copies."""

    copies: list[CopyStatus]
    hosted: list[HostedStatus]


class Left(ClusterStatus, omit_defaults=True):
    """``sessions``: number of clients' sessions that stay on the node that has left."""

    sessions: int = 0


class Evacuation(msgspec.Struct, omit_defaults=True):
    """The data that a node still has during its evacuation. ``connections``: open connections; ``sessions``: sessions
    of connected and of offline clients; ``messages_for_others``: messages that wait for other nodes; ``kept``: sessions
    that have moved, for which unreachable nodes may still send something here; ``delayed``: messages that this node
    publishes later. These include what the lost nodes have that this node runs; ``hosted``: what keeps each of those
    from leaving, by kind."""

    evacuating: bool
    connections: int
    sessions: int
    messages_for_others: int
    kept: int
    delayed: int
    hosted: dict[str, dict[str, int]] = {}


class Membership:
    """Membership of the cluster that the configuration names."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self.node = calls.name
        calls.serve(self.copies_here, self.links_here)

    def status(self) -> ClusterStatus:
        """Return the names of all members, in order."""
        members = self._calls.members()
        return ClusterStatus(
            [each.name for each in members if each.status != STOPPED],
            [each.name for each in members if each.status == STOPPED],
            self._server.cluster.refused,
            {each.name: each.hosted_by for each in members if each.hosted_by},
        )

    async def replicas(self) -> Replicas:
        """Return the copies, by node, and the nodes that run from them. A copy that several nodes know is listed as its
        own node reports it."""
        answers = (await self._calls.everywhere(self.copies_here)).found
        copies = {(each.node, each.copy): each for _, answer in answers for each in answer.copies}
        copies.update({(each.node, each.copy): each for name, a in answers for each in a.copies if each.node == name})
        hosted = [each for _, answer in answers for each in answer.hosted]
        order = sorted(copies.values(), key=lambda each: (each.node, each.copy))
        return Replicas(order, sorted(hosted, key=lambda each: each.node))

    def copies_here(self) -> Replicas:
        """Return the copies that this node knows, and the nodes that it runs."""
        hosted = [HostedStatus(each.name, self.node, each.since, each.owed()) for each in self._server.hosted.values()]
        return Replicas(self._server.cluster.copies_of_data(), hosted)

    async def links(self) -> tuple[list[LinkRecord], list[str]]:
        """Return the links between the nodes, by their names, and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.links_here)
        links = [each for _, answer in found for each in answer]
        return sorted(links, key=lambda each: (each.node, each.to)), self._calls.may_lack(missing)

    def links_here(self) -> list[LinkRecord]:
        """Return the links from this node."""
        return self._server.cluster.links_to_others()

    async def join(self, node: str) -> None:
        """Join again, in the cluster of ``node``. Raises Refusal."""
        try:
            await self._server.cluster.join(node)
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None

    async def leave(self) -> Left:
        """Leave the cluster until ``join``, even after a restart. Raises Refusal."""
        try:
            await self._server.cluster.leave()
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None
        now = self.status()
        return Left(now.running_nodes, now.stopped_nodes, now.refused, sessions=len(self._server.broker.sessions))

    def evacuation(self) -> Evacuation:
        """Return the progress of the evacuation."""
        server = self._server
        servers = [server, *(each.server for each in server.hosted.values())]
        return Evacuation(
            server.cluster.evacuating,
            len(server.context.channels),
            sum(len(each.broker.sessions) for each in servers),
            sum(each.cluster.owed_to_others for each in servers),
            sum(each.cluster.kept_for_others for each in servers),
            sum(each.delayed.count for each in servers),
            {each.name: each.owed() for each in server.hosted.values()},
        )

    async def start_evacuation(self) -> Evacuation:
        """Stop accepting clients, and have clients and sessions move to other nodes. Raises Refusal."""
        try:
            await self._server.cluster.evacuate()
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None
        return self.evacuation()

    def stop_evacuation(self) -> Evacuation:
        """Accept clients again. Raises Refusal."""
        try:
            self._server.cluster.end_evacuation()
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None
        return self.evacuation()

    async def force_leave(self, node: str, copies_lost: bool = False) -> None:
        """Remove a stopped node that will not return. ``copies_lost``: the copies of its data that other stopped nodes
        had are lost, too. Raises Refusal."""
        try:
            await self._server.cluster.force_leave(node, copies_lost)
        except ChangeRefused as refused:
            raise Refusal(RPC_ERROR, str(refused)) from None
