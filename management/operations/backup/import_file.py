"""Import files: a document is read, checked record by record, and converted to a plan of the records to store."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from taipan.broker.access.banned import Ban
from taipan.broker.access.stored.rules import MAX_RULES
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME, StoredUser
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.rules.import_check import ImportCheck
from taipan.ruleengine.stored.rows import StoredResource, StoredRule, StoredSchema

from ...configuration.emqx_access import module_in_words
from ...configuration.emqx_alternatives import instead_of_module, unknown
from ...configuration.known_secrets import is_known_hash, is_known_password
from ..alarm_targets import StoredSilence, StoredTarget
from ..alarm_thresholds import StoredThreshold
from ..apps import App
from ..dashboard_users import DashboardUser
from ..durable_answer import check_storable
from ..refusal import MISSING, WRONG, Refusal, wrong
from .alarm_records import read_silence, read_target, read_threshold
from .emqx_formats import (
    AccessRule,
    BadField,
    read_app,
    read_ban,
    read_dashboard_user,
    read_engine_rule,
    read_old_user,
    read_resource,
    read_rule,
    read_user,
    web_hook_method,
)
from .json_document import BadRecord, Document, JsonObject, Span
from .passthrough import MAX_RECORD_SIZE, PassthroughRecord, identity_of
from .retained_records import ExportedRetained, read_retained

LOGIN_KIND: Final = "auth.mnesia.as"
"""The member that contains the kind of ``login`` in files up to 4.2."""
OURS: Final = "taipan"
"""The member that only Taipan's files have."""

MAX_ERRORS: Final = 100
"""Maximum number of errors that are listed."""

REPLACE_OWN_LOGIN: Final = "replace_own_login"
"""The member that requests replacing the login of the user who runs the import."""
DEFAULT_SECRET: Final = "default_secret"
OWN_LOGIN: Final = "own_login"
_WHY: Final = {
    DEFAULT_SECRET: "its secret is EMQX's published default",
    OWN_LOGIN: f"it is the login that runs this import, and its secret stays unless {REPLACE_OWN_LOGIN} is given",
}

_NOT_CARRIED: Final = ("version", "date", "env", "dry_run", REPLACE_OWN_LOGIN, OURS, LOGIN_KIND)
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4}){0,2}(-[0-9A-Za-z.-]{1,64})?")

Item = TypeVar("Item")

_SHOWN_ACTIONS: Final = 8
"""Unknown actions of a rule that are named."""


class RecordError(msgspec.Struct, frozen=True):
    """An error in one record of a file. ``index``: position of the record in its section."""

    section: str
    index: int
    key: str
    what: str


class ImportRefused(Refusal):
    """A file with invalid records; ``rows`` lists the errors."""

    def __init__(self, errors: list[RecordError], count: int) -> None:
        first = errors[0]
        place = f"{first.section}[{first.index}]" + (f".{first.key}" if first.key else "")
        super().__init__(WRONG, f"nothing is imported; records that are wrong: {count}, first {place}: {first.what}")
        self.count = count
        self.rows: list[JsonObject] = [msgspec.structs.asdict(error) for error in errors]


class UnsupportedVersion(Refusal):
    """A file of a version that is not supported."""


class LeftOut(msgspec.Struct, frozen=True):
    """A record that is not stored. ``reason``: ``default_secret`` (a published one) or ``own_login`` (the user who runs
    the import)."""

    section: str
    id: str
    reason: str
    what: str


def left_out(section: str, id: str, reason: str) -> LeftOut:
    return LeftOut(section, id, reason, _WHY[reason])


class WithoutEffect(msgspec.Struct, frozen=True):
    """A record that is kept for the next export and has no effect here. ``id``: empty if the record has none."""

    section: str
    id: str
    what: str


class Plan(msgspec.Struct):
    """What an import stores. ``rules``: access rules, subject by subject, in the order in which they are checked.
    ``bans``: each with whether the file has its ``kick``. ``carried``: by section."""

    users: list[StoredUser] = []
    rules: list[AccessRule] = []
    bans: list[tuple[Ban, bool]] = []
    apps: list[App] = []
    dashboard_users: list[DashboardUser] = []
    left_out: list[LeftOut] = []
    retained: list[ExportedRetained] = []
    schemas: list[StoredSchema] = []
    resources: list[StoredResource] = []
    engine_rules: list[StoredRule] = []
    alarm_targets: list[tuple[str, StoredTarget]] = []
    alarm_silences: list[tuple[str, StoredSilence]] = []
    alarm_thresholds: list[tuple[str, StoredThreshold]] = []
    carried: dict[str, list[PassthroughRecord]] = {}

    def counts(self) -> JsonObject:
        """Return the number of records of each section, by the section's name in the file."""
        return {
            "schemas": len(self.schemas),
            "resources": len(self.resources),
            "rules": len(self.engine_rules),
            "auth_mnesia": len(self.users),
            "acl_mnesia": len(self.rules),
            "blacklist": len(self.bans),
            "apps": len(self.apps),
            "users": len(self.dashboard_users),
            "retained": len(self.retained),
            "alarm_targets": len(self.alarm_targets),
            "alarm_silences": len(self.alarm_silences),
            "alarm_thresholds": len(self.alarm_thresholds),
            "carried": {section: len(records) for section, records in self.carried.items()},
        }


