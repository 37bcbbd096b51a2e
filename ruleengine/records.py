"""The records of rules, resources and their types, as operations return them and the API answers.

The order of fields is that of the answer.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Self, get_args

import msgspec
from msgspec import UNSET, UnsetType

OnActionFailed = Literal["continue", "stop"]

MAX_REASON_LENGTH: Final = 1024


class Text(msgspec.Struct, frozen=True):
    """A short text in two languages."""

    en: str
    zh: str


class ParamDefinition(msgspec.Struct, kw_only=True):
    """One parameter. ``type`` is a name or a list of names that JSON Schema knows, or ``password``, ``file``;
    ``format``: ``url`` or a regular expression; ``range``: the least and the most."""

    order: int
    type: str | list[str]
    title: Text
    description: Text
    required: bool | UnsetType = UNSET
    default: Any = UNSET
    enum: list[Any] | UnsetType = UNSET
    format: str | UnsetType = UNSET
    range: tuple[float, float] | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    items: dict[str, Any] | UnsetType = UNSET
    input: str | UnsetType = UNSET


class LastError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most recent error. ``clause``: clause of the SQL; ``at``: Unix milliseconds."""

    at: int
    reason: str
    clause: str = ""
    sample: str = ""

    @classmethod
    def of(cls, at: float, reason: str, clause: str = "", sample: str = "") -> Self:
        """``at`` is Unix seconds."""
        return cls(int(at * 1000), reason[:MAX_REASON_LENGTH], clause, sample)


class RuleMetrics(msgspec.Struct):
    """Specification, Rule, ``metrics``: ``matched`` is how often WHERE was true. The fields after ``speed_last5m`` are
    additions: ``evaluated`` is ``matched`` of EMQX 4.4."""

    node: str
    matched: int
    speed: float
    speed_max: float
    speed_last5m: float
    evaluated: int
    passed: int
    failed: int
    no_result: int
    exception: int


class ActionMetrics(msgspec.Struct):
    """``taken`` (an addition to the specification): number of rows that the action received."""

    node: str
    success: int
    failed: int
    taken: int


class RuleActionRecord(msgspec.Struct, kw_only=True):
    """Specification, Action entry of a rule. Secrets are masked."""

    id: str
    name: str
    params: dict[str, Any]
    metrics: list[ActionMetrics]
    fallbacks: list[RuleActionRecord]
    last_error: LastError | UnsetType = UNSET


class RuleRecord(msgspec.Struct, kw_only=True):
    """Specification, Rule; ``on_action_failed``, ``created_at`` (Unix milliseconds) and the last three are additions.
    ``warnings``: only in the answer to a change."""

    id: str
    rawsql: str
    sources: list[str] = msgspec.field(name="for")
    enabled: bool
    description: str
    on_action_failed: OnActionFailed
    created_at: int
    metrics: list[RuleMetrics]
    actions: list[RuleActionRecord]
    suspended: str | UnsetType = UNSET
    last_error: LastError | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class TracedAction(msgspec.Struct, frozen=True):
    """``outcome``: ``success``, ``failed``, or ``taken`` if the outcome comes later."""

    id: str
    outcome: str
    reason: str


class EvaluationRecord(msgspec.Struct):
    """One evaluation. ``rows``: the result, each row as JSON text, truncated if it is long; ``at``: milliseconds."""

    at: int
    event: str
    topic: str
    clientid: str
    outcome: str
    reason: str
    rows: list[str]
    actions: list[TracedAction]


class RuleFunction(msgspec.Struct):
    """An SQL function. ``max_args``: null if any number may follow. ``kinds``: the kind of each argument; if any number
    may follow, the last one applies to all of these."""

    name: str
    min_args: int
    max_args: int | None
    kinds: list[str]


class RuleEventRecord(msgspec.Struct):
    """``event`` is the name for FROM; ``test_columns`` are examples for testing SQL."""

    event: str
    title: Text
    description: Text
    columns: list[str]
    test_columns: dict[str, Any]
    sql_example: str


class ActionTypeRecord(msgspec.Struct, kw_only=True):
    """Specification, Action; ``category`` is an addition."""

    name: str
    events: str = msgspec.field(name="for")
    types: list[str]
    app: str
    category: str
    params: dict[str, ParamDefinition]
    title: Text
    description: Text


class ResourceTypeRecord(msgspec.Struct):
    """Specification, Resource type."""

    name: str
    provider: str
    title: Text
    description: Text
    params: dict[str, ParamDefinition]


class BufferStatus(msgspec.Struct):
    """The rows that wait in a buffer, and the results of others; ``dropped``: by reason."""

    waiting: int
    waiting_bytes: int
    delivered: int
    retried: int
    dropped: dict[str, int]
    set_aside: int
    dead_letters: int
    breaker: str
    breaker_opened: int
    last_error: str


class ResourceStatus(msgspec.Struct, kw_only=True):
    """The status on one node. ``reason``: why it is not alive; ``buffer``: its waiting rows. ``connections``,
    ``received`` and ``received_refused`` are those of a bridge."""

    node: str
    is_alive: bool
    connections: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    received: int | UnsetType = UNSET
    received_refused: int | UnsetType = UNSET
    buffer: BufferStatus | UnsetType = UNSET


class ListedResource(msgspec.Struct, kw_only=True):
    """Specification, Resource. ``status``: whether it is alive on all nodes. ``fault`` (an addition): why its
    configuration can no longer be used. Secrets are masked."""

    id: str
    type: str
    config: dict[str, Any]
    description: str
    fault: str | UnsetType = UNSET
    status: bool


class ResourceRecord(msgspec.Struct, kw_only=True):
    """Specification, Resource; ``status`` of each node, if one was requested. Secrets are masked. ``warnings``: only in
    the answer to a change."""

    id: str
    type: str
    config: dict[str, Any]
    description: str
    fault: str | UnsetType = UNSET
    status: list[ResourceStatus] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


ParserType = Literal["avro", "protobuf", "json"]
PARSER_TYPES: Final = get_args(ParserType)


class SchemaRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A schema as the API shows it. ``fault``: why it cannot be used on this node."""

    name: str
    parser_type: str
    schema: str
    descr: str
    created_at: int
    fault: str = ""
