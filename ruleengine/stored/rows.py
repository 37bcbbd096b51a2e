"""The records of rules, resources and schemas in the node's tables. Field names are the format on disk."""

from __future__ import annotations

import secrets
from collections.abc import Container
from typing import Any, Final, TypeVar

import msgspec

from ..error import EXISTS, WRONG, RuleEngineError

MAX_ID: Final = 256


class StoredAction(msgspec.Struct, frozen=True):
    """One action of a rule; ``params`` are checked, with defaults."""

    id: str
    name: str
    params: dict[str, Any] = {}
    fallbacks: tuple[StoredAction, ...] = ()


class StoredRule(msgspec.Struct, frozen=True):
    """``order`` grows with each new rule; ``created_at`` is in milliseconds; ``enabled`` is the requested state.

    ``rule.Rule`` is created from it."""

    id: str
    rawsql: str
    actions: tuple[StoredAction, ...] = ()
    enabled: bool = True
    description: str = ""
    on_action_failed: str = "continue"
    created_at: int = 0
    order: int = 0


class StoredResource(msgspec.Struct, frozen=True):
    """``config`` is checked, with defaults; ``created_at`` is in Unix milliseconds. ``fault``: why an imported resource
    cannot be used; ``config`` is then unchanged."""

    id: str
    type: str
    config: dict[str, Any] = {}
    description: str = ""
    created_at: int = 0
    fault: str = ""


class StoredSchema(msgspec.Struct, frozen=True):
    """One schema. ``schema``: its text; ``compiled``: the descriptors of Protobuf; ``created_at`` is in Unix
    milliseconds. ``fault``: why an imported schema cannot be used. Field names are the format on disk."""

    name: str
    parser_type: str
    schema: str
    descr: str = ""
    created_at: int = 0
    compiled: bytes = b""
    fault: str = ""


Stored = TypeVar("Stored", StoredRule, StoredResource)


def expect(key: str, value: object, kind: type[Any], words: str) -> None:
    """Raise RuleEngineError if the value is of another kind. Here, text is not a Sequence, and true is not an int."""
    if not isinstance(value, kind) or (kind is not str and isinstance(value, str | bool)):
        raise RuleEngineError(WRONG, f"{key}: expected {words}")


def check_stored(row: Stored) -> Stored:
    """Return the row if it can be read from disk again. Raises RuleEngineError if a type is wrong, or a value cannot be
    encoded."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=type(row))
    except (OverflowError, UnicodeEncodeError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise RuleEngineError(WRONG, f"cannot be stored: {error}") from error
    return row


def new_id(noun: str, id: str | None, taken: Container[str], reserved: str | None = None) -> str:
    """Return the given id for a new rule or resource, or a random one; a given id must not begin with ``reserved``.

    Raises RuleEngineError."""
    if id is None:
        while (made := f"{noun}:{secrets.token_hex(4)}") in taken:
            pass
        return made
    expect("id", id, str, "a string")
    if not id or len(id) > MAX_ID or (reserved is not None and id.startswith(reserved)):
        raise RuleEngineError(WRONG, f"id: expected 1 to {MAX_ID} characters")
    if id in taken:
        raise RuleEngineError(EXISTS, f"{noun} {id} already exists")
    return id
