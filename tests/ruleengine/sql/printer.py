"""Syntax tree back to SQL that parses to the same tree: what the parser is tried with."""

from __future__ import annotations

import re
from typing import Final

from taipan.ruleengine.sql.ast import (
    Arithmetic,
    Case,
    Compare,
    Expression,
    Field,
    FunctionCall,
    Index,
    InList,
    Key,
    ListOf,
    Literal,
    Logic,
    Path,
    Range,
    Slice,
    Star,
    Statement,
    Step,
    Unary,
)

_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$@~]*")
_RESERVED: Final = frozenset(
    ["AND", "AS", "CASE", "DIV", "DO", "ELSE", "END", "FALSE", "FOREACH", "FROM", "IN", "INCASE", "MOD", "NOT", "OR"]
    + ["SELECT", "THEN", "TRUE", "WHEN", "WHERE"]
)


def unparse(statement: Statement) -> str:
    """The statement as SQL on one line; only texts and quoted names may bring line ends of their own."""
    parts = ["FOREACH" if statement.is_foreach else "SELECT", _fields(statement.fields)]
    if statement.do is not None:
        parts += ["DO", _fields(statement.do)]
    if statement.incase is not None:
        parts += ["INCASE", print_expression(statement.incase)]
    parts += ["FROM", ", ".join(_text(source.topic) for source in statement.sources)]
    if statement.where is not None:
        parts += ["WHERE", print_expression(statement.where)]
    return " ".join(parts)


def print_expression(expression: Expression) -> str:
    """An expression as SQL; operands that are operations stand in parentheses, needed or not."""
    match expression:
        case Literal(value=value):
            return _literal(value)
        case Path():
            return _path(expression)
        case Range(first=first, last=last):
            return f"[{first}..{last}]"
        case Slice():
            return f"{_path(expression.path)}[{expression.first}..{expression.last}]"
        case ListOf(items=items):
            return f"[{_expressions(items)}]"
        case FunctionCall(name=name, arguments=arguments):
            return f"{name}({_expressions(arguments)})"
        case Case():
            return _case(expression)
        case Unary(operator=operator, operand=operand):
            return f"{operator} {_operand(operand)}"
        case Arithmetic(first=first_operand, rest=rest):
            return " ".join([_operand(first_operand), *(f"{each.operator} {_operand(each.operand)}" for each in rest)])
        case Compare(operator=operator, left=left, right=right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case InList():
            between = "NOT IN" if expression.negated else "IN"
            return f"{_operand(expression.value)} {between} ({_expressions(expression.items)})"
        case Logic(operator=operator, operands=operands):
            return f" {operator.upper()} ".join(_operand(operand) for operand in operands)


def _fields(fields: tuple[Star | Field, ...]) -> str:
    return ", ".join("*" if isinstance(field, Star) else _field(field) for field in fields)


def _field(field: Field) -> str:
    text = print_expression(field.expression)
    return text if field.alias is None else f"{text} AS {_path(field.alias)}"


def _expressions(expressions: tuple[Expression, ...]) -> str:
    return ", ".join(print_expression(each) for each in expressions)


def _operand(expression: Expression) -> str:
    text = print_expression(expression)
    # A list after `mod` would be read as an index of a name.
    is_bare = isinstance(expression, Literal | Path | Slice | FunctionCall | Case)
    return text if is_bare else f"({text})"


def _case(case: Case) -> str:
    parts = ["CASE"]
    if case.subject is not None:
        parts.append(print_expression(case.subject))
    for branch in case.branches:
        parts += ["WHEN", print_expression(branch.condition), "THEN", print_expression(branch.result)]
    if case.otherwise is not None:
        parts += ["ELSE", print_expression(case.otherwise)]
    return " ".join([*parts, "END"])


def _literal(value: int | float | str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    return repr(value)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    if _BARE.fullmatch(name) and name.upper() not in _RESERVED:
        return name
    return f'"{name}"'


def _path(path: Path) -> str:
    return _name(path.name) + "".join(_step(step) for step in path.steps)


def _step(step: Step) -> str:
    if isinstance(step, Key):
        name = step.name
        return f".{name}" if _BARE.fullmatch(name) and name.upper() not in _RESERVED else f".{_text(name)}"
    return f"[{_index(step.expression)}]" if isinstance(step, Index) else "[-0]"


def _index(expression: Expression) -> str:
    text = print_expression(expression)
    return f"({text})" if isinstance(expression, Compare | InList | Logic) or text.startswith("not ") else text
