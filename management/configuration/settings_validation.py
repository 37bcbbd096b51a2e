"""Rules of settings that their types do not express: for single values, and between several keys.

Each rule yields all faults, not only the first one, with places relative to its value."""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

from taipan.broker.access.acl import AclRule
from taipan.broker.access.declaration import AccessSource
from taipan.broker.access.foreign_hashes import read_hash
from taipan.broker.access.installed import guarded
from taipan.broker.access.registry import ACCESS_SOURCES, sources_of, table_of
from taipan.broker.access.saslprep import saslprep
from taipan.broker.access.scram import ScramVerifier
from taipan.broker.config import (
    AccessSettings,
    AutoSubscribeSettings,
    ClusterSettings,
    LimitsSettings,
    ListenerSettings,
    ListenerTlsSettings,
    NodeSettings,
    RewriteSettings,
    RuleSettings,
    TlsSettings,
    UserSettings,
    ZoneSettings,
    parse_bind,
)
from taipan.broker.core.memory import MIN_BUDGET, parse_limit
from taipan.broker.core.rewrite_rules import rule_faults
from taipan.broker.core.subscription_plan import topic_faults
from taipan.broker.gateway import GATEWAYS, GatewayLoadError, kind_names, kind_of
from taipan.broker.listener_kinds import LISTENER_KINDS, MAX_SOCKET_PATH, words
from taipan.broker.observability.masking import mask_text
from taipan.broker.setting_rules import ValueRule, below, check_url, filled, parsed
from taipan.ruleengine.config import ExhookServer, ExhookSettings, RuleEngineSettings, WebHookRule, WebHookSettings

from . import openid
from .openid import OpenIdSettings
from .settings import AppSettings, DashboardSettings, ManagementSettings
from .validation import Fault, ValueRules, quoted, shown, unknown_keys

