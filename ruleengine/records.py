"""The records of rules, resources and their types, as operations return them and the API answers.

The order of fields is that of the answer.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Self

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
    """What went wrong last. ``clause``: of the SQL; ``at``: unix milliseconds."""

    at: int
    reason: str
    clause: str = ""
    sample: str = ""

    @classmethod
    def of(cls, at: float, reason: str, clause: str = "", sample: str = "") -> Self:
        """``at`` is unix seconds."""
        return cls(int(at * 1000), reason[:MAX_REASON_LENGTH], clause, sample)


class RuleMetrics(msgspec.Struct):
    """Specification, Rule, ``metrics``: ``matched`` is how often WHERE was true. What follows ``speed_last5m`` is
    beyond it: ``evaluated`` is what EMQX 4.4 calls matched."""

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
    """``taken`` (beyond the specification): rows that the action was given."""

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
    """Specification, Rule; ``on_action_failed``, ``created_at`` (unix milliseconds) and the last three are beyond it.
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
    """``outcome``: ``success``, ``failed``, or ``taken`` where the action answers later."""

    id: str
    outcome: str
    reason: str


class EvaluationRecord(msgspec.Struct):
    """One evaluation. ``rows``: what was selected, each as JSON text, cut where it is long; ``at``: milliseconds."""

    at: int
    event: str
    topic: str
    clientid: str
    outcome: str
    reason: str
    rows: list[str]
    actions: list[TracedAction]


class RuleFunction(msgspec.Struct):
    """A function of SQL. ``max_args``: null where any number may follow. ``kinds``: what each argument is; where any
    number may follow, the last is that of these."""

    name: str
    min_args: int
    max_args: int | None
    kinds: list[str]


class RuleEventRecord(msgspec.Struct):
    """``event`` is what FROM names; ``test_columns`` are examples for trying SQL."""

    event: str
    title: Text
    description: Text
    columns: list[str]
    test_columns: dict[str, Any]
    sql_example: str


class ActionTypeRecord(msgspec.Struct, kw_only=True):
    """Specification, Action; ``category`` is beyond it."""

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
    """What waits in a buffer, and what became of the rest; ``dropped``: by reason."""

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
    """On one node. ``reason``: why it is not alive; ``buffer``: what waits there. ``connections``, ``received`` and
    ``received_refused`` are those of a bridge."""

    node: str
    is_alive: bool
    connections: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    received: int | UnsetType = UNSET
    received_refused: int | UnsetType = UNSET
    buffer: BufferStatus | UnsetType = UNSET


class ListedResource(msgspec.Struct, kw_only=True):
    """Specification, Resource. ``status``: whether it is alive on all nodes. ``fault`` (beyond the specification): why
    its configuration cannot be used any more. Secrets are masked."""

    id: str
    type: str
    config: dict[str, Any]
    description: str
    fault: str | UnsetType = UNSET
    status: bool


class ResourceRecord(msgspec.Struct, kw_only=True):
    """Specification, Resource; ``status`` of each node, where one was asked for. Secrets are masked. ``warnings``: only
    in the answer to a change."""

    id: str
    type: str
    config: dict[str, Any]
    description: str
    fault: str | UnsetType = UNSET
    status: list[ResourceStatus] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
