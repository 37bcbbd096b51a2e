"""EMQX's formats: records of export files of EMQX 4.1 to 4.4, and of Taipan, whose format is that of 4.4 with a few
more members."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from taipan.broker.access.acl import TopicPattern
from taipan.broker.access.banned import KINDS, PEER_HOST, Ban, normal
from taipan.broker.access.emqx_hash import SALT_SIZE, EmqxHash
from taipan.broker.access.foreign_hashes import read_hash
from taipan.broker.access.stored import rules as stored_rules
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME, StoredUser
from taipan.ruleengine.stored.rows import StoredAction, StoredResource, StoredRule, StoredSchema

from ..acl import ALL_LOGINS
from ..apps import App, hash_of
from ..caller import ROLES, VIEWER, Scope
from ..dashboard_users import MAX_NAME_LENGTH as MAX_DASHBOARD_NAME
from ..dashboard_users import MAX_TAGS_LENGTH, DashboardUser, role_in
from .json_document import JsonObject

MAX_NAME_LENGTH: Final = 65_535
LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, when a ban without an end expires."""

_OURS: Final = (b"scrypt$", b"emqx$", b"random$", b"pbkdf2$", b"$6$", b"$2")


class BadField(ValueError):
    """A field of a record is invalid. ``key``: the field; ``what``: the problem."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key}: {what}")
        self.key = key
        self.what = what


class AccessRule(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An access rule of an import. ``created_at``: Unix seconds."""

    kind: str
    name: str
    topic: str
    action: str
    allow: bool
    created_at: float
    listener: str = ""

    @property
    def subject(self) -> tuple[str, str]:
        return self.kind, self.name


