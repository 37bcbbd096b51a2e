"""Channel: one client's conversation, from its CONNECT to its end. It holds no socket."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ..access.decision import Decision
from ..config import ZoneSettings
from ..loop.timers import Timer
from ..mqtt import reason_codes
from ..mqtt.constants import PUBACK, V5
from ..mqtt.decoder import Packet
from ..mqtt.encoder import Outgoing, ack, encode_within
from ..mqtt.packets import Auth, Connack, Connect, Disconnect, Will
from ..session.client_info import ClientInfo
from ..session.limits import Limits
from ..session.session import Session
from .context import ChannelContext
from .outbound_writer import FlushQueue, OutboundWriter, OutboundWriter5, WriteTarget

if TYPE_CHECKING:
    from ..access.enhanced import Exchange
    from .undecided import Undecided

# Where a conversation stands:
#
#   CONNECTING ──CONNECT──► (AUTHENTICATING ◄──AUTH──►) ──CONNACK 0──► CONNECTED ──► CLOSED
#        └──────────────────────── refused, malformed, timed out ─────────────────────┘
CONNECTING: Final = 0
AUTHENTICATING: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3


class ChannelConnection(Protocol):
    """What a channel asks of its connection. ``writer``: what its outbound writer writes to."""

    @property
    def writer(self) -> WriteTarget: ...

    @property
    def disconnects(self) -> bool:
        """Whether DISCONNECT is the next packet that waits to be taken."""

    def close(self) -> None:
        """Write what is in the writer, then close so that the peer still reads it."""

    def accepted(self, keep_alive: float) -> None:
        """CONNACK 0 was sent: lift the limits before CONNECT. ``keep_alive``: seconds without a packet, 0: none."""

    def stored(self) -> None:
        """Nothing of it waits for the disk any more."""


class _Gone:
    """The connection of a channel whose client is gone, and its writer: nothing is left to do."""

    @property
    def writer(self) -> WriteTarget:
        return self

    @property
    def disconnects(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def write(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def stored(self) -> None:
        pass

    def accepted(self, keep_alive: float) -> None:
        pass


GONE: Final = _Gone()


class PendingCheck(Protocol):
    """A task or a future."""

    def cancel(self) -> bool: ...


class Quota(Protocol):
    """A bound in time: ``transport.rate_limits``."""

    def consume(self, n: float, now: float) -> float:
        """Take ``n``; the seconds until that is paid for."""


@dataclass(slots=True)
class ListenerFacts:
    """What a channel needs to know of the listener that accepted it; new ones after a reload serve new clients.

    ``cert_username`` is "cn" or "dn" where the user name comes from the client's certificate, else empty.
    ``loopback``: all clients of the listener are on this machine. ``proto_name`` and ``proto_ver``: what its clients
    speak; a version of 0 is that of each CONNECT.
    """

    name: str
    zone: ZoneSettings
    zone_name: str
    limits: Limits
    cert_username: str
    loopback: bool
    proto_name: str = "MQTT"
    proto_ver: int = 0


class Channel:
    """State of one conversation; the handlers of the packets work on it.

    ``writer`` exists before CONNECT in its 3.x form and is replaced when the version turns out to be 5.0.
    """

    __slots__ = (
        "admitted",
        "admitted_generation",
        "alias_characters",
        "aliases",
        "auth_method",
        "certified",
        "client",
        "connect",
        "connection",
        "context",
        "end_reason",
        "exchange",
        "flusher",
        "limits",
        "listener",
        "log_position",
        "pending_check",
        "problem_information",
        "quota",
        "received1",
        "received2",
        "received_messages",
        "refused_messages",
        "rest",
        "session",
        "state",
        "token_timer",
        "undecided",
        "version",
        "will",
        "will_decision",
        "writer",
        "zone",
    )

    def __init__(
        self,
        context: ChannelContext,
        listener: ListenerFacts,
        client: ClientInfo,
        connection: ChannelConnection,
        flusher: FlushQueue,
    ) -> None:
        self.context = context
        self.listener = listener
        self.zone = listener.zone
        self.limits = listener.limits
        self.client = client
        self.connection = connection
        self.flusher = flusher
        self.writer = OutboundWriter(
            flusher, connection.writer, context.clock, context.hooks, self.zone.max_outbox_bytes
        )
        self.state = CONNECTING
        self.version = 0
        self.session: Session | None = None
        self.will: Will | None = None
        # What a service outside said of the Will, at CONNECT: when it is due there is no time to ask.
        self.will_decision: Decision | None = None
        # What a service is being asked for the packet in hand; cancelled when the conversation is over.
        self.pending_check: PendingCheck | None = None
        # When the token that let the client in expires.
        self.token_timer: Timer | None = None
        # Topic Name -> until when a PUBLISH to it may pass without being asked about again (see ``publish``).
        self.admitted: dict[str, float] | None = None
        self.admitted_generation = 0
        # Topic Alias -> Topic Name, inbound; of this connection only [MQTT-3.3.2-7].
        self.aliases: dict[int, str] | None = None
        self.alias_characters = 0  # characters of these Topic Names
        self.problem_information = True
        # The user name was taken from a client certificate that the listener verified.
        self.certified = False
        self.auth_method: str | None = None
        self.exchange: Exchange | None = None
        # The CONNECT while it is not answered yet.
        self.connect: Connect | None = None
        # PUBLISH packets, those of QoS 1 and of QoS 2 among them, and those that were not published.
        self.received_messages = 0
        self.received1 = 0
        self.received2 = 0
        self.refused_messages = 0
        # An operator's bound for what it may have routed; ``limit_routing`` sets it.
        self.quota: Quota | None = None
        self.end_reason = ""
        # Packets that ``dispatcher.receive`` has left for the next iteration, or for the end of what is awaited.
        self.rest: list[Packet] | None = None
        # Acknowledgements of PUBLISHes that wait for other nodes.
        self.undecided: Undecided | None = None
        # What was written down before the packet in hand (``durability.commit.written``); -1: wait for all of it.
        self.log_position = 0

    def use_version(self, version: int) -> None:
        """The CONNECT told the protocol version."""
        self.version = version
        if version == V5:
            self.writer = OutboundWriter5(
                self.flusher, self.writer.target, self.context.clock, self.context.hooks, self.zone.max_outbox_bytes
            )

    def limit_routing(self, quota: Quota | None) -> None:
        """Bound from now on what this client may have routed; None: no bound any more."""
        self.quota = quota
        # Nothing that was admitted before may pass by ``publish``'s gate, where the quota stands.
        self.admitted_generation = -1

    def fits(self, packet: Outgoing) -> bool:
        """Whether a packet keeps the client's Maximum Packet Size, at least in its shortest form."""
        writer = self.writer
        bounded = isinstance(writer, OutboundWriter5) and writer.max_packet_size
        return not bounded or self.encoded(packet) is not None

    def send(self, packet: Outgoing) -> bool:
        """Encode and append any packet but PUBLISH. False: it exceeds the client's Maximum Packet Size."""
        data = self.encoded(packet)
        if data is None:
            return False
        self.writer.send(data)
        return True

    def encoded(self, packet: Outgoing) -> bytes | None:
        """``None``: it exceeds the client's Maximum Packet Size."""
        writer = self.writer
        most = writer.max_packet_size if isinstance(writer, OutboundWriter5) else 0
        return encode_within(packet, self.version, most)

    def save_log_position(self) -> None:
        """A packet is taken whose answer promises what it causes."""
        durability = self.context.broker.durability
        if durability is not None:
            self.log_position = durability.commit.written

    def send_when_durable(self, data: bytes) -> None:
        """Send an acknowledgement, when what the packet in hand caused is on disk."""
        durability = self.context.broker.durability
        writer = self.writer
        if durability is None or (durability.commit.written == self.log_position and writer.held_packets is None):
            writer.send(data)
        else:
            commit = durability.commit
            writer.send_when_durable(
                data, commit.barrier if self.log_position < 0 else commit.batch_since(self.log_position)
            )

    def acknowledge_when_durable(self, data: bytes) -> None:
        """The same of a PUBACK or PUBREC, whose order is that of the PUBLISHes."""
        undecided = self.undecided
        if undecided is None:
            self.send_when_durable(data)
        else:
            undecided.follow(data, self.batch_in_hand)

    @property
    def batch_in_hand(self) -> int:
        """The batch of the journal that has what the packet in hand caused; 0: there is none."""
        durability = self.context.broker.durability
        if durability is None:
            return 0
        commit = durability.commit
        return commit.barrier if self.log_position < 0 else commit.batch_since(self.log_position)

    def send_pubacks_when_durable(self, packet_ids: list[int]) -> None:
        """The same for PUBACKs that say success, of packets that were taken as one."""
        durability = self.context.broker.durability
        writer = self.writer
        if durability is None or (durability.commit.written == self.log_position and writer.held_packets is None):
            writer.send_pubacks(packet_ids)
        else:
            for packet_id in packet_ids:
                self.send_when_durable(ack(PUBACK, packet_id))

    def send_packet_when_durable(self, packet: Outgoing) -> bool:
        """The same, encoded here. False: it exceeds the client's Maximum Packet Size."""
        data = self.encoded(packet)
        if data is None:
            return False
        self.send_when_durable(data)
        return True

    def send_connack(self, connack: Connack) -> bool:
        """Send the one CONNACK; counts it."""
        metrics = self.context.metrics
        metrics.client_connack += 1
        if connack.reason_code:
            metrics.packets_connack_error += 1
            if connack.reason_code in _AUTH_ERRORS:
                metrics.packets_connack_auth_error += 1
        if self.context.hooks.client_connack:
            connack.properties = self.context.hooks.client_connack(connack.properties, self.client, connack.reason_code)
        if not self.send(connack):
            return False
        metrics.packets_connack_sent += 1
        return True

    def send_disconnect(self, disconnect: Disconnect) -> None:
        """A DISCONNECT of the Server's: 5.0 only, and only after a successful CONNACK [MQTT-3.14.0-1]."""
        answered = self.state == CONNECTED and self.writer.session is not None
        if self.version == V5 and answered and self.send(disconnect):
            self.context.metrics.packets_disconnect_sent += 1

    def send_auth(self, auth: Auth) -> None:
        if self.send(auth):
            self.context.metrics.packets_auth_sent += 1


Waiting = Awaitable[None] | None
"""What a handler returns: nothing, or what must finish before this client's next packet is looked at."""

_AUTH_ERRORS: Final = frozenset(
    (
        reason_codes.BAD_USER_NAME_OR_PASSWORD,
        reason_codes.NOT_AUTHORIZED,
        reason_codes.BAD_AUTHENTICATION_METHOD,
        reason_codes.BANNED,
    )
)
