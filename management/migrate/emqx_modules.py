"""EMQX 4's modules: their settings in emqx.conf, and the modules of an export."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.config import RewriteSettings

from ..configuration.config import read_data
from ..configuration.config_document import ConfigError
from ..configuration.emqx_access import authenticates
from ..configuration.emqx_alternatives import instead_of_module
from ..configuration.settings_validation import validate_rewrite
from ..configuration.validation import Fault
from .mosquitto_files import Directive
from .output import Migration, SettingPlace
from .report import MigrationReport

REWRITE: Final = "emqx_mod_rewrite"
_REWRITE_KEY: Final = re.compile(r"module\.rewrite\.(?:(pub|sub)\.)?rule\.(\d{1,9})", re.ASCII)
_ACTIONS: Final = {"pub": "publish", "sub": "subscribe", None: "all"}
SUBSCRIPTION: Final = "emqx_mod_subscription"
_SUBSCRIPTION_KEY: Final = re.compile(r"module\.subscription\.(\d{1,9})\.(topic|qos|nl|rap|rh)", re.ASCII)


def loaded_names(text: str) -> list[str]:
    """Return the names that a file of loaded plugins or modules has, without those that are off."""
    off = set(re.findall(r"\{\s*(\w+)\s*,\s*false\s*\}", text))
    return [name for name in re.findall(r"emqx_\w+", text) if name not in off]


def report_modules(report: MigrationReport, path: str, modules: Iterable[Mapping[str, object]]) -> None:
    """Report the modules of an export, except those that authenticate clients: ``emqx_sources`` has these."""
    for record in modules:
        kind = record.get("type")
        if isinstance(kind, str) and not authenticates(kind):
            why = (instead_of_module(kind) or "no counterpart") if record.get("enabled", True) else "disabled"
            report.left_out(path, f"module {kind}", f"{why}; kept for the next export")


class EmqxWebHook:
    """The settings of the plugin ``emqx_web_hook``."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._report = migration.report
        self._values: dict[str, object] = {}
        self._headers: dict[str, str] = {}
        self._rules: list[tuple[Directive, dict[str, str]]] = []
        self._lines: dict[str, Directive] = {}

    def take(self, line: Directive, path: Callable[[str], Path]) -> None:
        """Read one line; ``path`` returns the path of a file."""
        key = line.key.removeprefix("web.hook.")
        name = key.rpartition(".")[2]
        if key.startswith("rule."):
            self._rule(line, key)
            return
        if key.startswith("headers."):
            self._headers[key.removeprefix("headers.")] = line.value
            self._values["headers"] = self._headers
            self._lines["headers"] = line
            return
        value: object = line.value
        if key in ("url", "body.encoding_of_payload_field", "ssl.server_name_indication"):
            pass
        elif key in ("ssl.cacertfile", "ssl.certfile", "ssl.keyfile"):
            value = str(path(line.value)) if line.value else ""
        elif key in ("enable_pipelining", "ssl.verify"):
            value = {"true": True, "on": True, "false": False, "off": False}.get(line.value, line.value)
        elif key == "pool_size":
            value = int(line.value) if re.fullmatch(r"\d{1,9}", line.value, re.ASCII) else line.value
        else:
            self._report.left_out(line.place, f"{line.key} {line.value}", "no counterpart")
            return
        self._values[name] = value
        self._lines[name] = line

    def _rule(self, line: Directive, key: str) -> None:
        event = key.removeprefix("rule.").rpartition(".")[0]
        try:
            rule = msgspec.json.decode(line.value, type=dict[str, str])
        except msgspec.DecodeError:
            self._report.wrong(line.place, f"{line.key} {line.value}", 'expected JSON such as {"action": ...}')
            return
        table = {"event": event}
        if rule.get("topic"):
            table["topic"] = rule["topic"]
        self._rules.append((line, table))

    def finish(self) -> None:
        """Write ``[webhook]``."""
        values = {**self._values, "rules": [table for _, table in self._rules]}
        faults: tuple[Fault, ...] = ()
        try:
            read_data({"webhook": values})
        except ConfigError as error:
            faults = error.faults
        for fault in faults:
            where = fault.place[1:]
            line = self._rules[int(where[1])][0] if where[:1] == ("rules",) and len(where) > 1 else None
            line = line or self._lines.get(str(where[0])) or next(iter(self._lines.values()))
            self._report.wrong(line.place, f"{line.key} {line.value}", fault.what)
        if faults:
            return
        for name, value in values.items():
            line = self._lines.get(name)
            source = None if line is None else SettingPlace(line.place, line.key)
            self._migration.set("webhook", name, value, source)
            if line is not None:
                self._report.carried(line.place, f"{line.key} {line.value}", f"webhook.{name}")
        for number, (line, _) in enumerate(self._rules):
            self._report.carried(line.place, f"{line.key} {line.value}", f"webhook.rules.{number}")


