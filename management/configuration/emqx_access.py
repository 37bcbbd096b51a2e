"""The settings of a source of access, from those of the plugin or module of EMQX 4 that does the same."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from taipan.broker.access.declaration import AccessSource
from taipan.broker.access.emqx_plugin import EmqxPlugin
from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.broker.observability.masking import MASK, is_secret

from .emqx_values import WrongValue, flag_of, number_of, seconds_of
from .known_secrets import is_known

WITHOUT_SOURCE: Final = {
    "mongo_authentication": "MongoDB",
    "psk_authentication": "",
}
"""Modules that authenticate clients without a source here, and the system that has the users. Pre-shared keys belong to
a listener."""


class ReadKey(NamedTuple):
    """The result for one of EMQX's keys. ``outcome``: as in the report of a migration. ``setting``: the setting here;
    empty if there is none."""

    key: str
    outcome: Literal["carried", "changed", "left_out", "wrong"]
    setting: str
    why: str


class ReadAccess(NamedTuple):
    """``table``: the settings of ``[access.<name>]``. ``keys``: what each key became, the key "" for the source."""

    table: dict[str, Any]
    keys: list[ReadKey]


def read_access(
    source: AccessSource, given: Mapping[str, object], file: Callable[[str], str] | None = None
) -> ReadAccess:
    """Return the settings of ``source``, whose plugin has keys.

    ``given``: the values by EMQX's keys, from a plugin's file (texts) or from a module (JSON). ``file`` returns the
    path of an existing file, or raises WrongValue; None: ``given`` is from a module, which contains the text of a
    file."""
    plugin = source.emqx
    assert plugin is not None and source.settings is not None
    table: dict[str, Any] = {}
    keys: list[ReadKey] = []
    listed: dict[int, dict[str, str]] = {}
    where = f"access.{source.name}"
    for key, value in given.items():
        known = plugin.keys.get(key)
        try:
            if known is not None and known.kind == "file" and file is None:
                if value.get("file") if isinstance(value, dict) else value:
                    why = f"write the certificate or key into a file, and its path into {where}.{known.setting}"
                    keys.append(ReadKey(key, "changed", known.setting, why))
            elif known is not None and known.kind == "file" and file is not None:
                table[known.setting] = file(_text(value))
                keys.append(ReadKey(key, "carried", known.setting, f"{where}.{known.setting}"))
            elif known is not None:
                table[known.setting] = made = _VALUES[known.kind](_text(value))
                if isinstance(made, str) and is_known(made) and is_secret(known.setting):
                    why = f"{where}.{known.setting}: EMQX's published default, set another one on the server"
                    keys.append(ReadKey(key, "changed", known.setting, why))
                    continue
                keys.append(ReadKey(key, "carried", known.setting, f"{where}.{known.setting}"))
            elif plugin.listed and (found := re.fullmatch(rf"{plugin.listed}\.(\d{{1,4}})\.(\w+)", key)):
                listed.setdefault(int(found[1]), {})[found[2]] = _text(value)
                keys.append(ReadKey(key, "carried", plugin.listed, f"{where}.{plugin.listed}"))
            else:
                keys.append(ReadKey(key, "left_out", "", plugin.without_setting.get(key, "no counterpart")))
        except WrongValue as error:
            keys.append(ReadKey(key, "wrong", "", str(error)))
    if listed:
        table[plugin.listed] = [row for _, row in sorted(listed.items())]
    keys = [_used(plugin, table, key) for key in keys]
    keys += _of_the_whole(source, plugin, table)
    return ReadAccess(table, keys)


def _used(plugin: EmqxPlugin, table: dict[str, Any], key: ReadKey) -> ReadKey:
    """Remove the setting of a key that EMQX does not use with the other ones."""
    other, values = plugin.used_with.get(key.setting, ("", ()))
    if not other or not table.get(key.setting) or table.get(other, values[0]) in values:
        return key
    del table[key.setting]
    return ReadKey(key.key, "left_out", "", f"not used with {other} = {table[other]}")


def _of_the_whole(source: AccessSource, plugin: EmqxPlugin, table: dict[str, Any]) -> Iterator[ReadKey]:
    """Complete ``table``, and yield what differs from EMQX."""
    assert source.settings is not None
    where = f"access.{source.name}"
    defaults = {each.name: each.default for each in msgspec.structs.fields(source.settings)}
    for setting, value in plugin.absent.items():
        if setting not in table and defaults.get(setting) != value and (setting != "tls_verify" or table.get("tls")):
            table[setting] = value
    if table.get("tls") and table.get("tls_verify") is False:
        why = f"{where}.tls_verify = false, as in EMQX: the server's certificate is not verified. Set it to true"
        yield ReadKey("", "changed", "", why)
    if plugin.asks_next:
        why = (
            f'a client is refused while the server does not answer; {where}.on_failure = "ignore" asks the next source,'
            " as EMQX does"
        )
        yield ReadKey("", "changed", "", why)


def source_of_plugin(plugin: str) -> AccessSource | None:
    """The source that does what a plugin of EMQX does."""
    return next((each for each in ACCESS_SOURCES if each.emqx is not None and each.emqx.plugin == plugin), None)


def source_of_module(module: str) -> AccessSource | None:
    return next((each for each in ACCESS_SOURCES if each.emqx is not None and each.emqx.module == module), None)


def authenticates(module: str) -> bool:
    """Return whether a module of EMQX Enterprise decides which clients may connect, and what they may do."""
    return source_of_module(module) is not None or module in WITHOUT_SOURCE


def order_of(text: str, default: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the sources of ``auth_order`` or ``acl_order``, and the names in it that have no source here. Sources that
    it does not name follow in the order of ``default``."""
    by_name = {name: each.name for each in ACCESS_SOURCES if each.emqx is not None for name in each.emqx.orders}
    names = [each.strip() for each in text.split(",") if each.strip() and each.strip() != "none"]
    found = [by_name[name] for name in names if name in by_name]
    return list(dict.fromkeys([*found, *default])), [name for name in names if name not in by_name]


