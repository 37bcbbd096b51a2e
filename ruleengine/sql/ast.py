"""The syntax tree of a rule: the statement as written, without its meaning.

Nodes are immutable and compare by content; their position in the text is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class Position(NamedTuple):
    """A position in the text: line and column (in characters), both counted from 1."""

    line: int
    column: int


NOWHERE = Position(1, 1)


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, text, `true` or `false`."""

    value: int | float | str | bool


@dataclass(frozen=True, slots=True)
class Range:
    """`[first..last]`, the list of integers."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[item, ...]`."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """The step `.name` of a path."""

    name: str


@dataclass(frozen=True, slots=True)
class Index:
    """The step `[expression]` of a path; counted from 1, negative ones from the end."""

    expression: Expression


@dataclass(frozen=True, slots=True)
class Tail:
    """The step `[-0]` of a path: after the last element."""


Step: TypeAlias = Key | Index | Tail


@dataclass(frozen=True, slots=True)
class Path:
    """A column or alias, and the steps into its value."""

    name: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """`path[first..last]`, part of a list."""

    path: Path
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """`name(argument, ...)`."""

    name: str
    arguments: tuple[Expression, ...]
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class When:
    """One branch of a CASE."""

    condition: Expression
    result: Expression


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE [subject] WHEN ... THEN ... [ELSE otherwise] END`."""

    subject: Expression | None
    branches: tuple[When, ...]
    otherwise: Expression | None


@dataclass(frozen=True, slots=True)
class Unary:
    """`not`, `-` or `+` before its operand."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Term:
    """An operator and its right operand."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A chain of operators with the same precedence, evaluated from the left; flat, so that a long chain does not nest
    deeply."""

    first: Expression
    rest: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """`left operator right` with one of `= != < <= > >= =~`; `<>` is read as `!=`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class InList:
    """`value [NOT] IN (item, ...)`."""

    value: Expression
    items: tuple[Expression, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Logic:
    """Two or more operands joined by `and`, or by `or`."""

    operator: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = (
    Literal | Range | ListOf | Path | Slice | FunctionCall | Case | Unary | Arithmetic | Compare | InList | Logic
)


@dataclass(frozen=True, slots=True)
class Star:
    """`*`, all columns."""


@dataclass(frozen=True, slots=True)
class Field:
    """One result and the path it is stored under."""

    expression: Expression
    alias: Path | None = None


@dataclass(frozen=True, slots=True)
class FromTopic:
    """One topic, Topic Filter or `$events/...` of FROM."""

    topic: str
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole rule. `fields` are those of SELECT, or of FOREACH, where the last is the collection."""

    is_foreach: bool
    fields: tuple[Star | Field, ...]
    sources: tuple[FromTopic, ...]
    where: Expression | None = None
    do: tuple[Star | Field, ...] | None = None
    incase: Expression | None = None


Node: TypeAlias = Expression | Step | When | Term | Star | Field


def children(node: Node) -> Iterator[Node]:
    """Return the direct children of a node, in the order of the text."""
    match node:
        case Literal() | Range() | Key() | Tail() | Star():
            return
        case ListOf(items=items) | FunctionCall(arguments=items) | Logic(operands=items) | Path(steps=items):
            yield from items
        case Index(expression=only) | Slice(path=only) | Unary(operand=only) | Term(operand=only):
            yield only
        case Case():
            if node.subject is not None:
                yield node.subject
            yield from node.branches
            if node.otherwise is not None:
                yield node.otherwise
        case When():
            yield node.condition
            yield node.result
        case Arithmetic():
            yield node.first
            yield from node.rest
        case Compare():
            yield node.left
            yield node.right
        case InList():
            yield node.value
            yield from node.items
        case Field():
            yield node.expression
            if node.alias is not None:
                yield node.alias


def walk(*nodes: Node) -> Iterator[tuple[Node, int]]:
    """Yield all these nodes and all nodes below them, with their depth from 1; without recursion, for any depth."""
    stack: list[tuple[Node, int]] = [(node, 1) for node in nodes]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in children(node))
