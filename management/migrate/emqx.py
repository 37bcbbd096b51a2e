"""Migration from EMQX 4.x: an export file, or the directory ``etc`` with its configuration."""

import asyncio
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.access.declaration import AccessSource
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME, StoredUser
from taipan.broker.config import AccessSettings, ListenerSettings, ZoneSettings
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.ruleengine.rules.import_check import ImportCheck

from ..configuration.emqx_access import order_of, read_access, source_of_plugin
from ..configuration.emqx_values import WrongValue, flag_of, number_of, seconds_of, size_of
from ..configuration.known_secrets import is_known
from ..operations.backup.documents import env_of
from ..operations.backup.import_file import ImportedDocument, ImportRefused, Plan
from ..operations.backup.json_document import BadRecord, Document
from ..operations.refusal import Refusal
from .emqx_acl import read_acl
from .emqx_exhook import EmqxExhook
from .emqx_gateways import gateway_of_plugin, put_gateway
from .emqx_modules import EmqxModules, EmqxWebHook, loaded_names, report_modules
from .emqx_sources import CLOSED, close, put_modules, put_source
from .mosquitto_files import Directive, read_lines
from .named_files import MAX_EXPORT, missing, read_named
from .output import Migration, SettingPlace, Table
from .report import CannotMigrate
from .scratch_engine import scratch_engine

_SECTIONS: Final = {
    "resources": "resources", "engine_rules": "rules", "users": "auth_mnesia", "rules": "acl_mnesia",
    "bans": "blacklist", "apps": "apps", "dashboard_users": "users", "retained": "retained",
}  # fmt: skip
_NO_SOURCE: Final = (
    "emqx_auth_mongo", "emqx_psk_file", "emqx_sasl", "emqx_auth_clientid", "emqx_auth_username",
)  # fmt: skip
"""Plugins that authenticate clients, and have no counterpart."""

