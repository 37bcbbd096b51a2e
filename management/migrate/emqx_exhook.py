"""EMQX's plugin ``emqx_exhook``: its servers, as ``[access.exhook]`` and ``[exhook]``."""

import re
from collections.abc import Callable
from typing import Final

from .emqx_sources import access_table
from .mosquitto_files import Directive
from .output import Migration, SettingPlace, Table

_SERVER: Final = re.compile(r"server\.([^.]+)\.(url|ssl\.(?:cacertfile|certfile|keyfile))")
_OF_EVENTS: Final = {
    "request_failed_action": ("request_failed_action", "text"),
    "request_timeout": ("request_timeout", "seconds"),
    "auto_reconnect": ("auto_reconnect", "seconds"),
    "pool_size": ("pool_size", "number"),
}
_DENIED: Final = (
    "a message about which a provider gives no answer is refused; EMQX 4.4 publishes it (request_failed_action)"
)
_OF_ACCESS: Final = {"request_timeout": ("timeout", "seconds"), "request_failed_action": ("on_failure", "text")}


class EmqxExhook:
    """The settings of the plugin, line by line, then ``finish``."""

    def __init__(self, migration: Migration, value: Callable[[Directive, str], object]) -> None:
        """``value``: returns the value of a line; None: it is invalid, which was reported."""
        self._migration = migration
        self._report = migration.report
        self._value = value
        self._servers: dict[str, Table] = {}
        self._events: Table = {}
        self._access: Table = {}

    def take(self, line: Directive) -> None:
        """Read one line."""
        key = line.key.removeprefix("exhook.")
        what = f"{line.key} {line.value}"
        if found := _SERVER.fullmatch(key):
            setting = found[2].rpartition(".")[2]
            value = self._value(line, "file" if setting != "url" else "text")
            if value is not None:
                table = self._servers.setdefault(found[1], {"name": found[1]})
                self._migration.put(table, setting, value, SettingPlace(line.place, line.key))
                self._report.carried(line.place, what, f"exhook.servers, {found[1]}, {setting}")
            return
        if key == "hook_priority":
            self._report.left_out(
                line.place, what, "providers are asked after topic rewrite and before everything else"
            )
            return
        if key not in _OF_EVENTS and key not in _OF_ACCESS:
            self._report.left_out(line.place, what, "no counterpart")
            return
        if key == "auto_reconnect" and line.value == "false":
            self._put(line, "exhook", self._events, "auto_reconnect", 0)
            return
        for table_name, table, keys in (
            ("exhook", self._events, _OF_EVENTS),
            ("access.exhook", self._access, _OF_ACCESS),
        ):
            if key in keys:
                setting, kind = keys[key]
                value = self._value(line, kind)
                if value is not None:
                    self._put(line, table_name, table, setting, value)

    def _put(self, line: Directive, name: str, table: Table, setting: str, value: object) -> None:
        self._migration.put(table, setting, value, SettingPlace(line.place, line.key))
        self._report.carried(line.place, f"{line.key} {line.value}", f"{name}.{setting}")

    def finish(self, path: str) -> None:
        """Write the tables."""
        servers = [table for table in self._servers.values() if table.get("url")]
        if not servers:
            self._report.left_out(path, "emqx_exhook", "no server")
            return
        for table in servers:
            files = [key for key in ("cacertfile", "certfile", "keyfile") if key in table]
            if files and str(table["url"]).startswith("http:"):
                self._report.left_out(path, f"server {table['name']}, {', '.join(files)}", "not used with http://")
                for key in files:
                    del table[key]
        self._events["servers"] = servers
        self._migration.tables["exhook"] = self._events
        first = {key: value for key, value in servers[0].items() if key != "name"}
        more = [{key: value for key, value in table.items() if key != "name"} for table in servers[1:]]
        access_table(self._migration)["exhook"] = {**first, **self._access, **({"more": more} if more else {})}
        if self._events.get("request_failed_action", "deny") == "deny":
            self._report.changed(path, "message.publish", _DENIED)
