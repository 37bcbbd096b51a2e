"""Plugins and modules of EMQX that know users and rules, as sources of access."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from taipan.broker.access.declaration import AccessSource

from ..configuration.emqx_access import ReadAccess, authenticates, read_access, source_of_module
from .output import Migration, SettingPlace, Table

CLOSED: Final = "until then every client needs a password, and actions that no rule allows are denied"


def access_table(migration: Migration) -> Table:
    return migration.tables.setdefault("access", {})


def put_source(
    migration: Migration, source: AccessSource, read: ReadAccess, places: Mapping[str, SettingPlace]
) -> None:
    """Add ``[access.<name>]``, and report each key. ``places``: by EMQX's key; "": the plugin or module."""
    table: Table = {}
    access_table(migration)[source.name] = table
    migration.note(table, places[""])
    for each in read.keys:
        place = places[each.key]
        migration.report.add(each.outcome, place.place, place.what, each.why)
    for setting, value in read.table.items():
        keys = [each.key for each in read.keys if each.setting == setting and each.outcome != "wrong"]
        migration.put(table, setting, value, places[keys[-1]] if keys else None)


def put_modules(migration: Migration, path: str, modules: Iterable[Mapping[str, Any]]) -> bool:
    """Add the modules of an export that authenticate clients. Returns whether one of them is enabled and has no
    counterpart."""
    missing = False
    for record in modules:
        module = record.get("type")
        if not isinstance(module, str) or not authenticates(module):
            continue
        what = f"module {module}"
        if not record.get("enabled", True):
            migration.report.left_out(path, what, "disabled")
            continue
        source, config = source_of_module(module), record.get("config")
        emqx = None if source is None else source.emqx
        if source is None or emqx is None or not emqx.keys or not isinstance(config, dict):
            where = "" if source is None else f" here: [access.{source.name}]"
            migration.report.left_out(path, what, f"it decided which clients may connect: set it up{where}; {CLOSED}")
            missing = True
            continue
        read = read_access(source, config)
        wrong = [each for each in read.keys if each.outcome == "wrong"]
        if wrong:
            why = "; ".join(f"{each.key}: {each.why}" for each in wrong)
            migration.report.left_out(path, what, f"{why}. Set it up here: [access.{source.name}]; {CLOSED}")
            missing = True
            continue
        migration.report.carried(path, what, f"[access.{source.name}]")
        places = {key: SettingPlace(path, f"{what}, {key}") for key in config}
        put_source(migration, source, read, {**places, "": SettingPlace(path, what)})
    return missing


def close(migration: Migration, zones: Iterable[Table]) -> None:
    """A source that decided is missing: refuse clients without a password, and what no rule allows."""
    migration.set("access", "no_match", "deny")
    for zone in zones:
        zone["allow_anonymous"] = False
