"""ClusterContext: the objects that all parts of the cluster share. ``server`` creates it."""

from collections.abc import Callable
from random import Random
from typing import Final

from ..channel.context import ChannelContext
from ..config import BrokerSettings, ClusterSettings
from ..core.broker import Broker
from ..loop.clock import Clock
from ..observability.alarms import RaisedAlarms
from ..persistence.tables import Tables
from .members.member_nats import MemberNats
from .nats.interface import Nats
from .wire import MALFORMED, Refusals, Wire, node_key

PIECE_MESSAGES: Final = 256
"""Number of queued messages of a moving session that are sent to another node at a time."""


class ClusterContext:
    """The objects that the parts of the cluster share.

    Before a link sends a frame, it calls the functions in ``before_frame``. The other node receives their messages
    before the frame. ``hosted_by`` names the node in whose process this lost node runs; it is empty if this node has
    its own process. ``refusals`` counts and logs messages that were refused or dropped. ``piece_messages`` is the
    number of queued messages that are sent to another node at a time; the simulation uses a smaller one.
    """

    __slots__ = (
        "alarms",
        "before_frame",
        "broker",
        "channels",
        "clock",
        "hosted_by",
        "name",
        "nats",
        "node",
        "node_settings",
        "piece_messages",
        "refusals",
        "rng",
        "settings",
        "tables",
        "version",
        "wire",
    )

    def __init__(
        self,
        settings: BrokerSettings,
        nats: Nats,
        broker: Broker,
        channels: ChannelContext,
        tables: Tables,
        alarms: RaisedAlarms,
        clock: Clock,
        rng: Random,
        version: str,
        hosted_by: str = "",
    ) -> None:
        assert settings.cluster is not None
        self.node_settings = settings
        self.settings: ClusterSettings = settings.cluster
        self.name = self.settings.name
        self.node = settings.node.name
        self.nats = MemberNats(nats)
        self.broker = broker
        self.channels = channels
        self.tables = tables
        self.alarms = alarms
        self.clock = clock
        self.rng = rng
        self.version = version
        self.hosted_by = hosted_by
        self.before_frame: list[Callable[[], None]] = []
        self.piece_messages = PIECE_MESSAGES
        self.refusals = Refusals(broker.metrics.refusals, clock.now)
        nats.on_unreadable = lambda: self.refusals.add(MALFORMED, "-", "-")
        self.wire = Wire(self.name, self.node, self.refusals)

    def subject(self, kind: str, node: str = "") -> str:
        """Return the NATS subject for a kind of message, to one node or to all."""
        whole = f"taipan.{self.name}.{kind}"
        return f"{whole}.{node_key(node)}" if node else whole

    def nonce(self) -> str:
        """Return a unique name for one write."""
        return f"{self.rng.getrandbits(96):024x}"
