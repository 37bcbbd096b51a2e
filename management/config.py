"""From TOML file, environment and command line to settings. Whatever is wrong is told in one line with its place.

Later wins: built-in defaults < file < environment (``TAIPAN__NODE__NAME``) < command line (``--set node.name=...``).
"""

import difflib
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from broker.access.acl import Rule
from broker.access.password import ScryptHash
from broker.access.saslprep import saslprep
from broker.access.scram import ScramVerifier
from broker.config import (
    AccessSettings,
    BrokerSettings,
    DelayedSettings,
    DurabilitySettings,
    ListenerSettings,
    NodeSettings,
    RetainedSettings,
    RuleSettings,
    SharedSettings,
    SlowSubscriptionsSettings,
    SysTopicsSettings,
    TlsSettings,
    UserSettings,
    ZoneSettings,
)
from ruleengine.config import RuleEngineSettings

from .outside_sources import faults
from .settings import ManagementSettings
from .toml_lines import Path, key_lines

ENVIRONMENT_PREFIX: Final = "TAIPAN__"
DEFAULT_ZONE: Final = "external"
_SERVER_NAME_KEYS: Final = ("certfile", "keyfile", "key_password")
_WEBSOCKET_KEYS: Final = ("path", "subprotocols", "subprotocol_required", "allowed_origins", "compress")
# Reason Codes of SUBACK that refuse (MQTT 5.0 table 3-8).
_SUBACK_REFUSALS: Final = (0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the node writes to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of every room."""

    broker: BrokerSettings
    management: ManagementSettings = ManagementSettings()
    ruleengine: RuleEngineSettings = RuleEngineSettings()
    log: LogSettings = LogSettings()


class ConfigError(Exception):
    """The configuration cannot be used. ``str(error)`` is one line: place, key, what is wrong."""


TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "node": NodeSettings,
    "durability": DurabilitySettings,
    "retained": RetainedSettings,
    "delayed": DelayedSettings,
    "slow_subscriptions": SlowSubscriptionsSettings,
    "sys_topics": SysTopicsSettings,
    "shared": SharedSettings,
    "access": AccessSettings,
    "management": ManagementSettings,
    "ruleengine": RuleEngineSettings,
    "log": LogSettings,
}
"""The plain top-level tables. ``listeners`` and ``zones`` stand beside them."""

DEFAULT_LISTENERS: Final[tuple[dict[str, str], ...]] = (
    {"name": "default", "type": "tcp", "bind": "127.0.0.1:1883"},
    {"name": "websocket", "type": "ws", "bind": "127.0.0.1:8083"},
)
"""What listens where nothing says otherwise."""


def load(path: str | None = None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Read and join the settings. ``overrides`` are ``key.path=value`` of the command line. Raises ``ConfigError``."""
    document = _Document()
    if path is not None:
        document.read_file(path)
    document.data.setdefault("listeners", [dict(listener) for listener in DEFAULT_LISTENERS])
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            document.override(keys, text, f"environment variable {name}")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {_quoted(override)}: expected key.path=value")
        document.override(key.strip().split("."), text.strip(), f"--set {key.strip()}")
    return document.settings()


def parse_bind(bind: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` in its two parts; ``ValueError`` says what is wrong."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]*)):(\d{1,5})", bind, re.ASCII)
    if found is None or int(found[3]) > 65_535:
        raise ValueError("expected host:port or [v6]:port with a port from 0 to 65535")
    host = found[1] or found[2]
    if not host:
        raise ValueError("expected a host before the port; 0.0.0.0 or [::] for every address")
    return host, int(found[3])


class _Document:
    """The joined data and where each of its keys comes from."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self._file = ""
        self._lines: dict[Path, int] = {}
        self._origins: dict[Path, str] = {}  # of what environment and command line set

    def read_file(self, path: str) -> None:
        self._file = path
        try:
            with open(path, "rb") as file:
                text = file.read().decode("utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message = str(error).replace("Invalid value", "Invalid value; text wants quotes")
            place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
            if place is None:
                raise ConfigError(f"{path}:{text.count(chr(10)) + 1}: {_one_line(message)}") from None
            raise ConfigError(f"{path}:{place[1]}: {_one_line(message[: place.start()])}") from None
        except RecursionError:
            raise ConfigError(f"{path}: nested too deeply") from None
        self._lines = key_lines(text)

    def override(self, keys: list[str], text: str, origin: str) -> None:
        """Set one key. List members go by index; the next free index adds one."""
        node: Any = self.data
        path: Path = ()
        for position, key in enumerate(keys):
            last = position == len(keys) - 1
            step: str | int = key
            if isinstance(node, list):
                if not (key.isascii() and key.isdigit() and int(key) <= len(node)):
                    raise ConfigError(f"{origin}: {_quoted(key)} is no index of {_dotted(path)} (0 to {len(node)})")
                step = int(key)
                if step == len(node):
                    node.append({})
            elif not isinstance(node, dict):
                raise ConfigError(f"{origin}: {_dotted(path)} is a value, not a table")
            path = path + (step,)
            if last:
                node[step] = _override_value(text, _type_at(path))
            elif isinstance(node, dict) and key not in node:
                node[key] = [] if _is_list(_type_at(path)) else {}
            if not last:
                node = node[step]
            self._origins[path] = origin

    def settings(self) -> Settings:
        self._check_misplaced(self.data, ())
        self._check_keys(self.data, set(TABLES) | {"listeners", "zones"}, ())
        self._check_finite(self.data, ())
        tables = {name: self._convert(self.data.get(name, {}), kind, (name,)) for name, kind in TABLES.items()}
        log, management, ruleengine = tables.pop("log"), tables.pop("management"), tables.pop("ruleengine")
        zones = self._zones()
        listeners, listener_zones = self._listeners(zones)
        settings = BrokerSettings(
            listeners=tuple(listeners), listener_zones=tuple(listener_zones), zones=zones, **tables
        )
        self._check_node(settings.node)
        self._check_access(settings.access)
        self._check_management(management)
        return Settings(broker=settings, management=management, ruleengine=ruleengine, log=log)

    def _zones(self) -> dict[str, ZoneSettings]:
        raw = self._table(self.data.get("zones", {}), ("zones",))
        self._check_misplaced(raw, ("zones",))
        zones = {DEFAULT_ZONE: ZoneSettings()}
        for name, table in raw.items():
            zones[name] = self._convert(table, ZoneSettings, ("zones", name))
            self._check_zone(zones[name], ("zones", name))
        return zones

    def _listeners(self, zones: dict[str, ZoneSettings]) -> tuple[list[ListenerSettings], list[ZoneSettings]]:
        raw = self.data["listeners"]
        if not isinstance(raw, list):
            raise self._error(("listeners",), "expected tables [[listeners]]")
        if not raw:
            raise self._error(("listeners",), "expected at least one listener")
        listeners: list[ListenerSettings] = []
        listener_zones: list[ZoneSettings] = []
        listener_keys = ListenerSettings.__struct_fields__
        zone_keys = ZoneSettings.__struct_fields__
        for index, member in enumerate(raw):
            path: Path = ("listeners", index)
            table = self._table(member, path)
            self._check_keys(table, {*listener_keys, *zone_keys}, path)
            own = {key: value for key, value in table.items() if key in listener_keys}
            listener = self._convert(own, ListenerSettings, path)
            overridden = {key: value for key, value in table.items() if key in zone_keys}
            overrides = self._convert(overridden, ZoneSettings, path)
            zone = zones.get(listener.zone)
            if zone is None:
                raise self._error(path + ("zone",), f"no zone {_quoted(listener.zone)}{_nearest(listener.zone, zones)}")
            zone = msgspec.structs.replace(zone, **{key: getattr(overrides, key) for key in overridden})
            self._check_zone(zone, path)
            self._check_listener(listener, table, path)
            for other_index, other in enumerate(listeners):
                if other.name == listener.name:
                    raise self._error(path + ("name",), f"listeners.{other_index} has this name already")
                if other.bind == listener.bind and parse_bind(listener.bind)[1] != 0:
                    raise self._error(path + ("bind",), f"listeners.{other_index} is bound to {listener.bind} already")
            listeners.append(listener)
            listener_zones.append(zone)
        return listeners, listener_zones

    def _check_listener(self, listener: ListenerSettings, table: dict[str, Any], path: Path) -> None:
        if not re.fullmatch(r"[\w.-]{1,64}", listener.name, re.ASCII):
            raise self._error(path + ("name",), "expected 1 to 64 letters, digits, '_', '-' or '.'")
        self._check(parse_bind, listener.bind, path + ("bind",))
        secure = listener.type in ("ssl", "wss")
        if secure and listener.tls is None:
            raise self._error(path, f"{_quoted(listener.type)} needs tls with certfile and keyfile")
        if listener.tls is not None:
            if not secure:
                raise self._error(path + ("tls",), f"a {_quoted(listener.type)} listener has no TLS; use ssl or wss")
            self._check_tls(listener.tls, path + ("tls",))
        if listener.type in ("tcp", "ssl"):
            for key in _WEBSOCKET_KEYS:
                if key in table:
                    raise self._error(path + (key,), "only ws and wss listeners have this key")
        elif not listener.path.startswith("/"):
            raise self._error(path + ("path",), "expected a path that begins with /")

    def _check_tls(self, tls: TlsSettings, path: Path) -> None:
        for key in ("certfile", "keyfile"):
            if not getattr(tls, key):
                raise self._error(path + (key,), "expected the name of a PEM file")
        if tls.verify != "none" and not tls.cafile:
            raise self._error(path + ("verify",), "needs cafile, the authorities that sign client certificates")
        if tls.verify == "none":
            for key in ("cafile", "crlfile", "peer_cert_as_username"):
                if getattr(tls, key):
                    raise self._error(path + (key,), "asks for client certificates, which verify does not")
        for name, files in tls.server_names.items():
            place = path + ("server_names", name)
            self._check_keys(files, set(_SERVER_NAME_KEYS), place)
            for key in ("certfile", "keyfile"):
                if not files.get(key):
                    raise self._error(place, f"needs {key}")

    def _check_zone(self, zone: ZoneSettings, path: Path) -> None:
        if zone.suback_denied_code not in _SUBACK_REFUSALS:
            codes = ", ".join(f"0x{code:02x}" for code in _SUBACK_REFUSALS)
            raise self._error(path + ("suback_denied_code",), f"expected one of {codes}")
        if re.search("[+#\0]", zone.mountpoint):
            raise self._error(path + ("mountpoint",), "expected a topic prefix without + and #")
        for key, most in (("client_id_prefix", 65_000), ("response_information", 65_535)):
            text: str = getattr(zone, key)
            if "\0" in text or not _is_text(text) or len(text.encode()) > most:
                raise self._error(path + (key,), f"expected at most {most} bytes of UTF-8 without U+0000")
        for topic_filter in zone.queue_priorities:
            place = path + ("queue_priorities", topic_filter)
            self._check(_check_topic_filter, topic_filter, place)

    def _check_node(self, node: NodeSettings) -> None:
        if not re.fullmatch(r"[\w.-]+@[\w.:-]+", node.name, re.ASCII):
            raise self._error(("node", "name"), "expected <name>@<host>")
        if not node.data_dir or "\0" in node.data_dir:
            raise self._error(("node", "data_dir"), "expected a directory")

    def _check_access(self, access: AccessSettings) -> None:
        names: set[str] = set()
        for index, user in enumerate(access.users):
            self._check_user(user, ("access", "users", index), names)
        for index, rule in enumerate(access.rules):
            self._check_rule(rule, ("access", "rules", index))
        for where, what in faults(access):
            raise self._error(("access", *where), what)

    def _check_management(self, management: ManagementSettings) -> None:
        self._check(parse_bind, management.bind, ("management", "bind"))
        if management.tls is not None:
            self._check_tls(management.tls, ("management", "tls"))
        names: set[str] = set()
        for index, app in enumerate(management.apps):
            path: Path = ("management", "apps", index)
            if not re.fullmatch(r"[0-9A-Za-z][\w.-]{0,255}", app.id, re.ASCII):
                raise self._error(path + ("id",), "expected 1 to 256 letters, digits, '_', '-' or '.'")
            if app.id in names:
                raise self._error(path + ("id",), f"{_quoted(app.id)} is there twice")
            names.add(app.id)
            if not app.secret:
                raise self._error(path + ("secret",), "expected a secret")

    def _check_user(self, user: UserSettings, path: Path, names: set[str]) -> None:
        if not user.username:
            raise self._error(path + ("username",), "expected a user name")
        if user.username in names:
            raise self._error(path + ("username",), f"{_quoted(user.username)} is there twice")
        names.add(user.username)
        if user.password_hash:
            self._check(ScryptHash.parse, user.password_hash, path + ("password_hash",))
        if user.scram:
            self._check(ScramVerifier.parse, user.scram, path + ("scram",))
            try:
                prepared: str | None = saslprep(user.username, stored=True)
            except ValueError:
                prepared = None
            if prepared != user.username:
                raise self._error(path + ("username",), "with scram, a user name must be in its SASLprep form")

    def _check_rule(self, rule: RuleSettings, path: Path) -> None:
        for key in ("username", "client_id"):
            if getattr(rule, key) == "":
                raise self._error(path + (key,), "matches nobody; leave it away for everybody")
        for position, topic in enumerate(rule.topics):
            self._check(lambda text: Rule(RuleSettings(allow=True, topics=[text])), topic, path + ("topics", position))
        if rule.address is not None:
            self._check(
                lambda address: Rule(RuleSettings(allow=True, address=address)), rule.address, path + ("address",)
            )

    def _check(self, parse: Callable[[str], object], text: str, path: Path) -> None:
        try:
            parse(text)
        except ValueError as error:
            raise self._error(path, str(error)) from None

    def _convert(self, raw: Any, kind: type[msgspec.Struct], path: Path) -> Any:
        """``raw`` as the struct ``kind``, unknown keys and wrong values told with their place."""
        self._check_struct(self._table(raw, path), kind, path)
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at `$")
            inner = _parse_path(where.rstrip("`"))
            place = path + inner
            if "[...]" in where:
                place += _wrong_member(_value_at(raw, inner), _type_at(place))
            missing = re.search(r"missing required field `(\w+)`", message)
            if missing is not None:
                raise self._error(place, f"needs the key {_quoted(missing[1])}") from None
            if message.startswith("Invalid enum value"):
                allowed = ", ".join(_quoted(str(value)) for value in _literals(_type_at(place)))
                message = f"expected one of {allowed}, got{message.removeprefix('Invalid enum value')}"
            message = message.replace("`", "").replace(" | null", "").replace("object", "table")
            if place[-1] in ("message_rate", "byte_rate"):
                message = message.replace("array of length 2", "array").replace("array", "[amount, seconds]")
            raise self._error(place, message[0].lower() + message[1:]) from None

    def _check_struct(self, table: dict[str, Any], kind: type[msgspec.Struct], path: Path) -> None:
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        if kind is not ZoneSettings or path[0] != "listeners":
            self._check_keys(table, set(fields), path)
        for key, value in table.items():
            inner = _struct_in(fields[key])
            if inner is None:
                continue
            if isinstance(value, dict):
                if _is_list(fields[key]):
                    raise self._error(path + (key,), f"expected tables [[{_dotted(path + (key,))}]]")
                self._check_struct(value, inner, path + (key,))
            elif isinstance(value, list):
                for index, member in enumerate(value):
                    if isinstance(member, dict):
                        self._check_struct(member, inner, path + (key, index))

    def _check_keys(self, table: Mapping[str, Any], known: set[str], path: Path) -> None:
        for key in table:
            if key not in known:
                raise self._error(path + (key,), f"unknown key{_nearest(key, known)}")

    def _check_misplaced(self, table: Mapping[str, Any], path: Path) -> None:
        """A zone's key that stands where zones, or the big tables, are named."""
        for key, value in table.items():
            if key in ZoneSettings.__struct_fields__ and not isinstance(value, dict):
                raise self._error(path + (key,), f"belongs into [zones.{DEFAULT_ZONE}] or into a listener")

    def _check_finite(self, value: Any, path: Path) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(path, f"expected a finite number, got {value}")
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, member in members:
            self._check_finite(member, path + (key,))

    def _table(self, raw: Any, path: Path) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise self._error(path, f"expected a table, got {type(raw).__name__}")
        return raw

    def _error(self, path: Path, what: str) -> ConfigError:
        """Name the place of ``path``, or of the nearest thing around it that was written somewhere."""
        for length in range(len(path), 0, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return ConfigError(f"{origin}: {_dotted(path)}: {what}")
            line = self._lines.get(path[:length])
            if line is not None:
                return ConfigError(f"{self._file}:{line}: {_dotted(path)}: {what}")
        return ConfigError(f"{self._file or 'configuration'}: {_dotted(path)}: {what}")


def _override_value(text: str, kind: Any) -> Any:
    """``text`` as a TOML value, as a string where it is none or where a string is what the key wants."""
    try:
        value = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if list(value) != ["value"]:
        return text
    if not isinstance(value["value"], str) and str in _union_members(kind):
        return text
    return value["value"]


def _type_at(path: Path) -> Any:
    """The type of the settings field at ``path``, ``None`` where there is no such field."""
    if not path:
        return None
    head, rest = path[0], path[1:]
    kind: Any
    if head == "listeners":
        kind = list[ListenerSettings]
    elif head == "zones":
        kind = dict[str, ZoneSettings]
    else:
        kind = TABLES.get(str(head))
    for step in rest:
        struct = _struct_of(kind)
        if struct is not None:
            fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
            if struct is ListenerSettings:
                fields = {field.name: field.type for field in msgspec.structs.fields(ZoneSettings)} | fields
            kind = fields.get(str(step))
            continue
        kind = next((found for member in _union_members(kind) if (found := _member_type(member)) is not None), None)
    return kind


def _union_members(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(part for member in typing.get_args(kind) for part in _union_members(member))
    if typing.get_origin(kind) is Literal:
        return tuple({type(value) for value in typing.get_args(kind)})
    return (kind,)


def _literals(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    return tuple(value for member in typing.get_args(kind) for value in _literals(member))


def _member_type(kind: Any) -> Any:
    """What a list, tuple or dict holds."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple) and arguments:
        return arguments[0]
    if origin is dict:
        return arguments[1]
    return None


def _is_list(kind: Any) -> bool:
    return any(typing.get_origin(member) in (list, tuple) for member in _union_members(kind))


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    for member in _union_members(kind):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field is, or is a list of."""
    return _struct_of(kind) or next(
        (found for member in _union_members(kind) if (found := _struct_of(_member_type(member))) is not None), None
    )


def _parse_path(where: str) -> Path:
    """msgspec's ``.users[0].name``; what it cannot name (``[...]``, a key of a dict) ends it."""
    path: Path = ()
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", where):
        if index == "...":
            break
        path = path + ((name,) if name else (int(index),))
    return path


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _wrong_member(value: Any, kind: Any) -> Path:
    """The keys that lead to the first member of a dict that is not what ``kind`` says."""
    if isinstance(value, dict):
        wanted = next((found for each in _union_members(kind) if (found := _member_type(each)) is not None), None)
        for key, member in value.items():
            try:
                msgspec.convert(member, wanted)
            except msgspec.ValidationError:
                return (key, *_wrong_member(member, wanted))
    return ()


def _check_topic_filter(text: str) -> None:
    Rule(RuleSettings(allow=True, topics=[text]))


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: bytes of the environment that are none come in as surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _nearest(key: str, known: Mapping[str, Any] | set[str]) -> str:
    found = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {_quoted(found[0])}?" if found else ""


def _dotted(path: Path) -> str:
    return ".".join(
        str(step) if isinstance(step, int) or re.fullmatch(r"[\w-]+", step, re.ASCII) else _quoted(step)
        for step in path
    )


def _quoted(text: str) -> str:
    """In double quotes, control characters escaped, so that an error stays one line."""
    return '"' + _one_line(text).replace('"', '\\"') + '"'


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
