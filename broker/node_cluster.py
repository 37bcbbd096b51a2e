"""The cluster of a node: ``Server`` creates it if ``[cluster]`` is configured."""

from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from .access.stored.rules import PLACES as ACL_PLACES
from .cluster.context import ClusterContext
from .cluster.nats.interface import Nats
from .cluster.nats_cluster import NatsCluster

if TYPE_CHECKING:
    from .hosted_node import HostedNode
    from .server import Server


def make_cluster(server: "Server", nats: Nats | None) -> NatsCluster:
    """Return the cluster. ``nats``: its connection; ``None``: a new one to ``cluster.servers``."""
    settings = server.settings
    assert settings.cluster is not None
    server.stored_rules.share_places(crc32(settings.node.name.encode()) % ACL_PLACES, ACL_PLACES)
    if nats is None:
        try:
            from .cluster.nats.client import NatsClient, largest_packet
        except ImportError as error:
            raise ValueError(f"[cluster] requires the package nkeys ({error}): pip install nkeys") from error
        nats = NatsClient(settings.cluster, settings.node.name, largest_packet(settings))
    context = ClusterContext(
        settings,
        nats,
        server.broker,
        server.context,
        server.tables,
        server.alarms,
        server.clock,
        server.broker.rng,
        server.version,
        server.hosted_by,
    )
    connection = nats

    def host(node: str, directory: Path) -> "HostedNode":
        """Return a lost node, not started, to run in this process from its copy in ``directory``."""
        from .hosted_node import HostedNode, Without

        above = server.above_hosted or (lambda _: Without())
        return HostedNode(server, node, directory, connection.another(node), above)

    return NatsCluster(
        context,
        server.zone_of,
        server.refusal_of_will,
        None if settings.durability.level == "memory" else Path(settings.node.data_dir),
        None if server.hosted_by else host,
    )
