"""Gateways: clients of other protocols, which share sessions and topics with MQTT clients.

A package adds a gateway by an entry point of the group ``taipan.gateways`` whose name is the gateway's. A listener with
this name as its ``type`` then belongs to the gateway: a ``GatewayChannel`` for each connection translates between the
bytes of its protocol and MQTT packets. To the broker it is a client like any other."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from .entry_points import load, names
from .listener_kinds import LISTENER_KINDS, ListenerKind
from .mqtt.encoder import Outgoing
from .mqtt.message import Message
from .mqtt.packets import NO_PROPERTIES, Properties, Will

GROUP: Final = "taipan.gateways"


class GatewayError(Exception):
    """A client breaks the rules of its protocol. The log contains the first 200 characters of the text, on one line."""


class GatewayLoadError(Exception):
    """An entry point without a usable gateway; the message is one line."""


class Pending(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call."""


class GatewayLink(Protocol):
    """The connection as a ``GatewayChannel`` uses it."""

    def send(self, packet: Outgoing) -> None:
        """Give the broker a packet, as if an MQTT client had sent it. The first one must be a CONNECT, whose version is
        that of all packets. Within ``received``, a value that MQTT cannot encode, such as a string above 65,535 bytes,
        raises GatewayError, because it comes from the client."""

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:  # fmt: skip
        """Call ``send`` with a PUBLISH."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client; for a datagram listener, one datagram. Until the address is proved, a datagram is
        dropped if the answers would have more bytes than the client has sent: its address may be forged."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port of the client, as shown by the broker."""

    @property
    def sender(self) -> Hashable:
        """Address, port and DTLS session of the client. Messages from two senders are never repetitions of each
        other."""

    @property
    def shared(self) -> object:
        """The object from ``Gateway.shared``, which all conversations of the listener share; None: there is none."""

    def now(self) -> float:
        """Unix seconds of the node's clock."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Pending:
        """Call ``callback`` after this many seconds, from the node's ticker, whose interval is a tenth of a second.
        Keep few pending calls: one for each conversation, not one for each packet."""

    @property
    def idle_timeout(self) -> float:
        """Seconds after which a client without a login is disconnected."""

    def alive(self) -> None:
        """Restart Keep Alive, because the client has sent data that does not become a packet."""

    @property
    def heard_at(self) -> float:
        """When the last packet of the client came, or ``alive`` was called, as ``now`` counts. To keep this number uses
        no memory."""
        ...

    def expect_within(self, seconds: float) -> None:
        """Set the Keep Alive of the client from now on; 0: none."""

    def hold(self) -> None:
        """Keep messages for the client in its session and its outbox, within their limits, until ``release``."""

    def release(self) -> None:
        """Send the waiting messages, then the packets that ``received`` passes to the broker."""

    @property
    def waiting(self) -> int:
        """The number of messages in the session that are not sent, or not acknowledged."""

    def set_will(self, will: Will | None) -> int:
        """Replace the Will of the client; None deletes it. Return a Reason Code; from 0x80 on, the old Will remains."""

    def retained(self, topic_filter: str, most: int) -> list[tuple[str, Message]]:
        """Return the retained messages of a subscription to this filter, after topic rewrite, with their topics below
        the mount point: at most ``most``, and none if the filter matches so many topics that the search would take
        long. Access is not checked: a client receives the messages that it may read by SUBSCRIBE, and ``may_publish``
        reports which of these topics it may write to."""

    def rewritten(self, topic_filter: str) -> str:
        """Return the filter that a subscription to this filter has, after topic rewrite."""
        ...

    def stored(self, topic: str) -> Message | None:
        """Return the retained message that a publication to this topic would replace, after topic rewrite. Access is
        not checked."""

    def may_publish(self, topics: Sequence[str], judged: Callable[[list[bool]], None]) -> None:
        """Call ``judged`` with whether the client may publish to each of these topics, as the client names them:
        immediately, or when a service outside the node has answered. ``judged`` is not called if the client has
        disconnected by then."""

    # Of a datagram listener

    def drop(self, reason: str, detail: str, setting: str = "") -> None:
        """Count a datagram or a message that is dropped, and log it at most once in ten seconds for each reason."""

    @property
    def room(self) -> int:
        """Number of bytes that may be sent to the client until it has proved its address; -1: no limit."""

    def proved(self) -> None:
        """Note that the client has proved its address: it has repeated a number that only this address can know."""

    def stay_newcomer(self) -> None:
        """Count the address as a client without a login even after the next login; a newer one can replace it."""

    def renew(self, data: bytes) -> None:
        """Pass ``data`` to a new conversation of the same address, once the node has read everything that this one
        passed to the broker."""


class GatewayChannel(Protocol):
    """One conversation. An exception other than GatewayError is logged as its fault and ends the connection."""

    def received(self, data: bytes) -> int:
        """Process the complete requests at the beginning of ``data``, and return their number of bytes.

        The rest is passed again, together with later data. A large rest is not passed again with every byte, but a
        little later, or when much more data has arrived. A request may be as large as the zone allows for a packet.
        Raises GatewayError.

        For a datagram listener, ``data`` is one datagram, and no part of it is passed again. Return without an error to
        ignore one: it may be late, or forged.
        """

    def packet(self, packet: Outgoing) -> None:
        """Process a packet for the client. A PUBLISH is a ``Message``, an acknowledgement always an ``Ack``. After a
        fault of this conversation, the only packet is a DISCONNECT."""

    def closed(self) -> None:
        """The connection has ended."""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A registered device. ``lifetime`` is in seconds; ``objects``: path -> name of the object."""

    endpoint: str
    lifetime: int
    host: str
    port: int
    version: str
    objects: dict[str, str]


