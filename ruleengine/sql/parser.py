"""From SQL text to a syntax tree: `parse`, and the limits for its input."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path as FilePath
from typing import Any, Final

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from .ast import (
    Arithmetic,
    Case,
    Compare,
    Expression,
    Field,
    FromTopic,
    FunctionCall,
    Index,
    InList,
    Key,
    ListOf,
    Literal,
    Logic,
    Node,
    Path,
    Position,
    Range,
    Slice,
    Star,
    Statement,
    Step,
    Tail,
    Term,
    Unary,
    When,
    walk,
)
from .error import MAX_BYTES, SqlError

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 2400
_NODES_OF_A_STEP: Final = 16

_OPENING: Final = frozenset({"LPAR", "LSQB", "CASE"})
_CLOSING: Final = frozenset({"RPAR", "RSQB", "END"})
_ENDS_OPERAND: Final = frozenset({"NAME", "QUOTED", "STRING", "INT", "FLOAT", "RANGE", "RPAR", "RSQB", "END"})
_BEGINS_OPERAND: Final = frozenset({"NAME", "QUOTED", "STRING", "INT", "FLOAT", "LPAR", "PLUS", "MINUS", "CASE"})

_EXPRESSION: Final = frozenset(
    {"NAME", "QUOTED", "STRING", "INT", "FLOAT", "RANGE", "NOT", "PLUS", "MINUS", "LPAR", "LSQB", "CASE"}
)
_WORDS: Final = {
    "$END": "the end",
    "COMMA": "','",
    "COMPARISON": "a comparison",
    "DIV": "an operator",
    "DOT": "'.'",
    "FLOAT": "a number",
    "INT": "a number",
    "LPAR": "'('",
    "LSQB": "'['",
    "MINUS": "an operator",
    "MOD": "an operator",
    "NAME": "a name",
    "PLUS": "an operator",
    "QUOTED": "a name",
    "RANGE": "a range",
    "RPAR": "')'",
    "RSQB": "']'",
    "SEMICOLON": "';'",
    "SLASH": "an operator",
    "STAR": "an operator",
    "STRING": "a string",
}


_OPERATORS: Final = {"div": "DIV", "mod": "MOD"}
"""Names that are operators when they are between two operands."""


class _Tokens:
    """Between lexer and parser: distinguishes the operators `div` and `mod` from names, and limits the nesting."""

    always_accept = ()

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Yield the tokens of `stream`, delayed by one."""
        depth = 0
        before = ""
        token = next(stream, None)
        while token is not None:
            after = next(stream, None)
            if token.type in _OPENING:
                depth += 1
                if depth > MAX_DEPTH:
                    raise SqlError.at(_position(token), f"nested deeper than {MAX_DEPTH}")
            elif token.type in _CLOSING:
                depth -= 1
            elif token in _OPERATORS and token.type == "NAME" and before in _ENDS_OPERAND:
                if after is not None and after.type in _BEGINS_OPERAND:
                    token = Token.new_borrow_pos(_OPERATORS[token], str(token), token)
            before = token.type
            yield token
            token = after


Parts = list[Any]
"""The nodes that methods of ``_Builder`` created for the parts of a grammar rule, which determines their types."""


