"""The plugin of EMQX for another protocol becomes a listener of the gateway that declares it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    found = _Found(migration, plugin, value_of)
    for line in lines:
        found.take(line)
    whole = SettingPlace(str(path), plugin.name)
    usual = _Bind(gateway.name, "", f"0.0.0.0:{gateway.listener.port}", whole)
    for bind in found.binds or [usual]:
        found.add(bind, whole)


_TLS: Final = {"keyfile": "keyfile", "certfile": "certfile", "cacertfile": "cafile", "ciphers": "ciphers"}


@dataclass(frozen=True, slots=True)
class _Bind:
    """``number``: the number at the end of its setting, if there can be several."""

    kind: str
    number: str
    address: str
    source: SettingPlace


class _Found:
    """The content of a plugin's lines: ``binds``, and the settings that all listeners share."""

    def __init__(
        self, migration: Migration, plugin: EmqxGatewayPlugin, value_of: Callable[[Directive, str], object]
    ) -> None:
        self._migration = migration
        self._plugin = plugin
        self._value_of = value_of
        self._common: list[tuple[str, str, object, SettingPlace]] = []  # the table, the key, and its value
        self._tls: list[tuple[str, object, SettingPlace]] = []
        self._verify: dict[str, str] = {}
        self._names: set[str] = set()
        self.binds: list[_Bind] = []

    def add(self, bind: _Bind, whole: SettingPlace) -> None:
        """Add the listener of an address."""
        migration = self._migration
        name = f"{bind.kind}-{bind.number}" if bind.kind in self._names else bind.kind
        self._names.add(name)
        table: Table = {"name": name, "type": bind.kind}
        migration.note(table, whole)
        migration.put(table, "bind", bind.address, bind.source)
        for place, key, value, source in self._common:
            migration.put(_inner(table, place), key, value, source)
        if LISTENER_KINDS[bind.kind].tls:
            tls: Table = {}
            table["tls"] = tls
            for key, value, source in self._tls:
                migration.put(tls, key, value, source)
            if self._verify.get("verify") == "verify_peer":
                tls["verify"] = "required" if self._verify.get("fail_if_no_peer_cert") == "true" else "optional"
        migration.listeners.append(table)

    def take(self, line: Directive) -> None:
        """Migrate a line, and report the result."""
        plugin, report = self._plugin, self._migration.report
        what, source = f"{line.key} {line.value}", SettingPlace(line.place, f"{line.key} {line.value}")
        key = line.key.removeprefix(plugin.prefix)
        number = key.removeprefix(plugin.numbered) if plugin.numbered else key
        why = _of_prefix(plugin.left_out, key)
        kind = _of_prefix(plugin.binds, key)
        if why is not None:
            report.left_out(line.place, what, why)
        elif number != key and number == "0":
            report.left_out(line.place, what, "0 is reserved")
        elif number != key:
            self._common.append((f"gateway.{plugin.numbered_as}", number, line.value, source))
            report.carried(line.place, what, f"listeners.gateway.{plugin.numbered_as}")
        elif kind is not None:
            host, _, port = line.value.rpartition(":")
            bind = _Bind(kind, key.rpartition(".")[2], f"{host or '0.0.0.0'}:{port}", source)
            self.binds.append(bind)
            report.carried(line.place, what, f"listeners, {kind}, {bind.address}")
        elif plugin.tls and key.startswith(plugin.tls) and self._takes_tls(key.removeprefix(plugin.tls), line, source):
            report.carried(line.place, what, "listeners.tls")
        elif key not in plugin.keys:
            report.left_out(line.place, what, "no counterpart")
        else:
            name, form = plugin.keys[key]
            value = self._value_of(line, form)
            if value is not None:
                place, _, inner = name.rpartition(".")
                self._common.append((place, inner, value, source))
                report.carried(line.place, what, f"listeners.{name}")

    def _takes_tls(self, key: str, line: Directive, source: SettingPlace) -> bool:
        """Migrate a TLS setting. Return whether Taipan has a counterpart."""
        if key in ("verify", "fail_if_no_peer_cert"):
            self._verify[key] = line.value
        elif key in _TLS:
            value = ":".join(line.value.replace(" ", "").split(",")) if key == "ciphers" else line.value
            self._tls.append((_TLS[key], value, source))
        return key in _TLS or key in self._verify


def _of_prefix(reasons: Mapping[str, str], key: str) -> str | None:
    """Return what a key has, or the beginning of keys, with a dot at its end."""
    found = (why for name, why in reasons.items() if key == name or (name.endswith(".") and key.startswith(name)))
    return next(found, None)


def _inner(table: Table, path: str) -> Table:
    for key in path.split(".") if path else []:
        found = table.setdefault(key, {})
        assert isinstance(found, dict)
        table = found
    return table
