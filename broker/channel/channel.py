"""Channel: the conversation with one client, from its CONNECT to its end. It has no socket."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ..access.decision import Decision
from ..config import ZoneSettings
from ..loop.timers import Timer
from ..mqtt import reason_codes
from ..mqtt.constants import PUBACK, V5
from ..mqtt.decoder import Decoder, Packet
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
    """The connection as a channel uses it. ``writer``: the target of its outbound writer."""

    @property
    def writer(self) -> WriteTarget: ...

    @property
    def disconnects(self) -> bool:
        """Whether DISCONNECT is the next waiting packet."""

    def close(self) -> None:
        """Write the output of the writer, then close so that the peer can still read it."""

    def accepted(self, keep_alive: float) -> None:
        """CONNACK 0 was sent: remove the limits that apply before CONNECT. ``keep_alive``: maximum seconds between
        packets, 0: none."""

    def stored(self) -> None:
        """No output waits for the disk any longer."""


class _Gone:
    """Replaces the connection and writer of a channel whose client has disconnected, and does nothing."""

    @property
    def writer(self) -> WriteTarget:
        return self

    @property
    def disconnects(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def flush(self, further: bool = True) -> None:
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
    """A limit over time: ``transport.rate_limits``."""

    def consume(self, n: float, now: float) -> float:
        """Use ``n``; return the seconds until the limit allows more."""


@dataclass(slots=True)
class ListenerFacts:
    """The data about a listener that a channel needs; after a reload, new clients get new ones.

    ``tls_username`` is "cn" or "dn" if the username comes from the client's certificate, "psk" if the username is the
    identity of its pre-shared key, otherwise empty. ``loopback``: all clients of the listener are on this machine.
    ``proto_name`` and ``proto_ver``: the protocol of its clients; version 0 means the version of each CONNECT.
    ``decoder``: for clients whose bytes are always whole packets."""

    name: str
    zone: ZoneSettings
    zone_name: str
    limits: Limits
    tls_username: str
    loopback: bool
    proto_name: str = "MQTT"
    proto_ver: int = 0
    decoder: Decoder | None = None


class Channel:
    """The state of one conversation; the handlers of the packets use it.

    ``writer`` exists before CONNECT in its 3.x form and is replaced if the version is 5.0."""

    __slots__ = (
        "admitted",
        "admitted_generation",
        "alias_characters",
        "aliases",
        "auth_method",
        "client",
        "connect",
        "connection",
        "context",
        "end_reason",
        "exchange",
        "listener",
        "log_position",
        "pending_check",
        "problem_information",
        "proved_by_tls",
        "quota",
        "received1",
        "received2",
        "received_messages",
        "refused_messages",
        "rest",
        "session",
        "state",
        "swept_bytes_in",
        "swept_bytes_out",
        "swept_received",
        "swept_sent",
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
        self.client = client
        self.connection = connection
        self.writer = OutboundWriter(
            flusher, connection.writer, context.clock, context.hooks, self.zone.max_outbox_bytes
        )
        self.state = CONNECTING
        self.version = 0
        self.session: Session | None = None
        self.will: Will | None = None
        # The decision of an external service about the Will, from CONNECT: there is no time to ask when the Will is
        # due.
        self.will_decision: Decision | None = None
        # The question to a service about the current packet; cancelled when the conversation ends.
        self.pending_check: PendingCheck | None = None
        # When the client's token expires.
        self.token_timer: Timer | None = None
        # Topic Name -> until when a PUBLISH to it needs no further check (see ``publish``).
        self.admitted: dict[str, float] | None = None
        self.admitted_generation = 0
        # Topic Alias -> Topic Name, inbound; only for this connection [MQTT-3.3.2-7].
        self.aliases: dict[int, str] | None = None
        self.alias_characters = 0  # total length of these Topic Names in characters
        self.problem_information = True
        # The part of TLS that has proved the username: CERTIFICATE, PSK or empty.
        self.proved_by_tls = ""
        self.auth_method: str | None = None
        self.exchange: Exchange | None = None
        # The CONNECT until it is answered.
        self.connect: Connect | None = None
        # Number of PUBLISH packets, of those with QoS 1 and with QoS 2, and of those that were not published.
        self.received_messages = 0
        self.received1 = 0
        self.received2 = 0
        self.refused_messages = 0
        # Messages and bytes at the last ``ClientSweep``.
        self.swept_received = self.swept_sent = self.swept_bytes_in = self.swept_bytes_out = 0
        # An operator's limit for the client's routed messages, set by ``limit_routing``.
        self.quota: Quota | None = None
        self.end_reason = ""
        # Packets that ``dispatcher.receive`` has left for the next iteration, or until a wait has ended.
        self.rest: list[Packet] | None = None
        # Acknowledgements of PUBLISHes that wait for other nodes.
        self.undecided: Undecided | None = None
        # Number of records before the current packet (``durability.commit.written``); -1: wait for all records.
        self.log_position = 0

    @property
    def limits(self) -> Limits:
        return self.listener.limits

    def use_version(self, version: int) -> None:
        """Set the protocol version of the CONNECT."""
        self.version = version
        if version == V5:
            self.writer = OutboundWriter5(
                self.writer.flusher,
                self.writer.target,
                self.context.clock,
                self.context.hooks,
                self.zone.max_outbox_bytes,
            )

    def limit_routing(self, quota: Quota | None) -> None:
        """Limit the client's routed messages from now on; None: no limit."""
        self.quota = quota
        # No earlier admission may bypass the check in ``publish``, which applies the quota.
        self.admitted_generation = -1

    def fits(self, packet: Outgoing) -> bool:
        """Return whether a packet fits into the client's Maximum Packet Size, at least in its shortest form."""
        writer = self.writer
        bounded = isinstance(writer, OutboundWriter5) and writer.max_packet_size
        return not bounded or self.encoded(packet) is not None

    def send(self, packet: Outgoing) -> bool:
        """Encode and append any packet except PUBLISH. Return False if it exceeds the client's Maximum Packet Size."""
        data = self.encoded(packet)
        if data is None:
            return False
        self.writer.send(data)
        return True

    def encoded(self, packet: Outgoing) -> bytes | None:
        """Return ``None`` if the packet exceeds the client's Maximum Packet Size."""
        writer = self.writer
        most = writer.max_packet_size if isinstance(writer, OutboundWriter5) else 0
        return encode_within(packet, self.version, most)

    def save_log_position(self) -> None:
        """Note the position in the log before a packet whose answer promises that its effects are stored."""
        durability = self.context.broker.durability
        if durability is not None:
            self.log_position = durability.commit.written

    def send_when_durable(self, data: bytes) -> None:
        """Send an acknowledgement when the effects of the current packet are on disk."""
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
        """Do the same for a PUBACK or PUBREC, which are sent in the order of the PUBLISHes."""
        undecided = self.undecided
        if undecided is None:
            self.send_when_durable(data)
        else:
            undecided.follow(data, self.batch_in_hand)

    @property
    def batch_in_hand(self) -> int:
        """Return the batch of the journal with the effects of the current packet; 0: there are none."""
        durability = self.context.broker.durability
        if durability is None:
            return 0
        commit = durability.commit
        return commit.barrier if self.log_position < 0 else commit.batch_since(self.log_position)

    def send_pubacks_when_durable(self, packet_ids: list[int]) -> None:
        """Do the same for successful PUBACKs of packets that were processed together."""
        durability = self.context.broker.durability
        writer = self.writer
        if durability is None or (durability.commit.written == self.log_position and writer.held_packets is None):
            writer.send_pubacks(packet_ids)
        else:
            for packet_id in packet_ids:
                self.send_when_durable(ack(PUBACK, packet_id))

    def send_packet_when_durable(self, packet: Outgoing) -> bool:
        """Do the same for a packet that is encoded here. Return False if it exceeds the client's Maximum Packet
        Size."""
        data = self.encoded(packet)
        if data is None:
            return False
        self.send_when_durable(data)
        return True

    def send_connack(self, connack: Connack) -> bool:
        """Send the only CONNACK, and count it."""
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
        """Send a DISCONNECT from the Server: only in 5.0, and only after a successful CONNACK [MQTT-3.14.0-1]."""
        answered = self.state == CONNECTED and self.writer.session is not None
        if self.version == V5 and answered and self.send(disconnect):
            self.context.metrics.packets_disconnect_sent += 1

    def send_auth(self, auth: Auth) -> None:
        if self.send(auth):
            self.context.metrics.packets_auth_sent += 1


Waiting = Awaitable[None] | None
"""The result of a handler: nothing, or a wait that must finish before the client's next packet is processed."""

_AUTH_ERRORS: Final = frozenset(
    (
        reason_codes.BAD_USER_NAME_OR_PASSWORD,
        reason_codes.NOT_AUTHORIZED,
        reason_codes.BAD_AUTHENTICATION_METHOD,
        reason_codes.BANNED,
    )
)
