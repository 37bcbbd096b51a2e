"""All resources of the node: what is stored of them, their running instances, and the alarms while one is down."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taipan.broker.persistence.tables import Table

from ..error import UNKNOWN, WRONG, RuleEngineError
from ..masked import given_back, shown
from ..networks import NOT_TRIED
from ..params import ParamError, check_params
from ..stored import MAX_ID, StoredResource, check_stored, expect, new_id
from .resource import Resource, ResourceError, ResourcePlace, ResourceType

if TYPE_CHECKING:
    from ..engine import RuleEngine

logger = logging.getLogger(__name__)

TABLE: Final = "resources"
PROBE: Final = "__probe__:"
_SILENT: Final = "no answer in time"
FIRST_TRY: Final = 3.0
"""Seconds that a creation waits for the first answer of the other side."""


class Entry:
    """One resource. ``instance`` is None where its configuration cannot be used any more; ``fault`` says why."""

    __slots__ = ("fault", "instance", "row", "tried")

    def __init__(self, row: StoredResource) -> None:
        self.row = row
        self.instance: Resource | None = None
        self.fault = ""
        # What its first attempt said, which may be before the instance has made one of its own.
        self.tried = ""

    @property
    def alive(self) -> bool:
        return self.instance is not None and self.instance.alive

    @property
    def reason(self) -> str:
        """Why it is not alive."""
        if self.instance is None:
            return self.fault
        reason = str(self.instance.status.get("reason", ""))
        return self.tried if reason in ("", NOT_TRIED) and self.tried else reason


class ResourceBook:
    """Resources by id, in the order of their creation."""

    def __init__(self, engine: RuleEngine) -> None:
        self._engine = engine
        self._table: Table[StoredResource] = engine.server.tables.open(TABLE, StoredResource)
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def all(self) -> list[Entry]:
        return list(self._entries.values())

    def get(self, id: str) -> Entry:
        entry = self._entries.get(id)
        if entry is None:
            raise RuleEngineError(UNKNOWN, f"there is no resource {id[:MAX_ID]}")
        return entry

    def take_up(self) -> None:
        """Start the stored resources; none of them waits for its other side."""
        for row in sorted(self._table.values(), key=lambda row: row.created_at):
            entry = self._entries[row.id] = Entry(row)
            try:
                self._start(entry)
            except RuleEngineError as error:
                entry.fault = error.message
                level = logging.WARNING if row.fault else logging.ERROR  # the former was told when it was imported
                logger.log(level, "resource_unusable resource=%s reason=%s", row.id, error.message)

    async def create(self, type: str, config: Mapping[str, Any], id: str | None, description: str) -> Entry:
        """It is there, alive or not: its first attempt is waited for a moment, and its failure is no error."""
        id = new_id("resource", id, self._entries, reserved=PROBE)
        if len(self._entries) >= self._engine.settings.max_resources:
            raise RuleEngineError(WRONG, "there are as many resources as ruleengine.max_resources allows")
        kind = self._type(type)
        checked = self._check(kind, self._unmasked(kind, config, {}))
        now = int(self._engine.server.clock.wall() * 1000)
        entry = Entry(check_stored(StoredResource(id, type, checked, description, now)))
        self._start(entry)
        self._entries[id] = entry
        self._table.put(id, entry.row)
        logger.info("resource_stored resource=%s type=%s", id, type)
        await self._first_try(entry)
        return entry

    async def test(self, type: str, config: Mapping[str, Any], id: str | None = None) -> None:
        """Whether it could be reached, with nothing stored; what is masked is that of the resource ``id``.

        Raises RuleEngineError.
        """
        kind = self._type(type)
        known = self._entries.get(id) if id is not None else None
        config = self._unmasked(kind, config, known.row.config if known is not None and known.row.type == type else {})
        await self._test(kind, self._check(kind, config))

    async def _test(self, kind: ResourceType, config: dict[str, Any]) -> None:
        row = check_stored(StoredResource(PROBE + secrets.token_hex(8), kind.name, config))
        instance = self._make(kind, row, probe=True)
        try:
            await asyncio.wait_for(instance.test(), self._patience)
        except (ResourceError, TimeoutError) as error:
            raise RuleEngineError(WRONG, f"it cannot be reached: {str(error) or _SILENT}") from error
        finally:
            await instance.close()

    async def start(self, id: str) -> None:
        """Try again at once. Raises RuleEngineError where it cannot be reached."""
        entry = self.get(id)
        if entry.instance is None:
            row = entry.row
            if row.fault:  # what was missing may be there by now
                row = msgspec.structs.replace(row, config=self._check(self._type(row.type), row.config), fault="")
            self._start(entry, row)
            entry.fault = ""
            if row is not entry.row:
                entry.row = row
                self._table.put(id, row)
            self._engine.rule_book.restart_users_of(id)
        assert entry.instance is not None
        try:
            await asyncio.wait_for(entry.instance.test(), self._patience)
        except (ResourceError, TimeoutError) as error:
            raise RuleEngineError(WRONG, f"{id} cannot be reached: {str(error) or _SILENT}") from error
        finally:
            self._mind(entry)
        self._engine.rule_book.retry_suspended()

    async def update(self, id: str, config: Mapping[str, Any] | None, description: str | None) -> Entry:
        """A new configuration is tried first, as EMQX does; what the answers mask stays as it was."""
        entry = self.get(id)
        row = entry.row
        if description is not None:
            row = check_stored(msgspec.structs.replace(row, description=description))
        if config is None:
            entry.row = row
            self._table.put(id, row)
            return entry
        kind = self._type(row.type)
        checked = self._check(kind, self._unmasked(kind, dict(config), row.config))
        await self._test(kind, checked)
        row = msgspec.structs.replace(row, config=checked, fault="")
        new = Entry(row)
        old, entry.instance = entry.instance, None
        if old is not None:
            await old.close()
        self._start(new)
        self._entries[id] = new
        self._table.put(id, row)
        self._engine.rule_book.restart_users_of(id)
        await self._first_try(new)
        return new

    async def adopt(self, row: StoredResource) -> None:
        """Take a checked row as it is, in place of the one of its id; nothing waits for its other side."""
        check_stored(row)
        old = self._entries.get(row.id)
        if old is not None:
            if old.row == row:
                return
            if old.instance is not None:
                running, old.instance = old.instance, None
                await running.close()
            self._engine.server.alarms.deactivate(_alarm(old.row))
        entry = self._entries[row.id] = Entry(row)
        self._table.put(row.id, row)
        try:
            self._start(entry)
        except RuleEngineError as error:
            entry.fault = error.message
            logger.warning("resource_unusable resource=%s reason=%s", row.id, error.message)
        self._engine.rule_book.restart_users_of(row.id)
        logger.info("resource_adopted resource=%s type=%s", row.id, row.type)

    async def delete(self, id: str) -> None:
        entry = self.get(id)
        del self._entries[id]
        self._table.remove(id)
        if entry.instance is not None:
            await entry.instance.close()
        self._engine.buffers.forget(id)
        self._engine.server.alarms.deactivate(_alarm(entry.row))
        logger.info("resource_deleted resource=%s", id)

    def tick(self) -> None:
        """Raise the alarm of what is down, end that of what is not."""
        for entry in self._entries.values():
            self._mind(entry)

    async def close(self) -> None:
        running = [entry.instance for entry in self._entries.values() if entry.instance is not None]
        for entry in self._entries.values():
            entry.instance = None
        if running:
            results = await asyncio.gather(*(each.close() for each in running), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    logger.error("resource_close_failed error=%s", result, exc_info=result)

    # Records

    def record(self, entry: Entry) -> dict[str, Any]:
        """Specification, Resource. Secrets are masked."""
        row = entry.row
        kind = self._engine.resource_types.get(row.type)
        config = shown(row.config, () if kind is None else kind.params)
        record = {"id": row.id, "type": row.type, "config": config, "description": row.description}
        if entry.fault:
            record["fault"] = entry.fault
        return record

    def status(self, entry: Entry) -> list[dict[str, Any]]:
        """Specification, Resource, ``status``: per node, with figures of the type's own."""
        own = {} if entry.instance is None else entry.instance.status
        if "reason" in own and not entry.alive:
            own = {**own, "reason": entry.reason}  # as the alarm says it, from the first attempt on
        return [{"node": self._engine.server.settings.node.name, "is_alive": entry.alive, **own}]

    # Running

    @property
    def _patience(self) -> float:
        return self._engine.settings.liveness_timeout + 2.0

    def _type(self, name: str) -> ResourceType:
        expect("type", name, str, "a string")
        kind = self._engine.resource_types.get(name)
        if kind is None:
            raise RuleEngineError(UNKNOWN, f"there is no resource type {name[:64]}")
        return kind

    @staticmethod
    def _unmasked(kind: ResourceType, config: Mapping[str, Any], stored: Mapping[str, Any]) -> Mapping[str, Any]:
        expect("config", config, Mapping, "an object")
        return given_back(config, stored, kind.params)

    @staticmethod
    def _check(kind: ResourceType, config: Mapping[str, Any]) -> dict[str, Any]:
        expect("config", config, Mapping, "an object")
        try:
            return check_params(config, kind.params)
        except ParamError as error:
            raise RuleEngineError.of_param(error) from error

    def _make(self, kind: ResourceType, row: StoredResource, probe: bool = False) -> Resource:
        def on_alive(alive: bool) -> None:
            entry = self._entries.get(row.id)
            if entry is not None and not probe:
                self._mind(entry)

        try:
            return kind.create(ResourcePlace(row.id, dict(row.config), self._engine, on_alive))
        except ParamError as error:
            raise RuleEngineError.of_param(error) from error

    def fault_of(self, row: StoredResource) -> str:
        """Why a resource of this configuration could not be started; empty: it could."""
        try:
            self._make(self._type(row.type), row, probe=True)
        except RuleEngineError as error:
            return error.message
        return ""

    def _start(self, entry: Entry, row: StoredResource | None = None) -> None:
        row = row or entry.row
        if row.fault:
            raise RuleEngineError(WRONG, row.fault)
        instance = self._make(self._type(row.type), row)
        instance.start()
        entry.instance = instance

    async def _first_try(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + FIRST_TRY
        instance = entry.instance
        assert instance is not None
        if not instance.alive:
            try:
                await asyncio.wait_for(instance.test(), FIRST_TRY)
            except (ResourceError, TimeoutError) as error:
                entry.tried = str(error) or _SILENT
                logger.info("resource_not_reached resource=%s reason=%s", entry.row.id, entry.tried)
            else:
                # The instance learns of it by its own pass.
                while loop.time() < end and not entry.alive:
                    await asyncio.sleep(0.02)
        self._mind(entry)

    def _mind(self, entry: Entry) -> None:
        """The alarm says what is; rules that had to wait for the resource start when it is there."""
        row = entry.row
        alarms = self._engine.server.alarms
        name = _alarm(row)
        if entry.alive:
            if alarms.deactivate(name):
                self._engine.rule_book.retry_suspended()
        elif self._entries.get(row.id) is entry:
            details = {"id": row.id, "type": row.type, "fault": entry.reason}
            if not alarms.activate(name, f"resource {row.id} is down", details):
                alarms.amend(name, details)


def _alarm(row: StoredResource) -> str:
    return f"resource/{row.type}/{row.id}/down"
