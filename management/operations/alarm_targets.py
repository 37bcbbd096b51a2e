"""Alarm targets and silences: rows that all nodes share. Each node sends its own alarms to the targets."""

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from taipan.broker.observability.masking import Masked, mask, restore
from taipan.broker.server import Server
from taipan.ruleengine.engine import RuleEngine

from ..alarm_targets.kinds import KINDS, Config, Kind, WrongConfig, check
from ..alarm_targets.notifier import AlarmNotifier, Silence, TargetStatus
from ..alarm_targets.senders import NotSent
from ..configuration.validation import Fault, Validator
from .durable_answer import check_store_writable, rows_of_a_size, wait_until_stored
from .node_calls import Gathered, NodeCalls
from .pubsub import PublishRequest, PubSub
from .refusal import EXISTS, MISSING, WRONG, Refusal, not_found, wrong

logger = logging.getLogger(__name__)

MAX_TARGETS: Final = 50
MAX_SILENCES: Final = 200
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_BAD_ID: Final = "expected 1 to 64 letters, digits, '_' or '-', a letter or digit first"
_TEST: Final = "This is a test. No alarm is active."


class StoredTarget(msgspec.Struct, frozen=True, array_like=True):
    """The key of the row is the target's id. ``config``: as it was given, with its secrets."""

    kind: Kind
    enabled: bool
    alarms: list[str]
    config: dict[str, Any]


class StoredSilence(msgspec.Struct, frozen=True, array_like=True):
    """``until``, ``created_at``: Unix seconds. ``by``: who created it."""

    alarms: str
    until: float
    reason: str
    by: str
    created_at: float


class TargetRecord(msgspec.Struct):
    """``config`` has its secrets masked. ``status``: one for each node that answers."""

    id: str
    type: str
    enabled: bool
    alarms: list[str]
    config: dict[str, Any]
    status: list[TargetStatus]


class SilenceRecord(msgspec.Struct):
    """``until``, ``created_at``: Unix seconds. ``alarms``: the pattern of names."""

    id: str
    alarms: str
    until: float
    reason: str
    created_by: str
    created_at: float