class Record:
    """One record of a file, read key by key. All methods raise BadField."""

    __slots__ = ("_members",)

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise BadField("", "expected an object")
        self._members: dict[str, object] = value

    def __contains__(self, key: object) -> bool:
        return key in self._members

    def get(self, key: str) -> object:
        if key not in self._members:
            raise BadField(key, "is missing")
        return self._members[key]

    def text(self, key: str, default: str | None = None, least: int = 0, most: int = MAX_NAME_LENGTH) -> str:
        if default is not None and self._members.get(key) is None:
            return default
        value = self.get(key)
        if not isinstance(value, str):
            raise BadField(key, "expected a string")
        if not least <= len(value.encode()) <= most:
            raise BadField(key, f"expected {least} to {most} bytes")
        return value

    def name(self, key: str) -> str:
        return self.text(key, least=1)

    def integer(self, key: str, default: int | None = None, most: int = LAST_SECOND) -> int:
        if default is not None and self._members.get(key) is None:
            return default
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise BadField(key, f"expected a number from 0 to {most}")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        if default is not None and key not in self._members:
            return default
        value = self.get(key)
        if not isinstance(value, bool):
            raise BadField(key, "expected true or false")
        return value

    def choice(self, key: str, *allowed: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise BadField(key, f"expected one of {', '.join(allowed)}")
        return value

    def bytes_of(self, key: str) -> bytes:
        value = self.text(key, most=LAST_SECOND)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise BadField(key, "expected base64") from None

    def created_at(self, now: float) -> float:
        """Convert the milliseconds in the file to Unix seconds."""
        return self.integer("created_at", int(now * 1000), LAST_SECOND * 1000) / 1000


# ------------------------------------------------------------------------ users


def read_user(value: object, login_kind: str, ours: bool, now: float) -> StoredUser:
    """Read a record of ``auth_mnesia``. ``login_kind``: the kind of ``login`` up to version 4.2, whose records do not
    contain it."""
    record = Record(value)
    salted = "type" in record
    kind = record.choice("type", CLIENT_ID, USERNAME) if salted else login_kind
    password = _password(record, salted, ours)
    superuser = record.flag("is_superuser", False)
    return StoredUser(kind, record.name("login"), password, superuser, record.created_at(now))


def read_old_user(value: object, kind: str, ours: bool, now: float) -> StoredUser:
    """Read a record of ``auth_clientid`` or ``auth_username`` (up to 4.2)."""
    record = Record(value)
    return StoredUser(kind, record.name(kind), _password(record, True, ours), False, now)


def _password(record: Record, salted: bool, ours: bool) -> str:
    """Read ``password`` as EMQX exports it, or a hash in the fields of ``POST /auth_user``."""
    if "password_hash" in record:
        return _ready_hash(record)
    stored = record.bytes_of("password")
    try:
        if ours and stored.startswith(_OURS):
            return str(read_hash(stored.decode("ascii", "strict")))
        return str(EmqxHash.read(stored, salted))
    except ValueError as error:
        raise BadField("password", str(error)) from None


def _ready_hash(record: Record) -> str:
    iterations = record.integer("iterations", 0, LAST_SECOND) or None
    method, salt, digest = (record.text(key, "") or None for key in ("method", "salt", "digest"))
    try:
        return str(read_hash(record.name("password_hash"), method, salt, iterations, digest))
    except ValueError as error:
        raise BadField("password_hash", str(error)) from None


def user_record(user: StoredUser) -> JsonObject:
    return {
        "login": user.name,
        "type": user.kind,
        "password": base64.b64encode(_stored_form(user.password)).decode(),
        "is_superuser": user.is_superuser,
        "created_at": round(user.created_at * 1000),
    }


def _stored_form(password: str) -> bytes:
    """Return EMQX's form of the password if the hash is one of its own, otherwise Taipan's stored form."""
    if password.startswith("emqx$"):
        found = EmqxHash.parse(password)
        if len(found.salt) in (0, SALT_SIZE):
            return found.salt + found.digest.encode()
    return password.encode()


# ----------------------------------------------------------------- access rules


def read_rule(value: object, login_kind: str, now: float) -> AccessRule:
    """Read a record of ``acl_mnesia``."""
    record = Record(value)
    if "type" in record:
        kind = record.choice("type", *stored_rules.KINDS)
        name = "" if kind in stored_rules.NAMELESS else record.name("type_value")
        allow = record.choice("access", "allow", "deny") == "allow"
    else:
        name = record.name("login")
        kind, name = (stored_rules.ALL, "") if name == ALL_LOGINS else (login_kind, name)
        allow = record.flag("allow")
    action = record.choice("action", stored_rules.PUB, stored_rules.SUB, stored_rules.PUBSUB)
    topic = record.name("topic")
    try:
        TopicPattern(topic)
    except ValueError as error:
        raise BadField("topic", f"{topic[:256]}: {error}") from None
    return AccessRule(kind, name, topic, action, allow, record.created_at(now), record.text("listener", ""))


def rule_record(rule: stored_rules.StoredAclRule) -> JsonObject:
    whom = {} if rule.kind in stored_rules.NAMELESS else {"type_value": rule.name}
    where = {"listener": rule.listener} if rule.listener else {}
    return {
        "type": rule.kind,
        **whom,
        **where,
        "topic": rule.topic,
        "action": rule.action,
        "access": "allow" if rule.allow else "deny",
        "created_at": round(rule.created_at * 1000),
    }


# ------------------------------------------------------------------------- bans


def read_ban(value: object, now: float) -> tuple[Ban, bool]:
    """Return a record of ``blacklist``, and whether it has ``kick``, which EMQX's records do not have."""
    record = Record(value)
    whom = record.get("who")
    if not isinstance(whom, dict) or len(whom) != 1:
        raise BadField("who", "expected an object with one member")
    ((kind, who),) = whom.items()
    if kind not in KINDS:
        raise BadField("who", f"expected one of {', '.join(KINDS)}")
    if kind == PEER_HOST and isinstance(who, list):
        who = _charlist(who)
    if not isinstance(who, str) or len(who.encode()) > MAX_NAME_LENGTH:
        raise BadField("who", "expected a string")
    try:
        who = normal(kind, who)
    except ValueError:
        raise BadField("who", "expected an address" if kind == PEER_HOST else "expected a name") from None
    endless = record.get("until") == "infinity"
    until = LAST_SECOND if endless else record.integer("until")
    by, reason, at = record.text("by", ""), record.text("reason", ""), record.integer("at", int(now))
    return Ban(kind, who, by, reason, at, until, record.flag("kick", False)), "kick" in record


def _charlist(codes: list[Any]) -> str:
    """Decode a text from Erlang's list of character codes."""
    if len(codes) > 64 or not all(type(code) is int and 0 < code < 128 for code in codes):
        raise BadField("who", "expected an address as an array of character codes")
    return "".join(map(chr, codes))


def ban_record(ban: Ban) -> JsonObject:
    who: object = [ord(char) for char in ban.who] if ban.kind == PEER_HOST else ban.who
    return {
        "who": {ban.kind: who},
        "by": ban.by,
        "reason": ban.reason,
        "at": int(ban.at),
        "until": int(ban.until),
        "kick": ban.kick,
    }


# ----------------------------------------------------------------- applications


def read_app(value: object) -> App:
    """Read a record of ``apps``, with the secret itself (EMQX) or with its SHA-256 (Taipan). For
    ``Apps.as_imported``."""
    record = Record(value)
    app_id = record.text("id", least=1, most=256)
    if ":" in app_id or not app_id.isprintable():
        raise BadField("id", "expected printable characters and no colon")
    if "secret_sha256" in record:
        try:
            secret_hash = bytes.fromhex(record.text("secret_sha256"))
        except ValueError:
            secret_hash = b""
        if len(secret_hash) != hashlib.sha256().digest_size:
            raise BadField("secret_sha256", "expected 64 hexadecimal digits")
    else:
        secret_hash = hash_of(record.name("secret"))
    expired = None if _endless(record) else record.integer("expired")
    status = record.flag("status", True)
    return App(app_id, secret_hash, record.text("name", ""), record.text("desc", ""), status, expired, _scopes(record))


def _scopes(record: Record) -> tuple[str, ...]:
    """Return what the application may do; empty if the record has no scopes, as EMQX's have none."""
    if "scopes" not in record:
        return ()
    given = record.get("scopes")
    if not isinstance(given, list) or not given or any(each not in get_args(Scope) for each in given):
        raise BadField("scopes", f"expected one or more of {', '.join(get_args(Scope))}")
    return tuple(dict.fromkeys(given))


def _endless(record: Record) -> bool:
    return "expired" not in record or record.get("expired") in (None, "undefined")


def app_record(app: App) -> JsonObject:
    return {
        "id": app.app_id,
        "secret_sha256": app.secret_hash.hex(),
        "name": app.name,
        "desc": app.desc,
        "status": app.status,
        "expired": "undefined" if app.expired is None else app.expired,
        "scopes": list(app.scopes),
    }


# ------------------------------------------------------------- dashboard users


def read_dashboard_user(value: object, ours: bool) -> DashboardUser:
    """Read a record of ``users``, with salt and MD5 as in EMQX, or with Taipan's stored form."""
    record = Record(value)
    name = record.text("username", least=1, most=MAX_DASHBOARD_NAME)
    if ":" in name or not name.isprintable():
        raise BadField("username", "expected printable characters and no colon")
    stored = record.bytes_of("password")
    if ours and stored.startswith(_OURS):
        try:
            password = str(read_hash(stored.decode("ascii", "strict")))
        except ValueError as error:
            raise BadField("password", str(error)) from None
    elif len(stored) == SALT_SIZE + hashlib.md5(usedforsecurity=False).digest_size:
        password = str(EmqxHash("md5", stored[:SALT_SIZE], stored[SALT_SIZE:].hex()))
    else:
        raise BadField("password", "expected 4 bytes of salt and an MD5 digest, in base64")
    tags, given = _tags(record)
    role = record.choice("role", *ROLES) if "role" in record else role_in(given or tags) or VIEWER
    return DashboardUser(name, password, role, tags)


def _tags(record: Record) -> tuple[str, str]:
    """Return ``tags``, and the role next to it: EMQX Enterprise 4.4.22 and later have both in one object."""
    given = record.get("tags") if "tags" in record else ""
    if not isinstance(given, dict):
        return record.text("tags", "", most=MAX_TAGS_LENGTH), ""
    inner = Record(given)
    try:
        return inner.text("desc", "", most=MAX_TAGS_LENGTH), inner.text("role", "", most=MAX_TAGS_LENGTH)
    except BadField as error:
        raise BadField(f"tags.{error.key}", error.what) from None


def dashboard_user_record(user: DashboardUser) -> JsonObject:
    stored = user.password.encode()
    if user.password.startswith("emqx$md5$"):
        found = EmqxHash.parse(user.password)
        stored = found.salt + bytes.fromhex(found.digest)
    return {
        "username": user.name,
        "password": base64.b64encode(stored).decode(),
        "tags": user.tags,
        "role": user.role,
    }


# ----------------------------------------------------------- resources and rules


def read_resource(value: Any, old: bool) -> JsonObject:
    """Read a record of ``resources``. ``old``: convert it from the format of 4.1 to 4.3."""
    record = Record(value)
    record.name("id")
    kind = record.name("type")
    config = record.get("config")
    if config == []:  # An object without members, as Erlang and PHP encode it
        config = {}
    if not isinstance(config, dict):
        raise BadField("config", "expected an object")
    description = record.text("description", "")
    created_at = record.integer("created_at", 0, LAST_SECOND * 1000)
    if not old:
        pass
    elif kind == "web_hook":
        config = _web_hook(config)
    elif kind == "bridge_mqtt":
        config = _bridge_mqtt(config)
    return {**value, "config": config, "description": description, "created_at": created_at}


def _web_hook(config: Mapping[str, object]) -> JsonObject:
    """Convert the configuration: in 4.2, time-outs are numbers, and the content type is next to the headers."""
    new = dict(config)
    for key in ("connect_timeout", "request_timeout"):
        if isinstance(new.get(key), int):
            new[key] = f"{new[key]}s"
    content_type = new.pop("content_type", None)
    headers = new.get("headers", {})
    if headers == []:
        headers = new["headers"] = {}
    if (
        isinstance(headers, dict)
        and content_type
        and "content-type" not in {name.lower().replace("_", "-") for name in headers}
    ):
        new["headers"] = {**headers, "content-type": content_type}
    if new.get("method") in ("GET", "DELETE"):
        del new["method"]  # now set by the actions, see ``read_engine_rule``
    return new


def _bridge_mqtt(config: Mapping[str, object]) -> JsonObject:
    new = {"pool_size": 8, **config}
    for key in ("ssl", "bridge_mode", "append", "verify"):
        if new.get(key) in ("on", "off"):
            new[key] = new[key] == "on"
    return new


def web_hook_method(value: object) -> str | None:
    """Return the method of an old ``web_hook`` resource if only an action can have this method now."""
    config = value.get("config") if isinstance(value, dict) and value.get("type") == "web_hook" else None
    method = config.get("method") if isinstance(config, dict) else None
    return method if method in ("GET", "DELETE") else None


def read_engine_rule(value: Any, methods: Mapping[str, str]) -> JsonObject:
    """Read a record of ``rules``. ``methods``: the methods of old resources by id, for their actions."""
    record = Record(value)
    record.name("id")
    record.text("rawsql", least=1, most=1_048_576)
    return {
        **value,
        "enabled": record.flag("enabled", True),
        "description": record.text("description", ""),
        "created_at": record.integer("created_at", 0, LAST_SECOND * 1000),
        "actions": _actions(record.get("actions"), methods, "actions"),
    }


def _actions(given: object, methods: Mapping[str, str], where: str, depth: int = 0) -> list[JsonObject]:
    if not isinstance(given, list) or depth > 16:
        raise BadField(where, "expected an array, at most 16 deep")
    found = []
    for index, each in enumerate(given):
        place = f"{where}[{index}]"
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise BadField(place, "expected an object with a name")
        args = each.get("args", {})
        if args == []:  # an empty list of pairs in Erlang
            args = {}
        if not isinstance(args, dict):
            raise BadField(f"{place}.args", "expected an object")
        method = methods.get(args["$resource"]) if isinstance(args.get("$resource"), str) else None
        if method is not None and each["name"] == "data_to_webserver":
            args = {"method": method, **args}
        fallbacks = _actions(each.get("fallbacks", []), methods, f"{place}.fallbacks", depth + 1)
        found.append({**each, "args": args, "fallbacks": fallbacks})
    return found


def schema_record(row: StoredSchema) -> JsonObject:
    """Return a schema as EMQX writes it."""
    return {
        "name": row.name,
        "parser_type": row.parser_type,
        "schema": row.schema,
        "descr": row.descr,
        "parser_addr": {},
        "parser_opts": {},
        "created_at": row.created_at,
    }


def resource_record(row: StoredResource) -> JsonObject:
    """Return the record of a resource, including passwords."""
    return {
        "id": row.id,
        "type": row.type,
        "config": row.config,
        "created_at": row.created_at,
        "description": row.description,
    }


def engine_rule_record(row: StoredRule) -> JsonObject:
    return {
        "id": row.id,
        "rawsql": row.rawsql,
        "actions": [_action_record(each) for each in row.actions],
        "enabled": row.enabled,
        "description": row.description,
        "on_action_failed": row.on_action_failed,
        "created_at": row.created_at,
    }


def _action_record(action: StoredAction) -> JsonObject:
    fallbacks = [_action_record(each) for each in action.fallbacks]
    return {"id": action.id, "name": action.name, "fallbacks": fallbacks, "args": action.params}
