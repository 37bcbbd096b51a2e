"""Migration from aMQTT: its broker.yaml, of version 0.11 with plugins by module name, or of earlier versions and
hbmqtt."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from taipan.broker.access.acl import TopicPattern
from taipan.broker.access.foreign_hashes import BcryptHash, read_hash
from taipan.broker.access.stored.users import USERNAME, StoredUser
from taipan.broker.listener_kinds import find_kind

from .mosquitto_files import file_of, read_lines
from .named_files import missing, read_named
from .output import Migration, SettingPlace, Table
from .report import CannotMigrate

NO_YAML: Final = "it requires the package PyYAML: pip install PyYAML"
_ANONYMOUS: Final = "AnonymousAuthPlugin"
_FILE: Final = "FileAuthPlugin"
_ACL: Final = "TopicAccessControlListPlugin"
_TABOO: Final = "TopicTabooPlugin"
_SYS: Final = "BrokerSysPlugin"
_LOGGING: Final = ("EventLoggerPlugin", "PacketLoggerPlugin")
_OLD_NAMES: Final = {
    "auth_anonymous": _ANONYMOUS, "auth.anonymous": _ANONYMOUS, "auth_file": _FILE, "auth.file": _FILE,
    "topic_acl": _ACL, "topic_taboo": _TABOO, "broker_sys": _SYS, "event_logger_plugin": "EventLoggerPlugin",
    "packet_logger_plugin": "PacketLoggerPlugin",
}  # fmt: skip
_TABOO_TOPICS: Final = ("prohibited", "top-secret", "data/classified")
_MOST_NODES: Final = 200_000
_NOBODY: Final = "anonymous"
"""The name that aMQTT uses for clients without a username."""


class _Mapping:
    """One mapping of the file: values by key, each key with its line. ``_`` and ``-`` in keys are equivalent."""

    def __init__(self, file: str, line: int = 1) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.place = f"{file}:{line}"

    def items(self) -> Iterator[tuple[str, Any, str]]:
        for key, value in self.values.items():
            yield key, value, self.places[key]

    def take(self, key: str) -> tuple[Any, str]:
        """Return the value and its place, and mark the key as used."""
        return self.values.pop(key, None), self.places.get(key, self.place)


def migrate_amqtt(path: Path) -> Migration:
    """Return the configuration and data to write. Raises CannotMigrate."""
    if fault := missing(path):
        raise CannotMigrate(f"{path}: {fault}")
    work = _Amqtt(path.absolute())
    work.run()
    return work.migration


class _Amqtt:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.migration = Migration(f"aMQTT, {path}", str(path))
        self.report = self.migration.report
        self.plugins: dict[str, tuple[_Mapping, str]] = {}
        self.closed = False
        self.nodes = 0

    def run(self) -> None:
        document = self._read()
        self._collect_plugins(document)
        self._limits(document)
        self._listeners(document)
        self._authentication()
        self._topics()
        for key, value, place in document.items():
            self.report.left_out(place, f"{key}: {_shown(value)}", "not known")

    # -------------------------------------------------------------------- reading

    def _read(self) -> _Mapping:
        try:
            import yaml
        except ImportError:
            raise CannotMigrate(NO_YAML) from None
        try:
            root = yaml.compose(read_named(self.path), Loader=yaml.SafeLoader)
        except OSError as error:
            raise CannotMigrate(f"{self.path}: {error.strerror}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark is not None else ""
            raise CannotMigrate(f"{self.path}{line}: {getattr(error, 'problem', None) or 'no YAML'}") from None
        except RecursionError:
            raise CannotMigrate(f"{self.path}: nested too deeply") from None
        found = self._value(root) if root is not None else None
        if not isinstance(found, _Mapping):
            raise CannotMigrate(f"{self.path}: expected a mapping with listeners")
        return found

    def _value(self, node: Any, depth: int = 0) -> Any:
        """Return mappings as ``_Mapping``, everything else as YAML defines it."""
        import yaml

        self.nodes += 1  # each use of an alias is counted: the expanded value can be larger than the memory
        if self.nodes > _MOST_NODES:
            raise CannotMigrate(f"{self.path}: more than {_MOST_NODES} values")
        if depth > 50:
            raise CannotMigrate(f"{self.path}: nested too deeply")
        if isinstance(node, yaml.MappingNode):
            made = _Mapping(str(self.path), node.start_mark.line + 1)
            for key_node, value_node in node.value:
                key = str(self._value(key_node, depth + 1))
                made.values[key] = self._value(value_node, depth + 1)
                made.places[key] = f"{self.path}:{key_node.start_mark.line + 1}"
            return made
        if isinstance(node, yaml.SequenceNode):
            return [self._value(each, depth + 1) for each in node.value]
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError):
            raise CannotMigrate(f"{self.path}:{node.start_mark.line + 1}: {node.value}: not understood") from None
        finally:
            loader.dispose()

    # --------------------------------------------------------------------- limits

    def _limits(self, document: _Mapping) -> None:
        # As in aMQTT: sessions never expire, QoS 0 is queued like other messages, and packets may have any size.
        zone = self.migration.zone
        zone.update(max_packet_size=268_435_460, queue_qos0=True, session_expiry_interval=4_294_967_295)
        for key in ("session_expiry_interval", "session-expiry-interval"):
            value, place = document.take(key)
            if value is None:
                continue
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 4_294_967_295:
                zone["session_expiry_interval"] = value
                self.report.carried(place, f"{key}: {value}", "zones.external.session_expiry_interval")
            else:
                self.report.wrong(place, f"{key}: {_shown(value)}", "expected seconds")
        for key in ("timeout-disconnect-delay", "timeout_disconnect_delay"):
            value, place = document.take(key)
            if value is not None:
                why = (
                    "a client that is silent for one and a half times its Keep Alive is disconnected"
                    " (keep_alive_multiplier)"
                )
                self.report.left_out(place, f"{key}: {_shown(value)}", why)
        value, place = document.take("sys_interval")
        if value is not None:
            self._sys(value, place, "sys_interval")

    def _sys(self, value: object, place: str, what: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.report.wrong(place, f"{what}: {_shown(value)}", "expected seconds")
            return
        self.migration.set("sys_topics", "interval", value, SettingPlace(place, f"{what}: {value}"))
        self.report.changed(place, f"{what}: {value}", "sys_topics.interval; the topics have other names below $SYS")

    # ------------------------------------------------------------------ listeners

    def _listeners(self, document: _Mapping) -> None:
        listeners, place = document.take("listeners")
        if not isinstance(listeners, _Mapping) or not listeners.values:
            self.report.wrong(place, "listeners", "expected a mapping of listeners")
            return
        default = listeners.values.get("default")
        common = default.values if isinstance(default, _Mapping) else {}
        for name, given, at in listeners.items():
            if not isinstance(given, _Mapping):
                self.report.wrong(at, f"listener {name}", "expected a mapping")
                continue
            self._listener(name, given, common, at)

    def _listener(self, name: str, given: _Mapping, common: dict[str, Any], place: str) -> None:
        values = {**common, **given.values}
        kind, bind = values.pop("type", "tcp"), str(values.pop("bind", "0.0.0.0:1883"))
        secure = _on(values.pop("ssl", False))
        if kind not in ("tcp", "ws"):
            self.report.left_out(place, f"listener {name}", f"type {kind}: expected tcp or ws")
            return
        if bind.isdecimal():
            bind = f"0.0.0.0:{bind}"
        elif ":" not in bind:
            bind = f"{bind}:1883"
        elif bind.startswith("localhost:"):
            bind = bind.replace("localhost", "127.0.0.1", 1)
        of = find_kind(tls=secure, websocket=kind == "ws").name
        table: Table = {"name": name, "type": of, "bind": bind}
        self.migration.note(table, SettingPlace(place, f"listener {name}"))
        most = values.pop("max_connections", values.pop("max-connections", 0))
        if not isinstance(most, int) or most < 0:
            self.report.wrong(given.places.get("max_connections", place), "max_connections", "expected a number")
        elif most:
            table["max_connections"] = most
        if kind == "ws":
            table["path"] = "/"
            table["subprotocol_required"] = False
        tls: Table = {}
        for key in ("certfile", "keyfile", "cafile"):
            value = values.pop(key, None)
            if value is None or not secure:
                continue
            path = file_of(str(value), self.path.parent)
            tls[key] = str(path)
            if fault := missing(path):
                self.report.wrong(given.places.get(key, place), f"{key}: {value}", fault)
        if secure:
            if "certfile" not in tls or "keyfile" not in tls:
                self.report.wrong(place, f"listener {name}", "ssl requires certfile and keyfile")
            if "cafile" in tls:
                tls["verify"] = "optional"
            table["tls"] = tls
            self.migration.note(tls, SettingPlace(place, f"listener {name}"))
        self.report.carried(place, f"listener {name}", f"listeners, {of}, {bind}")
        for key, value in values.items():
            if value is not None:
                self.report.left_out(given.places.get(key, place), f"{key}: {_shown(value)}", "no counterpart")
        self.migration.listeners.append(table)

    # -------------------------------------------------------------------- plugins

    def _collect_plugins(self, document: _Mapping) -> None:
        """Return the plugins of a list or a mapping, and those of ``auth`` and ``topic-check`` as before 0.11, by class
        name."""
        plugins, place = document.take("plugins")
        auth, auth_place = document.take("auth")
        check, check_place = document.take("topic-check")
        if check is None:
            check, check_place = document.take("topic_check")
        if plugins is None and auth is None and check is None:
            self.plugins[_ANONYMOUS] = _Mapping(str(self.path)), place
            self.report.carried(place, "no plugins", "any client may connect, as in aMQTT")
            return
        for each in plugins if isinstance(plugins, list) else [plugins]:
            if isinstance(each, str):
                self._plugin(each, None, place)
            elif isinstance(each, _Mapping):
                for name, config, at in each.items():
                    self._plugin(name, config, at)
            elif each is not None:
                self.report.wrong(place, "plugins", "expected names, or a mapping of names to settings")
        for config, at, fallback in ((auth, auth_place, (_ANONYMOUS,)), (check, check_place, ())):
            if not isinstance(config, _Mapping):
                continue
            names, _ = config.take("plugins")
            enabled, _ = config.take("enabled")
            if enabled is not None and not _on(enabled):
                self.report.left_out(at, "enabled: false", "disabled")
                continue
            for name in names if isinstance(names, list) else fallback:
                self._plugin(str(name), config, at)

    def _plugin(self, name: str, config: object, place: str) -> None:
        short = _OLD_NAMES.get(name, name.rpartition(".")[2])
        settings = config if isinstance(config, _Mapping) else _Mapping(str(self.path))
        if short in (_ANONYMOUS, _FILE, _ACL, _TABOO):
            self.plugins[short] = settings, place
        elif short == _SYS:
            value, at = _option(settings, "sys_interval")
            if value is not None:
                self._sys(value, at, "sys_interval")
        elif short in _LOGGING:
            self.report.left_out(place, name, "the log has every connection, and at debug every packet: [log]")
        else:
            self.closed = True
            why = (
                "third-party plugins do not run here; until it is replaced, a client needs a password, and actions that"
            )
            self.report.left_out(place, name, f"{why} no rule allows are denied")

    def _authentication(self) -> None:
        allowed = False
        if _ANONYMOUS in self.plugins:
            settings, place = self.plugins[_ANONYMOUS]
            value, at = _option(settings, "allow_anonymous")
            allowed = value is None or _on(value)
            self.report.carried(
                at if value is not None else place, f"allow_anonymous: {_shown(allowed)}", "allow_anonymous"
            )
        if self.closed:
            allowed = False
            self.migration.set("access", "no_match", "deny")
        self.migration.zone["allow_anonymous"] = allowed
        if _FILE not in self.plugins:
            return
        settings, place = self.plugins[_FILE]
        value, at = _option(settings, "password_file")
        if value is None:
            self.report.wrong(place, "FileAuthPlugin", "no password file is set")
            return
        users = self._password_file(file_of(str(value), self.path.parent))
        self.report.carried(at, f"password_file: {value}", f"{len(users)} users whose hashes can be verified here")
        self.migration.plan.users += users
        if not users:
            self.migration.zone["allow_anonymous"] = False
            self.report.changed(at, "allow_anonymous", "false: no user is left, and any username would be accepted")

    def _password_file(self, path: Path) -> list[StoredUser]:
        users: dict[str, StoredUser] = {}
        for place, line in read_lines(path, self.report, "password file"):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, _, written = text.partition(":")
            try:
                if not name or not written.startswith(BcryptHash.PREFIX):
                    raise ValueError
                users[name] = StoredUser(USERNAME, name, str(read_hash(written)), False, time.time())
            except ValueError as error:
                kind = (
                    "argon2" if written.startswith("$argon2") else "crypt" if written.startswith("$6$") else "no hash"
                )
                why = str(error) or f"{kind}: it cannot be verified here"
                shown = name if ":" in text else name.split()[0]
                self.report.left_out(place, f"user {shown}", f"{why}; give it a password: taipan-ctl users add")
        return list(users.values())

    # --------------------------------------------------------------------- topics

    def _topics(self) -> None:
        rules = self.migration.rules
        if _TABOO in self.plugins:
            _, place = self.plugins[_TABOO]
            rules.append({"allow": False, "topics": list(_TABOO_TOPICS)})
            why = f"denied: {', '.join(_TABOO_TOPICS)}; also for the user admin, whom aMQTT does not restrict"
            self.report.changed(place, _TABOO, why)
        if _ACL not in self.plugins:
            return
        settings, place = self.plugins[_ACL]
        publish, publish_place = _option(settings, "publish_acl")
        subscribe, subscribe_place = _option(settings, "subscribe_acl")
        if subscribe is None:
            subscribe, subscribe_place = _option(settings, "acl")
        receive, receive_place = _option(settings, "receive_acl")
        if receive is not None:
            if subscribe is not None:
                why = "a client receives what it has subscribed to: put both into subscribe_acl"
                self.report.wrong(receive_place, "receive_acl", why)
                return
            subscribe, subscribe_place = receive, receive_place
            self.report.changed(
                receive_place,
                "receive_acl",
                "rules for SUBSCRIBE: a subscription to a topic that may not be received is refused",
            )
        if publish is not None:
            self._acl(publish, publish_place, "publish")
        if subscribe is not None:
            self._acl(subscribe, subscribe_place, "subscribe")

    def _acl(self, given: object, place: str, action: str) -> None:
        if not isinstance(given, _Mapping):
            self.report.wrong(place, f"{action} rules", "expected topics by user")
            return
        for name, topics, at in given.items():
            if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
                self.report.wrong(at, name, "expected a list of topics")
                continue
            for topic in topics:
                try:
                    if "%c" in topic or "%u" in topic or topic.startswith("eq "):
                        raise ValueError("%c, %u and eq are literal there, and have a meaning in rules here")
                    TopicPattern(topic)
                except ValueError as error:
                    self.report.wrong(at, f"{name}: {topic}", str(error))
            if topics:
                who: Table = {"anonymous": True} if name == _NOBODY else {"username": name}
                rule: Table = {"allow": True, **who, "action": action, "topics": topics}
                self.migration.note(rule, SettingPlace(at, f"{action} rules of {name}"))
                self.migration.rules.append(rule)
            self.report.carried(at, f"{action} rules of {name}", "access.rules")
        self.migration.rules.append({"allow": False, "action": action})
        self.report.carried(place, f"{action} rules", "a last rule denies all others")


def _option(settings: _Mapping, key: str) -> tuple[Any, str]:
    """Return a setting of a plugin; its name may contain ``_`` or ``-``."""
    for name in (key, key.replace("_", "-")):
        if name in settings.values:
            return settings.values[name], settings.places[name]
    return None, settings.place


def _on(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() in ("on", "true", "yes"))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "..." if isinstance(value, _Mapping | list) else str(value)
