"""Migration from Mosquitto: its configuration to Taipan's, its users and bridges to an import plan, mosquitto.db to a
store."""

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.access.acl import reads_some
from taipan.broker.access.configuration.rules import ConfiguredAclRules
from taipan.broker.access.stored.users import USERNAME, StoredUser
from taipan.broker.config import RuleSettings, ZoneSettings
from taipan.broker.listener_kinds import find_kind
from taipan.broker.mqtt.topics import parse_filter, valid_filter
from taipan.broker.session.client_info import RESTORED, ClientInfo

from ..configuration.settings_validation import LEAST_MEMORY
from .mosquitto_bridges import Bridge, bridge_records
from .mosquitto_db import NEVER, MosquittoDb, NoMosquittoDb, read_mosquitto_db
from .mosquitto_files import AclLine, Directive, acl_file, directives, file_of, password_file, without_mount_point
from .mosquitto_store import MosquittoListener, MosquittoRecords, write_store
from .named_files import MAX_DATABASE, missing, read_named
from .output import Migration, SettingPlace, Table
from .report import CannotMigrate
from .scratch_engine import add_engine_rows

_PACKET_MOST: Final = 268_435_460
_DATABASE: Final = "mosquitto.db"
_TIMES: Final = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
_NOT_NEEDED: Final = {
    "autosave_interval": "every change is on disk before it is acknowledged",
    "autosave_on_changes": "every change is on disk before it is acknowledged",
    "connection_messages": "the log shows every connection at level info",
    "log_facility": "the log goes to standard error; systemd keeps it",
    "log_timestamp": "every log line has its time",
    "log_timestamp_format": "every log line has its time in ISO 8601",
    "pid_file": "systemd knows the process; the lock file in the data directory has its process ID",
    "retry_interval": "Mosquitto ignores it as well",
    "store_clean_interval": "Mosquitto ignores it as well",
    "user": "the service sets the user: User= in the unit",
    "websockets_log_level": "the log has one level for everything",
    "websockets_headers_size": "the headers of a request are limited to 16 KiB",
    "bind_interface": "give the address of the interface as bind",
    "http_dir": "no files are served; put a web server in front of it",
    "keyform": "a key must be a PEM file",
    "tls_engine": "OpenSSL engines are not used",
    "tls_engine_kpass_sha1": "OpenSSL engines are not used",
    "tls_keylog": "the keys of connections are not logged",
    "dhparamfile": "OpenSSL's own parameters are used",
    "ciphers_tls1.3": "TLS 1.3 uses Python's cipher suites",
    "allow_duplicate_messages": "a client receives one copy for each matching subscription, as the standard allows",
    "max_topic_alias_broker": "the setting is max_outgoing_topic_alias, at most 16",
    "global_max_clients": "each listener has its max_connections",
    "global_max_connections": "each listener has its max_connections",
    "accept_protocol_versions": "all versions are accepted",
    "log_dest": "the log goes to standard error",
    "packet_buffer_size": "it grows as needed",
    "websockets_origin": "write allowed_origins of the listener: an origin there is scheme://host:port",
    "enable_control_api": "use the HTTP API for that",
    "persistence": "",
    "persistence_file": "",
    "persistence_location": "",
}
"""Keys without a counterpart, and why that does no harm. An empty reason: the key is handled elsewhere."""
_SECURITY: Final = ("allow_anonymous", "password_file", "acl_file", "allow_zero_length_clientid", "auto_id_prefix")
"""The settings that belong to one listener if per_listener_settings is true."""
_PSK: Final = ("psk_file", "psk_hint", "use_psk")
_PLUGINS: Final = ("auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use")
_WILD: Final = frozenset("+#/")
_LISTENER: Final = (
    "listener", "port", "bind_address", "max_connections", "max_qos", "max_topic_alias", "mount_point", "protocol",
    "socket_domain", "use_username_as_clientid", "cafile", "capath", "certfile", "keyfile", "ciphers", "crlfile",
    "tls_version", "require_certificate", "use_identity_as_username", "use_subject_as_username", "psk_hint",
    "enable_proxy_protocol",
)  # fmt: skip


class _Listener:
    """The lines about one listener. ``unsaid``: there are none, so it is the default listener on loopback."""

    def __init__(self, place: str, port: int, host: str) -> None:
        self.place = place
        self.port = port
        self.host = host
        self.keys: dict[str, Directive] = {}
        self.security: dict[str, Directive] = {}
        self.label = ""
        self.facts = MosquittoListener("")
        self.usable = True
        self.unsaid = False
        self.twin_of: _Listener | None = None

    @property
    def local(self) -> bool:
        """Whether the listener is bound to a Unix socket, whose path is then in ``host``."""
        return self.port == 0 and self.host.startswith("/")

    def twin(self) -> "_Listener":
        """Return the same listener for IPv6: each of Taipan's listeners has one address, but Mosquitto's listen for
        both families."""
        made = _Listener(self.place, self.port, "::")
        made.keys, made.security, made.twin_of = self.keys, self.security, self
        return made

    def get(self, key: str) -> str | None:
        found = self.keys.get(key)
        return None if found is None else found.value

    def says(self, key: str) -> bool:
        return self.get(key) in ("true", "1")