LEAST_MEMORY: Final = MIN_BUDGET
"""Bytes that ``limits.memory`` must have at least."""
_SERVER_NAME_KEYS: Final = ("certfile", "keyfile", "key_password")
# Reason Codes of SUBACK that refuse (MQTT 5.0 table 3-8).
_SUBACK_REFUSALS: Final = (0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NATS_SERVER: Final = re.compile(r"(nats|tls)://(?:\[([0-9A-Fa-f:.]+)\]|[\w.-]+)(?::(\d{1,5}))?", re.ASCII)


def binds_overlap(one: str, other: str) -> bool:
    """Return whether two binds use the same port of the same address; port 0 is a different port each time.

    Wildcard addresses (``0.0.0.0``, ``[::]``) include every address of their family, and ``localhost`` means the
    loopback of both. Two paths overlap if they are the same file."""
    if one.startswith("/") and other.startswith("/"):
        return posixpath.normpath(one) == posixpath.normpath(other)
    try:
        (host, port), (other_host, other_port) = parse_bind(one), parse_bind(other)
    except ValueError:
        return False
    if port != other_port or port == 0:
        return False
    if host.lower() == other_host.lower():
        return True
    return any(
        a == b or (a.version == b.version and 0 in (int(a), int(b)))
        for a in _addresses(host)
        for b in _addresses(other_host)
    )


def _addresses(host: str) -> list[IPv4Address | IPv6Address]:
    if host.lower() == "localhost":
        return [ip_address("127.0.0.1"), ip_address("::1")]
    try:
        return [ip_address(host.partition("%")[0])]
    except ValueError:
        return []


# Values


def _like(pattern: str, words: str) -> ValueRule:
    """Return a rule for text of this form, which ``words`` describe."""
    form = re.compile(pattern, re.ASCII)

    def check(value: str) -> Iterator[Fault]:
        if form.fullmatch(value) is None:
            yield Fault((), f"expected {words}, got {shown(value)}")

    return check


def _each(rule: ValueRule) -> ValueRule:
    """Return a rule that applies to every member of a list."""

    def check(value: list[Any]) -> Iterator[Fault]:
        for index, member in enumerate(value):
            yield from below((index,), rule(member))

    return check


def _each_key(rule: ValueRule) -> ValueRule:
    def check(value: dict[str, object]) -> Iterator[Fault]:
        for key in value:
            yield from below((key,), rule(key))

    return check


def _utf8(most: int) -> ValueRule:
    def check(value: str) -> Iterator[Fault]:
        if "\0" in value or not _is_text(value) or len(value.encode()) > most:
            yield Fault((), f"expected at most {most} bytes of UTF-8 without U+0000")

    return check


def _mountpoint(value: str) -> Iterator[Fault]:
    if "+" in value or "#" in value:
        yield Fault((), f"expected a topic prefix without + and #, got {shown(value)}")
    else:
        yield from _utf8(65_000)(value)  # a topic is to fit in, too


def _is_text(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: invalid bytes of the environment arrive as surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _suback_refusal(value: int) -> Iterator[Fault]:
    if value not in _SUBACK_REFUSALS:
        yield Fault((), f"expected one of {', '.join(f'0x{code:02x}' for code in _SUBACK_REFUSALS)}")


_PATH: Final = _like(r"/[\s\S]*", "a path that begins with /")
_PATH_OR_ANY: Final = _like(r"/[\s\S]*|\*", 'a path that begins with /, or "*" for any')


def _paths(value: str | list[str]) -> Iterator[Fault]:
    """Check one path or several; any path is a separate text."""
    if isinstance(value, str):
        yield from _PATH_OR_ANY(value)
        return
    if not value:
        yield Fault((), "expected at least one path")
    yield from _each(_PATH)(value)
    for index, path in enumerate(value):
        if path.rstrip("/") in [each.rstrip("/") for each in value[:index]]:
            yield Fault((index,), "the path occurs twice")


def _server_names(value: dict[str, dict[str, str]]) -> Iterator[Fault]:
    for name, files in value.items():
        yield from below((name,), unknown_keys(files, _SERVER_NAME_KEYS, ()))
        for key in ("certfile", "keyfile"):
            if not files.get(key):
                yield Fault((name,), f"needs {key}")


def _listener_type(value: str) -> Iterator[Fault]:
    try:
        if kind_of(value) is None:
            yield Fault((), f"expected one of {', '.join(map(quoted, kind_names()))}, got {shown(value)}")
    except GatewayLoadError as error:
        yield Fault((), str(error))


def _somebody(value: str) -> Iterator[Fault]:
    if not value:
        yield Fault((), "matches no client; omit it to match all clients")


def _once_each(value: list[str]) -> Iterator[Fault]:
    if len(set(value)) < len(value):
        yield Fault((), "the source occurs twice")


def _servers(value: list[str]) -> Iterator[Fault]:
    if not value:
        yield Fault((), "expected at least one NATS server")
    for index, url in enumerate(value):
        found = _NATS_SERVER.fullmatch(url)
        if found is None or not 0 < int(found[3] or 4222) <= 65_535 or not _is_ipv6(found[2] or "::"):
            got = shown(mask_text(url))
            yield Fault((index,), f"expected nats://host:port or tls://host:port, got {got}")
        elif url in value[:index]:
            yield Fault((index,), "the server occurs twice")
        elif found[1] != value[0].partition("://")[0] and _NATS_SERVER.fullmatch(value[0]):
            yield Fault((index,), "nats:// and tls:// cannot be mixed")


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _at_least(least: int, unit: str) -> ValueRule:
    def check(value: float) -> Iterator[Fault]:
        if value < least:
            yield Fault((), f"expected at least {least} {unit}")

    return check


_ORIGIN: Final = r"[A-Za-z][\w+.-]*://[^/\s]*"
_ORIGIN_WORDS: Final = 'an origin without a path, such as "https://app.example.org"'
_NAME: Final = "letters, digits, '_', '-' or '.'"
_PEM_FILE: Final = filled("the name of a PEM file")
_TOPIC_FILTER: Final = parsed(lambda text: AclRule(RuleSettings(allow=True, topics=[text])))
_HOST_AND_PORT: Final = parsed(parse_bind)


def _bind(value: str) -> Iterator[Fault]:
    yield from _socket_path(value) if value.startswith("/") else _HOST_AND_PORT(value)


def _socket_path(value: str) -> Iterator[Fault]:
    if not value.startswith("/") or value.endswith("/") or "\0" in value:
        yield Fault((), "expected the path of the socket, such as /run/taipan/mqtt.sock")
    elif not _is_text(value) or len(value.encode()) > MAX_SOCKET_PATH:
        yield Fault((), f"expected a path of at most {MAX_SOCKET_PATH} bytes: the system accepts no longer path")


def rules_of_sources(sources: Iterable[AccessSource]) -> ValueRules:
    """Return the rules of the values in ``[access.<name>]``."""
    return {
        source.settings: {key: guarded(source, rule) for key, rule in source.rules.items()}
        for source in sources
        if source.settings is not None
    }


def _topic_or_empty(value: str) -> Iterator[Fault]:
    if value:
        yield from _TOPIC_FILTER(value)


VALUE_RULES: Final[ValueRules] = {
    **rules_of_sources(ACCESS_SOURCES),
    NodeSettings: {
        "name": _like(r"[\w.-]+@[\w.:-]+", "<name>@<host>"),
        "data_dir": _like(r"[^\0]+", "a directory"),
    },
    LimitsSettings: {"memory": parsed(parse_limit)},
    ListenerSettings: {
        "name": _like(r"[\w.-]{1,64}", f"1 to 64 {_NAME}"),
        "type": _listener_type,
        "bind": _bind,
        "path": _paths,
        "socket_mode": _like("0?[0-7]{3}", 'a mode in octal digits, such as "0660"'),
        "allowed_origins": _each(_like(rf"\*|null|{_ORIGIN}", _ORIGIN_WORDS)),
    },
    ListenerTlsSettings: {"server_names": _server_names},
    TlsSettings: {"certfile": _PEM_FILE, "keyfile": _PEM_FILE, "server_names": _server_names},
    ZoneSettings: {
        "suback_denied_code": _suback_refusal,
        "mountpoint": _mountpoint,
        "client_id_prefix": _utf8(65_000),
        "response_information": _utf8(65_535),
        "queue_priorities": _each_key(_TOPIC_FILTER),
    },
    ClusterSettings: {
        "servers": _servers,
        "name": _like(r"[\w-]{1,64}", "1 to 64 letters, digits, '_' or '-'"),
        "suspect_after": _at_least(2, "seconds: every node announces itself once a second"),
        "link_credit": _at_least(65_536, "bytes"),
    },
    AccessSettings: {"authenticators": _once_each, "authorizers": _once_each},
    UserSettings: {
        "username": filled("a username"),
        "password_hash": parsed(read_hash, empty=True),
        "scram": parsed(ScramVerifier.parse, empty=True),
    },
    RuleSettings: {
        "username": _somebody,
        "client_id": _somebody,
        "topics": _each(_TOPIC_FILTER),
        "address": parsed(lambda text: AclRule(RuleSettings(allow=True, address=text))),
    },
    ManagementSettings: {
        "bind": parsed(parse_bind),
        "host_names": _each(_like(r"[\w.-]+", 'a name without scheme and port, such as "mqtt.example.org"')),
        "allowed_origins": _each(_like(_ORIGIN, _ORIGIN_WORDS)),
    },
    DashboardSettings: {"bind": parsed(parse_bind), "static_dir": _like(r"[^\0]*", "a directory")},
    OpenIdSettings: openid.VALUE_RULES,
    AppSettings: {
        "id": _like(r"[0-9A-Za-z][\w.-]{0,255}", f"1 to 256 {_NAME}"),
        "secret": filled("a secret"),
    },
    WebHookSettings: {"url": parsed(check_url)},
    ExhookServer: {"name": _like(r"[\w.-]{1,64}", f"1 to 64 {_NAME}"), "url": parsed(check_url)},
    WebHookRule: {"topic": _topic_or_empty},
    RuleEngineSettings: {"refused_networks": _each(parsed(ip_network))},
}
"""The requirements of values beyond their types, by struct and key."""


# Rules between several keys, for structs with valid types


def validate_auto_subscribe(settings: AutoSubscribeSettings) -> Iterator[Fault]:
    """Checks filters, and options that exclude each other."""
    for index, topic in enumerate(settings.topics):
        for key, what in topic_faults(topic):
            yield Fault(("topics", index, key), what)


def validate_exhook(settings: ExhookSettings) -> Iterator[Fault]:
    """Checks names, files, and whether the libraries are installed."""
    if not settings.servers:
        return
    try:
        from taipan.broker.access.exhook.client import ProviderAddress, address_faults
    except ImportError as error:
        yield Fault(("servers",), f"needs a package that is not installed ({error}): pip install 'taipan-mqtt[exhook]'")
        return
    names: set[str] = set()
    for index, each in enumerate(settings.servers):
        if each.name in names:
            yield Fault(("servers", index, "name"), "another provider has this name")
        names.add(each.name)
        for key, what in address_faults(ProviderAddress(each.url, each.cacertfile, each.certfile, each.keyfile)):
            yield Fault(("servers", index, key), what)


def validate_web_hook(settings: WebHookSettings) -> Iterator[Fault]:
    """Checks what belongs together."""
    if "@" in settings.url.partition("://")[2].partition("/")[0]:
        yield Fault(("url",), "put credentials into an authorization header")
    if bool(settings.certfile) != bool(settings.keyfile):
        yield Fault(("certfile",), "certfile and keyfile must be set together")
    for name, value in settings.headers.items():
        if not _HEADER.fullmatch(name) or any(each in value for each in "\r\n\0"):
            yield Fault(("headers", name), "expected the name and the value of an HTTP header")
    for index, rule in enumerate(settings.rules):
        if rule.topic and not rule.has_topic:
            yield Fault(("rules", index, "topic"), f"{rule.event} has no topic")


def validate_rewrite(rewrite: RewriteSettings) -> Iterator[Fault]:
    """Compiles the regular expressions of the rules."""
    for index, rule in enumerate(rewrite.rules):
        for key, what in rule_faults(rule):
            yield Fault(("rules", index, key), what)


def _secure_kinds(kind: str) -> list[str]:
    """Return the types of listeners with TLS for the clients of a type without: for ``coap`` it is ``coaps``."""
    if kind in GATEWAYS:
        return [f"{kind}s"] if f"{kind}s" in kind_names() else []
    return [name for name, each in LISTENER_KINDS.items() if each.tls and name not in GATEWAYS]


def validate_listener(listener: ListenerSettings, given: Collection[str]) -> Iterator[Fault]:
    """``given``: the keys that were written."""
    kind = LISTENER_KINDS.get(listener.type)
    if kind is None:
        return
    if kind.local != listener.bind.startswith("/"):  # ``VALUE_RULES`` checks each form separately
        yield from below(("bind",), _socket_path(listener.bind) if kind.local else _HOST_AND_PORT(listener.bind))
    if kind.tls and listener.tls is None:
        yield Fault((), f"{quoted(listener.type)} needs tls with certfile and keyfile, or with psk_file")
    if listener.tls is not None:
        if not kind.tls:
            advice = f"; use {words(secure)}" if (secure := _secure_kinds(listener.type)) else ""
            yield Fault(("tls",), f"a {quoted(listener.type)} listener has no TLS{advice}")
        yield from below(("tls",), _validate_listener_tls(listener.tls))
    gateway = GATEWAYS.get(listener.type)
    if gateway is not None:
        try:
            gateway.settings_from(listener.gateway)
        except GatewayLoadError as error:
            yield Fault(("gateway",), str(error))
    elif listener.gateway:
        yield Fault(("gateway",), "only listeners of gateways have this key")
    for key, those in kind.unused_keys().items():
        if key in given:
            yield Fault((key,), f"only {those} listeners accept this key")


def _validate_listener_tls(tls: ListenerTlsSettings) -> Iterator[Fault]:
    for key, why in tls.psk_faults():
        yield Fault((key,), why)
    if tls.psk_file:
        return
    for key in ("certfile", "keyfile"):
        if not getattr(tls, key):
            yield Fault((), f"needs {key}, or psk_file in place of certificates")
    yield from _validate_tls(tls)


def _validate_tls(tls: TlsSettings) -> Iterator[Fault]:
    if tls.verify != "none" and not tls.cafile:
        yield Fault(("verify",), "needs cafile, the authorities that sign client certificates")
    if tls.verify == "none":
        for key in ("cafile", "crlfile", "peer_cert_as_username"):
            if getattr(tls, key):
                yield Fault((key,), "requests client certificates, which verify does not")


def validate_access(access: AccessSettings, given: Collection[str]) -> Iterator[Fault]:
    """Reads the files that the tables of sources name. ``given``: the keys that were written."""
    names: set[str] = set()
    for index, user in enumerate(access.users):
        yield from below(("users", index), _validate_user(user, names))
        names.add(user.username)
    for index, rule in enumerate(access.rules):
        if rule.anonymous and rule.username is not None:
            yield Fault(("rules", index, "anonymous"), "an anonymous client has no username: omit one of the two")
    for source in sources_of(access):
        table = table_of(access, source)
        if table is not None:
            yield from below((source.name,), guarded(source, source.faults)(table))
        elif source.settings is not None and source not in ACCESS_SOURCES:
            for key in ("authenticators", "authorizers"):
                if key in given and source.name in getattr(access, key):
                    yield Fault((key,), f"{quoted(source.name)} needs the table [access.{source.name}]")


def _validate_user(user: UserSettings, names: set[str]) -> Iterator[Fault]:
    """``names``: the names of the users before this one."""
    if user.username in names:
        yield Fault(("username",), f"{quoted(user.username)} occurs twice")
    if user.scram:
        try:
            prepared: str | None = saslprep(user.username, stored=True)
        except ValueError:
            prepared = None
        if prepared != user.username:
            yield Fault(("username",), "with scram, a username must be in SASLprep form")


def validate_cluster(cluster: ClusterSettings) -> Iterator[Fault]:
    """The contents of the files are checked by ``configuration_check`` and at the start."""
    given = [key for key in ("user", "token", "nkey_file", "credentials_file") if getattr(cluster, key)]
    for key in given[1:]:
        yield Fault((key,), f"{given[0]} already identifies this node")
    if cluster.password and not cluster.user:
        yield Fault(("password",), "needs user")
    for key in ("tls_ca", "tls_cert", "tls_key"):
        if getattr(cluster, key) and not cluster.servers[0].startswith("tls://"):
            yield Fault((key,), "requires servers with tls://")
    if bool(cluster.tls_cert) != bool(cluster.tls_key):
        yield Fault(("tls_cert",) if cluster.tls_cert else ("tls_key",), "needs both tls_cert and tls_key")
    if not cluster.tls_verify and cluster.tls_ca:
        yield Fault(("tls_ca",), "has no effect without tls_verify")
    if cluster.stopped_after <= cluster.suspect_after:
        yield Fault(("stopped_after",), "must be longer than suspect_after")
    if cluster.replicas_min > cluster.replicas:
        yield Fault(("replicas_min",), "must not be greater than replicas")
    if cluster.replicas and cluster.replica_timeout >= cluster.stopped_after:
        yield Fault(("replica_timeout",), "must be shorter than stopped_after")
    if cluster.replicas and cluster.failover_after <= cluster.suspect_after:
        yield Fault(("failover_after",), "must be greater than suspect_after")


def validate_management(management: ManagementSettings) -> Iterator[Fault]:
    if management.tls is not None:
        yield from below(("tls",), _validate_tls(management.tls))
    names: set[str] = set()
    for index, app in enumerate(management.apps):
        if app.id in names:
            yield Fault(("apps", index, "id"), f"{quoted(app.id)} occurs twice")
        names.add(app.id)


def validate_dashboard(dashboard: DashboardSettings) -> Iterator[Fault]:
    if dashboard.tls is not None:
        yield from below(("tls",), _validate_tls(dashboard.tls))
    if dashboard.openid is not None:
        yield from below(("openid",), openid.validate(dashboard.openid))


def validate_ruleengine(ruleengine: RuleEngineSettings) -> Iterator[Fault]:
    if ruleengine.retry_backoff_max < ruleengine.retry_backoff:
        yield Fault(("retry_backoff_max",), "must not be shorter than retry_backoff")
