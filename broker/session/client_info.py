"""ClientInfo: the data about a client that all hooks, access checks and records use."""

import ipaddress
from functools import lru_cache
from typing import Final, NamedTuple

from ..config import ZoneSettings
from ..mqtt.message import Publisher
from ..mqtt.packets import NO_PROPERTIES, Properties


def authority(host: str, port: int) -> str:
    """Return ``host:port`` as one text, with an IPv6 address in brackets; for a Unix socket only its path."""
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(4096)
def shared_text(address: str) -> str:
    """Return one object for all clients with this address: a load balancer's, or this machine's. Not ``sys.intern``,
    because Python 3.12 never frees interned strings, and anyone can connect from many addresses."""
    return address


def unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an IPv4 address from an IPv6 socket (``::ffff:192.0.2.1``) in IPv4 form; other addresses are unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def ip_address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a peer's address without its scope, ``unmapped``; ``None`` if it has none."""
    try:
        return unmapped(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can use the address; False for a hostname."""
    address = ip_address_of(host)
    return address is not None and address.is_loopback


LOCAL_USER: Final = "uid-"
"""The prefix of a name that replaces the address for the peer of a Unix socket: ``uid-1000``."""


def is_local_user(host: str) -> bool:
    """Return whether this is the name of such a peer."""
    return host.startswith(LOCAL_USER) and host[len(LOCAL_USER) :].isdecimal() and host.isascii()


def is_internal(client_id: str) -> bool:
    """Return whether this is the Client Identifier of a part of the node, such as its link to another node. It begins
    with U+0000, which no MQTT string contains."""
    return client_id.startswith("\0")


class Traffic(NamedTuple):
    """The traffic of one connection: bytes, reads and writes of the socket, packets, and PUBLISH packets by QoS.

    ``refused``: the client's PUBLISH packets that were not published. ``waiting``: packets that were received and not
    processed yet; ``held``: approximate memory of the connection in bytes, including data that waits to be written."""

    received_bytes: int = 0
    received_reads: int = 0
    received_packets: int = 0
    received0: int = 0
    received1: int = 0
    received2: int = 0
    refused: int = 0
    sent_bytes: int = 0
    sent_writes: int = 0
    sent_packets: int = 0
    sent0: int = 0
    sent1: int = 0
    sent2: int = 0
    waiting: int = 0
    held: int = 0


NO_TRAFFIC: Final = Traffic()

USERNAME_OWNER: Final = "username:"
CLIENT_ID_OWNER: Final = "clientid"

CERTIFICATE: Final = "certificate"
PSK: Final = "psk"
RESTORED: Final = "restored"
DELETED: Final = "deleted"
"""Values of ``ClientInfo.proved_by`` that are not names of sources: the client certificate; the identity of a
pre-shared key; authentication before the start, or on another node; and a source that has deleted the user since."""
PROVED_BY_TLS: Final = (CERTIFICATE, PSK)


class Entrance(NamedTuple):
    """The data that all clients of a listening socket have in common. ``loopback``: all clients of the *listener* are
    on this machine."""

    node: str
    zone_name: str
    sock_host: str
    sock_port: int
    loopback: bool
    proto_name: str


@lru_cache(1024)
def entrance(
    node: str, zone_name: str, sock_host: str, sock_port: int, loopback: bool, proto_name: str
) -> Entrance:  # fmt: skip
    """Return one object for all clients with these values."""
    return Entrance(node, zone_name, sock_host, sock_port, loopback, proto_name)


class ClientInfo(Publisher):
    """A client's identity. Created when its CONNECT arrives; also the ``publisher`` of its messages.

    ``username`` is the name that the client gives; ``proved_by`` is the source that has verified it, empty if none
    has. ``proved_client_id``: a source has verified that the client owns its Client Identifier. ``mountpoint`` has its
    placeholders replaced. ``connected_at`` is in Unix seconds. ``acl_cache`` belongs to ``access.acl_cache`` and is
    ``None`` until the first check; ``token`` belongs to ``access.token``. ``cn`` and ``dn`` come from a verified
    client certificate; with a pre-shared key, ``cn`` is its identity. ``traffic`` is the traffic of its closed
    connection, kept while its session exists; ``dropped`` counts, by reason, the deliveries that did not happen.
    ``packet_properties`` are those of the client's current packet (CONNECT until it is answered, SUBSCRIBE,
    UNSUBSCRIBE, acknowledgements, DISCONNECT), for hooks without an argument for them.
    """

    __slots__ = (
        "acl_cache",
        "anonymous",
        "clean_start",
        "cn",
        "connected_at",
        "dn",
        "dropped",
        "entrance",
        "expiry_interval",
        "is_bridge",
        "keep_alive",
        "packet_properties",
        "peer_port",
        "proved_client_id",
        "stamp",
        "token",
        "traffic",
        "zone",
    )

    def __init__(
        self,
        node: str,
        zone: ZoneSettings,
        zone_name: str = "external",
        listener: str = "",
        peer_host: str = "",
        peer_port: int = 0,
        sock_port: int = 0,
        loopback: bool = False,
        client_id: str = "",
        username: str | None = None,
        proto_ver: int = 0,
        proved_by: str = "",
        sock_host: str = "",
        proto_name: str = "MQTT",
    ) -> None:
        # The flags are next to each other and to the one of Publisher, where they use a byte each.
        self.is_superuser = False
        self.anonymous = True
        self.clean_start = True
        self.is_bridge = False
        self.proved_client_id = False
        self.entrance = entrance(node, zone_name, sock_host, sock_port, loopback, proto_name)
        self.zone = zone
        self.listener = listener
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.client_id = client_id
        self.username = username
        self.proved_by = proved_by
        self.proto_ver = proto_ver
        self.keep_alive = 0
        self.expiry_interval = 0
        self.mountpoint = ""
        self.cn: str | None = None
        self.dn: str | None = None
        self.connected_at = 0.0
        self.packet_properties: Properties = NO_PROPERTIES
        self.acl_cache: object = None  # an access.acl_cache.AclCache
        self.token: object = None  # an access.token.Token
        self.stamp = 0  # of its CONNECT, in a cluster: of two clients with one identifier, the higher one stays
        self.traffic: Traffic | None = None
        self.dropped: dict[str, int] | None = None

    @property
    def node(self) -> str:
        return self.entrance.node

    @property
    def zone_name(self) -> str:
        return self.entrance.zone_name

    @property
    def sock_host(self) -> str:
        return self.entrance.sock_host

    @property
    def sock_port(self) -> int:
        return self.entrance.sock_port

    @property
    def loopback(self) -> bool:
        """Whether all clients of its *listener* are on this machine."""
        return self.entrance.loopback

    @property
    def proto_name(self) -> str:
        return self.entrance.proto_name

    @property
    def user(self) -> str | None:
        """The username, if it is proved; access rules use only this."""
        return (self.username or None) if self.proved_by else None

    @property
    def proved(self) -> bool:
        """Whether the username or the Client Identifier is proved; if not, access rules treat the client as anonymous,
        whatever names it gives."""
        return bool(self.proved_by) or self.proved_client_id

    @property
    def owner(self) -> str:
        """The owner of the sessions that this client creates: ``username:<name>``, ``clientid``, or empty: no owner.

        ``clientid``: any client that proves this Client Identifier, without a username."""
        if self.user is not None:
            return USERNAME_OWNER + self.user
        return CLIENT_ID_OWNER if self.proved_client_id else ""

    @property
    def peer(self) -> str:
        """Address and port, as in the log."""
        return authority(self.peer_host, self.peer_port)

    def __repr__(self) -> str:
        return f"ClientInfo({self.client_id!r}, {self.peer})"


class PacketInHand:
    """``with PacketInHand(client, packet.properties)``: sets ``client.packet_properties`` for hooks in the block."""

    __slots__ = ("_client", "_properties")

    def __init__(self, client: ClientInfo, properties: Properties) -> None:
        self._client = client
        self._properties = properties

    def __enter__(self) -> None:
        self._client.packet_properties = self._properties

    def __exit__(self, *exception: object) -> None:
        self._client.packet_properties = NO_PROPERTIES


def protocol_of(publisher: Publisher | None) -> str:
    """Return the protocol of a publisher as EMQX names it: ``mqtt``, ``mqtt-sn``, ``coap`` or ``lwm2m``. For a
    publisher that is only known from the disk or from another node, the protocol is not known: ``mqtt``."""
    return publisher.proto_name.lower() if isinstance(publisher, ClientInfo) else "mqtt"