# Keys of a zone, of mqtt.* and of a listener: the name in Taipan, and the kind of value.
_ZONE: Final = {
    "idle_timeout": ("idle_timeout", "seconds"), "enable_acl": ("enable_acl", "flag"),
    "acl_deny_action": ("acl_deny_action", "text"), "max_packet_size": ("max_packet_size", "size"),
    "max_clientid_len": ("max_client_id_length", "number"), "max_topic_levels": ("max_topic_levels", "number"),
    "max_qos_allowed": ("max_qos", "number"), "max_topic_alias": ("max_topic_alias", "number"),
    "retain_available": ("retain_available", "flag"), "wildcard_subscription": ("wildcard_subscription", "flag"),
    "shared_subscription": ("shared_subscription", "flag"),
    "exclusive_subscription": ("exclusive_subscription", "flag"),
    "server_keepalive": ("server_keep_alive", "number"),
    "max_subscriptions": ("max_subscriptions", "number"), "upgrade_qos": ("upgrade_qos", "flag"),
    "max_inflight": ("max_inflight", "number"), "retry_interval": ("retry_interval", "seconds"),
    "max_awaiting_rel": ("max_awaiting_rel", "number"), "await_rel_timeout": ("await_rel_timeout", "seconds"),
    "session_expiry_interval": ("session_expiry_interval", "whole_seconds"),
    "max_mqueue_len": ("max_queued_messages", "number"), "mqueue_store_qos0": ("queue_qos0", "flag"),
    "mountpoint": ("mountpoint", "text"), "use_username_as_clientid": ("use_username_as_client_id", "flag"),
    "ignore_loop_deliver": ("ignore_loop_deliver", "flag"), "strict_mode": ("strict_strings", "flag"),
    "allow_anonymous": ("allow_anonymous", "flag"), "response_information": ("response_information", "text"),
    "rate_limit.conn_messages_in": ("message_rate", "rate"), "publish_limit": ("message_rate", "rate"),
    "rate_limit.conn_bytes_in": ("byte_rate", "rate"),
}  # fmt: skip
_KINDS: Final = {name: kind for name, kind in LISTENER_KINDS.items() if not kind.local}
_LISTENER: Final = {
    "max_connections": ("max_connections", "number"), "max_conn_rate": ("accept_rate", "number"),
    "zone": ("zone", "text"), "mountpoint": ("mountpoint", "text"), "proxy_protocol": ("proxy_protocol", "flag"),
    "proxy_protocol_timeout": ("proxy_protocol_timeout", "seconds"), "backlog": ("backlog", "number"),
    "nodelay": ("nodelay", "flag"), "mqtt_path": ("path", "text"), "compress": ("compress", "flag"),
    "mqtt_piggyback": ("mqtt_piggyback", "text"),
    "fail_if_no_subprotocol": ("subprotocol_required", "flag"),
    "verify_protocol_header": ("subprotocol_required", "flag"),
}  # fmt: skip
_TLS: Final = {
    "certfile": ("certfile", "file"), "keyfile": ("keyfile", "file"), "cacertfile": ("cafile", "file"),
    "key_password": ("key_password", "text"), "handshake_timeout": ("handshake_timeout", "seconds"),
}  # fmt: skip
_TLS_ONLY: Final = ("verify", "fail_if_no_peer_cert", "tls_versions", "peer_cert_as_username")
_COMMON: Final = {
    "node.name": ("node", "name", "text"), "acl_nomatch": ("access", "no_match", "text"),
    "enable_acl_cache": ("access", "cache", "flag"), "acl_cache_max_size": ("access", "cache_max_size", "number"),
    "acl_cache_ttl": ("access", "cache_ttl", "seconds"), "broker.sys_interval": ("sys_topics", "interval", "seconds"),
    "broker.sys_heartbeat": ("sys_topics", "heartbeat", "seconds"),
    "broker.shared_subscription_strategy": ("shared", "strategy", "text"),
    "retainer.max_retained_messages": ("retained", "max_messages", "number"),
    "retainer.max_payload_size": ("retained", "max_payload_size", "size"),
    "retainer.expiry_interval": ("retained", "expiry_interval", "seconds"),
}  # fmt: skip
_NAMED: Final = ("resources", "rules", "schemas")
"""Sections of an export whose records are reported one by one if they have no effect here."""
_ORDERS: Final = {"auth_order": "authenticators", "acl_order": "authorizers"}
_STRATEGIES: Final = {"hash": "hash_clientid", "local": "random"}
"""Strategies of shared subscriptions that have another name in Taipan, or no counterpart."""
_WHY: Final = (
    ("cluster.", "clusters use NATS: [cluster]"),
    ("rpc.", "clusters use NATS: [cluster]"),
    ("node.", "it configures the Erlang virtual machine"),
    ("log.", "the log goes to standard error: [log]"),
    ("sysmon.", "it configures the Erlang virtual machine"),
    ("os_mon.", "watch the machine with Prometheus: GET /metrics"),
    ("vm_mon.", "it configures the Erlang virtual machine"),
    ("alarm.", "alarms have no such setting: taipan-ctl alarms list"),
    ("bridge.", "create a resource bridge_mqtt and a rule with the action data_to_mqtt_broker"),
    ("module.", "the features of modules are on, or have their own settings: taipan --print-defaults"),
    ("plugins.", "EMQX plugins do not run here"),
    ("broker.", "not known"),
)


def migrate_emqx(path: Path) -> Migration:
    """Return the configuration and data to write. Raises CannotMigrate."""
    if os.path.isdir(path):
        work = _Etc(path)
        work.run()
        return work.migration
    if fault := missing(path, "no such file or directory"):
        raise CannotMigrate(f"{path}: {fault}")
    return asyncio.run(_export(path.absolute()))


# ----------------------------------------------------------------------- export


