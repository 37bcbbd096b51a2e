"""The plugin of EMQX for another protocol becomes a listener of the gateway that declares it."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Final

from taipan.broker.gateway import GATEWAYS, EmqxGatewayPlugin, Gateway, kind_names, kind_of
from taipan.broker.listener_kinds import LISTENER_KINDS

from .mosquitto_files import Directive
from .output import Migration, SettingPlace, Table


def gateway_of_plugin(name: str) -> Gateway | None:
    """Return the gateway whose clients a plugin of EMQX has served; None: there is none."""
    for kind in kind_names():
        kind_of(kind)
    found = [each for each in GATEWAYS.values() if each.emqx is not None and each.emqx.name == name]
    return found[0] if found else None


def put_gateway(
    migration: Migration,
    gateway: Gateway,
    path: Path,
    lines: Iterable[Directive],
    value_of: Callable[[Directive, str], object],
) -> None:
    """Add the listener, or one for each address. ``value_of(line, kind)`` returns None for an invalid value, which it
    has reported."""
    plugin = gateway.emqx
    assert plugin is not None
    if plugin.binds:
        _put_several(migration, plugin, path, lines)
        return
    usual, whole = f"0.0.0.0:{gateway.listener.port}", SettingPlace(str(path), plugin.name)
    table: Table = {"name": gateway.name, "type": gateway.name, "bind": usual, "gateway": {}}
    binds: list[tuple[str, SettingPlace]] = []
    for line in lines:
        _take(migration, plugin, table, binds, line, value_of)
    for number, (bind, source) in enumerate(binds or [(usual, whole)], 1):
        each = table if number == 1 else deepcopy(table) | {"name": f"{gateway.name}-{number}"}
        migration.note(each, whole)
        if binds:
            migration.put(each, "bind", bind, source)
        migration.listeners.append(each)


def _put_several(migration: Migration, plugin: EmqxGatewayPlugin, path: Path, lines: Iterable[Directive]) -> None:
    """Add a listener for each address that the plugin has, those with TLS with its certificates."""
    tables: list[Table] = []
    tls: Table = {}
    verify: dict[str, str] = {}
    for line in lines:
        what, source = f"{line.key} {line.value}", SettingPlace(line.place, f"{line.key} {line.value}")
        key = line.key.removeprefix(plugin.prefix)
        kind = next((kind for beginning, kind in plugin.binds.items() if key.startswith(beginning)), "")
        inner = key.removeprefix(plugin.tls)
        if kind:
            host, _, port = line.value.rpartition(":")
            name = kind if all(each["type"] != kind for each in tables) else f"{kind}-{key.rpartition('.')[2]}"
            table: Table = {"name": name, "type": kind, "bind": f"{host or '0.0.0.0'}:{port}"}
            migration.note(table, source)
            tables.append(table)
            migration.report.carried(line.place, what, f"listeners, {kind}, {table['bind']}")
        elif inner != key and inner in _TLS:
            value = ":".join(line.value.replace(" ", "").split(",")) if inner == "ciphers" else line.value
            migration.put(tls, _TLS[inner], value, source)
            migration.report.carried(line.place, what, f"listeners.tls.{_TLS[inner]}")
        elif inner != key and inner in ("verify", "fail_if_no_peer_cert"):
            verify[inner] = line.value
            migration.report.carried(line.place, what, "listeners.tls.verify")
        else:
            migration.report.left_out(line.place, what, plugin.left_out.get(key, "no counterpart"))
    if verify.get("verify") == "verify_peer":
        tls["verify"] = "required" if verify.get("fail_if_no_peer_cert") == "true" else "optional"
    for table in tables:
        if LISTENER_KINDS[str(table["type"])].tls:
            table["tls"] = dict(tls)
        migration.note(table, SettingPlace(str(path), plugin.name))
        migration.listeners.append(table)


_TLS: Final = {"keyfile": "keyfile", "certfile": "certfile", "cacertfile": "cafile", "ciphers": "ciphers"}


def _take(
    migration: Migration, plugin: EmqxGatewayPlugin, table: Table, binds: list[tuple[str, SettingPlace]],
    line: Directive, value_of: Callable[[Directive, str], object],
) -> None:  # fmt: skip
    what, source = f"{line.key} {line.value}", SettingPlace(line.place, f"{line.key} {line.value}")
    key = line.key.removeprefix(plugin.prefix)
    number = key.removeprefix(plugin.numbered) if plugin.numbered else key
    why = _of_prefix(plugin.left_out, key)
    if why is not None:
        migration.report.left_out(line.place, what, why)
    elif number != key and number == "0":
        migration.report.left_out(line.place, what, "0 is reserved")
    elif number != key:
        migration.put(_inner(table, f"gateway.{plugin.numbered_as}"), number, line.value, source)
        migration.report.carried(line.place, what, f"listeners.gateway.{plugin.numbered_as}")
    elif key == plugin.bind or (plugin.bind.endswith(".") and key.startswith(plugin.bind)):
        host, _, port = line.value.rpartition(":")
        bind = f"{host or '0.0.0.0'}:{port}"
        binds.append((bind, source))
        migration.report.carried(line.place, what, f"listeners, {table['type']}, {bind}")
    elif key not in plugin.keys:
        migration.report.left_out(line.place, what, "no counterpart")
    else:
        name, kind = plugin.keys[key]
        value = value_of(line, kind)
        if value is not None:
            place, _, inner = name.rpartition(".")
            migration.put(_inner(table, place), inner, value, source)
            migration.report.carried(line.place, what, f"listeners.{name}")


def _of_prefix(reasons: Mapping[str, str], key: str) -> str | None:
    """Return the reason for a key, or for the beginning of keys, with a dot at its end."""
    found = (why for name, why in reasons.items() if key == name or (name.endswith(".") and key.startswith(name)))
    return next(found, None)


def _inner(table: Table, path: str) -> Table:
    for key in path.split(".") if path else []:
        found = table.setdefault(key, {})
        assert isinstance(found, dict)
        table = found
    return table
