"""Settings from TOML file, environment and command line. Each error is reported in one line with its place.

Later sources override earlier ones: built-in defaults < file < environment (``TAIPAN__NODE__NAME``) < command line
(``--set node.name=...``)."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, Literal, NamedTuple

import msgspec

from taipan.broker.access.declaration import AccessSource
from taipan.broker.access.installed import installed_source
from taipan.broker.access.registry import ACCESS_SOURCES, access_settings, written_type
from taipan.broker.config import (
    AccessSettings,
    AutoSubscribeSettings,
    BrokerSettings,
    ClusterSettings,
    DataSettings,
    DelayedSettings,
    DurabilitySettings,
    LimitsSettings,
    ListenerSettings,
    NodeSettings,
    RetainedSettings,
    RewriteSettings,
    SharedSettings,
    SlowSubscriptionsSettings,
    StopSettings,
    SysTopicsSettings,
    ZoneSettings,
    listener_labels,
)
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.ruleengine.config import ExhookSettings, RuleEngineSettings, WebHookSettings

from .config_document import ConfigDocument, ConfigError, Origin, Origins
from .settings import DashboardSettings, HistorySettings, ManagementSettings
from .settings_validation import (
    VALUE_RULES,
    binds_overlap,
    rules_of_sources,
    validate_access,
    validate_auto_subscribe,
    validate_cluster,
    validate_dashboard,
    validate_exhook,
    validate_listener,
    validate_management,
    validate_rewrite,
    validate_ruleengine,
    validate_web_hook,
)
from .toml_lines import KeyPath
from .validation import Fault, nearest, quoted, shown

ENVIRONMENT_PREFIX: Final = "TAIPAN__"
DEFAULT_ZONE: Final = "external"


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of the log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of every part: broker, rule engine, management, dashboard, history."""

    broker: BrokerSettings
    management: ManagementSettings = ManagementSettings()
    dashboard: DashboardSettings = DashboardSettings()
    history: HistorySettings = HistorySettings()
    ruleengine: RuleEngineSettings = RuleEngineSettings()
    webhook: WebHookSettings = WebHookSettings()
    exhook: ExhookSettings = ExhookSettings()
    log: LogSettings = LogSettings()


class Loaded(NamedTuple):
    """Settings, and the origin of each key."""

    settings: Settings
    origins: Origins


TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "node": NodeSettings,
    "durability": DurabilitySettings,
    "data": DataSettings,
    "limits": LimitsSettings,
    "stop": StopSettings,
    "retained": RetainedSettings,
    "delayed": DelayedSettings,
    "rewrite": RewriteSettings,
    "auto_subscribe": AutoSubscribeSettings,
    "slow_subscriptions": SlowSubscriptionsSettings,
    "sys_topics": SysTopicsSettings,
    "shared": SharedSettings,
    "access": AccessSettings,
    "cluster": ClusterSettings,
    "management": ManagementSettings,
    "dashboard": DashboardSettings,
    "history": HistorySettings,
    "ruleengine": RuleEngineSettings,
    "webhook": WebHookSettings,
    "exhook": ExhookSettings,
    "log": LogSettings,
}
"""The plain top-level tables. ``listeners`` and ``zones`` are separate."""
OPTIONAL_TABLES: Final = ("cluster",)
"""Tables whose absence has a meaning."""

SETTING_TYPES: Final[dict[str, object]] = {
    **TABLES,
    "listeners": list[ListenerSettings],
    "zones": dict[str, ZoneSettings],
}

DEFAULT_LISTENERS: Final[tuple[dict[str, str], ...]] = (
    {"name": "default", "type": "tcp", "bind": "127.0.0.1:1883"},
    {"name": "websocket", "type": "ws", "bind": "127.0.0.1:8083"},
)
"""The listeners if none is configured."""