async def _export(path: Path) -> Migration:
    migration = Migration(f"an export of EMQX, {path}", str(path))
    report = migration.report
    try:
        data = read_named(path, MAX_EXPORT)
    except OSError as error:
        raise CannotMigrate(f"{path}: {error.strerror}") from None
    async with scratch_engine() as engine:
        try:
            document = _document(data.decode("utf-8"))
            if "version" not in document.members and document.has("file"):
                document = _document("".join(document.long_text(document.members["file"])))
            file = ImportedDocument(document, env_of(document), time.time(), 0)
            for _ in file.read():
                pass
            async for _ in file.check_engine(ImportCheck(engine)):
                pass
            file.refuse_wrong()
        except ImportRefused as refusal:
            for row in refusal.rows:
                key = f".{row['key']}" if row["key"] else ""
                report.wrong(str(path), f"{row['section']}[{row['index']}]{key}", str(row["what"]))
            return migration
        except Refusal as refusal:
            raise CannotMigrate(f"{path}: {refusal.message}") from None
        except UnicodeDecodeError as error:
            raise CannotMigrate(f"{path}: not UTF-8 at byte {error.start}") from None
        except (BadRecord, KeyError) as error:
            raise CannotMigrate(f"{path}: file: expected the text of an exported file ({error})") from None
    plan = migration.plan = file.plan
    for name, section in _SECTIONS.items():
        rows = getattr(plan, name)
        if rows:
            report.carried(str(path), section, f"{len(rows)}, stored at the first start")
    for row in file.disabled:
        report.changed(str(path), str(row["id"]), f"does not start until this is corrected: {row['what']}")
    for left in plan.left_out:
        kind = {"users": "dashboard user", "apps": "application"}.get(left.section, "user")
        report.left_out(str(path), f"{kind} {left.id}", left.what)
    for section, records in plan.carried.items():
        if section == "modules":
            continue
        named = [each for each in file.without_effect if each.section == section and section in _NAMED]
        for each in named:
            report.left_out(str(path), f"{section} {each.id}", each.what)
        if len(records) > len(named):
            count = f"{len(records) - len(named)} {'more ' if named else ''}records"
            report.left_out(str(path), section, f"{count} without a counterpart, kept for the next export")
    report_modules(report, str(path), _modules(plan))
    if put_modules(migration, str(path), _modules(plan)):
        close(migration, [migration.zone])
    report.changed(
        str(path), "listeners", "an export contains none: these are on loopback. Migrate etc, or write them yourself"
    )
    report.changed(
        str(path),
        "rules",
        "a subscription is checked against all topics that its filter can match; EMQX compares the filter as a topic",
    )
    return migration


def _modules(plan: Plan) -> Iterator[dict[str, object]]:
    for row in plan.carried.get("modules", ()):
        record = msgspec.json.decode(row.text)
        if isinstance(record, dict):
            yield record


def _document(text: str) -> Document:
    """Return the parsed export file. Raises Refusal."""
    document = Document([text])
    for _ in document.read():
        pass
    return document


# -------------------------------------------------------------------------- etc


def _source(line: Directive) -> SettingPlace:
    return SettingPlace(line.place, f"{line.key} {line.value}")


