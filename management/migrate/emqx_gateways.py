"""The plugin of EMQX for another protocol becomes a listener of the gateway that declares it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from taipan.broker.gateway import GATEWAYS, EmqxGatewayPlugin, Gateway, kind_names, kind_of

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
    """Add the listener. ``value_of(line, kind)`` returns None for an invalid value, which it has reported."""
    plugin = gateway.emqx
    assert plugin is not None
    settings: Table = {}
    bind = f"0.0.0.0:{gateway.listener.port}"
    table: Table = {"name": gateway.name, "type": gateway.name, "bind": bind, "gateway": settings}
    migration.note(table, SettingPlace(str(path), plugin.name))
    for line in lines:
        _take(migration, plugin, table, settings, line, value_of)
    migration.listeners.append(table)


def _take(
    migration: Migration, plugin: EmqxGatewayPlugin, table: Table, settings: Table, line: Directive,
    value_of: Callable[[Directive, str], object],
) -> None:  # fmt: skip
    what, source = f"{line.key} {line.value}", SettingPlace(line.place, f"{line.key} {line.value}")
    key = line.key.removeprefix(plugin.prefix)
    number = key.removeprefix(plugin.numbered) if plugin.numbered else key
    if key in plugin.left_out:
        migration.report.left_out(line.place, what, plugin.left_out[key])
    elif number != key and number == "0":
        migration.report.left_out(line.place, what, "0 is reserved")
    elif number != key:
        migration.put(_inner(settings, plugin.numbered_as), number, line.value, source)
        migration.report.carried(line.place, what, f"listeners.gateway.{plugin.numbered_as}")
    elif key not in plugin.keys:
        migration.report.left_out(line.place, what, "no counterpart")
    elif key == plugin.bind:
        host, _, port = line.value.rpartition(":")
        bind = f"{host or '0.0.0.0'}:{port}"
        migration.put(table, "bind", bind, source)
        migration.report.carried(line.place, what, f"listeners, {table['type']}, {bind}")
    else:
        name, kind = plugin.keys[key]
        value = value_of(line, kind)
        if value is not None:
            place, inner = table, name.removeprefix("gateway.")
            if inner != name:
                place = settings
            migration.put(place, inner, value, source)
            migration.report.carried(line.place, what, f"listeners.{name}")


def _inner(table: Table, key: str) -> Table:
    found = table.setdefault(key, {})
    assert isinstance(found, dict)
    return found
