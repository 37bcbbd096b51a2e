"""What of rules and resources outlives the process: their rows in the node's tables."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ruleengine.error import WRONG, RuleEngineError


class StoredAction(msgspec.Struct, frozen=True):
    """One action of a rule; ``params`` are checked, with defaults."""

    id: str
    name: str
    params: dict[str, Any] = {}
    fallbacks: tuple[StoredAction, ...] = ()


class StoredRule(msgspec.Struct, frozen=True):
    """``order`` grows with each rule created; ``created_at`` is in milliseconds; ``enabled`` is what the user wants."""

    id: str
    rawsql: str
    actions: tuple[StoredAction, ...] = ()
    enabled: bool = True
    description: str = ""
    on_action_failed: str = "continue"
    created_at: int = 0
    order: int = 0


class StoredResource(msgspec.Struct, frozen=True):
    """``config`` is checked, with defaults; ``created_at`` is Unix milliseconds."""

    id: str
    type: str
    config: dict[str, Any] = {}
    description: str = ""
    created_at: int = 0


Stored = TypeVar("Stored", StoredRule, StoredResource)


def expect(key: str, value: Any, kind: type[Any], words: str) -> None:
    """Raises RuleEngineError where the value is of another kind. A text is no Sequence here, true no int."""
    if not isinstance(value, kind) or (kind is not str and isinstance(value, str | bool)):
        raise RuleEngineError(WRONG, f"{key}: expected {words}")


def check_stored(row: Stored) -> Stored:
    """The row, if it can come back from disk. Raises RuleEngineError: a type is wrong, or a value has no place."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=type(row))
    except (OverflowError, UnicodeEncodeError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise RuleEngineError(WRONG, f"it cannot be stored: {error}") from error
    return row
