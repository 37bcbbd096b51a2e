"""Gateways: clients of other protocols, which share sessions and topics with MQTT clients.

A package adds a gateway by an entry point of the group ``taipan.gateways`` whose name is the gateway's. A listener with
this name as its ``type`` then belongs to the gateway: a ``GatewayChannel`` for each connection translates between the
bytes of its protocol and MQTT packets. To the broker it is a client like any other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from .entry_points import load, names
from .listener_kinds import LISTENER_KINDS, ListenerKind
from .mqtt.encoder import Outgoing
from .mqtt.packets import NO_PROPERTIES, Properties

GROUP: Final = "taipan.gateways"


class GatewayError(Exception):
    """A client breaks the rules of its protocol. The log has the text: its first 200 characters, on one line."""


class GatewayLoadError(Exception):
    """An entry point without a usable gateway; the message is one line."""


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
        """Send bytes to the client; of a datagram listener, one datagram. Before the login, a datagram is dropped if
        the client has not sent as many bytes as the answers to it have: its address may be forged."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port of the client, as shown by the broker."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A protocol. ``listener`` is its type of listener, of the same name. ``settings``: the type of the table
    ``gateway`` below a listener, None for none. ``channel(link, settings)`` begins a conversation. Records and events
    of its clients have ``proto_name`` and ``proto_ver``."""

    name: str
    listener: ListenerKind
    channel: Callable[[GatewayLink, Any], GatewayChannel]
    proto_name: str
    proto_ver: int
    settings: type[msgspec.Struct] | None = None

    def settings_from(self, table: dict[str, object] | None) -> object:
        """The settings that a conversation gets, of the table ``gateway`` of a listener. Raises GatewayLoadError."""
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
            raise ValueError(f"gateway {self.name}: WebSocket frames are for MQTT alone")
        if self.listener.datagram and (self.listener.tls or self.listener.local):
            raise ValueError(f"gateway {self.name}: a datagram listener has neither TLS nor a Unix socket")


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
    """Return all types of listeners, including those of entry points."""
    return list(dict.fromkeys([*LISTENER_KINDS, *names(GROUP)]))
