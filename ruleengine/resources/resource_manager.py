"""All resources of the node: their stored rows, their running instances, and the alarms while one is down."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from msgspec import UNSET

from taipan.broker.observability.alarms import RaisedAlarms
from taipan.broker.persistence.tables import Table

from ..delivery.buffer import Buffer
from ..delivery.dead_letters import DeadLetter
from ..delivery.report import ActionFailed
from ..error import EXISTS, IN_USE, UNKNOWN, WRONG, RuleEngineError
from ..network.allowed_networks import NOT_TRIED, reason_of
from ..params import ParamError, check_params, undeclared
from ..records import ListedResource, ResourceRecord, ResourceStatus
from ..stored.param_masking import given_back, shown
from ..stored.rows import MAX_ID, StoredResource, check_stored, expect, new_id
from ..stored.shared_rows import TakenRows, check_row, check_unchanged
from .resource import NodeContext, Resource, ResourceContext, ResourceError, ResourceType

logger = logging.getLogger(__name__)

TABLE: Final = "resources"
PROBE: Final = "__probe__:"
_SILENT: Final = "no answer in time"
_CHANGING: Final = "it is being changed"
FIRST_TRY: Final = 3.0
"""Maximum seconds that a creation waits for the first answer of the other system."""


@dataclass(slots=True, eq=False)
class ManagedResource:
    """One resource. ``instance`` is None if its configuration can no longer be used; ``fault`` is the reason."""

    stored: StoredResource
    instance: Resource | None = None
    fault: str = ""
    # The error of its first attempt, which may occur before the instance has tried by itself.
    tried: str = ""

    @property
    def alive(self) -> bool:
        return self.instance is not None and self.instance.alive

    @property
    def reason(self) -> str:
        """Why the resource is not alive."""
        if self.instance is None:
            return self.fault
        reason = self.instance.status.reason or ""
        return self.tried if reason in ("", NOT_TRIED) and self.tried else reason


class ResourceUsers(Protocol):
    """The rules whose actions use resources."""

    def ids_with(self, resource_id: str, enabled_only: bool = False) -> list[str]:
        """Return the ids of the rules that use a resource."""
        ...

    def restart_users_of(self, resource_id: str) -> None:
        """Restart the rules that use a resource, because it has a new instance."""
        ...

    def retry_suspended(self) -> None:
        """Retry suspended rules, because the resource for which they wait may be available."""
        ...


class ResourceManager:
    """Resources by id, in the order of their creation.

    All refusals are RuleEngineError. A change is in memory when its call returns; for disk, wait for
    ``tables.stored()``."""

    users: ResourceUsers
    """Set by the manager of the rules, which is created after this one."""

    def __init__(self, node: NodeContext, types: Mapping[str, ResourceType], alarms: RaisedAlarms) -> None:
        self.types = types
        self._node = node
        self._alarms = alarms
        self._lock = asyncio.Lock()
        self._table: Table[StoredResource] = node.tables.open(TABLE, StoredResource, shared=True)
        self._taken = TakenRows(self._take)
        self._table.on_taken.append(self._taken.add)
        self._entries: dict[str, ManagedResource] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def all(self) -> list[ManagedResource]:
        return list(self._entries.values())

    def stored_row(self, id: str) -> StoredResource | None:
        """Return the row with this id, if it exists."""
        entry = self._entries.get(id)
        return None if entry is None else entry.stored

    def get(self, id: str) -> ManagedResource:
        entry = self._entries.get(id)
        if entry is None:
            raise RuleEngineError(UNKNOWN, f"there is no resource {id[:MAX_ID]}")
        return entry

    def lookup(self, id: str) -> ResourceRecord:
        """Return one record with ``status``."""
        entry = self.get(id)
        row = entry.stored
        return ResourceRecord(
            id=row.id,
            type=row.type,
            config=self._shown_config(row),
            description=row.description,
            fault=entry.fault or UNSET,
            status=[self._status(entry)],
        )

    def running(self, id: str) -> Resource:
        """Return the running instance for actions. Raises RuleEngineError if there is none."""
        entry = self.get(id)
        if entry.instance is None:
            raise RuleEngineError(UNKNOWN, f"resource {id} does not run: {entry.fault}")
        return entry.instance

    def stored(self) -> list[StoredResource]:
        """Return the rows with their secrets, for an export."""
        return [entry.stored for entry in self._entries.values()]

    def restore(self) -> None:
        """Start the stored resources without waiting for other systems."""
        for row in sorted(self._table.values(), key=lambda row: row.created_at):
            entry = self._entries[row.id] = ManagedResource(row)
            try:
                self._start(entry)
            except RuleEngineError as error:
                entry.fault = error.message
                level = logging.WARNING if row.fault else logging.ERROR  # the former was logged at the import
                logger.log(level, "resource_unusable resource=%s reason=%s", row.id, error.message)

    async def create(
        self, type: str, config: Mapping[str, object], id: str | None = None, description: str = ""
    ) -> ResourceRecord:
        """Create a resource, whether its other system can be reached or not; return its record. The first attempt is
        awaited for at most ``FIRST_TRY`` seconds."""
        async with self._lock:
            entry = await self._create(type, config, id, description)
            return self._answer(entry.stored)

    async def _create(
        self, type: str, config: Mapping[str, object], id: str | None, description: str
    ) -> ManagedResource:
        id = new_id("resource", id, self._entries, reserved=PROBE)
        if len(self._entries) >= self._node.settings.max_resources:
            raise RuleEngineError(WRONG, "the limit of resources is reached (ruleengine.max_resources)")
        kind = self.type(type)
        checked = self._check(kind, self._unmasked(kind, config, {}))
        now = int(self._node.clock.wall() * 1000)
        entry = ManagedResource(self.check_row(StoredResource(id, type, checked, description, now)))
        self._refuse_taken(id)
        self._start(entry)
        self._entries[id] = entry
        self._table.put(id, entry.stored)
        logger.info("resource_stored resource=%s type=%s", id, type)
        await self._first_try(entry)
        return entry

    async def test(self, type: str, config: Mapping[str, object], id: str | None = None) -> None:
        """Test whether the resource could be reached, without storing it. A masked secret is replaced by that of the
        resource ``id``.

        Raises RuleEngineError."""
        kind = self.type(type)
        known = self._entries.get(id) if id is not None else None
        config = self._unmasked(
            kind, config, known.stored.config if known is not None and known.stored.type == type else {}
        )
        await self._test(kind, self._check(kind, config))

    async def _test(self, kind: ResourceType, config: dict[str, object]) -> None:
        row = check_stored(StoredResource(PROBE + secrets.token_hex(8), kind.name, config))
        instance = self._make(kind, row, probe=True)
        try:
            await _test(instance, self._test_timeout)
        except ResourceError as error:
            raise RuleEngineError(WRONG, f"the resource cannot be reached: {error}") from error
        finally:
            await instance.close()

    async def start(self, id: str) -> None:
        """Retry immediately. Raises RuleEngineError if the resource cannot be reached."""
        async with self._lock:
            await self._start_now(id)

    async def _start_now(self, id: str) -> None:
        entry = self.get(id)
        if entry.instance is None:
            row = entry.stored
            if row.fault:  # a missing part, such as a file, may exist now
                row = msgspec.structs.replace(row, config=self._check(self.type(row.type), row.config), fault="")
            self._start(entry, row)
            entry.fault = ""
            if row is not entry.stored:
                entry.stored = row
                self._table.put(id, row)
            self.users.restart_users_of(id)
        assert entry.instance is not None
        try:
            await _test(entry.instance, self._test_timeout)
        except ResourceError as error:
            raise RuleEngineError(WRONG, f"{id} cannot be reached: {error}") from error
        finally:
            self._sync_alarm(entry)
        self.users.retry_suspended()

    async def update(
        self, id: str, config: Mapping[str, object] | None = None, description: str | None = None
    ) -> ResourceRecord:
        """Change a resource; return its record. A new configuration that changes the connection is tested first, as in
        EMQX; masked secrets remain unchanged. The change is refused while an enabled rule uses the resource, unless the
        resource could not be started."""
        async with self._lock:
            await self._update(id, config, description)
            return self.lookup(id) if config is None else self._answer(self.get(id).stored)

    def _answer(self, row: StoredResource) -> ResourceRecord:
        """Return the record, with warnings about parameters without an effect."""
        record = self.lookup(row.id)
        found = undeclared(row.type, row.config, self.type(row.type).params)
        record.warnings = found or UNSET
        for text in found:
            logger.warning("resource_doubtful resource=%s reason=%r", row.id, text)
        return record

    async def _update(self, id: str, config: Mapping[str, object] | None, description: str | None) -> None:
        entry = self.get(id)
        row = entry.stored
        if description is not None:
            row = self.check_row(msgspec.structs.replace(row, description=description))
        check_unchanged(self._table, id, entry.stored)
        if config is None:
            entry.stored = row
            self._table.put(id, row)
            return
        self._refuse_if_running(id)
        kind = self.type(row.type)
        checked = self._check(kind, self._unmasked(kind, dict(config), row.config))
        if row.fault or not kind.same_connection(checked, row.config):
            await self._test(kind, checked)
        self._refuse_if_running(id)  # by a rule that was created in the meantime
        check_unchanged(self._table, id, entry.stored)
        row = self.check_row(msgspec.structs.replace(row, config=checked, fault=""))
        new = ManagedResource(row)
        old, entry.instance, entry.fault = entry.instance, None, _CHANGING
        self._table.put(id, row)
        if old is not None:
            await old.close()
        self._start(new)
        self._entries[id] = new
        self.users.restart_users_of(id)
        await self._first_try(new)

    def _refuse_if_running(self, id: str) -> None:
        if self.get(id).instance is not None:
            _refuse_in_use(id, self.users.ids_with(id, enabled_only=True))

    async def adopt(self, rows: Sequence[StoredResource]) -> None:
        """Apply rows that ``ImportCheck`` has checked, replacing those with the same ids."""
        async with self._lock:
            for row in rows:
                await self._adopt(row)

    async def _adopt(self, row: StoredResource) -> None:
        """Apply a checked row, replacing the one with its id, without waiting for the other system."""
        check_stored(row)
        old = self._entries.get(row.id)
        if old is not None and old.stored == row:
            return
        self._table.put(row.id, row)
        await self._replace(row)
        logger.info("resource_adopted resource=%s type=%s", row.id, row.type)

    async def _replace(self, row: StoredResource) -> None:
        """Run an instance for this row, replacing the one with its id."""
        old = self._entries.get(row.id)
        if old is not None:
            if old.instance is not None:
                running, old.instance, old.fault = old.instance, None, _CHANGING
                await running.close()
            self._alarms.deactivate(_alarm(old.stored))
        entry = self._entries[row.id] = ManagedResource(row)
        try:
            self._start(entry)
        except RuleEngineError as error:
            entry.fault = error.message
            logger.warning("resource_unusable resource=%s reason=%s", row.id, error.message)
        self.users.restart_users_of(row.id)

    async def _take(self, id: str) -> None:
        """Handle a change by another node."""
        async with self._lock:
            row, entry = self._table.get(id), self._entries.get(id)
            if row is None:
                if entry is not None:
                    await self._remove(entry)
                    self.users.restart_users_of(id)
            elif (
                entry is not None and msgspec.structs.replace(row, description=entry.stored.description) == entry.stored
            ):
                entry.stored = row
            else:
                await self._replace(row)
                logger.info("resource_taken resource=%s type=%s", row.id, row.type)

    async def delete(self, id: str) -> None:
        """Delete a resource. Refused while rules use it, including in fallbacks, enabled or not."""
        async with self._lock:
            entry = self.get(id)
            _refuse_in_use(id, self.users.ids_with(id))
            check_unchanged(self._table, id, entry.stored)
            self._table.remove(id)
            await self._remove(entry)

    async def _remove(self, entry: ManagedResource) -> None:
        id = entry.stored.id
        del self._entries[id]
        if entry.instance is not None:
            await entry.instance.close()
        self._node.buffers.forget(id)
        self._alarms.deactivate(_alarm(entry.stored))
        logger.info("resource_deleted resource=%s", id)

    def check_row(self, row: StoredResource) -> StoredResource:
        """Return the row if it can be stored and sent to other nodes. Raises RuleEngineError."""
        return check_row(self._table, row)

    def _refuse_taken(self, id: str) -> None:
        if id in self._table:
            raise RuleEngineError(EXISTS, f"resource {id} already exists")

    # Dead letters

    def dead_letters(self, id: str) -> dict[int, DeadLetter]:
        """Return the dead letters of a resource, oldest first."""
        self.get(id)
        return self._node.buffers.dead_letters.of(id)

    def send_dead_letters(self, id: str, numbers: Sequence[int] | None = None) -> int:
        """Queue dead letters again, in order; without ``numbers`` all. Return how many."""
        wanted = self._chosen(id, numbers)
        if not wanted:  # a resource that only receives has no buffer
            return 0
        buffer = getattr(self.running(id), "buffer", None)
        assert isinstance(buffer, Buffer)
        for sent, number in enumerate(wanted):
            try:
                buffer.send_again(number)
            except ActionFailed as error:
                raise RuleEngineError(WRONG, f"{sent} of {len(wanted)} were sent again: {error}") from error
        return len(wanted)

    def remove_dead_letters(self, id: str, numbers: Sequence[int] | None = None) -> int:
        """Delete dead letters; without ``numbers`` all. Return how many."""
        wanted = self._chosen(id, numbers)
        for number in wanted:
            self._node.buffers.dead_letters.remove(id, number)
        return len(wanted)

    def _chosen(self, id: str, numbers: Sequence[int] | None) -> list[int]:
        there = self.dead_letters(id)
        for number in numbers or ():
            if number not in there:
                raise RuleEngineError(UNKNOWN, f"{id} has no dead letter {number}")
        return sorted(there if numbers is None else set(numbers))

    def tick(self) -> None:
        """Raise the alarms of resources that are down, and end the others."""
        for entry in self._entries.values():
            self._sync_alarm(entry)

    async def close(self) -> None:
        self._taken.close()
        running = [entry.instance for entry in self._entries.values() if entry.instance is not None]
        for entry in self._entries.values():
            entry.instance = None
        if running:
            results = await asyncio.gather(*(each.close() for each in running), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    logger.error("resource_close_failed error=%s", result, exc_info=result)

    # Records

    def records(self, type: str | None = None) -> list[ListedResource]:
        """Return records in the order of creation, optionally of one ``type``."""
        if type is not None:
            self.type(type)
        return [
            ListedResource(
                id=each.stored.id,
                type=each.stored.type,
                config=self._shown_config(each.stored),
                description=each.stored.description,
                fault=each.fault or UNSET,
                status=each.alive,
            )
            for each in self._entries.values()
            if type is None or each.stored.type == type
        ]

    def _shown_config(self, row: StoredResource) -> dict[str, object]:
        kind = self.types.get(row.type)
        return shown(row.config, () if kind is None else kind.params)

    def _status(self, entry: ManagedResource) -> ResourceStatus:
        if entry.instance is None:
            return ResourceStatus(node=self._node.node, is_alive=False)
        status = entry.instance.status
        if status.reason is not UNSET and not entry.alive:
            status.reason = entry.reason  # the same reason as in the alarm, starting with the first attempt
        return status

    # Running

    @property
    def _test_timeout(self) -> float:
        return self._node.settings.liveness_timeout + 2.0

    def type(self, name: str) -> ResourceType:
        expect("type", name, str, "a string")
        kind = self.types.get(name)
        if kind is None:
            raise RuleEngineError.unknown("resource type", name, self.types)
        return kind

    @staticmethod
    def _unmasked(
        kind: ResourceType, config: Mapping[str, object], stored: Mapping[str, object]
    ) -> Mapping[str, object]:
        expect("config", config, Mapping, "an object")
        return given_back(config, stored, kind.params)

    @staticmethod
    def _check(kind: ResourceType, config: Mapping[str, object]) -> dict[str, object]:
        expect("config", config, Mapping, "an object")
        try:
            return check_params(config, kind.params)
        except ParamError as error:
            raise RuleEngineError.of_param(error) from error

    def _make(self, kind: ResourceType, row: StoredResource, probe: bool = False) -> Resource:
        def on_alive(alive: bool) -> None:
            entry = self._entries.get(row.id)
            if entry is not None and not probe:
                self._sync_alarm(entry)

        # Undeclared parameters are kept for an export, and have no effect.
        declared = {param.name for param in kind.params}
        config = {name: value for name, value in row.config.items() if name in declared}
        try:
            return kind.create(ResourceContext(row.id, config, self._node, on_alive))
        except ParamError as error:
            raise RuleEngineError.of_param(error) from error

    def fault_of(self, row: StoredResource) -> str:
        """Return why a resource with this configuration could not be started; empty if it could."""
        try:
            self._make(self.type(row.type), row, probe=True)
        except RuleEngineError as error:
            return error.message
        return ""

    def _start(self, entry: ManagedResource, row: StoredResource | None = None) -> None:
        row = row or entry.stored
        if row.fault:
            raise RuleEngineError(WRONG, row.fault)
        instance = self._make(self.type(row.type), row)
        instance.start()
        entry.instance = instance

    async def _first_try(self, entry: ManagedResource) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + FIRST_TRY
        instance = entry.instance
        assert instance is not None
        if not instance.alive:
            try:
                await _test(instance, FIRST_TRY)
            except ResourceError as error:
                entry.tried = str(error)
                logger.info("resource_not_reached resource=%s reason=%s", entry.stored.id, entry.tried)
            else:
                # The instance checks this with its own probe.
                while loop.time() < end and not entry.alive:
                    await asyncio.sleep(0.02)
        self._sync_alarm(entry)

    def _sync_alarm(self, entry: ManagedResource) -> None:
        """Raise or end the alarm by liveness; when the resource is alive, suspended rules that use it start."""
        row = entry.stored
        alarms = self._alarms
        name = _alarm(row)
        if entry.alive:
            if alarms.deactivate(name):
                self.users.retry_suspended()
        elif self._entries.get(row.id) is entry and entry.reason != NOT_TRIED:  # a start raises no alarm
            details = {"id": row.id, "type": row.type, "fault": entry.reason}
            if not alarms.activate(name, f"resource {row.id} is down", details):
                alarms.amend(name, details)


async def _test(instance: Resource, seconds: float) -> None:
    """Test whether a resource can be reached. Raises ResourceError for any error of a resource type."""
    try:
        await asyncio.wait_for(instance.test(), seconds)
    except (ResourceError, TimeoutError) as error:
        raise ResourceError(str(error) or _SILENT) from error
    except Exception as error:
        logger.exception("resource_test_failed error=%s", error)
        raise ResourceError(reason_of(error)) from error


def _alarm(row: StoredResource) -> str:
    return f"resource/{row.type}/{row.id}/down"


def _refuse_in_use(id: str, rules: list[str]) -> None:
    if rules:
        raise RuleEngineError(IN_USE, f"{id} is used by rules {', '.join(rules)}", tuple(rules))
