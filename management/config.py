"""From TOML file, environment and command line to settings. Whatever is wrong is told in one line with its place.

Later wins: built-in defaults < file < environment (``TAIPAN__NODE__NAME``) < command line (``--set node.name=...``).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from broker.config import (
    AccessSettings,
    BrokerSettings,
    DelayedSettings,
    DurabilitySettings,
    ListenerSettings,
    NodeSettings,
    RetainedSettings,
    SharedSettings,
    SlowSubscriptionsSettings,
    SysTopicsSettings,
    ZoneSettings,
)
from ruleengine.config import RuleEngineSettings

from .config_document import ConfigDocument, ConfigError, nearest, quoted
from .settings import ManagementSettings
from .settings_faults import (
    faults_of_access,
    faults_of_listener,
    faults_of_management,
    faults_of_node,
    faults_of_zone,
    parse_bind,
)
from .toml_lines import Path

ENVIRONMENT_PREFIX: Final = "TAIPAN__"
DEFAULT_ZONE: Final = "external"


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

_ROOTS: Final[dict[str, Any]] = {**TABLES, "listeners": list[ListenerSettings], "zones": dict[str, ZoneSettings]}

DEFAULT_LISTENERS: Final[tuple[dict[str, str], ...]] = (
    {"name": "default", "type": "tcp", "bind": "127.0.0.1:1883"},
    {"name": "websocket", "type": "ws", "bind": "127.0.0.1:8083"},
)
"""What listens where nothing says otherwise."""


def load(path: str | None = None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Read and join the settings. ``overrides`` are ``key.path=value`` of the command line. Raises ``ConfigError``."""
    document = ConfigDocument(_ROOTS)
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
            raise ConfigError(f"--set {quoted(override)}: expected key.path=value")
        document.override(key.strip().split("."), text.strip(), f"--set {key.strip()}")
    return _settings(document)


def _settings(document: ConfigDocument) -> Settings:
    _check_misplaced(document, document.data, ())
    document.check_keys(document.data, _ROOTS, ())
    document.check_finite(document.data)
    tables = {name: document.convert(document.data.get(name, {}), kind, (name,)) for name, kind in TABLES.items()}
    log, management, ruleengine = tables.pop("log"), tables.pop("management"), tables.pop("ruleengine")
    zones = _zones(document)
    listeners, listener_zones = _listeners(document, zones)
    broker = BrokerSettings(listeners=tuple(listeners), listener_zones=tuple(listener_zones), zones=zones, **tables)
    document.refuse(faults_of_node(broker.node), ("node",))
    document.refuse(faults_of_access(broker.access), ("access",))
    document.refuse(faults_of_management(management), ("management",))
    return Settings(broker=broker, management=management, ruleengine=ruleengine, log=log)


def _zones(document: ConfigDocument) -> dict[str, ZoneSettings]:
    raw = document.table(document.data.get("zones", {}), ("zones",))
    _check_misplaced(document, raw, ("zones",))
    zones = {DEFAULT_ZONE: ZoneSettings()}
    for name, table in raw.items():
        zones[name] = document.convert(table, ZoneSettings, ("zones", name))
        document.refuse(faults_of_zone(zones[name]), ("zones", name))
    return zones


def _listeners(
    document: ConfigDocument, zones: dict[str, ZoneSettings]
) -> tuple[list[ListenerSettings], list[ZoneSettings]]:
    """Each listener, and its zone with what the listener has of its own."""
    raw = document.data["listeners"]
    if not isinstance(raw, list):
        raise document.error(("listeners",), "expected tables [[listeners]]")
    if not raw:
        raise document.error(("listeners",), "expected at least one listener")
    listeners: list[ListenerSettings] = []
    listener_zones: list[ZoneSettings] = []
    listener_keys = ListenerSettings.__struct_fields__
    zone_keys = ZoneSettings.__struct_fields__
    for index, member in enumerate(raw):
        path: Path = ("listeners", index)
        table = document.table(member, path)
        document.check_keys(table, {*listener_keys, *zone_keys}, path)
        own = {key: value for key, value in table.items() if key in listener_keys}
        listener = document.convert(own, ListenerSettings, path)
        overridden = {key: value for key, value in table.items() if key in zone_keys}
        overrides = document.convert(overridden, ZoneSettings, path)
        zone = zones.get(listener.zone)
        if zone is None:
            what = f"no zone {quoted(listener.zone)}{nearest(listener.zone, zones)}"
            raise document.error(path + ("zone",), what)
        zone = msgspec.structs.replace(zone, **{key: getattr(overrides, key) for key in overridden})
        document.refuse(faults_of_zone(zone), path)
        document.refuse(faults_of_listener(listener, table), path)
        for other_index, other in enumerate(listeners):
            if other.name == listener.name:
                raise document.error(path + ("name",), f"listeners.{other_index} has this name already")
            if other.bind == listener.bind and parse_bind(listener.bind)[1] != 0:
                raise document.error(path + ("bind",), f"listeners.{other_index} is bound to {listener.bind} already")
        listeners.append(listener)
        listener_zones.append(zone)
    return listeners, listener_zones


def _check_misplaced(document: ConfigDocument, table: Mapping[str, Any], path: Path) -> None:
    """A zone's key that stands where zones, or the big tables, are named."""
    for key, value in table.items():
        if key in ZoneSettings.__struct_fields__ and not isinstance(value, dict):
            raise document.error(path + (key,), f"belongs into [zones.{DEFAULT_ZONE}] or into a listener")
