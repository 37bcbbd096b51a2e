"""The parts that all channels of a node share. The server creates it."""

from typing import TYPE_CHECKING

from ..access.control import AccessControl
from ..core.before_login import BeforeLogin
from ..core.broker import Broker
from ..core.hooks import Hooks
from ..loop.clock import Clock
from ..loop.timers import Timers
from ..observability.metrics import Metrics

if TYPE_CHECKING:
    from .channel import Channel
    from .review import Reviews


class ChannelContext:
    """The parts of the broker that handlers use. ``channels``: by Client Identifier, the channel with its session."""

    __slots__ = (
        "access",
        "authorization",
        "before_login",
        "broker",
        "channels",
        "clock",
        "closing",
        "hooks",
        "metrics",
        "node",
        "reviews",
        "timers",
        "wall_timers",
    )

    def __init__(
        self,
        node: str,
        clock: Clock,
        timers: Timers,
        metrics: Metrics,
        hooks: Hooks,
        broker: Broker,
        access: AccessControl,
        wall_timers: Timers | None = None,
    ) -> None:
        self.node = node
        self.clock = clock
        self.timers = timers
        # For timers that are due at a date.
        self.wall_timers = timers if wall_timers is None else wall_timers
        self.metrics = metrics
        self.hooks = hooks
        self.broker = broker
        self.access = access
        self.authorization = access.authorization
        # Memory of connections that have not logged in yet.
        self.before_login = BeforeLogin(now=clock.now)
        self.channels: dict[str, Channel] = {}
        # Set by the server, which creates it from this object.
        self.reviews: Reviews
        # The node is stopping: no new CONNECT is accepted.
        self.closing = False
