"""Erlang terms in a file, such as EMQX 4's ``acl.conf``: each term ends with a full stop, and is returned with its
line."""

from collections.abc import Iterator
from typing import Final

import msgspec
from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

_GRAMMAR: Final = r"""
start: (term ".")*
?term: tuple | list | text | atom | number
tuple: "{" [term ("," term)*] "}"
list: "[" [term ("," term)*] "]"
text: "<<" STRING ["/" "utf8"] ">>" | STRING
atom: ATOM | QUOTED
number: NUMBER
STRING: /"(\\.|[^"\\])*"/s
QUOTED: /'(\\.|[^'\\])*'/s
ATOM: /[a-z][A-Za-z0-9_@]*/
NUMBER: /[+-]?\d+(\.\d+)?/
COMMENT: /%[^\n]*/
%ignore COMMENT
%ignore /[ \t\r\n\f]+/
"""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "e": "\x1b", "b": "\b", "f": "\f", "v": "\v", "d": "\x7f"}
_DEEPEST: Final = 50


class Atom(msgspec.Struct, frozen=True):
    name: str


Term = Atom | str | float | tuple["Term", ...] | list["Term"]


class NoTerms(ValueError):
    """``line``: where the invalid part of the file begins."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def read_terms(text: str) -> Iterator[tuple[int, Term]]:
    """Yield each term with the line on which it begins. Raises NoTerms before the first one."""
    if max(_depths(text), default=0) > _DEEPEST:
        raise NoTerms(1, f"nested more than {_DEEPEST} deep")
    parser = Lark(_GRAMMAR, parser="lalr", propagate_positions=True)
    try:
        tree = parser.parse(text)
    except UnexpectedInput as error:
        line = error.line if error.line > 0 else text.count("\n") + 1
        raise NoTerms(line, "not an Erlang term, or the full stop after the previous term is missing") from None
    for each in tree.children:
        assert isinstance(each, Tree)
        yield each.meta.line if not each.meta.empty else 1, _term(each)


def _depths(text: str) -> Iterator[int]:
    depth = 0
    for char in text:
        if char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        yield depth


def _term(tree: Tree[Token]) -> Term:
    children = tree.children
    if tree.data in ("tuple", "list"):
        members = [_term(each) for each in children if isinstance(each, Tree)]
        return tuple(members) if tree.data == "tuple" else members
    written = str(children[0])
    if tree.data == "text":
        return _unescaped(written[1:-1])
    if tree.data == "number":
        return float(written)
    return Atom(_unescaped(written[1:-1]) if written.startswith("'") else written)


def _unescaped(text: str) -> str:
    pieces = text.split("\\")
    found = [pieces[0]]
    rest = iter(pieces[1:])
    for piece in rest:
        if piece:
            found.append(_ESCAPES.get(piece[0], piece[0]) + piece[1:])
        else:  # an escaped backslash
            found.append("\\" + next(rest, ""))
    return "".join(found)


def shown(term: Term) -> str:
    """Return the term in Erlang syntax."""
    if isinstance(term, Atom):
        return term.name
    if isinstance(term, str):
        return f'"{term}"'
    if isinstance(term, float):
        return f"{term:g}"
    inner = ", ".join(map(shown, term))
    return f"{{{inner}}}" if isinstance(term, tuple) else f"[{inner}]"
