"""From the fields of SELECT, FOREACH and DO to closures: the key under which a result is stored, and where other fields
can read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ..functions.undefined import UNDEFINED
from .ast import Case, Field, FunctionCall, ListOf, Literal, Path, Slice, Star
from .expressions import Evaluate, Expressions
from .paths import store
from .scope import Scope

ITEM: Final = "item"
"""The name of an element of FOREACH if the collection has no alias."""

Write: TypeAlias = Callable[[Scope, dict[str, object]], None]
"""Evaluates one field and stores it in the output, and in the scope's results if later fields may read it."""


def plain_name(field: Star | Field, number: int) -> str | None:
    """Return the single key under which a field is stored; None for `*` and for fields stored inside another value."""
    if isinstance(field, Star):
        return None
    if field.alias is not None:
        return None if field.alias.steps else field.alias.name
    match field.expression:
        case Path(name=name, steps=steps) | Slice(path=Path(name=name, steps=steps)):
            return None if steps else name
        case Literal(value=str(text)):
            return text
        case other:
            return f"_v_{_kind(other)}_{number}"


def written(fields: Sequence[Star | Field]) -> set[str]:
    """Return the names that have another meaning after these fields: aliases, and fields stored like aliases."""
    names: set[str] = set()
    for number, field in enumerate(fields, 1):
        name = _written(field, number)
        if name is not None:
            names.add(name)
    return names


def compile_plain(fields: Sequence[Star | Field], expressions: Expressions) -> list[tuple[str, Evaluate]] | None:
    """Return key and closure of each field if all are stored under their own key, otherwise None."""
    names = [plain_name(field, number) for number, field in enumerate(fields, 1)]
    if None in names:
        return None
    compiled: list[tuple[str, Evaluate]] = []
    for number, (name, field) in enumerate(zip(names, fields, strict=True), 1):
        assert name is not None and isinstance(field, Field)
        compiled.append((name, expressions.compile(field.expression)))
        _note(field, number, expressions)
    return compiled


def compile_fields(fields: Sequence[Star | Field], expressions: Expressions) -> list[Write]:
    """Return a closure for each field, to be run in this order; afterwards `expressions` knows their names."""
    writes: list[Write] = []
    for number, field in enumerate(fields, 1):
        writes.append(_star(expressions.metadata) if isinstance(field, Star) else _field(field, number, expressions))
        _note(field, number, expressions)
    return writes


def element_path(collection: Field) -> Path:
    """Return the path of an element of FOREACH."""
    return collection.alias or Path(ITEM)


def compile_place(path: Path, expressions: Expressions) -> Callable[[Scope, object], None]:
    """Return the closure that stores a value under an alias in the scope's results."""
    name = path.name
    if not path.steps:

        def put(scope: Scope, value: object) -> None:
            scope.results[name] = value

        return put
    steps, before = expressions.steps(path), expressions.column(name)

    def put_inside(scope: Scope, value: object) -> None:
        holder = before(scope) if name not in scope.results else scope.results[name]
        stored = store(holder, steps(scope), value, scope.budget, False)
        if stored is not UNDEFINED:
            scope.results[name] = stored

    return put_inside


def _written(field: Star | Field, number: int) -> str | None:
    if isinstance(field, Star):
        return None
    if field.alias is not None:
        return field.alias.name
    if isinstance(field.expression, Path):
        return None
    if isinstance(field.expression, Slice):
        return field.expression.path.name
    return plain_name(field, number)


def _note(field: Star | Field, number: int, expressions: Expressions) -> None:
    name = _written(field, number)
    if name is not None:
        expressions.named.add(name)


def _field(field: Field, number: int, expressions: Expressions) -> Write:
    evaluate = expressions.compile(field.expression)
    name = plain_name(field, number)
    if name is not None:

        def write(scope: Scope, output: dict[str, object]) -> None:
            output[name] = scope.results[name] = evaluate(scope)

        return write
    if field.alias is not None:
        path, create, is_result = field.alias, False, True
    else:
        of = field.expression
        path, create, is_result = (of.path, True, True) if isinstance(of, Slice) else (_as_path(of), True, False)
    root, steps = path.name, expressions.steps(path)
    before = expressions.column(root)

    def write_inside(scope: Scope, output: dict[str, object]) -> None:
        value = evaluate(scope)
        way = steps(scope)
        stored = store(output.get(root, UNDEFINED), way, value, scope.budget, create)
        if stored is not UNDEFINED:
            output[root] = stored
        if is_result:
            # Even if nothing could be stored: later fields read this name from the results.
            scope.results[root] = store(before(scope), way, value, scope.budget, create)

    return write_inside


def _as_path(expression: object) -> Path:
    assert isinstance(expression, Path)
    return expression


def _star(metadata: dict[str, object] | None) -> Write:
    def write(scope: Scope, output: dict[str, object]) -> None:
        results = scope.results
        columns = scope.columns
        for name in columns:
            if name not in results:
                output[name] = columns[name]
        if metadata is not None:
            output["metadata"] = metadata
        output.update(results)

    return write


def _kind(expression: object) -> str:
    match expression:
        case FunctionCall(name=name):
            return f"func_{name}"
        case Literal():
            return "const"
        case Case():
            return "case"
        case ListOf():
            return "list"
        case _:
            return "op"
