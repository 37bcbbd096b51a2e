"""SessionState: what a session is made of, and what can be seen of it at a glance."""

from collections import OrderedDict
from typing import Any

from ..mqtt.message import Delivery, Message
from .account import NOBODYS, Account
from .client_writer import ClientWriter, Observer
from .journal import SessionJournal
from .limits import MOST_IN_FLIGHT, Limits
from .queue import MessageQueue
from .replay import Replay
from .subscription import Subscription


class SessionState:
    """Session State (section 4.1), field by field. Times are unix seconds."""

    __slots__ = (
        "_resend", "_resend_topics", "account", "awaiting_rel", "client", "client_id", "completions", "created_at",
        "diary", "disconnected_at", "expiry_interval", "expiry_timer", "filter_octets", "inflight", "inflight_bytes",
        "last_packet_id", "limits", "mqueue_dropped", "now", "number", "observer", "owner", "queue",
        "replays", "sent_at", "subscriptions", "will", "will_number", "will_timer", "window", "writer",
    )  # fmt: skip

    def __init__(
        self, client_id: str, limits: Limits, observer: Observer, now: float, expiry_interval: int = 0
    ) -> None:
        self.client_id = client_id
        self.limits = limits
        self.observer = observer
        self.created_at = now
        self.now = now  # the time of what is happening to it, told by whoever drives it
        # Session Expiry Interval in seconds; 0 ends with the connection, 0xFFFFFFFF never.
        self.expiry_interval = expiry_interval
        # Topic Filter as the client wrote it -> Subscription.
        self.subscriptions: dict[str, Subscription] = {}
        self.filter_octets = 0  # characters of these filters
        # QoS 1 and 2 sent and not completely acknowledged, in order of sending; None once PUBREL is out.
        self.inflight: dict[int, Delivery | None] = {}
        self.inflight_bytes = 0  # of those not released, only where ``max_inflight_bytes`` is set
        # When each identifier in flight was last sent, only where the zone has a retry interval.
        self.sent_at: dict[int, float] | None = {} if limits.retry_interval else None
        # Messages of released identifiers, kept only while somebody asks for ``delivery.completed``.
        self.completions: dict[int, Message] | None = None
        # Inflight identifiers that a new connection's Receive Maximum did not yet let out again.
        self._resend: OrderedDict[int, None] | None = None
        # Their topics, once it is known that they do not go out at once: QoS 0 of these waits for them.
        self._resend_topics: set[str] | None = None
        # QoS 1 and 2 (and QoS 0, where configured) waiting for the window or for the client.
        self.queue: MessageQueue | None = None
        # QoS 2 received and not released: Packet Identifier -> when.
        self.awaiting_rel: dict[int, float] | None = None
        # Retained messages still to be sent because of a SUBSCRIBE.
        self.replays: Replay | None = None
        self.last_packet_id = 0
        self.writer: ClientWriter | None = None
        # What the node's queues take.
        self.account: Account = NOBODYS
        self.window = min(limits.max_inflight or MOST_IN_FLIGHT, MOST_IN_FLIGHT)
        self.mqueue_dropped = 0
        # Who writes down what it holds, and under which number; None and 0 where nothing outlives the process.
        self.diary: SessionJournal | None = None
        self.number = 0
        # Whose it is (``ClientInfo.owner``); None: it was stored by a version that did not write that down.
        self.owner: str | None = ""
        # Kept here for ``core``, never looked at: ClientInfo of the last connection, when it ended, the Will Message
        # waiting for its delay, and the two running timers.
        self.client: Any = None
        self.disconnected_at = 0.0
        self.will: Any = None
        self.will_number = 0
        self.will_timer: Any = None
        self.expiry_timer: Any = None

    # ------------------------------------------------------------------ facts

    @property
    def connected(self) -> bool:
        """Whether a client is there."""
        return self.writer is not None

    @property
    def ready(self) -> bool:
        """Whether a QoS 1 message given now would go out at once."""
        writer = self.writer
        return writer is not None and writer.writable and len(self.inflight) < self.window and not self.queue

    @property
    def busy(self) -> bool:
        """Whether something waits that an acknowledgement may set free."""
        return self.queue is not None or self._resend is not None or self.replays is not None

    @property
    def replaying(self) -> bool:
        """Whether retained messages are to follow that wait for nothing of the client's but its socket."""
        return self.replays is not None and self.queue is None

    @property
    def queued(self) -> int:
        """Messages waiting."""
        return 0 if self.queue is None else len(self.queue)
