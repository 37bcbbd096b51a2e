"""Testing SQL with an example: the result of the rule, without any action and without counting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from taipan.broker.mqtt.topics import matches

from ..config import RuleEngineSettings
from ..error import UNKNOWN, WRONG, RuleEngineError
from ..events.columns import Columns
from ..events.kinds import EVENTS, kind_of
from ..functions.budget import Budget
from ..functions.function import SchemaCodec
from ..functions.registry import Function
from ..functions.values import encode_json
from ..sql.ast import Statement
from ..sql.compiler import compile
from ..sql.error import EvaluationError, SqlError
from ..sql.scope import FunctionEnvironment

NO_MATCH = "SQL Not Match"


def test_sql(
    statement: Statement,
    given: Mapping[str, object],
    settings: RuleEngineSettings,
    node: str,
    functions: Mapping[str, Function],
    codec: Callable[[str], SchemaCodec],
) -> object:
    """Return the row, for FOREACH the list of rows, empty if no element remains.

    ``given`` overrides the example columns of the event.

    Raises RuleEngineError: invalid SQL, a failed evaluation, and ``unknown`` if the rule would not match."""
    now = time.time()
    try:
        program = compile(
            statement,
            functions,
            environment=FunctionEnvironment(node, codec=codec),
            metadata={"rule_id": "test"},
            events=EVENTS,
        )
    except SqlError as error:
        raise RuleEngineError.of_sql(error) from error
    kind = kind_of(program.sources)
    columns = {"event": kind.name, "node": node, "timestamp": int(now * 1000), **kind.examples, **given}
    for name in kind.makers:
        if name.endswith("_at"):
            columns.setdefault(name, int(now * 1000))
    if kind.topic not in EVENTS:
        topic = columns.get("topic")
        if not isinstance(topic, str) or not any(matches(source, topic) for source in program.sources):
            raise RuleEngineError(UNKNOWN, NO_MATCH)
    try:
        rows = program.run(Columns(columns), Budget(settings.max_steps, settings.max_output))
    except EvaluationError as error:
        raise RuleEngineError(WRONG, str(error)) from error
    if rows is None:
        raise RuleEngineError(UNKNOWN, NO_MATCH)
    found: object = rows if program.is_foreach else rows[0]
    try:
        # As in the JSON that an action would send: undefined values are null.
        return json.loads(encode_json(found, Budget(settings.max_steps, settings.max_output)))
    except ValueError as error:
        raise RuleEngineError(WRONG, str(error)) from error