class _Etc:
    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.migration = Migration(f"EMQX 4, {self.directory}", str(self.directory))
        self.report = self.migration.report
        self.zones: dict[str, Table] = {"external": {}}
        self.listeners: dict[tuple[str, str], Table] = {}
        self.places: dict[tuple[str, str], Directive] = {}
        self.tls: dict[tuple[str, str], Table] = {}
        self.people: dict[tuple[str, str], dict[str, Directive]] = {}
        self.acl: Directive | None = None
        self.anonymous: bool | None = None
        self.orders: dict[str, Directive] = {}  # by the setting
        self.loaded_file: Directive | None = None
        self.flapping: tuple[Directive, tuple[int, float, float]] | None = None
        self.modules = EmqxModules(self.migration)
        self.flapping_zones: dict[int, bool] = {}  # by the zone's table: whether it is enabled

    def run(self) -> None:
        main = self.directory / "emqx.conf"
        if not main.is_file():
            raise CannotMigrate(f"{self.directory}: it contains no emqx.conf")
        zone = self.zones["external"]
        for line in self._lines(main):
            self._take(line)
        self._nothing_said(main)
        self._finish_modules()
        self._plugins()
        self._finish_orders()
        self._finish_listeners()
        self._finish_flapping()
        self._users()
        if self.acl is None:
            default = self.directory / "acl.conf"
            if default.is_file():
                self.acl = Directive("acl_file", str(default), str(default))
        if self.acl is not None:
            self.migration.rules = read_acl(self._path(self.acl.value), self.report)
            why = (
                "a subscription is checked against all topics that its filter can match; EMQX compares the filter as"
                " a topic"
            )
            self.report.changed(self.acl.place, "acl_file", why)
        self.migration.zone = zone
        for name, table in self.zones.items():
            if name != "external":
                self.migration.zones[name] = table

    def _nothing_said(self, main: Path) -> None:
        """Apply EMQX's defaults for settings that are not given."""
        if self.anonymous is None:
            self.report.changed(str(main), "no allow_anonymous", "allow_anonymous = false, as in EMQX")
        if "no_match" not in self.migration.tables.get("access", {}):
            self.migration.set("access", "no_match", "deny")
            self.report.changed(str(main), "no acl_nomatch", "access.no_match = deny, as in EMQX")

    def _lines(self, path: Path, within: tuple[Path, ...] = ()) -> Iterator[Directive]:
        if path.resolve() in within:
            self.report.wrong(str(path), "include", "it includes itself")
            return
        within = (*within, path.resolve())
        for place, line in read_lines(path, self.report, "configuration"):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("include "):
                included = self._path(text.removeprefix("include ").strip().strip('"'))
                yield from self._lines(included, within)
                continue
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                self.report.wrong(place, text, "expected key = value")
                continue
            yield Directive(key.strip(), _unquoted(value.strip()), place)

    def _text_of(self, path: Path) -> str:
        try:
            return read_named(path).decode("utf-8", "replace")
        except OSError as error:
            raise CannotMigrate(f"{path}: {error.strerror or error}") from None

    def _path(self, value: str) -> Path:
        """Return a path. In EMQX, paths are relative to the parent directory of etc."""
        path = Path(value)
        if path.is_absolute():
            return path
        inside = value.removeprefix("etc/")
        return self.directory / inside if value.startswith("etc/") else self.directory.parent / value

    def _take(self, line: Directive) -> None:
        key = line.key
        if key.startswith("listener."):
            self._listener(line)
        elif key.startswith("zone."):
            _, name, *rest = key.split(".")
            self._setting(line, self.zones.setdefault(name, {}), _ZONE, ".".join(rest), f"zones.{name}")
        elif key.startswith("mqtt."):
            self._setting(line, self.zones["external"], _ZONE, key.removeprefix("mqtt."), "zones.external", weak=True)
        elif key == "allow_anonymous":
            value = self._value(line, "flag")
            if isinstance(value, bool):
                self.anonymous = value
                self.report.carried(line.place, f"{key} {line.value}", "allow_anonymous of zones that do not set it")
        elif key == "acl_deny_action":
            self._setting(line, self.zones["external"], _ZONE, key, "zones.external", weak=True)
        elif key in _ORDERS:
            self.orders[_ORDERS[key]] = line
        elif key == "plugins.loaded_file":
            self.loaded_file = line
        elif key == "acl_file":
            self.acl = line
            self.report.carried(line.place, f"acl_file {line.value}", "access.rules")
        elif key == "log.level":
            level = {"warning": "warning", "error": "error", "debug": "debug"}.get(line.value, "info")
            self.migration.set("log", "level", level)
            self.report.carried(line.place, f"log.level {line.value}", f"log.level = {level}")
        elif self.modules.take(line):
            pass
        elif key == "flapping_detect_policy":
            self._flapping(line)
        elif key in _COMMON:
            table, name, kind = _COMMON[key]
            value = self._value(line, kind)
            if value is not None:
                self._common(line, table, name, value)
        else:
            why = next((why for prefix, why in _WHY if key.startswith(prefix)), "no counterpart")
            self.report.left_out(line.place, f"{key} {line.value}", why)

    def _common(self, line: Directive, table: str, name: str, value: object) -> None:
        what = f"{line.key} {line.value}"
        if name == "cache_ttl" and value == 0:
            self.migration.set("access", "cache", False, _source(line))
            self.report.changed(line.place, what, "access.cache = false: a decision cached for 0 s is not cached")
            return
        if name == "strategy" and value in _STRATEGIES:
            self.migration.set(table, name, _STRATEGIES[str(value)], _source(line))
            self.report.changed(line.place, what, f"shared.strategy = {_STRATEGIES[str(value)]}")
            return
        self.migration.set(table, name, value, _source(line))
        self.report.carried(line.place, what, f"{table}.{name}")

    def _setting(
        self, line: Directive, table: Table, known: dict[str, tuple[str, str]], key: str, where: str, weak: bool = False
    ) -> None:
        """``weak``: the zone's own setting takes precedence."""
        if key == "keepalive_backoff":
            try:
                multiplier = 2 * float(line.value)
                if not math.isfinite(multiplier):
                    raise ValueError
                self.migration.put(table, "keep_alive_multiplier", max(1.0, multiplier), _source(line))
            except ValueError:
                self.report.wrong(line.place, f"{line.key} {line.value}", "expected a number")
                return
            self.report.carried(line.place, f"{line.key} {line.value}", f"{where}.keep_alive_multiplier")
        elif key == "enable_flapping_detect" and known is _ZONE:
            enabled = self._value(line, "flag")
            if isinstance(enabled, bool):
                self.flapping_zones[id(table)] = enabled
                self.report.carried(line.place, f"{line.key} {line.value}", f"{where}.flapping_threshold")
        elif key in known:
            name, kind = known[key]
            value = self._value(line, kind)
            if value is None:
                return
            if not weak or name not in table:
                self.migration.put(table, name, value, _source(line))
            self.report.carried(line.place, f"{line.key} {line.value}", f"{where}.{name}")
        else:
            self.report.left_out(line.place, f"{line.key} {line.value}", "no counterpart")

    def _flapping(self, line: Directive) -> None:
        parts = [part.strip() for part in line.value.split(",")]
        try:
            if len(parts) != 3:
                raise WrongValue("expected a number and two times")
            self.flapping = line, (number_of(parts[0]), seconds_of(parts[1]), seconds_of(parts[2]))
        except WrongValue as error:
            self.report.wrong(line.place, f"{line.key} {line.value}", str(error))

    def _finish_flapping(self) -> None:
        """Set the policy of all zones in the zones that enable it; in EMQX it is off by default."""
        if self.flapping is None:
            return
        line, values = self.flapping
        what = f"{line.key} {line.value}"
        on = [name for name, zone in self.zones.items() if self.flapping_zones.get(id(zone))]
        if not on:
            why = "no zone has enable_flapping_detect = on, so EMQX does not use it either"
            self.report.left_out(line.place, what, why)
            return
        for name in on:
            for key, value in zip(("flapping_threshold", "flapping_window", "flapping_ban"), values, strict=True):
                self.migration.put(self.zones[name], key, value, _source(line))
        why = f"flapping_threshold, flapping_window, flapping_ban of {', '.join(f'zones.{name}' for name in on)}"
        self.report.carried(line.place, what, why)

    def _value(self, line: Directive, kind: str) -> object:
        """Return the value of a directive, or ``None`` if it is invalid, which has been reported."""
        try:
            match kind:
                case "text":
                    return line.value
                case "file":
                    return self._file(line.value)
                case "directory":
                    return self._directory(line.value)
                case "rate":
                    amount, _, window = line.value.partition(",")
                    return [int(size_of(amount.strip())), seconds_of(window.strip())]
            found: Callable[[str], object] = {
                "number": number_of, "flag": flag_of, "seconds": seconds_of, "size": size_of,
                "whole_seconds": lambda text: int(seconds_of(text)), "flag_or_list": flag_or_list_of,
            }[kind]  # fmt: skip
            return found(line.value)
        except WrongValue as error:
            self.report.wrong(line.place, f"{line.key} {line.value}", str(error))
            return None

    # ----------------------------------------------------------------- listeners

    def _listener(self, line: Directive) -> None:
        _, kind, *rest = line.key.split(".")
        if kind not in _KINDS or not rest:
            self.report.left_out(line.place, f"{line.key} {line.value}", "listeners can be tcp, ssl, ws or wss")
            return
        name, key = rest[0], ".".join(rest[1:])
        table = self.listeners.setdefault((kind, name), {"name": name, "type": kind})
        tls = self.tls.setdefault((kind, name), {})
        if not key:
            host, colon, port = line.value.rpartition(":")
            if not colon:
                host = "0.0.0.0"
            bind = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
            self.migration.put(table, "bind", bind, _source(line))
            self.migration.note(table, _source(line))
            self.places[kind, name] = line
            self.report.carried(line.place, f"{line.key} {line.value}", f"listeners, {kind} {name}, {bind}")
        elif not _KINDS[kind].tls and (key in _TLS or key in _TLS_ONLY):
            self.report.left_out(line.place, f"{line.key} {line.value}", f"a listener of {kind} has no TLS here")
        elif key == "peer_cert_as_username":
            if line.value in ("cn", "dn"):
                self.migration.put(tls, key, line.value, _source(line))
                self.report.carried(line.place, f"{line.key} {line.value}", "listeners.tls.peer_cert_as_username")
            else:
                self.report.wrong(line.place, f"{line.key} {line.value}", "the username is cn or dn of the certificate")
        elif key in ("verify", "fail_if_no_peer_cert"):
            self.migration.put(tls, f".{key}", line.value, _source(line))
            self.report.carried(line.place, f"{line.key} {line.value}", "listeners.tls.verify")
        elif key == "tls_versions":
            oldest = "1.3" if "tlsv1.2" not in line.value and "tlsv1.3" in line.value else "1.2"
            tls["min_version"] = oldest
            self.report.carried(line.place, f"{line.key} {line.value}", f"listeners.tls.min_version = {oldest}")
        elif key.startswith("access."):
            if line.value != "allow all":
                self.report.wrong(line.place, f"{line.key} {line.value}", "write it as an access rule with address")
        elif key == "check_origins":
            origins = [each.strip() for each in line.value.split(",")]
            self.migration.put(table, "allowed_origins", origins, _source(line))
            self.report.carried(line.place, f"{line.key} {line.value}", "listeners.allowed_origins")
        elif key in ("check_origin_enable", "allow_origin_absence"):
            table[f".{key}"] = line.value
            self.report.carried(line.place, f"{line.key} {line.value}", "listeners.allowed_origins")
        elif key in _TLS and _KINDS[kind].tls:
            self._setting(line, tls, _TLS, key, "listeners.tls")
        else:
            self._setting(line, table, _LISTENER, key, "listeners")

    def _finish_listeners(self) -> None:
        for (kind, name), table in self.listeners.items():
            if "bind" not in table:
                self.report.left_out(str(self.directory), f"listener.{kind}.{name}", "no address")
                continue
            place = self.places[kind, name].place
            if table.get("max_connections") == 0:
                del table["max_connections"]
            if _KINDS[kind].tls:
                tls = self.tls[kind, name]
                verify, fails = tls.pop(".verify", ""), tls.pop(".fail_if_no_peer_cert", "")
                if verify == "verify_peer":
                    asked = "required" if fails == "true" else "optional"
                    self.migration.put(tls, "verify", asked, self.migration.source_of(tls, ".verify"))
                if "certfile" not in tls or "keyfile" not in tls:
                    self.report.wrong(place, f"listener.{kind}.{name}", "no certfile, or no keyfile")
                table["tls"] = tls
            for key in _KINDS[kind].unused_keys():
                table.pop(key, None)
            self._finish_origins(table)
            zone = str(table.get("zone", "external"))
            if zone not in self.zones:
                self.zones[zone] = {}
            known = {*ListenerSettings.__struct_fields__, *ZoneSettings.__struct_fields__}
            for key in table.keys() - known:
                del table[key]
            self.migration.listeners.append(table)
        for table in self.zones.values():
            table.setdefault("allow_anonymous", self.anonymous or False)

    def _finish_origins(self, table: Table) -> None:
        """EMQX checks the origin of a page if ``check_origin_enable`` is set."""
        enabled = table.get(".check_origin_enable", "false") in ("true", "on")
        source = self.migration.source_of(table, "allowed_origins")
        if source is not None and not enabled:
            table.pop("allowed_origins", None)
            why = "check_origin_enable is not true, so EMQX checks no origin either"
            self.report.amend("left_out", source.place, source.what, why)
        elif source is not None and table.get(".allow_origin_absence", "true") in ("false", "off"):
            why = "listeners.allowed_origins; clients that send no Origin, which are not pages, may connect"
            self.report.amend("changed", source.place, source.what, why)

    # ------------------------------------------------------------------- plugins

    def _plugins(self) -> None:
        loaded_file, loaded = self._loaded()
        closed = False
        for name in loaded or []:
            if name in _NO_SOURCE:
                why = f"it decided which clients may connect, and has no counterpart; {CLOSED}"
                self.report.left_out(str(loaded_file), name, why)
                closed = True
            elif (source := source_of_plugin(name)) is not None:
                closed |= not self._source(source, name, loaded_file)
        if closed:
            close(self.migration, self.zones.values())
        for path in sorted((self.directory / "plugins").glob("*.conf")):
            name = path.stem
            source, gateway = source_of_plugin(name), gateway_of_plugin(name)
            decides = name in _NO_SOURCE or source is not None
            if loaded is None and decides:
                where = "" if source is None else f" here: [access.{source.name}]"
                why = (
                    f"whether it is loaded is recorded in {loaded_file}, which does not exist; if it was loaded, set it"
                    f" up{where}"
                )
                self.report.left_out(str(path), name, why)
                continue
            if loaded is not None and name not in loaded and name != "emqx_retainer":
                continue
            if name in ("emqx_auth_mnesia", "emqx_retainer"):
                for line in self._lines(path):
                    self._of_plugin(line)
            elif name == "emqx_exhook":
                self._exhook(path, loaded_file if loaded is None else None)
            elif name == "emqx_web_hook":
                self._web_hook(path, loaded_file if loaded is None else None)
            elif gateway is not None and loaded is None:
                why = (
                    f"whether it is loaded is recorded in {loaded_file}, which does not exist; if it was loaded, add a"
                )
                self.report.left_out(str(path), name, f"{why} listener of type {gateway.name}")
            elif gateway is not None:
                put_gateway(self.migration, gateway, path, self._lines(path), self._value)
            elif not decides:
                self.report.left_out(str(path), name, "EMQX plugins do not run here")

    def _exhook(self, path: Path, missing_file: Path | None) -> None:
        """``missing_file``: the file that would record whether the plugin is loaded, if it does not exist."""
        if missing_file is not None:
            why = f"{missing_file}, which records whether it is loaded, does not exist; if it was, set up [exhook]"
            self.report.left_out(str(path), "emqx_exhook", why)
            return
        exhook = EmqxExhook(self.migration, self._value)
        for line in self._lines(path):
            exhook.take(line)
        exhook.finish(str(path))

    def _web_hook(self, path: Path, missing_file: Path | None) -> None:
        """``missing_file``: the file that would record whether the plugin is loaded, if it does not exist."""
        if missing_file is not None:
            why = f"{missing_file}, which records whether it is loaded, does not exist; if it was, set up [webhook]"
            self.report.left_out(str(path), "emqx_web_hook", why)
            return
        web_hook = EmqxWebHook(self.migration)
        for line in self._lines(path):
            web_hook.take(line, self._path)
        web_hook.finish()

    def _finish_modules(self) -> None:
        file = self.directory.parent / "data" / "loaded_modules"
        self.modules.finish(file, loaded_names(self._text_of(file)) if file.is_file() else None)

    def _loaded(self) -> tuple[Path, list[str] | None]:
        """Return the file that names the loaded plugins, and their names; None: there is no such file."""
        named = [] if self.loaded_file is None else [self._path(self.loaded_file.value)]
        for file in (*named, self.directory.parent / "data" / "loaded_plugins"):
            if file.is_file():
                return file, loaded_names(self._text_of(file))
        return file, None

    def _source(self, source: AccessSource, plugin: str, loaded_file: Path) -> bool:
        """Add a source for a loaded plugin. Return whether the source exists."""
        path = self.directory / "plugins" / f"{plugin}.conf"
        emqx = source.emqx
        if emqx is None or not emqx.keys or not path.is_file():
            absent = "" if path.is_file() else f"{path} does not exist; "
            why = f"{absent}it decided which clients may connect: set it up here: [access.{source.name}]; {CLOSED}"
            self.report.left_out(str(loaded_file), plugin, why)
            return False
        lines = {line.key.removeprefix(emqx.prefix): line for line in self._lines(path)}
        read = read_access(source, {key: line.value for key, line in lines.items()}, self._file)
        places = {key: _source(line) for key, line in lines.items()}
        put_source(self.migration, source, read, {**places, "": SettingPlace(str(path), plugin)})
        return True

    def _file(self, value: str) -> str:
        """Return the path of a file. Raises WrongValue."""
        path = self._path(value)
        if fault := missing(path):
            raise WrongValue(f"{fault}: {path}")
        return str(path)

    def _directory(self, value: str) -> str:
        """Return the path of a directory. Raises WrongValue."""
        path = self._path(value)
        if not os.path.isdir(path):  # the methods of Path raise for a name that is too long
            raise WrongValue(f"no directory: {path}")
        return str(path)

    def _finish_orders(self) -> None:
        for setting, line in self.orders.items():
            what = f"{line.key} {line.value}"
            default: tuple[str, ...] = getattr(AccessSettings(), setting)
            order, unknown = order_of(line.value, default)
            without = f"; without a counterpart: {', '.join(unknown)}" if unknown else ""
            if order == list(default):
                self.report.carried(line.place, what, f"access.{setting} has its default order{without}")
                continue
            self.migration.set("access", setting, order, _source(line))
            self.report.carried(line.place, what, f"access.{setting} = {', '.join(order)}{without}")

    def _of_plugin(self, line: Directive) -> None:
        found = re.fullmatch(r"auth\.(client|user|mnesia)\.(\d+)\.(\w+)", line.key)
        if found is not None:
            self.people.setdefault((found[1], found[2]), {})[found[3]] = line
        elif line.key in _COMMON:
            self._take(line)
        else:
            why = "passwords are stored with Taipan's own hash" if "password_hash" in line.key else "no counterpart"
            self.report.left_out(line.place, f"{line.key} {line.value}", why)

    def _users(self) -> None:
        now = time.time()
        for (kind, number), keys in self.people.items():
            name = next((keys[key] for key in ("clientid", "username", "login") if key in keys), None)
            password = keys.get("password")
            first = next(iter(keys.values()))
            if name is None or password is None or not name.value:
                self.report.wrong(first.place, f"auth.{kind}.{number}", "it requires a name and a password")
                continue
            if is_known(password.value):
                self.report.left_out(first.place, f"user {name.value}", "its password is EMQX's published default")
                continue
            superuser = "is_superuser" in keys and keys["is_superuser"].value == "true"
            of = CLIENT_ID if kind == "client" else USERNAME
            written = str(ScryptHash.create(password.value.encode()))
            self.migration.plan.users.append(StoredUser(of, name.value, written, superuser, now))
            self.report.carried(first.place, f"{of} {name.value}", "a stored user; the password is hashed")


def flag_or_list_of(text: str) -> bool | list[str]:
    """Return a flag, or the parts of a text between commas."""
    try:
        return flag_of(text)
    except WrongValue:
        return [part.strip() for part in text.split(",") if part.strip()]


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
