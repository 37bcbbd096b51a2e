"""Rules of settings that their types do not say: each fault with its place below what it is of.

Each function tells all that is wrong, and not only the first of it.
"""

import re
from collections.abc import Callable, Collection, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from taipan.broker.access.acl import AclRule
from taipan.broker.access.http import PLACEHOLDERS, check_placeholders, check_url, tls_context
from taipan.broker.access.jwt_keys import JwtKeys
from taipan.broker.access.known_hashes import parse_hash
from taipan.broker.access.saslprep import saslprep
from taipan.broker.access.scram import ScramVerifier
from taipan.broker.config import (
    AccessSettings,
    HttpAccessSettings,
    JwtSettings,
    LimitsSettings,
    ListenerSettings,
    NodeSettings,
    RuleSettings,
    TlsSettings,
    UserSettings,
    ZoneSettings,
    parse_bind,
)
from taipan.broker.core.memory import parse_limit
from taipan.ruleengine.config import RuleEngineSettings

from .settings import ManagementSettings
from .toml_lines import Path
from .validation import Fault, nearest, quoted

_SERVER_NAME_KEYS: Final = ("certfile", "keyfile", "key_password")
WEBSOCKET_KEYS: Final = ("path", "subprotocols", "subprotocol_required", "allowed_origins", "compress")
# Reason Codes of SUBACK that refuse (MQTT 5.0 table 3-8).
_SUBACK_REFUSALS: Final = (0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)
_NO_HEADER_VALUE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def binds_overlap(one: str, other: str) -> bool:
    """Whether two binds want the same port of the same address; port 0 is another one each time.

    Every address of a family (``0.0.0.0``, ``[::]``) holds each one of it, ``localhost`` is the loopback of both.
    """
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


def validate_node(node: NodeSettings) -> Iterator[Fault]:
    if not re.fullmatch(r"[\w.-]+@[\w.:-]+", node.name, re.ASCII):
        yield Fault(("name",), "expected <name>@<host>")
    if not node.data_dir or "\0" in node.data_dir:
        yield Fault(("data_dir",), "expected a directory")


def validate_limits(limits: LimitsSettings) -> Iterator[Fault]:
    yield from _unless(lambda _: parse_limit(limits.memory), str(limits.memory), ("memory",))


def validate_listener(listener: ListenerSettings, given: Collection[str]) -> Iterator[Fault]:
    """``given``: the keys that were written."""
    if not re.fullmatch(r"[\w.-]{1,64}", listener.name, re.ASCII):
        yield Fault(("name",), "expected 1 to 64 letters, digits, '_', '-' or '.'")
    yield from _unless(parse_bind, listener.bind, ("bind",))
    secure = listener.type in ("ssl", "wss")
    if secure and listener.tls is None:
        yield Fault((), f"{quoted(listener.type)} needs tls with certfile and keyfile")
    if listener.tls is not None:
        if not secure:
            yield Fault(("tls",), f"a {quoted(listener.type)} listener has no TLS; use ssl or wss")
        yield from _below(("tls",), _validate_tls(listener.tls))
    if listener.type in ("tcp", "ssl"):
        for key in WEBSOCKET_KEYS:
            if key in given:
                yield Fault((key,), "only ws and wss listeners have this key")
        return
    if not listener.path.startswith("/"):
        yield Fault(("path",), "expected a path that begins with /")
    yield from _validate_origins(listener.allowed_origins, ("*", "null"))


def _validate_origins(origins: list[str], words: Collection[str] = ()) -> Iterator[Fault]:
    """``words``: what may stand in place of an origin."""
    for index, origin in enumerate(origins):
        if origin not in words and not re.fullmatch(r"[A-Za-z][\w+.-]*://[^/\s]*", origin, re.ASCII):
            yield Fault(
                ("allowed_origins", index), 'expected an origin without a path, such as "https://app.example.org"'
            )


def _validate_tls(tls: TlsSettings) -> Iterator[Fault]:
    for key in ("certfile", "keyfile"):
        if not getattr(tls, key):
            yield Fault((key,), "expected the name of a PEM file")
    if tls.verify != "none" and not tls.cafile:
        yield Fault(("verify",), "needs cafile, the authorities that sign client certificates")
    if tls.verify == "none":
        for key in ("cafile", "crlfile", "peer_cert_as_username"):
            if getattr(tls, key):
                yield Fault((key,), "asks for client certificates, which verify does not")
    for name, files in tls.server_names.items():
        place = ("server_names", name)
        for key in files:
            if key not in _SERVER_NAME_KEYS:
                yield Fault((*place, key), f"unknown key{nearest(key, _SERVER_NAME_KEYS)}")
        for key in ("certfile", "keyfile"):
            if not files.get(key):
                yield Fault(place, f"needs {key}")


def validate_zone(zone: ZoneSettings) -> Iterator[Fault]:
    if zone.suback_denied_code not in _SUBACK_REFUSALS:
        codes = ", ".join(f"0x{code:02x}" for code in _SUBACK_REFUSALS)
        yield Fault(("suback_denied_code",), f"expected one of {codes}")
    if re.search("[+#\0]", zone.mountpoint):
        yield Fault(("mountpoint",), "expected a topic prefix without + and #")
    for key, most in (("client_id_prefix", 65_000), ("response_information", 65_535)):
        text: str = getattr(zone, key)
        if "\0" in text or not _is_text(text) or len(text.encode()) > most:
            yield Fault((key,), f"expected at most {most} bytes of UTF-8 without U+0000")
    for topic_filter in zone.queue_priorities:
        yield from _unless(_check_topic_filter, topic_filter, ("queue_priorities", topic_filter))


