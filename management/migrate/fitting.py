"""Adjust the result of a migration to the values that the node accepts, before anything is written.

A setting that the node refuses is changed to the nearest value that it accepts, and the report says so. If there is no
such value, the report names the line that the setting comes from, and nothing is written."""

import time
from typing import Annotated, Any, Final, get_args, get_origin

from msgspec import Meta

from taipan.broker.transport.tls import TlsError, build_context

from ..configuration.config import SETTING_TYPES, Settings, read_data
from ..configuration.config_document import ConfigError
from ..configuration.known_secrets import SlowHashes, is_known_password, whose_certificate
from ..configuration.served_certificates import served_certificates
from ..configuration.setting_types import type_at
from ..configuration.settings import DashboardSettings, ManagementSettings
from ..configuration.settings_validation import binds_overlap
from ..configuration.toml_lines import KeyPath
from ..configuration.validation import Fault, shown
from .output import Migration, SettingPlace, Table

_ONLY_FOR_CLIENTS: Final = {
    "cafile": "it is used only for client certificates, which this listener does not request. If it contains"
    " the intermediate"
    " certificates of certfile, append these to certfile",
    "crlfile": "it is used only for client certificates, which this listener does not request",
    "peer_cert_as_username": "this listener requests no client certificate, so the username comes from CONNECT",
}
_OPERATORS: Final = {"management": ManagementSettings().bind, "dashboard": DashboardSettings().bind}
_ROUNDS: Final = 3
"""One error can hide another."""


def fit(migration: Migration) -> None:
    """Make the configuration of ``migration`` valid, or report as wrong the settings that cannot be made valid."""
    _without_client_certificates(migration)
    _leave_out_published(migration)
    _leave_out_authorities(migration)
    _leave_out_known(migration)
    _move_operators(migration)
    settings = None
    for _ in range(_ROUNDS):
        try:
            settings = read_data(migration.data()).settings
            break
        except ConfigError as error:
            faults = error.faults
        for fault in faults:
            _amend(migration, fault)
        if migration.report.failed:
            return
    if settings is None:
        for fault in faults:
            _wrong(migration, fault.place, fault.what)
        return
    _check_certificates(migration, settings)


def _without_client_certificates(migration: Migration) -> None:
    for listener in migration.listeners:
        tls = listener.get("tls")
        if not isinstance(tls, dict) or tls.get("verify", "none") != "none":
            continue
        for key, why in _ONLY_FOR_CLIENTS.items():
            if tls.pop(key, None):
                source = _source(migration, tls, key, f"listeners.tls.{key}")
                migration.report.amend("left_out", source.place, source.what, why)


def _leave_out_published(migration: Migration) -> None:
    """Leave out listeners whose key is published, or that accept client certificates of a published key."""
    kept = []
    for listener in migration.listeners:
        tls = listener.get("tls")
        table = tls if isinstance(tls, dict) else {}
        names = ["certfile"] + (["cafile"] if table.get("verify", "none") != "none" else [])
        found = whose_certificate(str(table[name]) for name in names if name in table)
        if found is None:
            kept.append(listener)
            continue
        file, owner = found
        why = f"{owner} publishes the key of this certificate: create your own certificate, and add the listener again"
        migration.report.left_out(file, f"listener {listener.get('name', listener.get('bind'))}", why)
    migration.listeners = kept


def _leave_out_authorities(migration: Migration) -> None:
    """Leave out published authorities of sources of access: whoever has such a key can answer in the place of the
    server, and let every client in."""
    for name, table in migration.tables.get("access", {}).items():
        found = whose_certificate([str(table["cafile"])]) if isinstance(table, dict) and "cafile" in table else None
        if isinstance(table, dict) and found is not None:
            source = _source(migration, table, "cafile", f"access.{name}.cafile")
            del table["cafile"]
            why = f"{found[1]} publishes a key of this authority; the server's certificate needs one of the system's"
            migration.report.amend("left_out", source.place, source.what, why)


