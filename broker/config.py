"""The broker's own settings, with their defaults. ``management/configuration`` reads and joins them.

Defaults are those of EMQX 4.x if it has the setting, otherwise those of ``docs/configuration.md``. Every field here is
a key of the configuration file; the comment next to it is the reference text.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from .access.registry import ACCESS_SOURCES, access_settings
from .value_types import Bytes as Bytes
from .value_types import Count as Count
from .value_types import Natural as Natural
from .value_types import PacketSize as PacketSize
from .value_types import PositiveBytes as PositiveBytes
from .value_types import PositiveSeconds as PositiveSeconds
from .value_types import Rate as Rate
from .value_types import Seconds as Seconds
from .value_types import Uint16 as Uint16
from .value_types import Uint32 as Uint32

SharedStrategy = Literal["random", "round_robin", "round_robin_per_group", "sticky", "hash_clientid", "hash_topic"]

_BIND: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]*)):(\d{1,5})", re.ASCII)


def parse_bind(bind: str) -> tuple[str, int]:
    """Return the two parts of ``host:port`` or ``[v6]:port``. Raises ``ValueError`` with the problem."""
    found = _BIND.fullmatch(bind)
    if found is None or int(found[3]) > 65_535:
        raise ValueError("expected host:port or [v6]:port with a port from 0 to 65535")
    host = found[1] or found[2]
    if not host:
        raise ValueError("expected a host before the port; 0.0.0.0 or [::] for every address")
    return host, int(found[3])


class ZoneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits and the behaviour that a listener has for its clients. A listener names its zone and may override any
    key."""

    # Who may connect
    allow_anonymous: bool | None = (
        None  # None: only on a listener bound to loopback or of type unix, without proxy_protocol
    )
    allow_empty_client_id: bool = True
    client_id_prefix: str = ""  # put before identifiers that the broker assigns
    use_username_as_client_id: bool = False
    mountpoint: str = ""  # with %c and %u
    idle_timeout: PositiveSeconds = 10.0  # seconds for a complete CONNECT
    max_connect_size: PacketSize = 262_144
    # What a packet may be
    max_packet_size: PacketSize = 2_097_152
    max_client_id_length: Annotated[int, Meta(ge=1, le=65_535)] = 65_535
    strict_strings: bool = False  # refuse control characters and non-characters in strings (the standard allows either)
    max_topic_levels: Count = 128  # 0: no limit
    max_qos: Annotated[int, Meta(ge=0, le=2)] = 2
    max_topic_alias: Uint16 = 65_535
    retain_available: bool = True
    wildcard_subscription: bool = True
    shared_subscription: bool = True
    exclusive_subscription: bool = False  # $exclusive/<filter>, of one client at a time
    # Keep alive
    server_keep_alive: Annotated[int, Meta(ge=0, le=65_535, extra={"unit": "seconds"})] = (
        0  # 0: the client's value; else the longest that is accepted, in seconds
    )
    server_keep_alive_v3: bool = False  # also shorten it for 3.x clients, which cannot be informed
    keep_alive_multiplier: Annotated[float, Meta(ge=1)] = 1.5
    # Sessions
    max_subscriptions: Count = 100_000  # 0: no limit
    max_subscription_bytes: Count = 16_777_216  # characters of a session's Topic Filters; 0: no limit
    upgrade_qos: bool = False
    # QoS 1 and 2 messages sent and not acknowledged; also caps a 5.0 client's Receive Maximum; 0: the client's
    max_inflight: Uint16 = 32
    # max_awaiting_rel's face towards 5.0 clients: unfinished QoS 1 and 2 they may send
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 100
    # QoS 2 messages of a client waiting for PUBREL; 0: no limit. 5.0 clients keep to receive_maximum; 3.x ones cannot
    # be informed, and send all their messages at once when they reconnect.
    max_awaiting_rel: Uint16 = 65_535
    await_rel_timeout: PositiveSeconds = 300.0
    retry_interval: Seconds = 0.0  # 3.x only; 0: retransmit on reconnect only
    # The maximum that a 5.0 client may request, and the value of 3.x sessions; 0xFFFFFFFF: never expires
    session_expiry_interval: Annotated[int, Meta(ge=0, le=4_294_967_295, extra={"unit": "seconds"})] = 7200
    max_queued_messages: Count | None = None  # 0: no limit; None: 100,000 at level disk, 1,000 at memory
    max_queued_bytes: Bytes = 67_108_864  # 0: no limit
    queue_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    queue_qos0: bool = False
    queue_priorities: dict[str, Annotated[int, Meta(ge=1, le=255)]] = {}  # topic filter -> 1..255
    queue_default_priority: Annotated[int, Meta(ge=0, le=255)] = 0
    ignore_loop_deliver: bool = False  # No Local for clients that cannot ask for it
    max_outbox_bytes: PositiveBytes = 16_777_216  # waiting for a slow reader's socket; beyond it QoS 0 is dropped
    slow_reader_timeout: Seconds = 60.0  # a full socket that accepts less than 1 KiB in this time is closed; 0: never
    # Outgoing topic aliases: how many per connection, within the client's maximum; 0: none
    max_outgoing_topic_alias: Uint16 = 16
    response_information: str = ""  # sent to 5.0 clients that request it
    # Access
    enable_acl: bool = True
    acl_deny_action: Literal["ignore", "disconnect"] = "ignore"
    subscribe_check: Literal["filter", "delivery"] = "filter"  # what rules are asked about: all of it, or each message
    suback_denied_code: int = 0x87  # the 5.0 Reason Code of a refused subscription; 3.x has only 0x80
    # Flapping: a client that loses its connection this often within the window is banned; 0: no client
    flapping_threshold: Count = 0
    flapping_window: PositiveSeconds = 60.0
    flapping_ban: PositiveSeconds = 300.0
    # Limits per client: [amount, seconds]; None: no limit
    message_rate: Rate | None = None
    byte_rate: Rate | None = None


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Certificates of a server, PEM files."""

    certfile: str
    keyfile: str
    key_password: str = ""
    cafile: str = ""
    crlfile: str = ""
    verify: Literal["none", "optional", "required"] = "none"
    min_version: Literal["1.2", "1.3"] = "1.2"
    ciphers: str = ""
    handshake_timeout: PositiveSeconds = 15.0
    server_names: dict[str, dict[str, str]] = {}  # server name -> {certfile, keyfile, key_password}
    peer_cert_as_username: Literal["", "cn", "dn"] = ""


_OF_CERTIFICATES: Final = (
    "certfile", "keyfile", "key_password", "cafile", "crlfile", "server_names", "peer_cert_as_username",
)  # fmt: skip
_MAX_PSK_HINT: Final = 128


class ListenerTlsSettings(TlsSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS of an MQTT listener: certificates, or pre-shared keys instead."""

    certfile: str = ""
    keyfile: str = ""
    psk_file: str = ""
    psk_hint: str = ""
    psk_identity_as_username: bool = False

    @property
    def username_from(self) -> str:
        """The part of TLS from which the username comes: ``cn``, ``dn``, ``psk``, or empty."""
        return "psk" if self.psk_identity_as_username else self.peer_cert_as_username

    def psk_faults(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that conflict with ``psk_file`` or with its absence, and why."""
        if not self.psk_file:
            for key in ("psk_hint", "psk_identity_as_username"):
                if getattr(self, key):
                    yield key, "has no effect without psk_file"
            return
        for key in _OF_CERTIFICATES:
            if getattr(self, key):
                yield key, "has no effect with psk_file: a listener has either certificates or pre-shared keys"
        if self.verify != "none":
            yield "verify", "no client certificate is requested with psk_file"
        if self.min_version != "1.2":
            yield "min_version", "pre-shared keys work with TLS 1.2 only"
        if "\0" in self.psk_hint or len(self.psk_hint.encode("utf-8", "replace")) > _MAX_PSK_HINT:
            yield "psk_hint", f"expected at most {_MAX_PSK_HINT} bytes without U+0000"


class ListenerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One address that accepts clients."""

    name: str
    type: str  # tcp, ssl, ws, wss or unix
    bind: str  # host:port, [v6]:port; unix: the path of the socket
    zone: str = "external"
    max_connections: Natural = 1_024_000
    accept_rate: Count = 0  # new connections a second; 0: no limit
    backlog: Natural = 4096
    reuse_port: bool = False  # other nodes on this machine may listen at the same address (SO_REUSEPORT)
    proxy_protocol: bool = False
    proxy_protocol_timeout: PositiveSeconds = 3.0
    path: str | list[str] = "/mqtt"  # ws, wss: one, or several; "*": any
    subprotocols: tuple[str, ...] = ("mqtt", "mqttv3.1", "mqttv3.1.1")
    subprotocol_required: bool = True
    # Empty: any; but only those of loopback where anonymous clients are let in because of loopback. "*": any.
    allowed_origins: list[str] = []
    compress: bool = False
    # ws, wss: how many packets a frame has. Clients are to read frames as a stream; not all of them do.
    mqtt_piggyback: Literal["single", "multiple"] = "single"
    nodelay: bool = True
    # unix: rights and owner of the socket; empty: the user and the group of the node
    socket_mode: str = "0660"
    socket_owner: str = ""
    socket_group: str = ""
    tls: ListenerTlsSettings | None = None
    gateway: dict[str, object] | None = None  # the settings of a gateway: those that its package describes


def listener_labels(listeners: Iterable[ListenerSettings]) -> list[str]:
    """Return the label of each listener, which ``ClientInfo.listener`` contains: its name, preceded by its type if an
    earlier listener has the same name."""
    labels: list[str] = []
    for listener in listeners:
        label = listener.name
        labels.append(f"{listener.type}:{label}" if label in labels else label)
    return labels


class RetainedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of the retained messages of the whole node."""

    max_messages: Count = 1_000_000  # 0: no limit
    max_payload_size: Bytes = 1_048_576  # 0: no limit
    max_bytes: Bytes = 1_073_741_824  # of all of them, with about 600 for each besides topic and payload; 0: no limit
    expiry_interval: Seconds = 0.0  # seconds after which any retained message is deleted; 0: never
    check_source: bool = False  # check_retain_source


class DelayedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``$delayed/<seconds>/<topic>``."""

    enabled: bool = True
    max_messages: Count = 100_000  # 0: no limit
    max_bytes: Bytes = 268_435_456
    max_seconds: Annotated[int, Meta(ge=1, le=4_294_967_295)] = 4_294_967


class RewriteRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One rule of topic rewrite; the first whose ``source_topic`` matches decides."""

    action: Literal["publish", "subscribe", "all"] = "all"
    source_topic: str  # a filter; subscriptions are compared by the text of their filter
    re: str  # of RE2; if it is not found in the topic, the topic stays
    dest_topic: str  # with $1 to $99, the groups of re, and %c and %u


class RewriteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Topic rewrite."""

    rules: Annotated[list[RewriteRule], Meta(max_length=256)] = []


class AutoSubscribeTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A filter that the node subscribes clients to. ``nl``, ``rap`` and ``rh`` are for 5.0 clients only."""

    topic: str  # with the levels %c and %u
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    nl: bool = False
    rap: bool = False
    rh: Annotated[int, Meta(ge=0, le=2)] = 0


class AutoSubscribeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Proxy subscription: the filters that each client is subscribed to when it connects."""

    topics: Annotated[list[AutoSubscribeTopic], Meta(max_length=64)] = []


class SlowSubscriptionsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Clients that take long to acknowledge. Times are in seconds."""

    enabled: bool = False
    threshold: PositiveSeconds = 0.5
    top: Annotated[int, Meta(ge=1, le=1000)] = 10
    expire: PositiveSeconds = 300.0


class SysTopicsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``$SYS/brokers/...``."""

    interval: Seconds = 60.0  # 0: off
    heartbeat: Seconds = 30.0  # uptime and datetime; 0: off
    mosquitto_names: bool = False  # $SYS/broker/..., too


class SharedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    strategy: SharedStrategy = "random"


class UserSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A user of the configuration file. ``password_hash`` and ``scram`` are printed by ``taipan hash-password``."""

    username: str
    password_hash: str = ""
    scram: str = ""  # SCRAM-SHA-256$iterations:salt$stored_key:server_key
    is_superuser: bool = False


class RuleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One access rule; the first that matches decides. All given conditions must be met; without conditions, the rule
    applies to every client."""

    allow: bool
    action: Literal["publish", "subscribe", "pubsub"] = "pubsub"
    topics: list[str] = []  # filters with %c and %u; "eq <filter>" compares to the letter; empty: every topic
    username: str | None = None
    client_id: str | None = None
    address: str | None = None  # an address or a network in CIDR form
    anonymous: bool = False  # only clients that have proved neither a username nor their identifier
    listener: str | None = None  # the name of the listener to which the client connected


class AccessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings that all sources of access have in common. ``access.registry`` adds a field for the table of each
    source, and the names that ``authenticators`` and ``authorizers`` may have."""

    # The order in which the sources are asked; sources that are not configured are skipped.
    authenticators: tuple[str, ...] = ()
    authorizers: tuple[str, ...] = ()
    unknown_user: Literal["refuse", "anonymous"] = "refuse"  # a username that no user has, if there are users
    users: list[UserSettings] = []
    rules: list[RuleSettings] = []
    no_match: Literal["allow", "deny"] = "allow"  # if no rule matches
    # Who may take over a session by its Client Identifier: the user that created it, or any client
    session_owner: Literal["user", "any"] = "user"
    cache: bool = True
    cache_max_size: Natural = 32  # topics a client
    cache_ttl: PositiveSeconds = 60.0
    hash_threads: Annotated[int, Meta(ge=1, le=64)] | None = None  # None: one for each processor
    hash_wait: PositiveSeconds = 300.0  # how long a password may wait for a thread
    guesses: Count = 10  # wrong passwords a minute of an address or for a user name that are not slowed; 0: none is
    guess_delay: PositiveSeconds = 5.0  # how long the next attempts wait at most
    hash_cost: Annotated[int, Meta(ge=10, le=17)] = 14  # of new hashes: scrypt's N is 2 to this power


if not TYPE_CHECKING:  # for types it is the class above
    AccessSettings = access_settings(AccessSettings, ACCESS_SOURCES)


class DurabilitySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    level: Literal["memory", "disk"] = "disk"
    queue_memory: Bytes = 268_435_456  # of queued messages; beyond it their bodies are on disk only; 0: no limit


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the node does at its start if data is missing from the store."""

    # Users, access rules, bans or applications: admit only operators until they accept the loss, or continue
    access_lost: Literal["refuse", "accept"] = "refuse"


class LimitsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The resources that the node may use."""

    # Bytes, or a part ("50%", "0.5") of the memory that the machine or the process' cgroup has
    memory: int | str = "50%"


class StopSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a graceful stop does."""

    # The Wills of connected clients: publish them now, or at the next start (level disk)
    wills: Literal["publish", "keep"] = "publish"


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Several nodes that form one broker, connected by NATS servers that run next to them."""

    servers: tuple[str, ...]  # nats://host:port or tls://host:port; any of them is enough to begin with
    name: str = "taipan"  # clusters of other names on the same servers are apart
    user: str = ""
    password: str = ""
    token: str = ""
    nkey_file: str = ""
    credentials_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_verify: bool = True
    connect_timeout: PositiveSeconds = 1.0
    call_timeout: PositiveSeconds = 5.0  # of a question to another node
    suspect_after: PositiveSeconds = 3.0  # without a heartbeat
    stopped_after: PositiveSeconds = 10.0
    takeover_timeout: PositiveSeconds = 12.0  # how long a client waits for the node that has its session
    takeover: Literal["fresh", "refuse"] = "refuse"  # then: a new session, or CONNACK 0x88
    isolated: Literal["serve_local", "refuse_new", "close_all"] = "serve_local"  # without NATS
    strict_subscribe: bool = False  # SUBACK waits until all running nodes know of the subscription
    strict_fanout: bool = False  # a listing without a node that does not answer is an error
    will_grace: Seconds = 10.0  # how long a node must be stopped before another publishes its wills
    link_credit: Bytes = 8_388_608  # bytes under way to one node
    link_queue_messages: Natural = 100_000  # that wait for one node; QoS 1 and 2
    link_queue_bytes: Bytes = 1_073_741_824
    replicas: Annotated[int, Meta(ge=0, le=2)] = 0  # copies of this node's data on other nodes
    replicas_min: Annotated[int, Meta(ge=0, le=2)] = 0  # with fewer complete copies, nothing is acknowledged
    replica_timeout: PositiveSeconds = 2.0  # an acknowledgement waits no longer for a copy
    replicas_isolated: Literal["wait", "alone"] = "wait"  # without NATS and without an answer of a copy
    failover_after: PositiveSeconds = 5.0  # without a heartbeat; then a node with a copy takes over
    rack: str = ""  # copies are preferred on nodes of another one


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str = "taipan@127.0.0.1"
    data_dir: str = "data"
    workers: Annotated[int, Meta(ge=1, le=64)] | Literal["auto"] = 1  # processes that are one broker, one for each core


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that the broker reads. ``listener_zones[i]`` is the zone of ``listeners[i]``, overrides applied."""

    node: NodeSettings = NodeSettings()
    cluster: ClusterSettings | None = None
    listeners: tuple[ListenerSettings, ...] = ()
    listener_zones: tuple[ZoneSettings, ...] = ()
    zones: dict[str, ZoneSettings] = {}
    retained: RetainedSettings = RetainedSettings()
    delayed: DelayedSettings = DelayedSettings()
    rewrite: RewriteSettings = RewriteSettings()
    auto_subscribe: AutoSubscribeSettings = AutoSubscribeSettings()
    slow_subscriptions: SlowSubscriptionsSettings = SlowSubscriptionsSettings()
    sys_topics: SysTopicsSettings = SysTopicsSettings()
    shared: SharedSettings = SharedSettings()
    access: AccessSettings = AccessSettings()
    durability: DurabilitySettings = DurabilitySettings()
    data: DataSettings = DataSettings()
    limits: LimitsSettings = LimitsSettings()
    stop: StopSettings = StopSettings()
