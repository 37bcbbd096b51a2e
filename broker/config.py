"""The broker's own settings, with their defaults. ``management/configuration`` reads and joins them.

Defaults are EMQX 4.x's where it has the setting, else those of ``docs/configuration.md``. Every field here is a key of
the configuration file; its docstring comment is the reference text.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

SharedStrategy = Literal["random", "round_robin", "round_robin_per_group", "sticky", "hash_clientid", "hash_topic"]
AccessSource = Literal["configuration", "stored", "jwt", "http"]
HttpMethod = Literal["post", "get"]
JwtAlgorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


Count = Annotated[int, Meta(ge=0)]
Natural = Annotated[int, Meta(ge=1)]
Uint16 = Annotated[int, Meta(ge=0, le=65_535)]
Uint32 = Annotated[int, Meta(ge=0, le=4_294_967_295)]
Seconds = Annotated[float, Meta(ge=0, extra={"unit": "seconds"})]
PositiveSeconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
PositiveBytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]
# The standard has no larger packets.
PacketSize = Annotated[int, Meta(ge=1, le=268_435_460, extra={"unit": "bytes"})]
Rate = Annotated[tuple[Natural, PositiveSeconds], Meta(extra={"expected": "[amount, seconds], both more than 0"})]

_BIND: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]*)):(\d{1,5})", re.ASCII)


def parse_bind(bind: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` in its two parts; ``ValueError`` says what is wrong."""
    found = _BIND.fullmatch(bind)
    if found is None or int(found[3]) > 65_535:
        raise ValueError("expected host:port or [v6]:port with a port from 0 to 65535")
    host = found[1] or found[2]
    if not host:
        raise ValueError("expected a host before the port; 0.0.0.0 or [::] for every address")
    return host, int(found[3])


class ZoneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits and habits a listener gives its clients. A listener names its zone and may override any key."""

    # Who may connect
    allow_anonymous: bool | None = None  # None: only on a listener bound to loopback
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
    # Keep alive
    server_keep_alive: Annotated[int, Meta(ge=0, le=65_535, extra={"unit": "seconds"})] = (
        0  # 0: the client's value; else the longest that is accepted, in seconds
    )
    server_keep_alive_v3: bool = False  # also shorten it for 3.x clients, who cannot be told
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
    # be told, and send all they have at once when they come back.
    max_awaiting_rel: Uint16 = 65_535
    await_rel_timeout: PositiveSeconds = 300.0
    retry_interval: Seconds = 0.0  # 3.x only; 0: retransmit on reconnect only
    # The longest a 5.0 client may ask for, and what 3.x sessions get; 0xFFFFFFFF: for ever
    session_expiry_interval: Annotated[int, Meta(ge=0, le=4_294_967_295, extra={"unit": "seconds"})] = 7200
    max_queued_messages: Count | None = None  # 0: no limit; None: 100,000 at level disk, 1,000 at memory
    max_queued_bytes: Bytes = 67_108_864  # 0: no limit
    queue_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    queue_qos0: bool = False
    queue_priorities: dict[str, Annotated[int, Meta(ge=1, le=255)]] = {}  # topic filter -> 1..255
    queue_default_priority: Annotated[int, Meta(ge=0, le=255)] = 0
    ignore_loop_deliver: bool = False  # No Local for clients that cannot ask for it
    max_outbox_bytes: PositiveBytes = 16_777_216  # waiting for a slow reader's socket; beyond it QoS 0 is dropped
    slow_reader_timeout: Seconds = 60.0  # a full socket that takes less than 1 KiB in so long is closed; 0: never
    # Outgoing topic aliases: how many per connection, within the client's maximum; 0: none
    max_outgoing_topic_alias: Uint16 = 16
    response_information: str = ""  # told to 5.0 clients that ask for it
    # Access
    enable_acl: bool = True
    acl_deny_action: Literal["ignore", "disconnect"] = "ignore"
    subscribe_check: Literal["filter", "delivery"] = "filter"  # what rules are asked about: all of it, or each message
    suback_denied_code: int = 0x87  # the 5.0 Reason Code of a refused subscription; 3.x has only 0x80
    # Flapping: who loses its connection so often within the window is banned; 0: nobody
    flapping_threshold: Count = 0
    flapping_window: PositiveSeconds = 60.0
    flapping_ban: PositiveSeconds = 300.0
    # Limits per client: [amount, seconds]; None: no limit
    message_rate: Rate | None = None
    byte_rate: Rate | None = None


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Certificates of an ssl or wss listener, PEM files."""

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
    tls: TlsSettings | None = None


def listener_labels(listeners: Iterable[ListenerSettings]) -> list[str]:
    """What each is called, and what ``ClientInfo.listener`` has: its name, with its type before it where that is
    taken."""
    labels: list[str] = []
    for listener in listeners:
        label = listener.name
        labels.append(f"{listener.type}:{label}" if label in labels else label)
    return labels


class RetainedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on retained messages of the whole node."""

    max_messages: Count = 1_000_000  # 0: no limit
    max_payload_size: Bytes = 1_048_576  # 0: no limit
    max_bytes: Bytes = 1_073_741_824  # of all of them, with about 600 for each beside topic and payload; 0: no limit
    expiry_interval: Seconds = 0.0  # seconds after which any retained message goes; 0: never
    check_source: bool = False  # check_retain_source


class DelayedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``$delayed/<seconds>/<topic>``."""

    enabled: bool = True
    max_messages: Count = 100_000  # 0: no limit
    max_bytes: Bytes = 268_435_456
    max_seconds: Annotated[int, Meta(ge=1, le=4_294_967_295)] = 4_294_967


class SlowSubscriptionsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who takes long to acknowledge. Seconds."""

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
    """One access rule; the first that matches decides. All conditions given must hold; none given: everybody."""

    allow: bool
    action: Literal["publish", "subscribe", "pubsub"] = "pubsub"
    topics: list[str] = []  # filters with %c and %u; "eq <filter>" compares to the letter; empty: every topic
    username: str | None = None
    client_id: str | None = None
    address: str | None = None  # an address or a network in CIDR form
    anonymous: bool = False  # only clients that have proved neither a user name nor their identifier
    listener: str | None = None  # the name of the one that the client came by


class HttpAccessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A service asked by HTTP. Values of the ``..._params`` are texts with placeholders, see ``access.http``."""

    auth_url: str = ""  # empty: not asked
    auth_method: HttpMethod = "post"
    auth_params: dict[str, str] = msgspec.field(
        default_factory=lambda: {"clientid": "%c", "username": "%u", "password": "%P"}
    )
    superuser_url: str = ""
    superuser_method: HttpMethod = "post"
    superuser_params: dict[str, str] = msgspec.field(default_factory=lambda: {"clientid": "%c", "username": "%u"})
    acl_url: str = ""
    acl_method: HttpMethod = "post"
    acl_params: dict[str, str] = msgspec.field(
        default_factory=lambda: {
            "access": "%A",
            "username": "%u",
            "clientid": "%c",
            "ipaddr": "%a",
            "topic": "%t",
            "mountpoint": "%m",
        }
    )
    body: Literal["form", "json"] = "form"
    headers: dict[str, str] = {}
    timeout: PositiveSeconds = 5.0  # of a question, the wait for a connection included
    connect_timeout: PositiveSeconds = 5.0
    pool_size: Annotated[int, Meta(ge=1, le=10_000)] = 32
    on_failure: Literal["deny", "ignore"] = "deny"
    tls_verify: bool = True
    cafile: str = ""


class JwtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """JSON Web Tokens, verified by a secret, a public key or a set of keys."""

    token_from: Literal["password", "username"] = "password"
    algorithms: tuple[JwtAlgorithm, ...] = ("HS256", "RS256", "ES256")
    secret: str = ""
    secret_base64: bool = False
    public_key_file: str = ""
    jwks_file: str = ""
    jwks_url: str = ""
    jwks_refresh: Annotated[float, Meta(ge=5, extra={"unit": "seconds"})] = 300.0
    leeway: Seconds = 0.0
    verify_claims: dict[str, str] = msgspec.field(default_factory=lambda: {"sub": "%u"})
    username_claim: str = "sub"  # the user name of a client that gave none
    acl_claim: str = "acl"


class AccessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    # The order in which they are asked; those that are not set up have nothing to say.
    authenticators: tuple[AccessSource, ...] = ("configuration", "stored", "jwt", "http")
    authorizers: tuple[AccessSource, ...] = ("stored", "configuration", "jwt", "http")
    unknown_user: Literal["refuse", "anonymous"] = "refuse"  # a user name that is nobody's, where there are users
    users: list[UserSettings] = []
    rules: list[RuleSettings] = []
    no_match: Literal["allow", "deny"] = "allow"  # where no rule says anything
    # Who may take over a session by its Client Identifier: the user who made it, or any client
    session_owner: Literal["user", "any"] = "user"
    cache: bool = True
    cache_max_size: Natural = 32  # topics a client
    cache_ttl: PositiveSeconds = 60.0
    hash_threads: Annotated[int, Meta(ge=1, le=64)] | None = None  # None: one for each processor
    hash_wait: PositiveSeconds = 300.0  # how long a password may wait for a thread
    guesses: Count = 10  # wrong passwords a minute of an address or for a user name that are not slowed; 0: none is
    guess_delay: PositiveSeconds = 5.0  # how long the next attempts wait at most
    hash_cost: Annotated[int, Meta(ge=10, le=17)] = 14  # of new hashes: scrypt's N is 2 to this power
    jwt: JwtSettings | None = None
    http: HttpAccessSettings | None = None


class DurabilitySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    level: Literal["memory", "disk"] = "disk"
    queue_memory: Bytes = 268_435_456  # of queued messages; beyond it their bodies are on disk only; 0: no limit


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a start does about a store that lacks what it had."""

    # Users, access rules, bans or applications: let in nobody but operators until they accept that, or go on
    access_lost: Literal["refuse", "accept"] = "refuse"


class LimitsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the node may use."""

    # Bytes, or a part ("50%", "0.5") of the memory that the machine or the process' cgroup has
    memory: int | str = "50%"


class StopSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a graceful stop does."""

    # With the wills of those who are connected: publish them now, or at the next start (level disk)
    wills: Literal["publish", "keep"] = "publish"


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Several nodes as one broker, over NATS servers that run beside them."""

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


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str = "taipan@127.0.0.1"
    data_dir: str = "data"


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that the broker reads. ``listener_zones[i]`` is the zone of ``listeners[i]``, overrides applied."""

    node: NodeSettings = NodeSettings()
    cluster: ClusterSettings | None = None
    listeners: tuple[ListenerSettings, ...] = ()
    listener_zones: tuple[ZoneSettings, ...] = ()
    zones: dict[str, ZoneSettings] = {}
    retained: RetainedSettings = RetainedSettings()
    delayed: DelayedSettings = DelayedSettings()
    slow_subscriptions: SlowSubscriptionsSettings = SlowSubscriptionsSettings()
    sys_topics: SysTopicsSettings = SysTopicsSettings()
    shared: SharedSettings = SharedSettings()
    access: AccessSettings = AccessSettings()
    durability: DurabilitySettings = DurabilitySettings()
    data: DataSettings = DataSettings()
    limits: LimitsSettings = LimitsSettings()
    stop: StopSettings = StopSettings()