class _Builder(Transformer[Token, Statement]):
    """Creates nodes while the text is parsed; the methods are named after the rules of the grammar."""

    def start(self, parts: Parts) -> Statement:
        statement: Statement = parts[0]
        return statement

    def select(self, parts: Parts) -> Statement:
        return Statement(False, parts[0], parts[1], parts[2][1] if len(parts) == 3 else None)

    def foreach(self, parts: Parts) -> Statement:
        fields, *rest = parts
        found = dict(part for part in rest if isinstance(part[0], str))
        sources = next(part for part in rest if not isinstance(part[0], str))
        last = fields[-1]
        if isinstance(last, Star):
            raise SqlError.at(sources[0].position, "the last field of FOREACH is '*'", "a list to iterate over")
        return Statement(True, fields, sources, found.get("where"), found.get("do"), found.get("incase"))

    def do(self, parts: Parts) -> tuple[str, Any]:
        return "do", parts[0]

    def incase(self, parts: Parts) -> tuple[str, Any]:
        return "incase", parts[0]

    def where(self, parts: Parts) -> tuple[str, Any]:
        return "where", parts[0]

    def fields(self, parts: Parts) -> tuple[Star | Field, ...]:
        return tuple(parts)

    def sources(self, parts: Parts) -> tuple[FromTopic, ...]:
        return tuple(parts)

    def source(self, parts: list[Token]) -> FromTopic:
        return FromTopic(_unquote(parts[0]), _position(parts[0]))

    def star(self, parts: list[Token]) -> Star:
        return Star()

    def field(self, parts: Parts) -> Field:
        return Field(parts[0], parts[1] if len(parts) == 2 else None)

    def alias(self, parts: Parts) -> Path:
        return Path(_unquote(parts[0]), tuple(_tail(step) for step in parts[1:]))

    def path(self, parts: Parts) -> Path | Literal:
        if len(parts) == 1 and parts[0].type == "NAME" and parts[0] in ("true", "false"):
            return Literal(parts[0] == "true")
        return Path(_unquote(parts[0]), tuple(parts[1:]))

    def segment(self, parts: list[Token]) -> Key:
        return Key(_unquote(parts[0]))

    def index(self, parts: Parts) -> Index:
        return Index(parts[0])

    def value(self, parts: list[Path | Literal]) -> Expression:
        return parts[0]

    def expr(self, parts: Parts) -> Logic:
        return Logic("or", tuple(parts))

    def conjunction(self, parts: Parts) -> Logic:
        return Logic("and", tuple(parts))

    def unary(self, parts: Parts) -> Unary:
        return Unary(parts[0].lower(), parts[1])

    def compare(self, parts: Parts) -> Compare:
        left, operator, right = parts
        return Compare("!=" if operator == "<>" else str(operator), left, right)

    def member(self, parts: Parts) -> InList:
        negated = isinstance(parts[1], Token)
        return InList(parts[0], tuple(parts[2 if negated else 1 :]), negated)

    def chain(self, parts: Parts) -> Arithmetic:
        operators = zip(parts[1::2], parts[2::2], strict=True)
        return Arithmetic(parts[0], tuple(Term(str(operator), operand) for operator, operand in operators))

    sum = chain
    product = chain

    def integer(self, parts: list[Token]) -> Literal:
        return Literal(_integer(parts[0], parts[0]))

    def decimal(self, parts: list[Token]) -> Literal:
        number = float(parts[0])
        if number == float("inf"):
            raise SqlError.at(_position(parts[0]), "the number is too large")
        return Literal(number)

    def string(self, parts: list[Token]) -> Literal:
        return Literal(_unquote(parts[0]))

    def range_of(self, parts: list[Token]) -> Range:
        first, last = _bounds(parts[0])
        if first > last + 1:
            raise SqlError.at(_position(parts[0]), "the range ends before it begins")
        return Range(first, last)

    def slice(self, parts: Parts) -> Slice:
        if not isinstance(parts[0], Path):
            raise SqlError.at(_position(parts[1]), "a boolean has no elements")
        first, last = _bounds(parts[1])
        if first == 0 or last == 0:
            raise SqlError.at(_position(parts[1]), "there is no element 0", "bounds from 1, or negative from the end")
        return Slice(parts[0], first, last)

    def call(self, parts: Parts) -> FunctionCall:
        return FunctionCall(str(parts[0]), tuple(parts[1:]), _position(parts[0]))

    def list_of(self, parts: Parts) -> ListOf:
        return ListOf(tuple(parts))

    def when(self, parts: Parts) -> When:
        return When(parts[0], parts[1])

    def otherwise(self, parts: Parts) -> tuple[str, Any]:
        return "else", parts[0]

    def case(self, parts: Parts) -> Case:
        subject = None if isinstance(parts[0], When) else parts[0]
        otherwise = parts[-1][1] if isinstance(parts[-1], tuple) else None
        return Case(subject, tuple(part for part in parts if isinstance(part, When)), otherwise)


def prepare() -> None:
    """Read the grammar, which takes about 65 ms: before the loop runs, not at the first rule."""
    _grammar()


