"""Parse what was printed and get what was parsed: for any tree that a text can have."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.ruleengine.sql.ast import (
    Arithmetic,
    Case,
    Compare,
    Field,
    FromTopic,
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
    Tail,
    Term,
    Unary,
    When,
)
from taipan.ruleengine.sql.parser import parse
from tests.ruleengine.sql.printer import unparse

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
names = st.one_of(
    st.sampled_from(["a", "payload", "_x", "mod", "div", "end", "true", "x y", "item", "Select"]),
    texts.map(lambda text: text.replace('"', "")),
)
function_names = st.sampled_from(["upper", "mod", "is_null", "true"])
integers = st.integers(0, 2**70)
literals = st.one_of(integers, st.floats(0, allow_infinity=False, allow_nan=False).map(abs), st.booleans(), texts).map(
    Literal
)


def tuples(of: st.SearchStrategy[Any], least: int = 0, most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(of, min_size=least, max_size=most).map(tuple)


def index_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    # An index is arithmetic: conditions can stand in it in parentheses only.
    return inner.map(Index)


def paths(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(Path, names, tuples(st.one_of(texts.map(Key), index_of(inner))))


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bounds = st.integers(-9, 9).filter(bool)
    plus = st.builds(Term, st.sampled_from(["+", "-"]), inner)
    times = st.builds(Term, st.sampled_from(["*", "/", "div", "mod"]), inner)
    return st.one_of(
        paths(inner),
        st.builds(Slice, paths(inner), bounds, bounds),
        st.builds(ListOf, tuples(inner)),
        st.builds(FunctionCall, function_names, tuples(inner)),
        st.builds(Case, st.none() | inner, tuples(st.builds(When, inner, inner), 1, 2), st.none() | inner),
        st.builds(Unary, st.sampled_from(["not", "-", "+"]), inner),
        st.builds(Arithmetic, inner, tuples(plus, 1)),
        st.builds(Arithmetic, inner, tuples(times, 1)),
        st.builds(Compare, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "=~"]), inner, inner),
        st.builds(InList, inner, tuples(inner, 1), st.booleans()),
        st.builds(Logic, st.sampled_from(["and", "or"]), tuples(inner, 2)),
    )


ranges = st.integers(-9, 9).flatmap(lambda first: st.builds(Range, st.just(first), st.integers(first - 1, 20)))
leaves = st.one_of(literals, ranges, names.map(Path))
expressions = st.recursive(leaves, larger, max_leaves=12)
alias_steps = st.one_of(texts.map(Key), st.just(Tail()), st.integers(0, 9).map(Literal).map(Index))
aliases = st.builds(Path, names, tuples(alias_steps))
one_field = st.builds(Field, expressions, st.none() | aliases)
fields = tuples(st.one_of(st.just(Star()), one_field), 1)
sources = tuples(texts.map(FromTopic), 1)
conditions = st.none() | expressions

selects = st.builds(Statement, st.just(False), fields, sources, conditions)
foreachs = st.builds(
    lambda before, last, *rest: Statement(True, (*before, last), *rest),
    tuples(st.one_of(st.just(Star()), one_field), 0, 2),
    one_field,
    sources,
    conditions,
    st.none() | fields,
    conditions,
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(selects, foreachs))
def test_what_is_printed_parses_to_the_same(statement: Statement) -> None:
    assert parse(unparse(statement)) == statement