class ImportedDocument:
    """One document, with the values of ``env`` over its own. ``for _ in file.read(): ...``, then ``plan``."""

    def __init__(self, document: Document, env: Mapping[str, Any], now: float, max_payload: int) -> None:
        """Raises Refusal for a version that cannot be read, or for an invalid directive."""
        self.plan = Plan()
        # Imported records that are not active, with the reason.
        self.disabled: list[JsonObject] = []
        # The first records that have no effect here and are kept only for the next export.
        self.without_effect: list[WithoutEffect] = []
        self._document = document
        self._env = env
        self._now = now
        self._max_payload = max_payload
        self._errors: list[RecordError] = []
        self._wrong = 0
        self._ours = OURS in env or OURS in document.members
        self._version = self._read_version()
        self._login_kind = self._read_login_kind()

    def _member(self, key: str) -> Any:
        """Return a member whose value is not an array; ``None`` if it is absent."""
        return self._env[key] if key in self._env else self._document.member(key)

    def _read_version(self) -> tuple[int, int]:
        given = self._member("version")
        if given is None:
            raise Refusal(MISSING, "version is missing: not an exported file")
        found = _VERSION.fullmatch(given) if isinstance(given, str) else None
        version = (int(found[1]), int(found[2])) if found is not None else (0, 0)
        if not (4, 1) <= version < (5, 0):
            raise UnsupportedVersion(WRONG, f"version: unsupported version {msgspec.json.encode(given).decode()[:64]}")
        return version

    def _read_login_kind(self) -> Literal["username", "clientid"]:
        given = self._member(LOGIN_KIND)
        if given is None or given == USERNAME:
            return "username"
        if given == CLIENT_ID:
            return "clientid"
        raise wrong(LOGIN_KIND, f"expected {USERNAME} or {CLIENT_ID}")

    # ---------------------------------------------------------------- sections

    def read(self) -> Iterator[None]:
        """Check everything except what only the rule engine can check; each step is short."""
        plan, now, ours = self.plan, self._now, self._ours
        # Strings as keys: tuples would be 100,000 more objects for the garbage collector.
        users: dict[str, StoredUser] = {}
        # Later records override earlier ones, as when EMQX imports one array after the other.
        for section, read_one in (
            ("auth_clientid", lambda value: read_old_user(value, CLIENT_ID, ours, now)),
            ("auth_username", lambda value: read_old_user(value, USERNAME, ours, now)),
            ("auth_mnesia", lambda value: read_user(value, self._login_kind, ours, now)),
        ):
            for user in self._section(section, read_one):
                if user is not None:
                    users[f"{user.kind}:{user.name}"] = user
                yield
        for user in users.values():
            if is_known_password(user.password):
                plan.left_out.append(left_out("auth_mnesia", user.name, DEFAULT_SECRET))
            else:
                plan.users.append(user)
            yield
        yield from self._read_rules()
        yield from self._collect("blacklist", lambda value: read_ban(value, now), plan.bans)
        for app in self._section("apps", read_app):
            if app is not None and is_known_hash(app.secret_hash):
                plan.left_out.append(left_out("apps", app.app_id, DEFAULT_SECRET))
            elif app is not None:
                plan.apps.append(app)
            yield
        yield from self._read_dashboard_users()
        most = self._max_payload
        yield from self._collect("retained", lambda value: read_retained(value, most), plan.retained)
        yield from self._collect("alarm_targets", read_target, plan.alarm_targets)
        silences: list[tuple[str, StoredSilence]] = []
        yield from self._collect("alarm_silences", read_silence, silences)
        plan.alarm_silences = [(name, row) for name, row in silences if row.until > now]
        yield from self._collect("alarm_thresholds", read_threshold, plan.alarm_thresholds)
        yield from self._read_engine()
        yield from self._carry()

    def _collect(self, section: str, read_one: Callable[[object], Item], into: list[Item]) -> Iterator[None]:
        for item in self._section(section, read_one):
            if item is not None:
                into.append(item)
            yield

    def _read_dashboard_users(self) -> Iterator[None]:
        """Read all users except those with a published default password, with which anyone could open the dashboard."""
        found: dict[str, DashboardUser] = {}
        for user in self._section("users", lambda value: read_dashboard_user(value, self._ours)):
            if user is not None and is_known_password(user.password):
                self.plan.left_out.append(left_out("users", user.name, DEFAULT_SECRET))
            elif user is not None:
                found[user.name] = user
            yield
        self.plan.dashboard_users = list(found.values())

    def _read_rules(self) -> Iterator[None]:
        rules: list[AccessRule] = []
        counts: dict[tuple[str, str], int] = {}

        def read_one(value: object) -> AccessRule:
            rule = read_rule(value, self._login_kind, self._now)
            counts[rule.subject] = counts.get(rule.subject, 0) + 1
            if counts[rule.subject] > MAX_RULES:
                raise BadField("", f"more than {MAX_RULES} rules of {rule.name or 'everybody'}")
            return rule

        yield from self._collect("acl_mnesia", read_one, rules)
        of: dict[tuple[str, str], list[AccessRule]] = {}
        for rule in rules:
            of.setdefault(rule.subject, []).append(rule)
            yield
        # From 4.3 on, the newest rule of a subject is checked first, whatever its position in the file.
        newest_first = self._version >= (4, 3) and not self._ours
        for same in of.values():
            self.plan.rules += sorted(same, key=lambda rule: -rule.created_at) if newest_first else same
            yield

    def _read_engine(self) -> Iterator[None]:
        """Read the resources and rules of the rule engine, for ``check_engine``."""
        old = self._version < (4, 4) and not self._ours
        methods: dict[str, str] = {}
        self._schemas: list[tuple[int, JsonObject, str]] = []
        self._resources: list[tuple[int, JsonObject, str]] = []
        self._rules: list[tuple[int, JsonObject, str]] = []

        def resource(value: Any) -> JsonObject:
            changed = read_resource(value, old)
            method = web_hook_method(value) if old else None
            if method is not None:
                methods[value["id"]] = method
            return changed

        yield from self._numbered("schemas", _as_object, self._schemas)
        yield from self._numbered("resources", resource, self._resources)
        yield from self._numbered("rules", lambda value: read_engine_rule(value, methods), self._rules)

    def _numbered(
        self, section: str, read_one: Callable[[Any], JsonObject], into: list[tuple[int, JsonObject, str]]
    ) -> Iterator[None]:
        for index, record in enumerate(self._section(section, read_one)):
            if record is not None:
                into.append((index, record, msgspec.json.encode(record).decode()))
            yield

    async def check_engine(self, adoption: ImportCheck) -> AsyncIterator[None]:
        """Have the rule engine check its records, after ``read``. Records of types that it does not offer are kept
        for the next export."""
        schemas: dict[str, StoredSchema] = {}
        for index, record, text in self._schemas:
            try:
                schema = await adoption.check_schema(record)
                if schema is None:
                    self._take_along("schemas", record, text)
                else:
                    schemas[schema.name] = schema
                    if schema.fault:
                        what = {"section": "schemas", "index": index, "id": schema.name, "what": schema.fault}
                        self.disabled.append(what)
            except (Refusal, RuleEngineError) as error:
                self._error("schemas", index, "", error.message)
            yield
        self.plan.schemas = list(schemas.values())
        resources: dict[str, StoredResource] = {}
        rules: dict[str, StoredRule] = {}
        for index, record, text in self._resources:
            try:
                check_storable("config", record["config"])
                row = adoption.check_resource(record)
                if row is None:
                    self._take_along("resources", record, text)
                else:
                    resources[row.id] = row
                    if row.fault:
                        self.disabled.append({"section": "resources", "index": index, "id": row.id, "what": row.fault})
            except (Refusal, RuleEngineError) as error:
                self._error("resources", index, "", error.message)
            yield
        for index, record, text in self._rules:
            try:
                check_storable("actions", record["actions"])
                rule = await adoption.check_rule(record)
                if rule is None:
                    self._take_along(
                        "rules", record, text, unknown("the action", *adoption.unknown_actions(record)[:_SHOWN_ACTIONS])
                    )
                else:
                    rules[rule.id] = rule
            except (Refusal, RuleEngineError) as error:
                self._error("rules", index, "", error.message)
            yield
        self.plan.resources = list(resources.values())
        self.plan.engine_rules = list(rules.values())

    def _take_along(self, section: str, record: JsonObject, text: str, what: str = "") -> None:
        self._note_without_effect(section, record, what)
        self.plan.carried.setdefault(section, []).append(PassthroughRecord(section, text, True, identity_of(record)))

    def _note_without_effect(self, section: str, record: object, what: str = "") -> None:
        if len(self.without_effect) >= MAX_ERRORS:
            return
        id = (identity_of(record) or "").partition(":")[2]
        what = what or _unknown_in_words(section, record if isinstance(record, dict) else {})
        self.without_effect.append(WithoutEffect(section[:256], id, f"kept only for the next export: {what}"))

    def refuse_wrong(self) -> None:
        """Raise ImportRefused if there were any errors."""
        if self._errors:
            raise ImportRefused(self._errors, self._wrong)

    def _carry(self) -> Iterator[None]:
        """Keep all other sections."""
        known = {
            "auth_clientid",
            "auth_username",
            "auth_mnesia",
            "acl_mnesia",
            "blacklist",
            "apps",
            "users",
            "retained",
            "alarm_targets",
            "alarm_silences",
            "alarm_thresholds",
        }
        known |= {"schemas", "resources", "rules", *_NOT_CARRIED}
        for section in dict.fromkeys([*self._document.sections, *self._document.members, *self._env]):
            if section not in known:
                yield from self._carry_section(section)

    def _carry_section(self, section: str) -> Iterator[None]:
        """Keep a section exactly as it is."""
        records: list[PassthroughRecord] = []
        listed = self._is_list(section)
        for index, (value, text) in enumerate(self._values(section) if listed else self._single(section)):
            if isinstance(value, BadRecord):
                self._error(section, index, "", str(value))
            elif len(text) > MAX_RECORD_SIZE:
                self._error(section, index, "", f"longer than {MAX_RECORD_SIZE} characters")
            else:
                self._note_without_effect(section, value)
                records.append(PassthroughRecord(section, text, listed, identity_of(value) if listed else None))
            yield
        if records:
            self.plan.carried[section] = records

    # ------------------------------------------------------------------- values

    def _is_there(self, section: str) -> bool:
        return section in self._env or section in self._document.members or section in self._document.sections

    def _is_list(self, section: str) -> bool:
        if section in self._env:
            return isinstance(self._env[section], list)
        return section in self._document.sections

    def _values(self, section: str) -> Iterator[tuple[Any, str]]:
        """Yield value and text of each record, or BadRecord if the value is invalid."""
        if section in self._env:
            for value in self._env[section]:
                yield value, msgspec.json.encode(value).decode()
            return
        for span in self._document.sections.get(section, ()):
            yield self._value(span), self._document.raw(span)

    def _single(self, section: str) -> Iterator[tuple[object, str]]:
        if section in self._env:
            yield self._env[section], msgspec.json.encode(self._env[section]).decode()
        elif section in self._document.members:
            span = self._document.members[section]
            yield self._value(span), self._document.raw(span)

    def _value(self, span: Span) -> object:
        try:
            return self._document.value(span)
        except ValueError as error:
            return BadRecord(str(error))

    def _section(self, section: str, read_one: Callable[[object], Item]) -> Iterator[Item | None]:
        """Yield each record as it is stored, or ``None`` for an invalid one, whose error is noted."""
        if not self._is_list(section):
            if self._is_there(section):
                self._error(section, 0, "", "expected an array")
            return
        for index, (value, _) in enumerate(self._values(section)):
            item: Item | None = None
            try:
                if isinstance(value, BadRecord):
                    raise BadField("", str(value))
                item = read_one(value)
            except BadField as error:
                self._error(section, index, error.key, error.what)
            yield item

    def _error(self, section: str, index: int, key: str, what: str) -> None:
        self._wrong += 1
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(RecordError(section[:256], index, key, what))


def _as_object(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise BadField("", "expected an object")
    return value


def _unknown_in_words(section: str, members: JsonObject) -> str:
    """Say why a record has no effect, and what to use instead."""
    if section == "modules" and (words := module_in_words(members)):
        return words
    if section == "schemas" and isinstance(members.get("parser_type"), str):
        return unknown("parser type", members["parser_type"])
    kind = members.get("type")
    if not isinstance(kind, str):
        return "unknown here"
    if section == "modules" and (words := instead_of_module(kind)):
        return f"type {kind[:64]} is unknown here; {words}"
    return unknown("type", kind)