def parse(text: str) -> Statement:
    """Return the syntax tree of a rule. Raises `SqlError` with the position if the text is invalid, larger than 16 KiB,
    or has more than 64 levels.

    A text of more than about 1 KiB takes longer than one iteration of the loop should."""
    steps = parsing(text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            statement: Statement = end.value
            return statement


def parsing(text: str) -> Generator[None, None, Statement]:
    """Do the same in steps, each with about as much work as one token."""
    _check_text(text)
    try:
        statement: Any = yield from _tree(text)
    except UnexpectedCharacters as error:
        raise (yield from _explain_character(text, error)) from None
    except UnexpectedToken as error:
        raise _explain_token(text, error) from None
    assert isinstance(statement, Statement)
    for number, (node, depth) in enumerate(walk(*parts_of(statement))):
        _check_depth(node, depth)
        if number % _NODES_OF_A_STEP == 0:
            yield
    return statement


def _tree(text: str) -> Generator[None, None, object]:
    """As lark's own ``parse``, with a step after each token."""
    parser: Any = _grammar().parse_interactive(text)
    try:
        token = None
        for token in parser.lexer_thread.lex(parser.parser_state):
            parser.feed_token(token)
            yield
        return parser.feed_eof(token)
    except UnexpectedInput as error:
        error.interactive_parser = parser  # knows the tokens that would have been valid there
        raise


def parts_of(statement: Statement) -> tuple[Node, ...]:
    """Yield the fields and conditions of a statement, in the order of the text."""
    conditions = [part for part in (statement.incase, statement.where) if part is not None]
    return (*statement.fields, *(statement.do or ()), *conditions)


def _check_text(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise SqlError.at(_position_at(text, error.start), "half a surrogate pair is not a character") from None
    if size > MAX_BYTES:
        raise SqlError(f"the SQL has {size} bytes, which is more than {MAX_BYTES}", 1, 1)


def _check_depth(node: Node, depth: int) -> None:
    if depth > MAX_DEPTH + 1 or (isinstance(node, Path) and len(node.steps) > MAX_DEPTH):
        raise SqlError(f"nested deeper than {MAX_DEPTH}", 1, 1)


def _position(token: Token) -> Position:
    return Position(token.line or 1, token.column or 1)


def _position_at(text: str, offset: int) -> Position:
    return Position(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _unquote(token: Token) -> str:
    if token.type == "STRING":
        return token[1:-1].replace("''", "'")
    return token[1:-1] if token.type == "QUOTED" else str(token)


def _integer(digits: str, token: Token) -> int:
    if len(digits) > MAX_DIGITS:
        raise SqlError.at(_position(token), f"the number has more than {MAX_DIGITS} digits")
    return int(digits)


def _bounds(token: Token) -> tuple[int, int]:
    first, last = re.findall(r"[+-]?[0-9]+", token)
    return _integer(first, token), _integer(last, token)


def _tail(step: Step) -> Step:
    return Tail() if step == Index(Unary("-", Literal(0))) else step


def _explain_character(text: str, error: UnexpectedCharacters) -> Generator[None, None, SqlError]:
    offset: Any = error.pos_in_stream
    position, found = _position_at(text, offset), text[offset]
    if found in "'\"":
        return SqlError.at(position, f"the {'text' if found == chr(39) else 'name'} is not closed", found)
    expected = yield from _expected_after(text[:offset])
    return SqlError(f"the character {_show(found)} has no meaning here", *position, expected)


def _expected_after(text: str) -> Generator[None, None, tuple[str, ...]]:
    """Return what can follow a beginning of a statement."""
    try:
        yield from _tree(text)
    except UnexpectedToken as error:
        return _describe(error.accepts or error.expected) if error.token.type == "$END" else ()
    except (UnexpectedCharacters, SqlError):
        return ()
    return (_WORDS["$END"],)


def _explain_token(text: str, error: UnexpectedToken) -> SqlError:
    token = error.token
    expected = _describe(error.accepts or error.expected)
    if token.type == "$END":
        return SqlError("the statement ends too early", *_position_at(text, len(text.rstrip())), expected)
    return SqlError(f"{_show(token)} has no meaning here", *_position(token), expected)


def _show(text: str) -> str:
    text = str(text)
    return repr(text if len(text) <= 32 else text[:32] + "...")


def _describe(terminals: Any) -> tuple[str, ...]:
    """Describe the terminals in words, each once; an expression is one word instead of everything that can begin
    one."""
    names = set(terminals)
    words = set()
    if names >= _EXPRESSION:
        names -= _EXPRESSION
        words.add("an expression")
        if "STAR" in names:
            names.remove("STAR")
            words.add("'*'")
    return tuple(sorted(words | {_WORDS.get(name, name.strip("_")) for name in names}))


@cache
def _grammar() -> Lark:
    return Lark(
        FilePath(__file__).with_name("grammar.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        postlex=_Tokens(),
        transformer=_Builder(),
    )