def _leave_out_known(migration: Migration) -> None:
    """Leave out users with a published password. Slow hashes are checked up to a limit."""
    slow = SlowHashes()
    plan = migration.plan

    def is_known(kind: str, name: str, written: str) -> bool:
        if not (is_known_password(written) or (slow.wants(written) and slow.is_known(written))):
            return False
        migration.report.left_out(migration.place, f"{kind} {name}", "its password is EMQX's published default")
        return True

    plan.dashboard_users = [
        user for user in plan.dashboard_users if not is_known("dashboard user", user.name, user.password)
    ]
    plan.users = [user for user in plan.users if not is_known("user", user.name, user.password)]
    if slow.not_tried:
        why = "the file has too many slow hashes to check them for published default passwords"
        migration.report.changed(migration.place, f"{slow.not_tried} users", why)


def _move_operators(migration: Migration) -> None:
    """Move the API and the dashboard to other ports if listeners for clients use their ports."""
    taken = [str(each["bind"]) for each in migration.listeners if "bind" in each]
    for table, default in _OPERATORS.items():
        host, _, port = default.rpartition(":")
        candidates = (f"{host}:{number}" for number in range(int(port), int(port) + len(taken) + 1))
        bind = next(each for each in candidates if not any(binds_overlap(each, other) for other in taken))
        taken.append(bind)
        if bind != default:
            migration.set(table, "bind", bind)
            why = f"{bind}: an MQTT listener uses {default}, the default"
            migration.report.changed(migration.place, f"{table}.bind", why)


def _amend(migration: Migration, fault: Fault) -> None:
    """Replace a number outside its limits by the limit, and 0 by the default if a positive number is required."""
    table, key = _owner(migration, fault.place)
    value = table.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and fault.place[-1:] == (key,):
        least, above, most = _limits(type_at(SETTING_TYPES, fault.place))
        source = _source(migration, table, key, _dotted(fault.place))
        near = least if least is not None and value < least else most if most is not None and value > most else None
        if near is not None:
            table[key] = near
            why = f"{_dotted(fault.place)} = {near}, the nearest that is accepted"
            migration.report.amend("changed", source.place, source.what, why)
            return
        if above is not None and value <= above:
            del table[key]
            why = f"{_dotted(fault.place)} has its default: it must be more than {above}"
            migration.report.amend("changed", source.place, source.what, why)
            return
    _wrong(migration, fault.place, fault.what)


def _limits(kind: object) -> tuple[Any, Any, Any]:
    """Return the minimum, the exclusive minimum and the maximum; ``None`` for a limit that does not exist."""
    least = above = most = None
    while get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        for meta in metas:
            if isinstance(meta, Meta):
                least, above, most = (meta.ge, meta.gt, meta.le)
    return least, above, most


def _check_certificates(migration: Migration, settings: Settings) -> None:
    """Check the certificates as ``taipan check`` does."""
    for index, listener in enumerate(settings.broker.listeners):
        if listener.tls is not None:
            try:
                build_context(listener.tls)
            except TlsError as error:
                _wrong(migration, ("listeners", index, "tls", error.setting.rpartition(".")[2]), error.text)
    if migration.report.failed:
        return
    for each in served_certificates(settings):
        fault = each.fault(time.time())
        if fault is not None:
            path = tuple(int(step) if step.isdecimal() else step for step in each.setting.split("."))
            _wrong(migration, path, fault.removeprefix(f"{each.setting}: "))


def _wrong(migration: Migration, path: KeyPath, what: str) -> None:
    table, key = _owner(migration, path)
    source = _source(migration, table, key, _dotted(path))
    migration.report.wrong(source.place, source.what, what)


def _owner(migration: Migration, path: KeyPath) -> tuple[Table, str]:
    """Return the innermost table on ``path``, and the key in it; the key is empty if the path means the whole table."""
    # The table [access] of the data is not that of the migration, which keeps the rules separately.
    node: Any = migration.tables if path[:1] == ("access",) and path[1:2] != ("rules",) else migration.data()
    owner, key = node, ""
    for step in path:
        if isinstance(node, dict):
            owner, key = node, str(step)
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            break
    if isinstance(node, dict):
        owner, key = node, ""
    return owner, key


def _source(migration: Migration, table: Table, key: str, name: str) -> SettingPlace:
    """Return the place of the setting, or that of its table, or that of the source as a whole."""
    found = migration.source_of(table, key) or migration.source_of(table, "")
    if found is not None:
        return found
    value = table.get(key)
    return SettingPlace(
        migration.place, name if value is None or isinstance(value, dict) else f"{name} = {shown(value)}"
    )


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))
