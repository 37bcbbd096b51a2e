"""Export files: the stored data of the node as one JSON document, written in pieces."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, TypeVar

import msgspec

from taipan.broker.access.stored import rules as stored_rules
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine

from ..alarm_targets import AlarmTargets
from ..alarm_thresholds import AlarmThresholds
from ..apps import Apps
from ..dashboard_users import DashboardUsers
from ..listing import PAUSE_EVERY
from ..times import local_text
from .alarm_records import silence_record, target_record, threshold_record
from .emqx_formats import (
    app_record,
    ban_record,
    dashboard_user_record,
    engine_rule_record,
    resource_record,
    rule_record,
    schema_record,
    user_record,
)
from .import_file import OURS
from .json_document import JsonObject
from .passthrough import PassthroughRecord, PassthroughRecords
from .retained_records import retained_row

FORMAT: Final = "4.4"
"""The version of EMQX whose format this is, with a few more members."""
_ALARM_SECTIONS: Final = ("alarm_targets", "alarm_silences", "alarm_thresholds")

Item = TypeVar("Item")

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class ExportFile:
    """The document contains the data that is stored when this object is created. Access rules and retained messages are
    read while the document is written; all rules of one subject are read at the same moment."""

    def __init__(
        self,
        server: Server,
        engine: RuleEngine,
        apps: Apps,
        dashboard_users: DashboardUsers,
        alarm_targets: AlarmTargets,
        alarm_thresholds: AlarmThresholds,
        passthrough: PassthroughRecords,
        retained: bool,
        now: float,
    ) -> None:
        """``retained``: whether the file includes retained messages."""
        self._server = server
        self._now = now
        self._resources = engine.resources.stored()
        self._rules = engine.rules.stored()
        self._schemas = engine.schemas.stored()
        self._users = server.stored_users.all()
        self._bans = server.banned.all()
        self._apps = apps.stored()
        self._dashboard_users = dashboard_users.stored()
        self._alarm_targets = alarm_targets.stored_targets()
        self._alarm_silences = [each for each in alarm_targets.stored_silences() if each[1].until > now]
        self._alarm_thresholds = alarm_thresholds.stored()
        self._passthrough = passthrough.all()
        self._topics = list(server.broker.retained.topics()) if retained else None

    def pieces(self) -> Iterator[bytes]:
        """Yield the document; each piece takes a short time, and some are empty."""
        passthrough: dict[str, list[PassthroughRecord]] = {}
        for looked, record in enumerate(self._passthrough, 1):
            passthrough.setdefault(record.section, []).append(record)
            if looked % PAUSE_EVERY == 0:
                yield b""
        head = {"version": FORMAT, OURS: {"version": self._server.version}, "date": local_text(self._now)}
        yield _encode(head)[:-1]
        yield from _array("resources", self._resources, resource_record, passthrough.pop("resources", ()))
        yield from _array("rules", self._rules, engine_rule_record, passthrough.pop("rules", ()))
        yield from _array("schemas", self._schemas, schema_record, passthrough.pop("schemas", ()))
        in_force = (ban for ban in self._bans if ban.until > self._now)
        yield from _array("blacklist", in_force, ban_record)
        yield from _array("apps", self._apps, app_record)
        # Kept by versions without a dashboard.
        ours = {f"username:{user.name}" for user in self._dashboard_users}
        kept = [record for record in passthrough.pop("users", ()) if record.identity not in ours]
        yield from _array("users", self._dashboard_users, dashboard_user_record, kept)
        yield from _array("auth_mnesia", self._users, user_record)
        yield from _array("acl_mnesia", self._server.stored_rules.walk(*stored_rules.KINDS), rule_record)
        for section in _ALARM_SECTIONS:
            passthrough.pop(section, None)  # kept by versions without them
        yield from _array("alarm_targets", self._alarm_targets, target_record)
        yield from _array("alarm_silences", self._alarm_silences, silence_record)
        yield from _array("alarm_thresholds", self._alarm_thresholds, threshold_record)
        for section in sorted(passthrough):
            yield from self._passthrough_section(passthrough[section])
        if self._topics is not None:
            yield from _array("retained", self._retained(self._topics), lambda row: row)
        yield b"}\n"

    def _passthrough_section(self, records: list[PassthroughRecord]) -> Iterator[bytes]:
        section = records[0].section
        if records[0].listed:
            yield from _array(section, (), lambda row: row, records)
        else:
            yield b"," + _encode(section) + b":" + records[0].text.encode()

    def _retained(self, topics: list[str]) -> Iterator[JsonObject]:
        store = self._server.broker.retained
        for topic in topics:
            message = store.get(topic)
            if message is not None and not topic.startswith("$SYS") and not store.expired(message, self._now):
                yield retained_row(message)


def _array(
    section: str,
    items: Iterable[Item],
    record: Callable[[Item], JsonObject],
    passthrough: Iterable[PassthroughRecord] = (),
) -> Iterator[bytes]:
    """Yield one record per line; passthrough records come last."""
    yield b"," + _encode(section) + b":["
    comma = b"\n"
    for text in chain((_encode(record(item)) for item in items), (each.text.encode() for each in passthrough)):
        yield comma + text
        comma = b",\n"
    yield b"]"