def load(path: str | None = None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Read and join the settings. ``overrides`` are ``key.path=value`` of the command line. Raises ``ConfigError``."""
    return read(path, overrides, environ).settings


def read(
    path: str | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    again: bool = False,
    contents: bytes | None = None,
) -> Loaded:
    """Do the same as ``load``, and return the origin of each key. ``again``: a running node reads the file for a
    reload. ``contents``: the contents to use instead of the file's."""
    document = ConfigDocument(SETTING_TYPES, VALUE_RULES)
    if path is not None and contents is not None:
        document.read_bytes(path, contents)
    elif path is not None:
        if again and path == "-":
            raise ConfigError("--config -: the input cannot be read again")
        document.read_file(path, again)
    return _read(document, overrides, os.environ if environ is None else environ)


def read_data(data: Mapping[str, object]) -> Loaded:
    """Read settings only from tables like those of a file. Raises ``ConfigError``."""
    document = ConfigDocument(SETTING_TYPES, VALUE_RULES)
    document.data = deepcopy(dict(data))
    return _read(document, (), {})


def _read(document: ConfigDocument, overrides: Sequence[str], environ: Mapping[str, str]) -> Loaded:
    document.data.setdefault("listeners", [dict(listener) for listener in DEFAULT_LISTENERS])
    given: list[tuple[list[str], str, str, Origin]] = []
    for name, text in sorted(environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            given.append((keys, text, f"environment variable {name}", Origin("environment", name)))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {quoted(override)}: expected key.path=value")
        place = f"--set {key.strip()}"
        given.append((key.strip().split("."), text.strip(), place, Origin("command line", place)))
    _use_sources(document, [keys for keys, *_ in given])
    for each in given:
        document.override(*each)
    return Loaded(_settings(document, _use_sources(document, ())), document.origins)


def _use_sources(document: ConfigDocument, overridden: Iterable[list[str]]) -> type[AccessSettings]:
    """Return the type of ``[access]`` with the tables of sources from other packages that the configuration names, in
    the document or in the keys of ``overridden``. The document uses this type from now on."""
    names: dict[str, KeyPath] = {
        keys[1]: ("access", keys[1]) for keys in overridden if keys[0] == "access" and keys[2:]
    }
    access = document.data.get("access")
    if isinstance(access, dict):
        names |= {name: ("access", name) for name, value in access.items() if isinstance(value, dict)}
        for key in ("authenticators", "authorizers"):
            listed = access.get(key)
            for index, name in enumerate(listed if isinstance(listed, list) else ()):
                if isinstance(name, str):
                    names.setdefault(name, ("access", key, index))
    found: list[AccessSource] = []
    for name in sorted(names.keys() - set(AccessSettings.__struct_fields__) - {each.name for each in ACCESS_SOURCES}):
        try:
            source = installed_source(name)
        except ValueError as error:
            document.report(names[name], str(error))
            source = AccessSource(name=name, create="")  # the possible values are not reported in addition
        if source is not None:
            found.append(source)
    if not found:
        return AccessSettings
    kind: type[AccessSettings] = access_settings(written_type(AccessSettings), (*ACCESS_SOURCES, *found))
    rules = {**VALUE_RULES, kind: VALUE_RULES[AccessSettings], **rules_of_sources(found)}
    document.use({**SETTING_TYPES, "access": kind}, rules)
    return kind


def _settings(document: ConfigDocument, access: type[AccessSettings]) -> Settings:
    _check_misplaced(document, document.data, ())
    document.check_keys(document.data, SETTING_TYPES, ())
    document.check_finite(document.data)
    tables = {
        name: document.convert(document.data.get(name, {}), kind, (name,))
        for name, kind in {**TABLES, "access": access}.items()
        if name in document.data or name not in OPTIONAL_TABLES
    }
    zones = _zones(document)
    listeners = _listeners(document, zones)
    for name, validate in _VALIDATE.items():
        if tables.get(name) is not None:
            document.refuse(validate(tables[name]), (name,))
    if tables["access"] is not None:
        given: Any = document.data.get("access", {})
        document.refuse(validate_access(tables["access"], given), ("access",))
    _check_listeners_of_rules(document, tables["access"], listeners)
    cluster, durability = tables.get("cluster"), tables.get("durability")
    if cluster is not None and cluster.replicas and durability is not None and durability.level != "disk":
        document.report(("cluster", "replicas"), 'requires durability.level = "disk"')
    management, dashboard = tables["management"], tables["dashboard"]
    if management is not None and dashboard is not None and dashboard.enabled is None:
        tables["dashboard"] = msgspec.structs.replace(dashboard, enabled=management.enabled)
    taken = [(f"listeners.{index}", each.bind) for index, (each, _) in sorted(listeners.items()) if not _datagram(each)]
    for name in ("management", "dashboard"):
        table = tables[name]
        if table is not None and table.enabled:
            _check_overlap(document, table.bind, (name, "bind"), taken)
            taken.append((name, table.bind))
    document.finish()
    log, ruleengine, history = tables.pop("log"), tables.pop("ruleengine"), tables.pop("history")
    webhook, exhook = tables.pop("webhook"), tables.pop("exhook")
    management, dashboard = tables.pop("management"), tables.pop("dashboard")
    broker = BrokerSettings(
        listeners=tuple(listener for listener, _ in listeners.values()),
        listener_zones=tuple(zone for _, zone in listeners.values()),
        zones={name: zone for name, zone in zones.items() if zone is not None},
        **tables,
    )
    return Settings(
        broker=broker,
        management=management,
        dashboard=dashboard,
        history=history,
        ruleengine=ruleengine,
        webhook=webhook,
        exhook=exhook,
        log=log,
    )


_VALIDATE: Final[dict[str, Callable[[Any], Iterator[Fault]]]] = {
    "cluster": validate_cluster,
    "rewrite": validate_rewrite,
    "auto_subscribe": validate_auto_subscribe,
    "management": validate_management,
    "dashboard": validate_dashboard,
    "ruleengine": validate_ruleengine,
    "webhook": validate_web_hook,
    "exhook": validate_exhook,
}
"""Rules between several keys, by table."""


def _zones(document: ConfigDocument) -> dict[str, ZoneSettings | None]:
    """Read the zones by name; ``None`` for an invalid one, which is reported."""
    zones: dict[str, ZoneSettings | None] = {DEFAULT_ZONE: ZoneSettings()}
    raw = document.data.get("zones", {})
    if not isinstance(raw, dict):
        document.report(("zones",), f"expected a table, got {shown(raw)}")
        return zones
    _check_misplaced(document, raw, ("zones",))
    for name, table in raw.items():
        zones[name] = document.convert(table, ZoneSettings, ("zones", name))
    return zones


def _listeners(
    document: ConfigDocument, zones: dict[str, ZoneSettings | None]
) -> dict[int, tuple[ListenerSettings, ZoneSettings]]:
    """Read the valid listeners by index, each with its zone and its own keys. Invalid ones are reported."""
    raw = document.data["listeners"]
    found: dict[int, tuple[ListenerSettings, ZoneSettings]] = {}
    if not isinstance(raw, list):
        document.report(("listeners",), "expected tables [[listeners]]")
    elif not raw:
        document.report(("listeners",), "expected at least one listener")
    else:
        for index, member in enumerate(raw):
            listener = _listener(document, member, ("listeners", index), zones)
            if listener is None:
                continue
            settings = listener[0]
            for other_index, (other, _) in found.items():
                if (other.type, other.name) == (settings.type, settings.name):
                    what = f"listeners.{other_index} already has this name and this type"
                    document.report(("listeners", index, "name"), what)
            taken = [
                (f"listeners.{other_index}", other.bind)
                for other_index, (other, _) in found.items()
                if _datagram(other) == _datagram(settings)
            ]
            _check_overlap(document, settings.bind, ("listeners", index, "bind"), taken)
            found[index] = listener
    return found


def _listener(
    document: ConfigDocument, raw: Any, path: KeyPath, zones: dict[str, ZoneSettings | None]
) -> tuple[ListenerSettings, ZoneSettings] | None:
    if not isinstance(raw, dict):
        document.report(path, f"expected a table, got {shown(raw)}")
        return None
    listener_keys = ListenerSettings.__struct_fields__
    zone_keys = ZoneSettings.__struct_fields__
    document.check_keys(raw, {*listener_keys, *zone_keys}, path)
    own = {key: value for key, value in raw.items() if key in listener_keys}
    overridden = {key: value for key, value in raw.items() if key in zone_keys}
    listener: ListenerSettings | None = document.convert(own, ListenerSettings, path)
    overrides: ZoneSettings | None = document.convert(overridden, ZoneSettings, path)
    if listener is None:
        return None
    document.refuse(validate_listener(listener, raw), path)
    if listener.zone not in zones:
        document.report(path + ("zone",), f"no zone {quoted(listener.zone)}{nearest(listener.zone, zones)}")
    zone = zones.get(listener.zone)
    if zone is None or overrides is None:
        return None
    return listener, msgspec.structs.replace(zone, **{key: getattr(overrides, key) for key in overridden})


def _check_listeners_of_rules(
    document: ConfigDocument,
    access: AccessSettings | None,
    listeners: dict[int, tuple[ListenerSettings, ZoneSettings]],
) -> None:
    """Report rules for a listener that does not exist: a rule that denies would be ignored."""
    raw = document.data["listeners"]
    if access is None or not isinstance(raw, list) or len(raw) != len(listeners):
        return  # other errors are already reported
    labels = listener_labels(listener for listener, _ in listeners.values())
    for index, rule in enumerate(access.rules):
        if rule.listener is not None and rule.listener not in labels:
            what = f"no listener {quoted(rule.listener)}{nearest(rule.listener, labels)}"
            document.report(("access", "rules", index, "listener"), what)


def _datagram(listener: ListenerSettings) -> bool:
    """Return whether its port is one of UDP: it may have the number of a TCP port."""
    kind = LISTENER_KINDS.get(listener.type)
    return kind is not None and kind.datagram


def _check_overlap(document: ConfigDocument, bind: str, path: KeyPath, taken: Iterable[tuple[str, str]]) -> None:
    """Report that one of ``taken`` (place and bind) already has this address and port."""
    for place, other in taken:
        if binds_overlap(bind, other):
            document.report(path, f"{other} is already the address of {place}")
            return


def _check_misplaced(document: ConfigDocument, table: Mapping[str, object], path: KeyPath) -> None:
    """Report a zone's key in a place for names of zones, or among the top-level tables."""
    for key, value in table.items():
        if key in ZoneSettings.__struct_fields__ and not isinstance(value, dict):
            document.report(path + (key,), f"belongs in [zones.{DEFAULT_ZONE}] or in a listener")
