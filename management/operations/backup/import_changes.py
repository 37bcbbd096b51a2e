"""Import changes: the change that each record of a plan would make to existing data. A dry run returns them; nothing is
changed."""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

import msgspec

from taipan.broker.access.stored.rules import ANONYMOUS, PUBSUB, StoredAclRule
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine

from ..alarm_targets import AlarmTargets
from ..alarm_thresholds import AlarmThresholds
from ..apps import Apps
from ..dashboard_users import DashboardUsers
from .emqx_formats import AccessRule
from .import_file import Plan
from .passthrough import PassthroughRecords
from .retained_records import ExportedRetained

Action = Literal["create", "change", "same", "remove"]

RULE_DETAILS: Final = attrgetter("topic", "action", "allow", "listener", "created_at")
_RULE: Final = attrgetter("topic", "action", "allow", "listener")
_OURS: Final = ("created_at", "order", "at", "by", "revision")
"""Fields that an import may change without making it another record for an operator."""


class Change(msgspec.Struct):
    """One changed record. ``kind``: its section of the file. ``key``: its identity in that section. ``detail``: the
    fields that differ, or the subject of the record."""

    kind: str
    key: str
    action: Action
    detail: str


class ImportChanges:
    """Compares a plan with the existing data, record by record."""

    def __init__(
        self,
        server: Server,
        engine: RuleEngine,
        apps: Apps,
        dashboard_users: DashboardUsers,
        alarm_targets: AlarmTargets,
        alarm_thresholds: AlarmThresholds,
        passthrough: PassthroughRecords,
    ) -> None:
        self._server = server
        self._engine = engine
        self._apps = apps
        self._dashboard_users = dashboard_users
        self._alarm_targets = alarm_targets
        self._alarm_thresholds = alarm_thresholds
        self._passthrough = passthrough

    def of(self, plan: Plan) -> Iterator[Change]:
        """Yield the changes in the order of the sections of a file."""
        for schema in plan.schemas:
            known_schema = self._engine.schemas.stored_row(schema.name)
            yield _change("schemas", schema.name, known_schema, schema, schema.fault and f"unusable: {schema.fault}")
        for resource in plan.resources:
            there = self._engine.resources.stored_row(resource.id)
            yield _change("resources", resource.id, there, resource, resource.fault and f"unusable: {resource.fault}")
        for rule in plan.engine_rules:
            yield _change("rules", rule.id, self._engine.rules.stored_row(rule.id), rule)
        for user in plan.users:
            known = self._server.stored_users.get(user.kind, user.name)
            yield _change("auth_mnesia", user.name, known, user, user.kind)
        for subject, rules in groupby(plan.rules, key=attrgetter("subject")):
            yield from _rules(self._server.stored_rules.of(*subject), list(rules))
        bans = self._server.banned
        for ban, has_kick in plan.bans:
            new = bans.as_imported(ban, has_kick)
            yield _change("blacklist", ban.who, bans.get(ban.kind, ban.who), new, ban.kind)
        for app in plan.apps:
            if self._apps.is_configured(app.app_id):
                yield Change("apps", app.app_id, "same", "the configuration has it, and the configuration applies")
            else:
                yield _change("apps", app.app_id, self._apps.stored_app(app.app_id), app)
        for dashboard_user in plan.dashboard_users:
            yield _change("users", dashboard_user.name, self._dashboard_users.get(dashboard_user.name), dashboard_user)
        for left in plan.left_out:
            yield Change(left.section, left.id, "same", left.what)
        for record in plan.retained:
            yield self._retained(record)
        for name, target in plan.alarm_targets:
            yield _change("alarm_targets", name, self._alarm_targets.stored_target(name), target)
        for name, silence in plan.alarm_silences:
            yield _change("alarm_silences", name, self._alarm_targets.stored_silence(name), silence)
        for name, threshold in plan.alarm_thresholds:
            yield _change("alarm_thresholds", name, self._alarm_thresholds.stored_threshold(name), threshold)
        for section, records in plan.carried.items():
            for key, action in self._passthrough.changes(section, records):
                yield Change(section, key, action, "kept only for the next export")

    def _retained(self, record: ExportedRetained) -> Change:
        there = self._server.broker.retained.get(record.topic)
        if there is None:
            return Change("retained", record.topic, "create", "")
        new = record.message(None)
        names = ("payload", "qos", "properties")
        other = [name for name in names if getattr(there, name) != getattr(new, name)]
        if round(there.timestamp * 1000) != round(new.timestamp * 1000):  # the file contains milliseconds
            other.append("timestamp")
        return Change("retained", record.topic, "change" if other else "same", ", ".join(other))


def _change(kind: str, key: str, there: msgspec.Struct | None, new: msgspec.Struct, about: str = "") -> Change:
    if there is None:
        return Change(kind, key, "create", about)
    names = [name for name in new.__struct_fields__ if getattr(there, name) != getattr(new, name)]
    other = ", ".join(name for name in names if name not in _OURS)
    return Change(kind, key, "change" if other else "same", f"{about}: {other}" if about and other else other or about)


def _rules(there: list[StoredAclRule], rules: list[AccessRule]) -> Iterator[Change]:
    """Yield the changes of one subject. Rules of the file come first, and replace others with the same topic and
    action."""
    unchanged = list(map(RULE_DETAILS, there)) == list(map(RULE_DETAILS, rules))
    known = {_RULE(row) for row in there}
    replaced: dict[tuple[str, str], set[str]] = {}
    for row in there:
        replaced.setdefault((row.topic, row.listener), set()).add(row.action)
    for rule in rules:
        who = rule.name or {ANONYMOUS: "anonymous"}.get(rule.kind, "everybody")
        detail = f"{rule.kind}: {rule.action} {'allow' if rule.allow else 'deny'}"
        if _RULE(rule) in known:
            moved = "" if unchanged else ", before all that the file does not have"
            yield Change("acl_mnesia", f"{who} {rule.topic}", "same", detail + moved)
            continue
        before = replaced.get((rule.topic, rule.listener), set())
        meets = rule.action in before or PUBSUB in before or (rule.action == PUBSUB and before)
        yield Change("acl_mnesia", f"{who} {rule.topic}", "change" if meets else "create", detail)
