"""ImportCheck: rules, resources and schemas from a file, all of which are checked before the first is stored."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..error import WRONG, RuleEngineError
from ..params import ParamError, check_params
from ..schemas.schema_registry import MAX_SCHEMAS
from ..stored.rows import MAX_ID, StoredAction, StoredResource, StoredRule, StoredSchema
from .rule_manager import MAX_ACTIONS, MAX_FALLBACK_DEPTH, ON_FAILED

if TYPE_CHECKING:
    from ..engine import RuleEngine


class ImportCheck:
    """The check of one file."""

    def __init__(self, engine: RuleEngine) -> None:
        self._rules = engine.rules
        self._resources = engine.resources
        self._settings = engine.settings
        self._schemas = engine.schemas
        self._new_schemas: set[str] = set()
        self._new_resources: set[str] = set()
        self._new_rules: set[str] = set()
        self._now = int(engine.server.clock.wall() * 1000)

    def check_resource(self, record: Mapping[str, Any]) -> StoredResource | None:
        """Return the row of a record; ``None`` if its type is not available here. Raises RuleEngineError.

        If its configuration cannot be used here, the row has a ``fault``, and does not start until that is
        corrected."""
        kind = self._resources.types.get(record["type"])
        if kind is None:
            return None
        id = _checked_id(record["id"])
        fault = ""
        try:
            config = check_params(record["config"], kind.params)
        except ParamError as error:
            config, fault = record["config"], str(error)
        if id not in self._resources:
            self._new_resources.add(id)
        most = self._settings.max_resources
        if len(self._resources) + len(self._new_resources) > most:
            raise RuleEngineError(WRONG, f"more than {most} resources (setting ruleengine.max_resources)")
        created_at = record.get("created_at") or self._now
        row = StoredResource(id, kind.name, config, record.get("description", ""), created_at, fault)
        if not fault:
            row = msgspec.structs.replace(row, fault=self._resources.fault_of(row))
        return self._resources.check_row(row)

    async def check_schema(self, record: Mapping[str, Any]) -> StoredSchema | None:
        """Return the row of a record; ``None`` if its parser type is not available here. Raises RuleEngineError.

        If the schema cannot be used here, the row has a ``fault``."""
        row = await self._schemas.check_record(record)
        if row is not None and row.name not in self._schemas:
            self._new_schemas.add(row.name)
        if len(self._schemas) + len(self._new_schemas) > MAX_SCHEMAS:
            raise RuleEngineError(WRONG, f"more than {MAX_SCHEMAS} schemas")
        return row

    async def check_rule(self, record: Mapping[str, Any]) -> StoredRule | None:
        """Return the row of a record; ``None`` if one of its actions is not available here. Raises RuleEngineError.

        Its resources are not checked: without them the rule is suspended."""
        id = _checked_id(record["id"])
        count = [0]
        actions = [self._action(each, 1, count) for each in record["actions"]]
        stored = [action for action in actions if action is not None]
        if len(stored) < len(actions):
            return None
        on_failed = record.get("on_action_failed", ON_FAILED[0])
        if on_failed not in ON_FAILED:
            raise RuleEngineError(WRONG, f"on_action_failed: expected {' or '.join(ON_FAILED)}")
        await self._rules.check_sql(record["rawsql"], id)
        if id not in self._rules:
            self._new_rules.add(id)
        most = self._settings.max_rules
        if len(self._rules) + len(self._new_rules) > most:
            raise RuleEngineError(WRONG, f"more than {most} rules (setting ruleengine.max_rules)")
        row = StoredRule(
            id,
            record["rawsql"],
            tuple(stored),
            record.get("enabled", True),
            record.get("description", ""),
            on_failed,
            record.get("created_at") or self._now,
        )
        return self._rules.check_row(row)

    def unknown_actions(self, record: Mapping[str, Any]) -> list[str]:
        """Return the names of a rule's actions and fallbacks that are not available here, in order."""
        names: dict[str, None] = {}
        left = list(reversed(record["actions"]))
        while left:
            given = left.pop()
            if given["name"] not in self._rules.action_types:
                names[given["name"]] = None
            left += reversed(given.get("fallbacks", ()))
        return list(names)

    def _action(self, given: Mapping[str, Any], depth: int, count: list[int]) -> StoredAction | None:
        count[0] += 1
        if count[0] > MAX_ACTIONS or depth > MAX_FALLBACK_DEPTH:
            raise RuleEngineError(
                WRONG, f"actions: more than {MAX_ACTIONS}, or fallbacks nested deeper than {MAX_FALLBACK_DEPTH}"
            )
        kind = self._rules.action_types.get(given["name"])
        below = [self._action(each, depth + 1, count) for each in given.get("fallbacks", ())]
        if kind is None:
            return None
        try:
            params = check_params(given["args"], kind.params)
        except ParamError as error:
            raise RuleEngineError.of_param(error) from error
        id = given.get("id")
        if not isinstance(id, str) or not 0 < len(id) <= 2 * MAX_ID:
            id = f"{kind.name}_{time.time_ns()}{count[0]:03}"
        fallbacks = tuple(each for each in below if each is not None)
        return StoredAction(id, kind.name, params, fallbacks) if len(fallbacks) == len(below) else None


def _checked_id(id: str) -> str:
    if not 0 < len(id) <= MAX_ID:
        raise RuleEngineError(WRONG, f"id: expected 1 to {MAX_ID} characters")
    return id
