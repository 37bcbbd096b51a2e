"""Templates of SQL statements: what becomes a parameter, and which part is repeated for a batch."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from taipan.ruleengine.databases.sql_template import MYSQL, POSTGRESQL, Dialect, SqlTemplate, joined
from taipan.ruleengine.sinks.mysql.connection import encoded


def marked(text: str, dialect: Dialect = POSTGRESQL) -> tuple[str, list[str]]:
    template = SqlTemplate(text, dialect)
    return template.sql(lambda number: f"<{number}>"), [each.text for each in template.parameters]


@pytest.mark.parametrize("text, statement, parameters", [
    ("insert into t values (${a}, ${b.c})", "insert into t values (<0>, <1>)", ["${a}", "${b.c}"]),
    ("select '${a}' ; ", "select <0>", ["${a}"]),
    ("select 'it''s ${a}!'", "select <0>", ["it's ${a}!"]),
    ("select ${a}::float8 / 2 -- ${b}", "select <0>::float8 / 2 -- ${b}", ["${a}"]),
    ("select 'no; $1 ?' /* ; ${x} */, ${a}", "select 'no; $1 ?' /* ; ${x} */, <0>", ["${a}"]),
    ("select $tag$ ; ' $tag$, E'\\'', ${json(a)}", "select $tag$ ; ' $tag$, E'\\'', <0>", ["${json(a)}"]),
])  # fmt: skip
def test_what_becomes_a_parameter(text: str, statement: str, parameters: list[str]) -> None:
    assert marked(text) == (statement, parameters)


def test_strings_of_mysql() -> None:
    text = "insert into `a ? b` values (\"say ''${a}''\", '\\'?', ${b}) # ${c}"
    assert marked(text, MYSQL) == ("insert into `a ? b` values (<0>, '\\'?', <1>) # ${c}", ["say ''${a}''", "${b}"])


@pytest.mark.parametrize("text, prefix, row, suffix", [
    ("INSERT INTO t(values, b) VALUES (f(${a}), 1) ON CONFLICT (b) DO NOTHING", "INSERT INTO t(values, b) ",
     "(f(?), 1)", " ON CONFLICT (b) DO NOTHING"),
    ("replace into t value(${a})", "replace into t ", "(?)", ""),
    ("insert into t values (${a}) on duplicate key update a = values(a)", "insert into t ", "(?)",
     " on duplicate key update a = values(a)"),
    ("insert into t values (${a}), (${b})", "", "", ""),
    ("insert into t values (${a}) on duplicate key update a = ${a}", "", "", ""),
    ("insert into t select ${a}", "", "", ""),
    ("with x as (values (1)) insert into t values (${a})", "", "", ""),
    ("update t set a = ${a}", "", "", ""),
])  # fmt: skip
def test_what_is_repeated_for_a_batch(text: str, prefix: str, row: str, suffix: str) -> None:
    template = SqlTemplate(text, MYSQL)
    assert (template.prefix, joined(template.row, lambda number: "?"), template.suffix) == (prefix, row, suffix)


@pytest.mark.parametrize("text, reason", [
    ("", "expected a statement"), ("a; b", "one statement"), ("select (1", "not closed"), ("select 1)", "not opened"),
    ("select 'a", "a quote is not closed"), ('select "${a}"', "part of a name"), ("select E'${a}'", "escapes"),
    ("select $$ ${a} $$", "escapes"), ("select $1", r"\$1 is not a placeholder"),
])  # fmt: skip
def test_what_is_no_template(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SqlTemplate(text, POSTGRESQL)


@pytest.mark.parametrize("text, reason", [("select ?", r"\? is not"), ("select 'a\\n${a}'", "backslash")])
def test_what_is_no_template_for_mysql(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SqlTemplate(text, MYSQL)


@pytest.mark.parametrize("value, written", [
    ("x", "x"), (1, 1), (1.5, 1.5), (True, True), (None, None), (b"\xff", b"\xff"), ({"a": [1]}, '{"a":[1]}'),
    ([], "[]"), (2**63, str(2**63)), (-(2**63), -(2**63)),
])  # fmt: skip
def test_values(value: Any, written: Any) -> None:
    template = SqlTemplate("select ${a}, ${b.c}", POSTGRESQL)
    assert template.values({"a": value}, True) == [written, None]
    assert template.values({"a": value, "b": {"c": value}}, False) == [written, written]
    assert template.values({}, False) == ["undefined", "undefined"]


def test_the_binary_protocol_of_mysql() -> None:
    values = [None, "é", True, -1, 0.5, b"\xff", "x" * 251, "y" * 65_536]
    data = encoded(values)
    assert data[0] == 1 and data[1] == 1
    types = bytes(data[2:18])
    assert types == b"\x06\0\xfd\0\x01\0\x08\0\x05\0\xfc\0\xfd\0\xfd\0"
    rest = b"\x02\xc3\xa9" + b"\x01" + b"\xff" * 8 + struct.pack("<d", 0.5) + b"\x01\xff"
    assert data[18:] == rest + b"\xfc\xfb\x00" + b"x" * 251 + b"\xfd\x00\x00\x01" + b"y" * 65_536
    assert encoded([]) == b""
