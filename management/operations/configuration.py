"""Configuration: every effective setting, its source and its meaning. Secrets are masked."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from taipan.broker.access.declaration import COMMON_KEYS
from taipan.broker.access.registry import ACCESS_SOURCES, sources_of
from taipan.broker.config import AccessSettings, BrokerSettings, ZoneSettings
from taipan.broker.observability.masking import MASK, is_secret, mask, mask_text
from taipan.broker.server import FIXED_TABLES, Server
from taipan.broker.transport.listener import FIXED_KEYS
from taipan.ruleengine.engine import RuleEngine

from ..configuration.config import TABLES, Loaded, Settings
from ..configuration.config_document import Origins, Source
from ..configuration.served_certificates import served_certificates
from ..configuration.setting_notes import note_of
from ..configuration.settings import RELOADED, ManagementSettings
from ..configuration.toml_lines import KeyPath
from .listing import Listing, PageQuery
from .node_calls import NodeCalls

_OPEN: Final = frozenset(["cafile", "client_secret_file", "credentials_file", "nkey_file"]).union(
    *[source.shown for source in ACCESS_SOURCES]
)
"""Keys that look like secrets by their names but are not: URLs, files and templates. Secrets within their text are
masked nevertheless."""
_SECRET: Final = frozenset(["password_hash", "scram"])
"""Keys of secrets whose names do not show it."""


class ConfigurationQuery(PageQuery, kw_only=True):
    """``node``: this node by default. ``key``: only keys that start with it."""

    node: str | None = None
    key: str = ""


class SettingRecord(msgspec.Struct):
    """One setting. ``place``: the line of the file, the variable, or the argument. ``default``: null if the setting is
    required. ``reloadable``: whether SIGHUP applies another value."""

    key: str
    value: Any
    origin: Source
    place: str
    default: Any
    reloadable: bool
    description: str


class CertificateRecord(msgspec.Struct):
    """A certificate that a listener or the management server serves. ``setting`` names its file; times in Unix
    milliseconds, of the certificate in the chain with the shortest validity; ``fault``: why clients refuse the
    certificate now, or null."""

    setting: str
    file: str
    begins_at: int
    ends_at: int
    fault: str | None


class Configuration:
    """The effective settings. A reload replaces either all of them or none."""

    def __init__(self, server: Server, settings: ManagementSettings, engine: RuleEngine, calls: NodeCalls) -> None:
        self._calls = calls
        made = Settings(broker=server.settings, management=settings, ruleengine=engine.settings)
        self._loaded = Loaded(made, Origins())
        self._clock = server.clock
        calls.serve(self.settings_here, self.certificates)

    def use(self, loaded: Loaded) -> None:
        """Make these settings the effective ones."""
        self._loaded = loaded

    async def listing(self, query: ConfigurationQuery, max_rows: int) -> Listing[SettingRecord]:
        """Return the settings of a node, in the order of the file that is shipped. Raises Refusal."""
        found = await self._calls.on(query.node or self._calls.name, self.settings_here, query.key)
        return Listing(found, query.page, query.rows(max_rows), _same, len(found))

    def settings_here(self, prefix: str) -> list[SettingRecord]:
        """Return the settings of this node whose keys start with ``prefix``."""
        return [each for _, each in walk(self._loaded) if each.key.startswith(prefix)]

    @property
    def loaded(self) -> Loaded:
        """The effective settings, with the origin of each key."""
        return self._loaded

    def certificates(self) -> list[CertificateRecord]:
        """Return the certificates of this node, from the current files."""
        now = self._clock.wall()
        return [
            CertificateRecord(each.setting, each.file, int(each.begins * 1000), int(each.ends * 1000), each.fault(now))
            for each in served_certificates(self._loaded.settings)
        ]


def walk(loaded: Loaded) -> Iterator[tuple[KeyPath, SettingRecord]]:
    """Yield the records of all settings, in the order of the file that is shipped."""
    settings, origins = loaded
    broker = settings.broker
    access = broker.access

    def record(path: KeyPath, table: str, key: str, value: object, default: object) -> tuple[KeyPath, SettingRecord]:
        origin = origins.of(path)
        return path, SettingRecord(
            ".".join(map(str, path)),
            shown_at(access, path, value),
            origin.source,
            origin.place,
            shown_at(access, path, default),
            reloadable(path),
            note_of(table, key),
        )

    def of_struct(path: KeyPath, table: str, struct: msgspec.Struct) -> Iterator[tuple[KeyPath, SettingRecord]]:
        for field in msgspec.structs.fields(struct):
            value = getattr(struct, field.name)
            place = (*path, field.name)
            inner = f"{table}.{field.name}"
            if isinstance(value, msgspec.Struct):
                yield from of_struct(place, inner, value)
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], msgspec.Struct):
                for index, member in enumerate(value):
                    yield from of_struct((*place, index), inner, member)
            else:
                default = None if field.default is msgspec.NODEFAULT else field.default
                if field.default_factory is not msgspec.NODEFAULT:
                    default = field.default_factory()
                yield record(place, table, field.name, value, default)

    def of_listeners() -> Iterator[tuple[KeyPath, SettingRecord]]:
        for index, (listener, zone) in enumerate(zip(broker.listeners, broker.listener_zones, strict=True)):
            path: KeyPath = ("listeners", index)
            yield from of_struct(path, "listeners", listener)
            its_zone = broker.zones.get(listener.zone, ZoneSettings())
            for key in ZoneSettings.__struct_fields__:
                own, shared = getattr(zone, key), getattr(its_zone, key)
                if own != shared or origins.of((*path, key)).place:
                    yield record((*path, key), "listeners", key, own, shared)

    for name in TABLES:
        table = getattr(broker if name in BrokerSettings.__struct_fields__ else settings, name)
        if table is None:
            yield record((name,), "", name, None, None)
        else:
            yield from of_struct((name,), name, table)
        if name == "node":
            yield from of_listeners()
            for zone, kept in broker.zones.items():
                yield from of_struct(("zones", zone), "zones", kept)


def shown_at(access: AccessSettings, path: KeyPath, value: object) -> Any:
    """Return the value of a setting for JSON. In the table of a package's source, only the package knows which values
    are secret."""
    key = str(path[-1])
    if path[0] != "access" or len(path) < 3:
        return shown(key, value)
    for source in sources_of(access):
        if source.name == path[1] and source not in ACCESS_SOURCES:
            if path[2] not in source.shown and path[2] not in COMMON_KEYS:
                plain = msgspec.to_builtins(value)
                return plain if plain in (None, "", [], {}) else MASK
            return shown(key, value, is_open=len(path) == 3)
    return shown(key, value)


def reloadable(path: KeyPath) -> bool:
    """Return whether SIGHUP can change the setting."""
    root = path[0]
    if root == "listeners":
        return path[-1] not in FIXED_KEYS
    if root == "management":
        return path[1] in RELOADED
    return root == "log" or (root in BrokerSettings.__struct_fields__ and root not in FIXED_TABLES)


def shown(key: str, value: object, is_open: bool = False) -> Any:
    """Return a value for JSON, without its secrets. ``is_open``: the setting is not secret, whatever its name is."""
    plain = msgspec.to_builtins(value)
    is_open = is_open or key in _OPEN
    if not is_open and (key in _SECRET or is_secret(key)):
        return MASK if plain else plain
    if isinstance(plain, str):
        return mask_text(plain)
    if isinstance(plain, Mapping) and not is_open:
        return mask(plain)
    return plain


def _same(record: SettingRecord) -> SettingRecord:
    return record