def module_in_words(record: Mapping[str, Any]) -> str:
    """Return what to configure for a module that authenticates clients; empty for another one. Secrets are masked."""
    module = record.get("type")
    if not isinstance(module, str) or not authenticates(module):
        return ""
    disabled = "" if record.get("enabled", True) else "it is disabled; "
    source = source_of_module(module)
    if source is None:
        system = WITHOUT_SOURCE[module]
        if system:
            return f"{disabled}users in {system} are not supported, and clients that only it knows are refused"
        return f"{disabled}write its keys into the psk_file of a listener of each node"
    assert source.emqx is not None
    where = f"access.{source.name}"
    config = record.get("config")
    if not source.emqx.keys or not isinstance(config, dict):
        return f"{disabled}it is a setting of each node: write [{where}] into its configuration"
    read = read_access(source, config)
    settings = ", ".join(f"{key} = {_written(source, key, value)}" for key, value in read.table.items())
    told = "".join(f"; {each.key or module}: {each.why}" for each in read.keys if each.outcome in ("changed", "wrong"))
    return f"{disabled}it is a setting of each node: write [{where}] into its configuration, with {settings}{told}"


def _written(source: AccessSource, key: str, value: object) -> str:
    if value and is_secret(key) and key not in source.shown and key != "password_hash":
        value = MASK
    return msgspec.json.encode(value).decode()


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int):
        return str(value)
    raise WrongValue("expected a string, a number, true or false")


_VALUES: Final[dict[str, Callable[[str], object]]] = {
    "text": str,
    "number": number_of,
    "seconds": seconds_of,
    "flag": flag_of,
    "peer": lambda text: text == "verify_peer" or (text != "verify_none" and flag_of(text)),
}