class Device(Protocol):
    """A registered device, which takes commands."""

    def record(self) -> DeviceRecord:
        """Return what the API shows of it."""

    def last_answer(self, path: str, kind: str) -> dict[str, Any] | None:
        """Return ``code``, ``codeMsg`` and perhaps ``content`` of the last answer to a kind of command for a path.
        None: there was no such command."""


@runtime_checkable
class DeviceDirectory(Protocol):
    """The object from ``Gateway.shared``, for a gateway whose devices register."""

    def devices(self) -> Mapping[str, Device]:
        """Return the registered devices by endpoint name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmqxGatewayPlugin:
    """A plugin of EMQX 4 for the same protocol, for ``taipan migrate emqx``: ``name``, and its settings, which begin
    with ``prefix``.

    ``binds``: setting with the address of a listener -> type of the listener. A key that ends with a dot is the
    beginning of settings that end in a number, each with an address. ``tls``: the beginning of the settings of
    listeners with TLS.

    ``keys``: setting -> the key of a listener, or ``gateway.`` and a key of its table ``gateway``; and the kind of
    value: number, flag, text, file, directory, seconds, whole_seconds or flag_or_list. ``numbered``: the beginning of
    settings that end in a number; they become the table ``numbered_as``. ``left_out``: setting -> why it has no
    counterpart. A key that ends with a dot is the beginning of settings."""

    name: str
    prefix: str
    keys: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    binds: Mapping[str, str] = field(default_factory=dict)
    tls: str = ""
    numbered: str = ""
    numbered_as: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beacon:
    """A datagram that is sent to ``host``, a broadcast address, and to the listener's port, every ``seconds``; 0:
    never."""

    data: bytes
    host: str
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A protocol. ``listener`` is its type of listener, which has the same name. ``settings``: the type of the table
    ``gateway`` below a listener, None for none. ``channel(link, settings)`` begins a conversation. Records and events
    of its clients have ``proto_name`` and ``proto_ver``.

    ``emqx``: the plugin of EMQX whose settings become those of a listener. ``shared()`` returns the object that all
    conversations of a listener share; it is called once for each listener (``GatewayLink.shared``).

    For datagrams: ``beacon(settings)`` returns what the listener sends without a request. ``split(data)`` returns the
    bytes that precede the message of a client behind the sender, and the message; these bytes distinguish that client
    from others of the sender. It raises ValueError for a malformed datagram. ``challenge_bytes``: a login does not
    prove the address; to let the client prove it, this many bytes more than it has sent may be sent to it. None: a
    client that has logged in has proved its address."""

    name: str
    listener: ListenerKind
    channel: Callable[[GatewayLink, Any], GatewayChannel]
    proto_name: str
    proto_ver: int
    settings: type[msgspec.Struct] | None = None
    beacon: Callable[[Any], Beacon] | None = None
    split: Callable[[bytes], tuple[bytes, bytes]] | None = None
    challenge_bytes: int | None = None
    shared: Callable[[], object] | None = None
    emqx: EmqxGatewayPlugin | None = None

    def settings_from(self, table: dict[str, object] | None) -> object:
        """Return the settings of a conversation from the table ``gateway`` of a listener. Raises GatewayLoadError."""
        if self.settings is None:
            if table:
                raise GatewayLoadError(f"gateway {self.name} has no settings")
            return None
        try:
            return msgspec.convert(table or {}, self.settings)
        except msgspec.ValidationError as error:
            raise GatewayLoadError(str(error)) from None

    def __post_init__(self) -> None:
        if self.listener.name != self.name:
            raise ValueError(f"the listener of gateway {self.name} has the name {self.listener.name}")
        if self.listener.websocket:
            raise ValueError(f"gateway {self.name}: only MQTT listeners can use WebSocket")
        if self.listener.datagram and self.listener.local:
            raise ValueError(f"gateway {self.name}: a datagram listener has no Unix socket")


GATEWAYS: Final[dict[str, Gateway]] = {}
"""The gateways that a configuration has named, by name."""


def add_gateway(gateway: Gateway) -> None:
    """Register a gateway and its type of listener. Raises GatewayLoadError if another gateway has the name."""
    if gateway.name in LISTENER_KINDS and GATEWAYS.get(gateway.name) is not gateway:
        raise GatewayLoadError(f"gateway {gateway.name}: a listener type already has this name")
    GATEWAYS[gateway.name] = gateway
    LISTENER_KINDS[gateway.name] = gateway.listener


def kind_of(name: str) -> ListenerKind | None:
    """Return the type of listener with this name; load the gateway of an entry point. None: there is none. Raises
    GatewayLoadError."""
    found = LISTENER_KINDS.get(name)
    if found is not None:
        return found
    try:
        gateway = load(GROUP, name, Gateway)
    except ValueError as error:
        raise GatewayLoadError(str(error)) from error
    if gateway is None:
        return None
    add_gateway(gateway)
    return gateway.listener


def kind_names() -> list[str]:
    """Return all types of listeners, including those of entry points, which follow the others by name."""
    built_in = [name for name in LISTENER_KINDS if name not in GATEWAYS]
    return [*built_in, *sorted({*GATEWAYS, *names(GROUP)})]