class EmqxModules:
    """The ``module.*`` settings of emqx.conf."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        self._report = migration.report
        self._loaded_file = Path()
        self._loaded: list[str] | None = None
        self._subscriptions: dict[int, dict[str, Directive]] = {}
        self._rewrite: list[tuple[int, str | None, Directive]] = []

    def take(self, line: Directive) -> bool:
        """Return whether this is a setting that ``finish`` writes."""
        found = _REWRITE_KEY.fullmatch(line.key)
        if found is not None:
            self._rewrite.append((int(found[2]), found[1], line))
            return True
        found = _SUBSCRIPTION_KEY.fullmatch(line.key)
        if found is not None:
            self._subscriptions.setdefault(int(found[1]), {})[found[2]] = line
            return True
        return False

    def finish(self, loaded_file: Path, loaded: list[str] | None) -> None:
        """Write the settings of the modules. ``loaded``: the names in ``loaded_file``; None: it does not exist."""
        self._loaded_file, self._loaded = loaded_file, loaded
        if self._rewrite and self._used(REWRITE, [line for _, _, line in self._rewrite]):
            self._write_rewrite()
        lines = [line for each in self._subscriptions.values() for line in each.values()]
        if lines and self._used(SUBSCRIPTION, lines):
            self._write_subscriptions()

    def _used(self, module: str, lines: list[Directive]) -> bool:
        """Return whether the module is loaded. If that is not known, its settings are used."""
        if self._loaded is None:
            why = f"{self._loaded_file}, which records whether {module} is loaded, does not exist: assumed to be loaded"
            self._report.changed(lines[0].place, module, why)
        elif module not in self._loaded:
            for line in lines:
                why = f"{module} is not loaded, so EMQX does not use it either"
                self._report.left_out(line.place, f"{line.key} {line.value}", why)
            return False
        return True

    def _write_rewrite(self) -> None:
        """Write the rewrite rules. EMQX applies them in reverse: the rule with the highest number first."""
        rules: list[dict[str, object]] = []
        for _, kind, line in sorted(self._rewrite, key=lambda each: each[0], reverse=True):
            what = f"{line.key} {line.value}"
            parts = line.value.split()
            if len(parts) != 3:
                self._report.wrong(line.place, what, "expected a topic filter, a regular expression and a topic")
                continue
            table: dict[str, object] = {"action": _ACTIONS[kind]}
            table |= zip(("source_topic", "re", "dest_topic"), parts, strict=True)
            faults = list(validate_rewrite(msgspec.convert({"rules": [table]}, RewriteSettings)))
            for fault in faults:
                self._report.wrong(line.place, what, f"{fault.place[-1]}: {fault.what}")
            if not faults:
                rules.append(table)
                self._report.carried(line.place, what, f"rewrite.rules.{len(rules) - 1}")
        if rules:
            first = self._rewrite[0][2]
            self._migration.set("rewrite", "rules", rules, SettingPlace(first.place, first.key))
            why = "access rules apply to the topic after rewriting; in EMQX, to the topic before it"
            self._report.changed(first.place, "module.rewrite", why)

    def _write_subscriptions(self) -> None:
        topics: list[dict[str, object]] = []
        for number, lines in sorted(self._subscriptions.items()):
            first = next(iter(lines.values()))
            if "topic" not in lines:
                self._report.wrong(first.place, f"module.subscription.{number}", "no topic")
                continue
            values: dict[str, object] = {key: line.value for key, line in lines.items()}
            for key in ("qos", "nl", "rap", "rh"):
                if key in values:
                    text = lines[key].value
                    if text in ("0", "1", "2"):
                        values[key] = text == "1" if key in ("nl", "rap") and text != "2" else int(text)
            faults: tuple[Fault, ...] = ()
            try:
                read_data({"auto_subscribe": {"topics": [values]}})
            except ConfigError as error:
                faults = error.faults
            for fault in faults:
                line = lines.get(str(fault.place[-1]), first)
                self._report.wrong(line.place, f"{line.key} {line.value}", fault.what)
            if not faults:
                for key, line in lines.items():
                    why = f"auto_subscribe.topics.{len(topics)}.{key}"
                    self._report.carried(line.place, f"{line.key} {line.value}", why)
                topics.append(values)
        if topics:
            first = next(iter(self._subscriptions[min(self._subscriptions)].values()))
            self._migration.set("auto_subscribe", "topics", topics, SettingPlace(first.place, first.key))