def validate_access(access: AccessSettings) -> Iterator[Fault]:
    """Reads the files that outside sources name."""
    names: set[str] = set()
    for index, user in enumerate(access.users):
        yield from _below(("users", index), _validate_user(user, names))
        names.add(user.username)
    for index, rule in enumerate(access.rules):
        yield from _below(("rules", index), _validate_rule(rule))
    yield from _validate_sources(access)


def _validate_user(user: UserSettings, names: set[str]) -> Iterator[Fault]:
    """``names``: those of the users before."""
    if not user.username:
        yield Fault(("username",), "expected a user name")
    if user.username in names:
        yield Fault(("username",), f"{quoted(user.username)} is there twice")
    if user.password_hash:
        yield from _unless(parse_hash, user.password_hash, ("password_hash",))
    if user.scram:
        yield from _unless(ScramVerifier.parse, user.scram, ("scram",))
        try:
            prepared: str | None = saslprep(user.username, stored=True)
        except ValueError:
            prepared = None
        if prepared != user.username:
            yield Fault(("username",), "with scram, a user name must be in its SASLprep form")


def _validate_rule(rule: RuleSettings) -> Iterator[Fault]:
    for key in ("username", "client_id"):
        if getattr(rule, key) == "":
            yield Fault((key,), "matches nobody; leave it away for everybody")
    for position, topic in enumerate(rule.topics):
        yield from _unless(_check_topic_filter, topic, ("topics", position))
    if rule.address is not None:
        yield from _unless(_check_address, rule.address, ("address",))


def _validate_sources(access: AccessSettings) -> Iterator[Fault]:
    """The order of sources, ``[access.http]`` and ``[access.jwt]``."""
    for key in ("authenticators", "authorizers"):
        order = getattr(access, key)
        if len(set(order)) < len(order):
            yield Fault((key,), "the same source twice")
    if access.http is not None:
        yield from _validate_http(access.http)
    if access.jwt is not None:
        yield from _validate_jwt(access.jwt)


def _validate_http(http: HttpAccessSettings) -> Iterator[Fault]:
    if not (http.auth_url or http.superuser_url or http.acl_url):
        yield Fault(("http",), "needs auth_url, superuser_url or acl_url")
    for what, unknown in (("auth", "At"), ("superuser", "AtP"), ("acl", "P")):
        known = "".join(letter for letter in PLACEHOLDERS if letter not in unknown)
        try:
            check_url(getattr(http, f"{what}_url"))
        except ValueError as error:
            yield Fault(("http", f"{what}_url"), str(error))
        for name, template in getattr(http, f"{what}_params").items():
            try:
                check_placeholders(known, template)
            except ValueError as error:
                yield Fault(("http", f"{what}_params", name), str(error))
    for name, value in http.headers.items():
        if not _HEADER_NAME.fullmatch(name) or _NO_HEADER_VALUE.search(value):
            yield Fault(("http", "headers", name), "expected the name and value of an HTTP header")
    try:
        tls_context(http)
    except ValueError as error:
        yield Fault(("http", "cafile"), str(error))


def _validate_jwt(jwt: JwtSettings) -> Iterator[Fault]:
    if not jwt.algorithms:
        yield Fault(("jwt", "algorithms"), "expected at least one algorithm")
    try:
        check_url(jwt.jwks_url)
    except ValueError as error:
        yield Fault(("jwt", "jwks_url"), str(error))
    if jwt.token_from == "username":
        for claim, template in jwt.verify_claims.items():
            if template == "%u" and claim != jwt.username_claim:
                yield Fault(
                    ("jwt", "verify_claims", claim), "the token is the user name: no other is there to compare with"
                )
    try:
        JwtKeys(jwt)
    except ValueError as error:
        yield Fault(("jwt",), str(error))


def validate_management(management: ManagementSettings) -> Iterator[Fault]:
    yield from _unless(parse_bind, management.bind, ("bind",))
    if management.tls is not None:
        yield from _below(("tls",), _validate_tls(management.tls))
    for index, name in enumerate(management.host_names):
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            yield Fault(("host_names", index), 'expected a name without scheme and port, such as "mqtt.example.org"')
    yield from _validate_origins(management.allowed_origins)
    names: set[str] = set()
    for index, app in enumerate(management.apps):
        place: Path = ("apps", index)
        if not re.fullmatch(r"[0-9A-Za-z][\w.-]{0,255}", app.id, re.ASCII):
            yield Fault((*place, "id"), "expected 1 to 256 letters, digits, '_', '-' or '.'")
        if app.id in names:
            yield Fault((*place, "id"), f"{quoted(app.id)} is there twice")
        names.add(app.id)
        if not app.secret:
            yield Fault((*place, "secret"), "expected a secret")


def validate_ruleengine(ruleengine: RuleEngineSettings) -> Iterator[Fault]:
    for index, network in enumerate(ruleengine.refused_networks):
        yield from _unless(ip_network, network, ("refused_networks", index))
    if ruleengine.retry_backoff_max < ruleengine.retry_backoff:
        yield Fault(("retry_backoff_max",), "is shorter than retry_backoff")


def _below(path: Path, faults: Iterator[Fault]) -> Iterator[Fault]:
    for fault in faults:
        yield fault._replace(place=path + fault.place)


def _unless(parse: Callable[[str], object], text: str, path: Path) -> Iterator[Fault]:
    """A fault unless ``parse`` takes ``text``."""
    try:
        parse(text)
    except ValueError as error:
        yield Fault(path, str(error))


def _check_topic_filter(text: str) -> None:
    AclRule(RuleSettings(allow=True, topics=[text]))


def _check_address(text: str) -> None:
    AclRule(RuleSettings(allow=True, address=text))


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: bytes of the environment that are none come in as surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
