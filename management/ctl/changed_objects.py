"""The object that a command is about to change, for the audit: as the HTTP API or the command that shows it returns
it."""

import inspect
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from taipan.broker.access.stored.rules import ALL, ANONYMOUS
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME

from ..operations.acl import HalfRecord, Subject, rule_record
from ..operations.dashboard_users import user_record as dashboard_user_record
from ..operations.operations import Operations
from ..operations.refusal import Refusal
from ..operations.users import login_record, user_record
from .command import Command

_MAX_RULES: Final = 100
"""Maximum number of access rules of one subject that an entry has; the audit replaces longer values by their size."""

Values = Mapping[str, str]


async def object_before(operations: Operations, command: Command, values: Values) -> object:
    """Return the object that the command is about to change; None: there is none, or the command names none."""
    words = command.words
    while words and " ".join(words) not in OBJECTS:
        words = words[:-1]
    if not words:
        return None
    try:
        found = OBJECTS[" ".join(words)](operations, values)
        return await found if inspect.isawaitable(found) else found
    except Refusal:
        return None  # the object does not exist; or its node does not answer, which the command reports


def _user(operations: Operations, name: str, kind: str) -> object:
    found = operations.users.lookup(name, kind)
    return None if found is None else user_record(found)


def _login(operations: Operations, values: Values) -> object:
    found = operations.users.lookup(values["Login"])
    return None if found is None else login_record(found)


def _admin(operations: Operations, values: Values) -> object:
    found = operations.dashboard_users.get(values["Username"])
    return None if found is None else dashboard_user_record(found)


def _rules_of(operations: Operations, subject: Subject) -> list[HalfRecord] | None:
    return list(islice(filter(None, operations.acl.halves_of(subject)), _MAX_RULES)) or None


def _rules_of_login(operations: Operations, values: Values) -> object:
    return [rule_record(each) for each in operations.acl.lookup(values["Login"])[:_MAX_RULES]] or None


async def _rule(operations: Operations, values: Values) -> object:
    return (await operations.rules.lookup(values.get("Id") or values["RuleId"]))[0]


async def _resource(operations: Operations, values: Values) -> object:
    return (await operations.resources.lookup(values.get("Id") or values["ResourceId"]))[0]


async def _client(operations: Operations, values: Values) -> object:
    return (await operations.clients.find(values["ClientId"]))[0] or None


async def _delayed(operations: Operations, values: Values) -> object:
    calls = operations.calls
    return await calls.on(values.get("Node") or calls.name, operations.delayed.get_here, values["Id"])


async def _topic_metrics(operations: Operations, values: Values) -> object:
    return (await operations.topic_metrics.get(values["Topic"]))[0]


def _of_name(rows: Any, key: str, name: str) -> object:
    for row in rows:
        value = row[key] if isinstance(row, dict) else getattr(row, key)
        if value == name:
            return row
    return None


OBJECTS: Final[dict[str, Callable[[Operations, Values], Any]]] = {
    "acl add _all": lambda of, values: _rules_of(of, (ALL, "")),
    "acl add _anonymous": lambda of, values: _rules_of(of, (ANONYMOUS, "")),
    "acl add clientid": lambda of, values: _rules_of(of, (CLIENT_ID, values["ClientId"])),
    "acl add username": lambda of, values: _rules_of(of, (USERNAME, values["Username"])),
    "acl del _all": lambda of, values: _rules_of(of, (ALL, "")),
    "acl del _anonymous": lambda of, values: _rules_of(of, (ANONYMOUS, "")),
    "acl del clientid": lambda of, values: _rules_of(of, (CLIENT_ID, values["ClientId"])),
    "acl del username": lambda of, values: _rules_of(of, (USERNAME, values["Username"])),
    "admins": _admin,
    "annotations del": lambda of, values: of.annotations.lookup(values["Id"]),
    "banned": lambda of, values: of.banned.lookup(values["As"], values["Who"]),
    "clientid": lambda of, values: _user(of, values["ClientId"], CLIENT_ID),
    "clients kick": _client,
    "cluster": lambda of, values: of.membership.status(),
    "cluster evacuation": lambda of, values: of.membership.evacuation(),
    "delayed del": _delayed,
    "log handlers": lambda of, values: _of_name(of.logs.handlers(), "id", values["HandlerId"]),
    "log primary-level": lambda of, values: {"level": of.logs.level()},
    "log set-level": lambda of, values: {"level": of.logs.level(values.get("Logger"))},
    "mgmt": lambda of, values: of.apps.lookup(values["AppId"]),
    "modules": lambda of, values: _of_name(of.modules.records(), "name", values["Module"]),
    "mqtt-acl": _rules_of_login,
    "mqtt-user": _login,
    "resources clear-dead-letters": _resource,
    "resources delete": _resource,
    "resources send-again": _resource,
    "resources start": _resource,
    "resources update": _resource,
    "rules delete": _rule,
    "rules reset-metrics": _rule,
    "rules trace": _rule,
    "rules update": _rule,
    "schemas": lambda of, values: of.schemas.lookup(values["Name"]),
    "silences del": lambda of, values: of.alarm_targets.silence_record(values["Id"]),
    "thresholds": lambda of, values: of.alarm_thresholds.record(values["Figure"]),
    "topic-metrics del": _topic_metrics,
    "user": lambda of, values: _user(of, values["Username"], USERNAME),
    "users": _login,
}
"""The first words of commands, the longest first -> how the object is read."""
