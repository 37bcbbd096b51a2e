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
    """A client breaks the rules of its protocol. The log has the text: its first 200 characters, on one line."""


class GatewayLoadError(Exception):
    """An entry point without a usable gateway; the message is one line."""


class Pending(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call."""


class GatewayLink(Protocol):
    """The connection as a ``GatewayChannel`` uses it."""

    def send(self, packet: Outgoing) -> None:
        """Give the broker a packet, as if an MQTT client had sent it. The first one must be a CONNECT, whose version
        is that of all packets. Within ``received``, a value that MQTT has no bytes for, such as a string above 65,535
        bytes, raises GatewayError: it is the client's."""

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:  # fmt: skip
        """Call ``send`` with a PUBLISH."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client; of a datagram listener, one datagram. Until the address is proved, a datagram is
        dropped if the client has not sent as many bytes as the answers to it have: its address may be forged."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port of the client, as shown by the broker."""

    @property
    def sender(self) -> Hashable:
        """Address and port, and the session of DTLS: messages of two senders are never repetitions of each other."""

    @property
    def shared(self) -> object:
        """What all conversations of the listener share, as ``Gateway.shared`` has made it; None: nothing."""

    def now(self) -> float:
        """Unix seconds of the node's clock."""

    def after(self, seconds: float, callback: Callable[[], None]) -> Pending:
        """Call ``callback`` in so many seconds, by the node's ticker, which has a tenth of a second. Keep few: one for
        each conversation, not one for each packet."""

    @property
    def idle_timeout(self) -> float:
        """Seconds until a client without a login is closed."""

    def alive(self) -> None:
        """The client has sent something that leads to no packet: Keep Alive starts again."""

    def expect_within(self, seconds: float) -> None:
        """From now on, this is the Keep Alive of the client; 0: none."""

    def hold(self) -> None:
        """Keep messages for the client in its session and its outbox, within their limits, until ``release``."""

    def release(self) -> None:
        """Send what waits, then the packets that ``received`` sends up."""

    @property
    def waiting(self) -> int:
        """Number of messages in the session that are not sent or not acknowledged."""

    def set_will(self, will: Will | None) -> int:
        """Replace the Will of the client; None deletes it. Return a Reason Code, of which those from 0x80 on say that
        the old Will remains."""

    def retained(self, topic_filter: str, most: int) -> list[tuple[str, Message]]:
        """Return the retained messages of a subscription to this filter, after topic rewrite, with their topics below
        the mount point: at most so many, and none of a wide part of the topics that would take long to search. No
        rights are judged: what a client may read comes by SUBSCRIBE, and ``may_publish`` says which of these topics it
        may write."""

    def rewritten(self, topic_filter: str) -> str:
        """Return the filter that a subscription to this filter has, after topic rewrite."""
        ...

    def stored(self, topic: str) -> Message | None:
        """Return the retained message that a publication to this topic would replace, after topic rewrite. No rights
        are judged."""

    def may_publish(self, topics: Sequence[str], judged: Callable[[list[bool]], None]) -> None:
        """Call ``judged`` with whether the client may publish to each of these topics, as it names them: at once, or
        when a service outside the node has answered. Not if the client has gone by then."""

    # Of a datagram listener

    def drop(self, reason: str, detail: str, setting: str = "") -> None:
        """Count a datagram or a message that is dropped, and log it at most once in ten seconds for each reason."""

    @property
    def room(self) -> int:
        """Bytes that the client can be sent until it has proved its address; -1: as many as there are."""

    def proved(self) -> None:
        """The client has repeated a number that only its address can know."""

    def stay_newcomer(self) -> None:
        """Count the address as a client without a login even after the next login; a newer one can replace it."""

    def renew(self, data: bytes) -> None:
        """Pass ``data`` to a new conversation of the same address, once the node has read everything that this one sent
        up."""


class GatewayChannel(Protocol):
    """One conversation. An exception other than GatewayError is logged as its fault and ends the connection."""

    def received(self, data: bytes) -> int:
        """Take the complete requests at the beginning of ``data``, and return the number of bytes that these have.

        The rest comes again, with what follows; a large rest not with every byte, but a little later or when much has
        followed. A request may be as large as the zone lets a packet be. Raises GatewayError.

        Of a datagram listener, ``data`` is one datagram, and nothing of it comes again. Return without an error to
        ignore one: it may be late, or forged.
        """

    def packet(self, packet: Outgoing) -> None:
        """Take a packet for the client. A PUBLISH comes as ``Message``, an acknowledgement always as ``Ack``. After a
        fault of this conversation only a DISCONNECT comes."""

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
    """What ``Gateway.shared`` has made, of a gateway whose devices register."""

    def devices(self) -> Mapping[str, Device]:
        """Return the registered devices by endpoint name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmqxGatewayPlugin:
    """A plugin of EMQX 4 for the same protocol, for ``taipan migrate emqx``: ``name``, and its settings, which begin
    with ``prefix``.

    ``binds``: a setting with the address of a listener -> its type; with a dot at its end, the beginning of settings
    that end in a number, each with one. ``tls``: the beginning of the settings of those with TLS.

    ``keys``: setting -> the key of a listener, or ``gateway.`` and a key of its table ``gateway``; and the kind of
    value, number, flag, text, file, directory, seconds, whole_seconds or flag_or_list. ``numbered``: the beginning of
    settings that end in a number; they become the table ``numbered_as``. ``left_out``: setting, or with a dot at its
    end the beginning of settings -> why it has no counterpart."""

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
    """A datagram for ``host``, a broadcast address, and the listener's port, each ``seconds``; 0: never."""

    data: bytes
    host: str
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A protocol. ``listener`` is its type of listener, of the same name. ``settings``: the type of the table
    ``gateway`` below a listener, None for none. ``channel(link, settings)`` begins a conversation. Records and events
    of its clients have ``proto_name`` and ``proto_ver``.

    ``emqx``: the plugin of EMQX whose settings become those of a listener. ``shared()``: what all conversations of a
    listener share, made once for each listener (``GatewayLink.shared``).

    Of datagrams: ``beacon(settings)`` is what the listener sends unasked. ``split(data)`` returns what precedes each
    message of a client behind the sender, which makes that client another one, and the message; it raises ValueError
    for a malformed datagram. ``challenge_bytes``: a login proves nothing, and so many bytes above its own can be sent
    to the client for it to prove its address; None: whoever has logged in has proved it."""

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
        raise GatewayLoadError(f"gateway {gateway.name}: there is a type of listener of this name")
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