class AlarmTargets:
    """Operations on targets and silences. Call ``start`` and ``stop`` together with those of the node."""

    def __init__(self, server: Server, calls: NodeCalls, engine: RuleEngine, pubsub: PubSub) -> None:
        self._server = server
        self._calls = calls
        self._pubsub = pubsub
        self._notifier = AlarmNotifier(server, engine.settings.refused_networks, self._publish)
        self._targets = server.tables.open("alarm_targets", StoredTarget, shared=True)
        self._silences = server.tables.open("alarm_silences", StoredSilence, shared=True)
        self._targets.on_taken.append(lambda name, old, new: self._apply_stored(name, new))
        self._silences.on_taken.append(lambda *_: self._apply_silences())
        calls.serve(self.statuses_here)

    def start(self) -> None:
        """Begin to send alarms to the targets."""
        self._apply_silences()
        for name, row in list(self._targets.items()):
            self._apply_stored(name, row)
        self._notifier.start()

    async def stop(self) -> None:
        """Stop sending alarms."""
        await self._notifier.stop()

    # ----------------------------------------------------------------- targets

    async def listing(self) -> tuple[list[TargetRecord], list[str]]:
        """Return all targets with their status on each node, and the nodes that did not answer."""
        found: Gathered[dict[str, TargetStatus]] = await self._calls.everywhere(self.statuses_here)
        records = [
            TargetRecord(
                name,
                row.kind,
                row.enabled,
                row.alarms,
                mask(row.config),
                [of[name] for _, of in found.found if name in of],
            )
            for name, row in self._targets.items()
        ]
        return records, self._calls.may_lack(found.missing)

    def shown(self, name: str) -> TargetRecord:
        """Return one target, with its status on this node. Raises Refusal."""
        row = self._row(name)
        return TargetRecord(name, row.kind, row.enabled, row.alarms, mask(row.config), [self._notifier.status(name)])

    def listing_here(self) -> list[TargetRecord]:
        """Return all targets with their status on this node."""
        return [self.shown(name) for name, _ in self._targets.items()]

    def statuses_here(self) -> dict[str, TargetStatus]:
        """Return the status of each target on this node."""
        return {name: self._notifier.status(name) for name, _ in self._targets.items()}

    async def add(self, name: str, kind: Kind, enabled: bool, alarms: list[str], config: dict[str, Any]) -> None:
        """Create a target. Raises Refusal."""
        if not _ID.fullmatch(name):
            raise wrong("id", _BAD_ID)
        if name in self._targets:
            raise Refusal(EXISTS, f"alarm target {name} already exists")
        if len(self._targets) >= MAX_TARGETS:
            raise wrong("id", f"there are {MAX_TARGETS} alarm targets, which is the limit")
        await self._put(name, StoredTarget(kind, enabled, alarms, _with_secrets(config, {})))

    async def update(self, name: str, enabled: bool, alarms: list[str], config: dict[str, Any]) -> None:
        """Change a target; masks in ``config`` stand for the secrets of before. Raises Refusal."""
        row = self._row(name)
        await self._put(name, StoredTarget(row.kind, enabled, alarms, _with_secrets(config, row.config)))

    async def delete(self, name: str) -> None:
        """Delete a target. Raises Refusal."""
        self._row(name)
        check_store_writable(self._server.tables)
        self._targets.remove(name)
        self._apply(name, None)
        await wait_until_stored(self._server.tables)

    async def test(self, name: str) -> str:
        """Send a test notice from this node, also if the target is disabled. Return a warning or "". Raises Refusal
        with the reason why it was not sent."""
        row = self._row(name)
        try:
            return await self._notifier.test(_config_of(row.kind, row.config), _TEST)
        except NotSent as error:
            raise Refusal(WRONG, f"not sent: {error}") from None

    async def _put(self, name: str, row: StoredTarget) -> None:
        _config_of(row.kind, row.config)
        check_store_writable(self._server.tables)
        with rows_of_a_size():
            self._targets.put(name, row)
        self._apply(name, row)
        await wait_until_stored(self._server.tables)

    def _apply(self, name: str, row: StoredTarget | None) -> None:
        if row is None or not row.enabled:
            self._notifier.remove(name)
        else:
            self._notifier.put(name, row.alarms, _config_of(row.kind, row.config))

    def _apply_stored(self, name: str, row: StoredTarget | None) -> None:
        """Apply a row that another node or another version has written."""
        try:
            self._apply(name, row)
        except Refusal as refusal:
            self._notifier.remove(name)
            logger.error("alarm_target_unusable target=%s error=%s", name, refusal.message)

    def _row(self, name: str) -> StoredTarget:
        row = self._targets.get(name)
        if row is None:
            raise not_found("alarm target", name)
        return row

    async def _publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        request = PublishRequest(
            client_id=self._server.settings.node.name, payload=payload.decode(), topic=topic, qos=qos, retain=retain
        )
        try:
            await self._pubsub.publish(request)
        except Refusal as refusal:
            raise NotSent(refusal.message) from None

    # ------------------------------------------------------- export and import

    def stored_targets(self) -> list[tuple[str, StoredTarget]]:
        """Return a copy of the targets, with their secrets."""
        return list(self._targets.items())

    def stored_silences(self) -> list[tuple[str, StoredSilence]]:
        """Return a copy of the silences."""
        return list(self._silences.items())

    def stored_target(self, name: str) -> StoredTarget | None:
        """Return the target that an import may replace."""
        return self._targets.get(name)

    def stored_silence(self, name: str) -> StoredSilence | None:
        """Return the silence that an import may replace."""
        return self._silences.get(name)

    def put_target(self, name: str, row: StoredTarget) -> None:
        """Add or replace a target for an import."""
        self._targets.put(name, row)
        self._apply_stored(name, row)

    def put_silence(self, name: str, row: StoredSilence) -> None:
        """Add or replace a silence for an import."""
        self._silences.put(name, row)
        self._apply_silences()

    def lacks_room_for(
        self, targets: list[tuple[str, StoredTarget]], silences: list[tuple[str, StoredSilence]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the sections of a file of which there would be too many, and what to tell. Raises Refusal for a row
        that is too large for the cluster."""
        with rows_of_a_size():
            for name, row in targets:
                self._targets.check(name, row)
        if len({name for name, _ in targets} | {name for name, _ in self._targets.items()}) > MAX_TARGETS:
            yield "alarm_targets", f"more than {MAX_TARGETS} alarm targets, including the existing ones"
        now = self._server.clock.wall()
        there = {name for name, row in self._silences.items() if row.until > now}
        if len({name for name, _ in silences} | there) > MAX_SILENCES:
            yield "alarm_silences", f"more than {MAX_SILENCES} silences, including the existing ones"

    # ---------------------------------------------------------------- silences

    def silences(self) -> list[SilenceRecord]:
        """Return the silences that have not ended, the first to end first."""
        now = self._server.clock.wall()
        rows = sorted(((name, row) for name, row in self._silences.items()), key=lambda each: each[1].until)
        return [
            SilenceRecord(name, row.alarms, row.until, row.reason, row.by, row.created_at)
            for name, row in rows
            if row.until > now
        ]

    def silence_record(self, name: str) -> SilenceRecord:
        """Return a silence that has not ended. Raises Refusal."""
        found = next((each for each in self.silences() if each.id == name), None)
        if found is None:
            raise not_found("silence", name)
        return found

    async def silence(self, alarms: str, until: float, reason: str, by: str) -> str:
        """Keep alarms back until a moment; return the silence's id. Raises Refusal."""
        now = self._server.clock.wall()
        if until <= now:
            raise wrong("until", "expected a time in the future")
        check_store_writable(self._server.tables)
        for name in [name for name, row in self._silences.items() if row.until <= now]:
            self._silences.remove(name)
        if len(self._silences) >= MAX_SILENCES:
            raise wrong("alarms", f"there are {MAX_SILENCES} silences, which is the limit")
        name = secrets.token_hex(8)
        self._silences.put(name, StoredSilence(alarms, until, reason, by, now))
        self._apply_silences()
        await wait_until_stored(self._server.tables)
        return name

    async def end_silence(self, name: str) -> None:
        """End a silence now. Raises Refusal."""
        if name not in self._silences:
            raise not_found("silence", name)
        check_store_writable(self._server.tables)
        self._silences.remove(name)
        self._apply_silences()
        await wait_until_stored(self._server.tables)

    def _apply_silences(self) -> None:
        self._notifier.silence([Silence(row.alarms, row.until) for row in self._silences.values()])


def check_target(name: str, row: StoredTarget) -> None:
    """Check a target of a file. Raises Refusal."""
    if not _ID.fullmatch(name):
        raise wrong("id", _BAD_ID)
    _with_secrets(row.config, {})
    _config_of(row.kind, row.config)


def _with_secrets(given: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    try:
        config: dict[str, Any] = restore(given, stored, place="config")
    except Masked as error:
        raise Refusal(WRONG, str(error)) from None
    return config


def _config_of(kind: Kind, given: dict[str, Any]) -> Config:
    """Return the configuration in its type. Raises Refusal."""
    struct = KINDS[kind]
    try:
        config: Config = msgspec.convert(given, struct)
        check(config)
    except WrongConfig as error:
        raise Refusal(WRONG, f"config.{error}") from None
    except msgspec.ValidationError as error:
        fault = next(Validator(True, "object").faults(given, struct), Fault((), str(error)))
        where = ".".join(["config", *map(str, fault.place)])
        if fault.missing:
            raise Refusal(MISSING, f"{fault.what} in {where}") from None
        raise Refusal(WRONG, f"{where}: {fault.what}") from None
    return config