def migrate_mosquitto(path: Path) -> Migration:
    """Return the configuration and data to write. Raises CannotMigrate; the report of the result can also forbid
    writing."""
    if fault := missing(path):
        raise CannotMigrate(f"{path}: {fault}")
    work = _Mosquitto(path)
    work.run()
    return work.migration


class _Mosquitto:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.migration = Migration(f"Mosquitto, {self.path}", str(self.path))
        self.report = self.migration.report
        self.default = _Listener(str(self.path), 1883, "")
        self.listeners: list[_Listener] = []
        self.common: dict[str, Directive] = {}
        self.bridges: list[Bridge] = []
        self.per_listener = False
        self.plugins: list[Directive] = []

    def run(self) -> None:
        lines = directives(self.path, self.report)
        self._sort(lines)
        self._zone()
        self._listeners()
        self._access()
        for bridge in self.bridges:
            made = bridge_records(bridge, self.report, lambda value: str(file_of(value, self.path.parent)))
            if not self.report.failed:
                add_engine_rows(*made, self.migration.plan, self.report)
        self._database()

    # ------------------------------------------------ assignment of lines

    def _sort(self, lines: list[Directive]) -> None:
        """Assign each line to its listener, its bridge, or to all."""
        for line in lines:
            if line.key == "per_listener_settings":
                self.per_listener = self._flag(line)
        listener, bridge = self.default, None
        for line in lines:
            key = line.key
            if key == "listener":
                bridge = None
                listener = self._new_listener(line)
            elif key == "connection":
                bridge = Bridge(line.value, line.place, [])
                self.bridges.append(bridge)
            elif bridge is not None and bridge.takes(key):
                bridge.lines.append(line)
            elif key in _LISTENER:
                self._note(listener.keys, line)
            elif key in _PLUGINS or key.startswith(("plugin_", "auth_")):
                self.plugins.append(line)
            elif key in _SECURITY or key in _PSK:
                self._note(listener.security if self.per_listener else self.common, line)
            elif key != "per_listener_settings":
                self._note(self.common, line)
        if "port" in self.default.keys or "bind_address" in self.default.keys or not self.listeners:
            self._default_listener()
        else:
            for line in (*self.default.keys.values(), *self.default.security.values()):
                self.report.left_out(line.place, line.key, "it applies to the default listener, and none exists")
        self._both_families()

    def _both_families(self) -> None:
        """Without an address, Mosquitto listens for IPv4 and for IPv6."""
        for index in reversed(range(len(self.listeners))):
            listener = self.listeners[index]
            if not listener.usable or listener.host or listener.get("socket_domain") is not None or not _has_ipv6():
                continue
            self.listeners.insert(index + 1, listener.twin())
            listener.host = "0.0.0.0"
            if "max_connections" in listener.keys:
                line = listener.keys["max_connections"]
                why = "listeners.max_connections of IPv4 and of IPv6, counted separately"
                self.report.changed(line.place, f"{line.key} {line.value}", why)

    def _note(self, keys: dict[str, Directive], line: Directive) -> None:
        before = keys.get(line.key)
        if before is not None and line.key != "log_type":
            self.report.changed(before.place, before.key, f"set again at {line.place}; the last one applies")
        keys[line.key] = line

    def _new_listener(self, line: Directive) -> _Listener:
        port, _, host = line.value.partition(" ")
        made = _Listener(line.place, self._whole(port, line, 0, 65_535) or 0, host.strip())
        if not made.port and not made.local:
            self.report.wrong(line.place, f"listener {line.value}", "expected a port from 1 to 65535")
        self.listeners.append(made)
        return made

    def _default_listener(self) -> None:
        made = self.default
        port = made.keys.pop("port", None)
        if port is not None:
            made.port = self._whole(port.value, port, 1, 65_535) or 1883
            made.place = port.place
        address = made.keys.pop("bind_address", None)
        if address is not None:
            made.host = address.value
        if port is None and address is None and not self.listeners:
            made.host = "127.0.0.1"
            made.unsaid = True
            self.report.changed(
                str(self.path), "no listener", "one on loopback, port 1883, that accepts any client, as in 2.x"
            )
        self.listeners.insert(0, made)

    # -------------------------------------------------------------------- values

    def _flag(self, line: Directive) -> bool:
        if line.value not in ("true", "false", "1", "0"):
            self.report.wrong(line.place, f"{line.key} {line.value}", "expected true or false")
        return line.value in ("true", "1")

    def _whole(self, text: str, line: Directive, least: int, most: int) -> int | None:
        if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) and least <= int(text) <= most:
            return int(text)
        self.report.wrong(line.place, f"{line.key} {line.value}", f"expected a number from {least} to {most}")
        return None

    def _file(self, line: Directive) -> str:
        path = file_of(line.value, self.path.parent)
        if fault := missing(path):
            self.report.wrong(line.place, f"{line.key} {line.value}", fault)
        elif not os.access(path, os.R_OK):
            self.report.wrong(
                line.place, f"{line.key} {line.value}", "permission denied; run this as a user that may read it"
            )
        return str(path)

    # ---------------------------------------------------------------------- zone

    def _zone(self) -> None:
        """Convert the settings of all listeners: limits, sessions, retained messages."""
        zone, migration = self.migration.zone, self.migration
        # As in Mosquitto if the setting is not given.
        zone.update(
            session_expiry_interval=NEVER, max_inflight=20, max_queued_messages=1000, max_queued_bytes=0,
            max_packet_size=_PACKET_MOST, max_topic_levels=200,
        )  # fmt: skip
        migration.tables.update({"node": {}, "retained": {"max_messages": 0, "max_payload_size": 0, "max_bytes": 0}})
        migration.set("retained", "check_source", True)
        migration.tables["sys_topics"] = {"interval": 10, "mosquitto_names": True}
        numbers: dict[str, tuple[str, str, int]] = {
            "max_inflight_messages": ("zone", "max_inflight", 65_535),
            "max_queued_messages": ("zone", "max_queued_messages", 1 << 31),
            "max_queued_bytes": ("zone", "max_queued_bytes", 1 << 53),
            "sys_interval": ("sys_topics", "interval", 86_400),
            "memory_limit": ("limits", "memory", 1 << 53),
            "retain_expiry_interval": ("retained", "expiry_interval", 1 << 31),
        }
        flags = {
            "queue_qos0_messages": ("zone", "queue_qos0"),
            "upgrade_outgoing_qos": ("zone", "upgrade_qos"),
            "retain_available": ("zone", "retain_available"),
            "check_retain_source": ("retained", "check_source"),
        }
        own: dict[str, Callable[[Directive], None]] = {
            "max_inflight_bytes": self._inflight_bytes,
            "max_packet_size": self._packet_size,
            "message_size_limit": self._message_size,
            "max_keepalive": self._keep_alive,
            "persistent_client_expiration": self._session_expiry,
            "log_type": self._log_type,
            "clientid_prefixes": self._prefixes,
            "set_tcp_nodelay": lambda line: self._carried(line, "nodelay of each listener"),
        }
        for key, line in self.common.items():
            if key in numbers:
                table, name, most = numbers[key]
                value = self._whole(line.value, line, 0, most)
                if value is None:
                    continue
                if key == "memory_limit" and not value:
                    self._carried(line, "limits.memory, half of the machine's")
                    continue
                if key == "memory_limit" and value < LEAST_MEMORY:
                    value = LEAST_MEMORY
                    why = f"limits.memory = {value}, the minimum that a node accepts"
                    self.report.changed(line.place, f"{key} {line.value}", why)
                else:
                    self._carried(line, f"{self._table(table)}.{name}")
                self._put(table, name, value, line)
            elif key in flags:
                table, name = flags[key]
                self._put(table, name, self._flag(line), line)
                self._carried(line, f"{self._table(table)}.{name}")
            elif key in own:
                own[key](line)
            elif key in _SECURITY or key in _PSK:
                pass
            elif key in _NOT_NEEDED:
                if _NOT_NEEDED[key]:
                    self.report.left_out(line.place, f"{key} {line.value}".strip(), _NOT_NEEDED[key])
            else:
                self.report.left_out(line.place, f"{key} {line.value}".strip(), "not known")
        for line in self.plugins:
            why = "Mosquitto plugins do not run here: rewrite it as a Python hook or an HTTP service ([access.http])"
            if not line.key.startswith(("plugin_opt", "auth_opt")):
                why += "; until then every client needs a password, and actions that no rule allows are denied"
            self.report.left_out(line.place, f"{line.key} {line.value}", why)

    def _put(self, table: str, name: str, value: object, line: Directive) -> None:
        if table == "zone":
            self._set(self.migration.zone, name, value, line)
        else:
            self.migration.set(table, name, value, SettingPlace(line.place, f"{line.key} {line.value}"))

    def _set(self, table: Table, name: str, value: object, line: Directive) -> None:
        self.migration.put(table, name, value, SettingPlace(line.place, f"{line.key} {line.value}".strip()))

    @staticmethod
    def _table(table: str) -> str:
        return "zones.external" if table == "zone" else table

    def _carried(self, line: Directive, now: str) -> None:
        self.report.carried(line.place, f"{line.key} {line.value}".strip(), now)

    def _inflight_bytes(self, line: Directive) -> None:
        value = self._whole(line.value, line, 0, 1 << 53)
        if value == 0:
            self._carried(line, "no limit")
        elif value is not None:
            why = "zones.external.max_inflight limits the messages in flight, limits.memory the memory of the node"
            self.report.left_out(line.place, f"{line.key} {line.value}", why)

    def _packet_size(self, line: Directive) -> None:
        value = self._whole(line.value, line, 0, _PACKET_MOST)
        if value:
            self._set(self.migration.zone, "max_packet_size", value, line)
        self._carried(line, "zones.external.max_packet_size")

    def _message_size(self, line: Directive) -> None:
        value = self._whole(line.value, line, 0, _PACKET_MOST)
        if value:
            # A topic and its properties are counted in addition to the payload.
            most = min(value + 65_540, _PACKET_MOST, int(str(self.migration.zone["max_packet_size"])))
            self._set(self.migration.zone, "max_packet_size", most, line)
            why = f"max_packet_size = {most}: a larger packet closes the connection; Mosquitto drops the message"
            self.report.changed(line.place, f"{line.key} {line.value}", why)
        else:
            self._carried(line, "no limit")

    def _keep_alive(self, line: Directive) -> None:
        value = self._whole(line.value, line, 0, 65_535)
        if value and value < 65_535:
            self._set(self.migration.zone, "server_keep_alive", value, line)
            why = "server_keep_alive: 5.0 clients receive it; 3.x clients that request more are not refused"
            self.report.changed(line.place, f"{line.key} {line.value}", why)
        else:
            self._carried(line, "no limit")

    def _session_expiry(self, line: Directive) -> None:
        number, unit = line.value[:-1], line.value[-1:]
        if unit not in _TIMES or not re.fullmatch(r"0*[1-9]\d{0,14}", number, re.ASCII):
            self.report.wrong(line.place, f"{line.key} {line.value}", "expected a number with h, d, w, m or y")
            return
        self._set(self.migration.zone, "session_expiry_interval", min(int(number) * _TIMES[unit], NEVER), line)
        self._carried(line, "zones.external.session_expiry_interval")

    def _log_type(self, line: Directive) -> None:
        levels = {"debug": "debug", "all": "debug", "information": "info", "notice": "info"}
        if line.value in levels:
            self.migration.set("log", "level", levels[line.value])
            self._carried(line, f"log.level = {levels[line.value]}")
        else:
            self.report.left_out(line.place, f"{line.key} {line.value}", "log.level is the lowest level that is logged")

    def _prefixes(self, line: Directive) -> None:
        why = "no setting requires a prefix of client IDs; other client IDs may connect. Rules can require it:"
        self.report.left_out(line.place, f"{line.key} {line.value}", f"{why} patterns with %c in topics")

    # ----------------------------------------------------------------- listeners

    def _listeners(self) -> None:
        numbers: dict[str, int] = {}
        usable = [each for each in self.listeners if each.usable]
        for listener in usable:
            table = self._listener(listener, numbers)
            if table is not None:
                self.migration.listeners.append(table)
        if not self.migration.listeners and not self.report.failed:
            raise CannotMigrate(f"{self.path}: no listener is left to migrate")

    def _listener(self, listener: _Listener, numbers: dict[str, int]) -> Table | None:
        secure = listener.get("certfile") is not None
        protocol = listener.get("protocol") or "mqtt"
        has_psk = not secure and "psk_hint" in listener.keys
        if has_psk and "psk_file" not in self._security_of(listener):
            why = "it has a psk_hint and no psk_file, so a plugin has the keys"
            self.report.left_out(listener.place, f"listener {listener.port}", why)
            listener.usable = False
            return None
        if protocol not in ("mqtt", "websockets"):
            line = listener.keys["protocol"]
            self.report.left_out(line.place, f"protocol {protocol}", "neither mqtt nor websockets")
            listener.usable = False
            return None
        if listener.local and (secure or has_psk or protocol != "mqtt"):
            why = "a Unix socket has neither TLS nor WebSocket here"
            self.report.left_out(listener.place, f"listener 0 {listener.host}", why)
            listener.usable = False
            return None
        of = find_kind(tls=secure or has_psk, websocket=protocol == "websockets", local=listener.local).name
        if listener.twin_of is not None:
            listener.label = f"{listener.twin_of.label}-ipv6"
        else:
            number = numbers[of] = numbers.get(of, 0) + 1
            listener.label = f"{of}-{listener.port}" if number > 1 else of
            if any(each is not listener and each.label == listener.label for each in self.listeners):
                listener.label = f"{of}-{listener.port}-{number}"
        table: Table = {"name": listener.label, "type": of}
        what = f"listener {listener.port}" + (f" {listener.host}" if listener.host else "")
        self.migration.note(table, SettingPlace(listener.place, what))
        self.migration.put(table, "bind", self._bind(listener), SettingPlace(listener.place, what))
        self.report.carried(listener.place, what, f"listeners, {listener.label}, {table['bind']}")
        if protocol == "websockets":
            table["path"] = "*"
            self.report.carried(listener.keys["protocol"].place, "protocol websockets", 'listeners.path = "*"')
        for key, name, least in (("max_connections", "max_connections", -1), ("max_qos", "max_qos", 0)):
            if key in listener.keys:
                line = listener.keys[key]
                value = self._whole(line.value, line, least, 2 if key == "max_qos" else 1_000_000_000)
                if value is not None and value > (0 if key == "max_connections" else -1):
                    self._set(table, name, value, line)
                self._carried(line, f"listeners.{name}")
        if "max_topic_alias" in listener.keys:
            line = listener.keys["max_topic_alias"]
            self._set(table, "max_topic_alias", self._whole(line.value, line, 0, 65_535) or 0, line)
            self._carried(line, "listeners.max_topic_alias")
        if "mount_point" in listener.keys:
            line = listener.keys["mount_point"]
            if "%" in line.value:
                self.report.wrong(
                    line.place, f"mount_point {line.value}", "% starts a placeholder in a mount point here"
                )
            self._set(table, "mountpoint", line.value, line)
            self._carried(line, "listeners.mountpoint")
        if "use_username_as_clientid" in listener.keys:
            line = listener.keys["use_username_as_clientid"]
            table["use_username_as_client_id"] = self._flag(line)
            self._carried(line, "listeners.use_username_as_client_id")
        if "enable_proxy_protocol" in listener.keys:
            line = listener.keys["enable_proxy_protocol"]
            table["proxy_protocol"] = line.value in ("1", "2", "true")
            self._carried(line, "listeners.proxy_protocol")
        if "set_tcp_nodelay" in self.common and not listener.local:
            table["nodelay"] = self._flag(self.common["set_tcp_nodelay"])
        security = self._security_of(listener)
        for key, name in (
            ("allow_zero_length_clientid", "allow_empty_client_id"),
            ("auto_id_prefix", "client_id_prefix"),
        ):
            if key in security:
                line = security[key]
                self._set(table, name, self._flag(line) if key.startswith("allow") else line.value, line)
                self._carried(line, f"listeners.{name}")
        if secure:
            table["tls"] = self._tls(listener)
        elif has_psk:
            table["tls"] = self._psk(listener)
        else:
            for key in ("require_certificate", "use_identity_as_username", "use_subject_as_username"):
                if listener.says(key):
                    self.report.wrong(
                        listener.keys[key].place, key, "the listener has no certfile, so it speaks no TLS"
                    )
        self._left_of_listener(listener)
        self._who(listener, table)
        return table

    def _security_of(self, listener: _Listener) -> dict[str, Directive]:
        return listener.security if self.per_listener else self.common

    def _bind(self, listener: _Listener) -> str:
        host, domain = listener.host, listener.get("socket_domain")
        if listener.local:
            return host
        if not host:
            host = "::" if domain == "ipv6" else "0.0.0.0"
        if "socket_domain" in listener.keys:
            self._carried(listener.keys["socket_domain"], "listeners.bind")
        if host == "localhost":
            host = "::1" if domain == "ipv6" else "127.0.0.1"
        return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"

    def _psk(self, listener: _Listener) -> Table:
        """TLS with pre-shared keys in place of certificates: a psk_hint switches it on."""
        table: Table = {}
        line = self._security_of(listener)["psk_file"]
        self._set(table, "psk_file", self._file(line), line)
        self._carried(line, "listeners.tls.psk_file")
        hint = listener.keys["psk_hint"]
        self._set(table, "psk_hint", hint.value, hint)
        self._carried(hint, "listeners.tls.psk_hint")
        if "ciphers" in listener.keys:
            line = listener.keys["ciphers"]
            self._set(table, "ciphers", line.value, line)
            self._carried(line, "listeners.tls.ciphers")
        if "use_identity_as_username" in listener.keys:
            line = listener.keys["use_identity_as_username"]
            self._set(table, "psk_identity_as_username", self._flag(line), line)
            self._carried(line, "listeners.tls.psk_identity_as_username")
        if "tls_version" in listener.keys:
            line = listener.keys["tls_version"]
            self.report.changed(line.place, f"tls_version {line.value}", "pre-shared keys work with TLS 1.2 only")
        return table

    def _tls(self, listener: _Listener) -> Table:
        table: Table = {}
        for key in ("certfile", "keyfile", "cafile", "crlfile"):
            if key in listener.keys:
                line = listener.keys[key]
                self._set(table, key, self._file(line), line)
                self._carried(line, f"listeners.tls.{key}")
        if "keyfile" not in table:
            self.report.wrong(listener.keys["certfile"].place, "certfile", "keyfile is missing")
            table["keyfile"] = ""
        if "ciphers" in listener.keys:
            self._set(table, "ciphers", listener.keys["ciphers"].value, listener.keys["ciphers"])
            self._carried(listener.keys["ciphers"], "listeners.tls.ciphers")
        if "tls_version" in listener.keys:
            line = listener.keys["tls_version"]
            if line.value == "tlsv1.3":
                table["min_version"] = "1.3"
            if line.value in ("tlsv1.2", "tlsv1.3"):
                self._carried(line, "listeners.tls.min_version")
            else:
                self.report.changed(line.place, f"tls_version {line.value}", "the oldest version here is TLS 1.2")
        capath = listener.keys.get("capath")
        if capath is not None:
            why = "authorities must be in one PEM file, cafile: combine the files of the directory"
            if "cafile" not in table and listener.says("require_certificate"):
                self.report.wrong(capath.place, f"capath {capath.value}", why)
            else:
                self.report.left_out(capath.place, f"capath {capath.value}", why)
        if "require_certificate" in listener.keys:
            line = listener.keys["require_certificate"]
            self._set(table, "verify", "required" if self._flag(line) else "none", line)
            self._carried(line, f"listeners.tls.verify = {table['verify']}")
        for key, name in (("use_identity_as_username", "cn"), ("use_subject_as_username", "dn")):
            if key in listener.keys:
                line = listener.keys[key]
                if self._flag(line):
                    self._set(table, "peer_cert_as_username", name, line)
                    if table.get("verify") != "required":
                        self.report.wrong(line.place, key, "it requires require_certificate true")
                self._carried(line, f"listeners.tls.peer_cert_as_username = {name}")
                if name == "dn" and self._flag(line):
                    self.report.changed(
                        line.place, key, "the subject may be written differently; see its name in the log"
                    )
        return table

    def _left_of_listener(self, listener: _Listener) -> None:
        known = {
            "max_connections", "max_qos", "max_topic_alias", "mount_point", "use_username_as_clientid",
            "enable_proxy_protocol", "protocol", "socket_domain", "certfile",
        }  # fmt: skip
        of_tls = {
            "keyfile", "cafile", "crlfile", "ciphers", "tls_version", "capath", "require_certificate",
            "use_identity_as_username", "use_subject_as_username",
        }  # fmt: skip
        secure = "certfile" in listener.keys
        if not secure and "psk_hint" in listener.keys:
            known |= {"psk_hint", "ciphers", "use_identity_as_username", "tls_version"}
        for key, line in listener.keys.items():
            if key in known or (key in of_tls and secure):
                continue
            why = (
                "the listener has no certfile, so it speaks no TLS"
                if key in of_tls
                else _NOT_NEEDED.get(key, "not known")
            )
            if key == "bind_address":
                why = "the listener line contains the address"
            if key in _PSK:
                why = "a listener has either certificates or pre-shared keys"
            elif key in of_tls and "psk_hint" in listener.keys:
                why = "it is about certificates, and the listener has pre-shared keys"
            self.report.left_out(line.place, f"{key} {line.value}".strip(), why)

    def _who(self, listener: _Listener, table: Table) -> None:
        """Set whether anonymous clients may connect to the listener, and the properties of its sessions."""
        security = listener.security if self.per_listener else self.common
        line = security.get("allow_anonymous")
        allowed = self._flag(line) if line is not None else listener.unsaid and not self.plugins
        if line is not None:
            self._carried(line, "listeners.allow_anonymous")
        elif not listener.unsaid:
            self.report.carried(listener.place, "no allow_anonymous", "listeners.allow_anonymous = false, as in 2.x")
        if self.plugins and allowed:
            allowed = False
            place = line.place if line is not None else listener.place
            self.report.changed(place, "allow_anonymous true", "false: a plugin decided, and does not run here")
        table["allow_anonymous"] = allowed
        tls = table.get("tls")
        named = isinstance(tls, dict) and bool(tls.get("peer_cert_as_username") or tls.get("psk_identity_as_username"))
        proves = "password_file" in security or named
        listener.facts = MosquittoListener(listener.label, str(table.get("mountpoint", "")), proves)

    # -------------------------------------------------------------------- access

    def _access(self) -> None:
        usable = [each for each in self.listeners if each.usable]
        if self.plugins:
            self.migration.set("access", "no_match", "deny")
        if not self.per_listener:
            self._users([(each, self.common.get("password_file")) for each in usable])
            line = self.common.get("acl_file")
            if line is not None:
                self.migration.set("access", "no_match", "deny")
                self._carried(line, "access.rules; access.no_match = deny")
                if any(each.facts.mountpoint for each in usable):
                    self._rules(line, [(each.label, each.facts.mountpoint) for each in usable])
                else:
                    self._rules(line, [(None, "")])
        else:
            self._users([(each, each.security.get("password_file")) for each in usable])
            with_file = [each for each in usable if "acl_file" in each.security]
            if with_file:
                self.migration.set("access", "no_match", "deny")
            for each in usable:
                line = each.security.get("acl_file")
                if line is not None:
                    self._carried(line, f"access.rules for listener {each.label}; access.no_match = deny")
                    self._rules(line, [(each.label, each.facts.mountpoint)])
                elif with_file and not self.plugins:
                    self.migration.rules.append({"allow": True, "listener": each.label})
        if self.migration.rules:
            for each in usable:
                if each.facts.mountpoint:
                    why = "rules see topics without it: it is removed from those of the ACL file"
                    self.report.changed(each.keys["mount_point"].place, "mount_point", why)
            self.migration.zone["subscribe_check"] = "delivery"
            why = (
                "accepted as in Mosquitto, and messages that may not be read are not delivered: subscribe_check ="
                ' "delivery"'
            )
            self.report.changed(str(self.path), "subscriptions wider than the rules", why)
        carried = {each.place for each in self.report.of("carried")}
        for line in [*self.common.values(), *(each for one in usable for each in one.security.values())]:
            if line.key in _PSK and line.place not in carried:
                why = "no listener that is carried over uses pre-shared keys"
                self.report.left_out(line.place, f"{line.key} {line.value}".strip(), why)

    def _users(self, files: list[tuple[_Listener, Directive | None]]) -> None:
        """Combine all password files into one set of users. A user from the file of a single listener gets no access
        at the other listeners."""
        read: dict[Path, dict[str, tuple[str, str]]] = {}
        of: list[tuple[_Listener, dict[str, tuple[str, str]] | None]] = []
        for listener, line in files:
            users = None
            if line is not None:
                path = file_of(line.value, self.path.parent)
                if path not in read:
                    read[path] = password_file(path, self.report)
                    self._carried(line, f"{len(read[path])} users; each hash is replaced at the next login")
                users = read[path]
            of.append((listener, users))
        known: dict[str, tuple[str, str]] = {}
        now = time.time()
        for users in read.values():
            for name, (place, written) in users.items():
                if name in known and known[name][1] != written:
                    why = (
                        f"another password of this username applies, {known[name][0]}: users are the same at all"
                        " listeners"
                    )
                    self.report.left_out(place, f"user {name}", why)
                elif name not in known:
                    known[name] = place, written
                    self.migration.plan.users.append(StoredUser(USERNAME, name, written, False, now))
        for listener, users in of:
            if users is None:
                if known:
                    self._without_file(listener)
                continue
            others = [name for name in known if name not in users or users[name][1] != known[name][1]]
            for name in others:
                self.migration.rules.append({"allow": False, "username": name, "listener": listener.label})
            if others:
                why = f"they may connect there and do nothing: {', '.join(others[:5])}" + (
                    ", ..." if others[5:] else ""
                )
                self.report.changed(listener.place, f"{len(others)} users of other listeners", why)
        if not known and any(
            each.facts.label and not each.facts.proves_names for each in self.listeners if each.usable
        ):
            self.report.changed(
                str(self.path),
                "usernames without a password file",
                "an unauthenticated username matches no rule of a user",
            )

    def _without_file(self, listener: _Listener) -> None:
        why = (
            "users need their passwords here as well: Mosquitto accepts any username without a password at this"
            " listener"
        )
        self.report.changed(listener.place, f"listener {listener.port} has no password_file", why)

    def _rules(self, line: Directive, places: list[tuple[str | None, str]]) -> None:
        """Convert rules in Mosquitto's order: first the denials of a user, then what is allowed; then the patterns,
        also denials first.

        ``places``: the listeners that the rules apply to, None for all, each with its mount point.
        """
        read = acl_file(file_of(line.value, self.path.parent), self.report)
        ordered: list[AclLine] = []
        for subject in ("user", "anonymous", "pattern"):
            mine = [each for each in read if each.subject == subject]
            ordered += [each for each in mine if each.access == "deny"]
            ordered += [each for each in mine if each.access != "deny"]
        first = next((each for each in ordered if each.subject == "pattern"), None)
        for label, mount in places:
            for each in ordered:
                if each is first:
                    self._names_without_patterns(label)
                self._rule(each, label, mount)
        for each in ordered:
            what = "pattern" if each.subject == "pattern" else f"topic of {each.name or 'anonymous clients'}"
            self.report.carried(each.place, f"{what} {each.access} {each.topic}", "access.rules")
        if first is not None:
            why = (
                "Mosquitto ignores pattern rules for client IDs or usernames that contain +, # or /. Taipan"
                " does so only"
                " for users from the password file; other clients still match patterns without %c and %u"
            )
            self.report.changed(first.place, "patterns", why)

    def _names_without_patterns(self, label: str | None) -> None:
        for user in self.migration.plan.users:
            if not _WILD.isdisjoint(user.name):
                where = {} if label is None else {"listener": label}
                self.migration.rules.append({"allow": False, "username": user.name, **where})

    def _rule(self, each: AclLine, label: str | None, mount: str) -> None:
        actions = {"read": "subscribe", "write": "publish", "readwrite": "pubsub", "deny": "pubsub"}
        rule: Table = {"allow": each.access != "deny"}
        if each.subject == "user":
            rule["username"] = each.name
        elif each.subject == "anonymous":
            rule["anonymous"] = True
        if label is not None:
            rule["listener"] = label
        try:
            topic = without_mount_point(each.topic, mount)
        except ValueError as error:
            self.report.wrong(each.place, f"{each.access} {each.topic}", str(error))
            return
        if topic is None:
            return
        rule["action"] = actions[each.access]
        rule["topics"] = [topic]
        self.migration.note(rule, SettingPlace(each.place, f"{each.access} {each.topic}"))
        self.migration.rules.append(rule)

    # ------------------------------------------------------------------ database

    def _database(self) -> None:
        line = self.common.get("persistence")
        if line is None or not self._flag(line):
            place = str(self.path) if line is None else line.place
            why = (
                "everything is stored on disk (durability.level); Mosquitto stored nothing, so there is nothing to"
                " migrate"
            )
            self.report.changed(place, "persistence false", why)
            return
        name = self.common["persistence_file"].value if "persistence_file" in self.common else _DATABASE
        place = self.common["persistence_location"].value if "persistence_location" in self.common else ""
        path = file_of(place + name, self.path.parent)
        if place and not os.path.isfile(path):
            path = file_of(os.path.join(place, name), self.path.parent)
        self._carried(line, "durability.level = disk")
        try:
            data = read_named(path, MAX_DATABASE)
            saved_at = path.stat().st_mtime
        except FileNotFoundError:
            self.report.left_out(str(path), "persistence file", "the file does not exist: no messages and no sessions")
            return
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = getattr(error, "strerror", None) or str(error)
            self.report.wrong(str(path), "persistence file", why)
            return
        try:
            found = read_mosquitto_db(data)
        except NoMosquittoDb as error:
            self.report.wrong(str(path), "persistence file", str(error))
            return
        self._tell_wide_subscriptions(found, str(path))
        longest = int(str(self.migration.zone["session_expiry_interval"]))
        made = MosquittoRecords(found, str(path), self.report, time.time(), saved_at, self._facts_at, longest)
        written = list(made)
        counts = made.counts
        self.report.carried(
            str(path),
            f"format {found.version}",
            f"{counts.retained} retained messages, {counts.sessions} sessions with {counts.subscriptions}"
            f" subscriptions, {counts.queued} queued messages, {counts.in_flight} in flight",
        )
        if found.version < 6:
            why = (
                "this format does not record the owners of sessions: each belongs to the first client that connects"
                " with its client ID"
            )
            self.report.changed(str(path), "sessions without usernames", why)
        self.migration.write_data = lambda directory: write_store(directory, iter(written))

    def _facts_at(self, port: int) -> MosquittoListener:
        usable = [each for each in self.listeners if each.usable]
        return next((each.facts for each in usable if each.port == port), usable[0].facts)

    def _tell_wide_subscriptions(self, found: MosquittoDb, path: str) -> None:
        """Report sessions with subscriptions that the rules deny completely: these subscriptions end at the start."""
        if not self.migration.rules or self.report.failed:
            return
        rules = ConfiguredAclRules([msgspec.convert(each, RuleSettings) for each in self.migration.rules])
        told = 0
        for each in found.subscriptions:
            client = found.clients[each.client_id]
            facts = self._facts_at(client.port)
            who = ClientInfo(
                "", ZoneSettings(), listener=facts.label, client_id=client.client_id, username=client.username
            )
            who.proved_by = RESTORED if client.username and facts.proves_names else ""
            asked = parse_filter(each.filter)[1].removeprefix(facts.mountpoint)
            if valid_filter(asked) and reads_some(rules.read_rules(who, asked), asked, no_match=False):
                continue
            told += 1
            if told <= 20:
                why = "no rule allows any topic that it can match: it is removed at startup"
                self.report.changed(f"{path}:byte {each.place}", f"subscription {each.filter} of {each.client_id}", why)
        if told > 20:
            self.report.changed(path, f"{told - 20} more subscriptions", "no rule allows any topic that they can match")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
