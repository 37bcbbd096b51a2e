"""Compiles a syntax tree into a `Program`: the code of the publish path, with every decision made in advance that can
be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from taipan.broker.mqtt.topics import is_shared, valid_filter

from ..events.columns import Columns
from ..functions.budget import Budget
from ..functions.function import Function
from .ast import Field, FunctionCall, Path, Statement, walk
from .error import EvaluationError, SqlError
from .expressions import Evaluate, Expressions
from .fields import Write, compile_fields, compile_place, compile_plain, element_path, written
from .scope import FunctionEnvironment, Scope

EVENT_PREFIX: Final = "$events/"
STEPS_PER_ROW: Final = 10
"""The cost of an element of FOREACH, so that the default budget allows about two thousand rows."""

_STATEFUL: Final = ("kv_store_", "proc_dict_")


class Program:
    """One compiled rule: the messages it selects (`sources`), and the evaluation of a message (`run`)."""

    def __init__(self, statement: Statement, expressions: Expressions, environment: FunctionEnvironment) -> None:
        self.sources: Final = tuple(dict.fromkeys(source.topic for source in statement.sources))
        self.is_foreach: Final = statement.is_foreach
        self._environment = environment
        self._metadata = expressions.metadata
        self._where_first = _where_comes_first(statement)
        self._plain: list[tuple[str, Evaluate]] | None = None
        self._writes: list[Write] = []
        if self.is_foreach:
            collection = statement.fields[-1]
            assert isinstance(collection, Field)
            path = element_path(collection)
            self._writes = compile_fields(statement.fields[:-1], expressions)
            self._collection = expressions.collection(collection.expression)
            self._place = compile_place(path, expressions)
            expressions.named.add(path.name)
        else:
            self._plain = compile_plain(statement.fields, expressions)
            if self._plain is None:
                self._writes = compile_fields(statement.fields, expressions)
        self._where = None if statement.where is None else expressions.compile(statement.where)
        self._incase = None if statement.incase is None else expressions.compile(statement.incase)
        self._do = None if statement.do is None else compile_fields(statement.do, expressions)

    def run(self, columns: Columns, budget: Budget) -> list[dict[str, object]] | None:
        """Return the rows for one event: None if WHERE is not true, one row for SELECT, any number for FOREACH.

        `EvaluationError` names the clause that failed. Values in rows may belong to the event: do not change them."""
        scope = Scope(columns, {}, budget, self._environment)
        where = self._where
        clause = "WHERE"
        try:
            if self._where_first and where is not None and where(scope) is not True:
                return None
            clause = "FOREACH" if self.is_foreach else "SELECT"
            if self._plain is not None:
                # No field is stored inside another one, so output and results are the same.
                output = scope.results
                for name, evaluate in self._plain:
                    output[name] = evaluate(scope)
            else:
                output = {}
                for write in self._writes:
                    write(scope, output)
            elements: object = None
            if self.is_foreach:
                elements = self._collection(scope)
                self._place(scope, elements)
            clause = "WHERE"
            if where is not None and not self._where_first and where(scope) is not True:
                return None
        except (ValueError, ArithmeticError) as error:
            raise EvaluationError(clause, str(error)) from error
        return self._rows(scope, elements) if self.is_foreach else [output]

    def _rows(self, scope: Scope, elements: object) -> list[dict[str, object]]:
        """Return all rows, or raise the error of the first row that fails."""
        rows: list[dict[str, object]] = []
        if type(elements) is not list:
            return rows
        clause = "FOREACH"
        everything: dict[str, object] = {}
        try:
            if self._do is None:
                everything = dict(scope.columns)
                if self._metadata is not None:
                    everything["metadata"] = self._metadata
            for element in elements:
                clause = "FOREACH"
                scope.budget.step(STEPS_PER_ROW)
                inner = Scope(scope.columns, dict(scope.results), scope.budget, self._environment)
                self._place(inner, element)
                clause = "INCASE"
                if self._incase is not None and self._incase(inner) is not True:
                    continue
                clause = "DO"
                if self._do is None:
                    rows.append({**everything, **inner.results})
                else:
                    output: dict[str, object] = {}
                    for write in self._do:
                        write(inner, output)
                    rows.append(output)
        except (ValueError, ArithmeticError) as error:
            raise EvaluationError(clause, str(error)) from error
        return rows


def compile(
    statement: Statement,
    functions: Mapping[str, Function],
    *,
    environment: FunctionEnvironment | None = None,
    metadata: dict[str, object] | None = None,
    events: Collection[str] | None = None,
) -> Program:
    """Return the program of a statement. Raises `SqlError` for an unknown function, a wrong number of arguments, an
    invalid Topic Filter, or an unknown event.

    `metadata` is the column of that name (`{"rule_id": ...}`); `events` are all topics that begin with `$events/`."""
    for source in statement.sources:
        if not valid_filter(source.topic):
            raise SqlError.at(source.position, f"{source.topic[:64]!r} is not a topic filter")
        if is_shared(source.topic):
            words = f"{source.topic[:64]!r}: a rule receives every message; use only the filter after the group"
            raise SqlError.at(source.position, words)
        if events is not None and source.topic.startswith(EVENT_PREFIX) and source.topic not in events:
            raise SqlError.at(
                source.position,
                f"there is no event {source.topic[:64]!r}",
                *(get_close_matches(source.topic, events, n=3) or sorted(events)),
            )
    return Program(statement, Expressions(functions, metadata), environment or FunctionEnvironment())


def _where_comes_first(statement: Statement) -> bool:
    """Return whether WHERE can refuse a message before its fields are evaluated, with the same result."""
    if statement.where is None:
        return False
    names = written(statement.fields)
    if statement.is_foreach:
        collection = statement.fields[-1]
        assert isinstance(collection, Field)
        names.add(element_path(collection).name)
    if any(isinstance(node, Path) and node.name in names for node, _ in walk(statement.where)):
        return False
    return not any(
        isinstance(node, FunctionCall) and node.name.startswith(_STATEFUL) for node, _ in walk(*statement.fields)
    )
