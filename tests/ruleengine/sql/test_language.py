"""What the language does beyond the shared vectors: mended defects, places of errors, bounds, order of evaluation."""

from typing import Any

import pytest

from taipan.ruleengine.events.columns import Columns
from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.function import Function, FunctionContext
from taipan.ruleengine.functions.registry import FUNCTIONS
from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.sql.compiler import Program, compile
from taipan.ruleengine.sql.error import EvaluationError, SqlError
from taipan.ruleengine.sql.parser import parse


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("div(7, 2)", 3), ("mod(7, 2)", 1), ("div(-7, 2)", -3), ("7 div 2", 3), ("7 div (2)", 3), ("7 mod (2)", 1),
        ("div(7, 2) div 2", 1), ("mod(9, 5) mod 3", 1), ("8 div div(7, 3)", 4),
    ],
)  # fmt: skip
def test_div_and_mod_are_operators_and_functions(expression: str, value: int) -> None:
    assert rows(f"SELECT {expression} AS v FROM t") == [{"v": value}]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [(b"[1,2]", [1, 2]), (b'[{"a":1}]', [{"a": 1}]), (b"[]", []), (b'{"a":[1]}', []), (b"5", []), (b"no json", [])],
)
def test_foreach_goes_through_a_payload_that_is_a_list(payload: bytes, expected: list[object]) -> None:
    found = rows("FOREACH payload AS p DO p FROM t", payload=payload)
    assert found == [{"p": each} for each in expected]
    assert rows("FOREACH payload DO item FROM t", payload=payload) == [{"item": each} for each in expected]
    whole = rows("FOREACH payload AS p FROM t", payload=payload)
    assert whole is not None and [each["p"] for each in whole] == expected
    assert rows("FOREACH payload AS p DO p FROM t WHERE is_array(p)", payload=payload) == (
        None if payload in (b"5", b"no json") or payload.startswith(b"{") else [{"p": each} for each in expected]
    )


def program(sql: str, **more: Any) -> Program:
    return compile(parse(sql), FUNCTIONS, **more)


def rows(sql: str, payload: Any = '{"a": 1, "b": [1, 2, 3], "t": true, "s": "x"}', **columns: Any) -> Any:
    return program(sql).run(Columns({"topic": "t/a", "payload": payload, **columns}), Budget())


def value(expression: str, payload: Any = '{"a": 1, "b": [1, 2, 3], "t": true, "s": "x"}', **columns: Any) -> Any:
    return rows(f"SELECT {expression} AS v FROM t", payload, **columns)[0]["v"]


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("payload.a NOT IN (2, 3)", True),
        ("payload.a NOT IN (1, 3)", False),
        ("1 IN (1.0)", False),
        ("true IN (1)", False),
        ("NOT (payload.a = 1 AND payload.a = 2)", True),
        ("NOT (payload.a = 1 OR payload.a = 2)", False),
        ("NOT payload.a", False),
        ("NOT payload.t", False),
        ("payload.t AND true", True),
        ("payload.a AND true", False),
        ("7 mod 3", 1),
        ("-7 mod 3", -1),
        ("2 + 7 mod 4 * 2", 8),
        ("payload.b[payload.a + 1]", 2),
        ("[1 + 1, 2 * 3]", [2, 6]),
        ("1e3", 1000.0),
        ("'it''s'", "it's"),
        ("'\"q\"'", '"q"'),
        ("payload.nosuch.x[1].y", UNDEFINED),
        ("- payload.a - -1", 0),
        ("null() < 1 OR null() > 1", False),
        ("[true] = [1]", False),
        ("[1] = [1.0]", True),
        ("1 < true", True),
        ("'a' > [1]", True),
        ("false < null", False),
        ("'sys/a' =~ '#'", True),
        ("'$sys/a' =~ '#'", False),
        ("6 / 2", 3.0),
        ("CASE WHEN 1 = 2 THEN 1 END", UNDEFINED),
    ],
)
def test_value(expression: str, expected: Any) -> None:
    found = value(expression)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("condition, holds", [("payload.t", True), ("true", True), ("payload.a", False), ("x", False)])
def test_anything_may_be_a_condition_and_only_true_holds(condition: str, holds: bool) -> None:
    assert (rows(f"SELECT topic FROM t WHERE {condition}") is not None) == holds


@pytest.mark.parametrize(
    "fields, expected",
    [
        ("1 AS c[1].d", {"c": [{"d": 1}]}),
        ("1 AS c[1]", {"c": [1]}),
        ("1 AS c[2].d, 2 AS c[1].e", {"c": [{"d": 1, "e": 2}]}),
        ("1 AS c[-1].d[3].e", {"c": [{"d": [{"e": 1}]}]}),
        ("0 AS payload.x[2].y", {"payload": {"x": [{"y": 0}]}}),
        ("payload, 0 AS payload.x[2].y", {"payload": {"a": 1, "b": [1, 2, 3], "x": [{"y": 0}]}}),
        ("payload.b, 0 AS payload.b[2].y", {"payload": {"b": [1, {"y": 0}, 3]}}),
        ("payload.b, 0 AS payload.b[7].y", {"payload": {"b": [1, 2, 3]}}),
        ("5 AS c, 1 AS c[1].d", {"c": [{"d": 1}]}),
        ("1 AS c[1].d, c[1].d AS e", {"c": [{"d": 1}], "e": 1}),
    ],
)
def test_what_is_stored_in_an_element_is_not_lost(fields: str, expected: Any) -> None:
    assert rows(f"SELECT {fields} FROM t", '{"a": 1, "b": [1, 2, 3]}') == [expected]


def test_mod_stays_a_name_where_it_is_one() -> None:
    assert rows("SELECT mod, payload.a mod, mod(5, 3) AS m FROM mod; -- end", mod=4) == [{"mod": 1, "m": 2}]


@pytest.mark.parametrize(
    "sql, line, column, expected",
    [
        ("SELECT a,\n  FROM t", 2, 3, "an expression"),
        ("SELECT a FROM", 1, 14, "a name"),
        ("SELECT a", 1, 9, "FROM"),
        ("SELECT 'a FROM t", 1, 8, "'"),
        ("SELECT a ? b FROM t", 1, 10, "FROM"),
        ("SELECT\n uper(a) FROM t", 2, 2, "upper"),
        ("SELECT upper(a, b) FROM t", 1, 8, "1"),
        ("SELECT a FROM t WHERE a = b = c", 1, 29, "the end"),
        ("FOREACH a INCASE b DO c FROM t", 1, 20, "FROM"),
    ],
)
def test_error_has_a_place_and_what_was_expected(sql: str, line: int, column: int, expected: str) -> None:
    with pytest.raises(SqlError) as caught:
        program(sql)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert expected in error.expected
    assert str(error).startswith(f"line {line}, column {column}: ") and "\n" not in str(error)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT " + "(" * 65 + "1" + ")" * 65 + " FROM t",
        "SELECT " + "- " * 65 + "1 FROM t",
        "SELECT a" + ".b" * 65 + " FROM t",
        "SELECT '" + "x" * 16384 + "' FROM t",
        "SELECT " + "9" * 5000 + " FROM t",
        "SELECT 1e999 FROM t",
        "SELECT '\ud800' FROM t",
        "SELECT a FROM 't/#/x'",
        "SELECT a ~= b FROM t",
        "FOREACH * FROM t",
        "SELECT x[0..1] FROM t",
        "SELECT [5..1] FROM t",
    ],
)
def test_refused_when_it_is_created(sql: str) -> None:
    with pytest.raises(SqlError):
        program(sql)


def test_the_bounds_themselves_are_accepted() -> None:
    assert value("(" * 64 + "1" + ")" * 64) == 1
    assert value(" + ".join(["1"] * 3000)) == 3000


def test_unknown_event_is_refused_where_events_are_known() -> None:
    with pytest.raises(SqlError) as caught:
        program('SELECT a FROM "t", "$events/clent_connected"', events=["$events/client_connected"])
    assert caught.value.column == 20 and caught.value.expected == ("$events/client_connected",)
    assert program('SELECT a FROM t, "u/#", t').sources == ("t", "u/#")


@pytest.mark.parametrize(
    "sql, clause",
    [
        ("SELECT 9 * 'a' AS v FROM t", "SELECT"),
        ("SELECT topic FROM t WHERE payload.s > 1", "WHERE"),
        ("FOREACH payload.b[1..2] + 1 FROM t", "FOREACH"),
        ("FOREACH payload.b DO item.x - 1 AS v FROM t", "DO"),
        ("FOREACH payload.b INCASE item = 'z' FROM t", "INCASE"),
        ("SELECT " + "payload.b AS x, " + "[x, x] AS x, " * 100 + "1 AS y FROM t", "SELECT"),
        ("SELECT [1] AS x, " + "[x] AS x, " * 100 + "1 AS y FROM t", "SELECT"),
        ("SELECT 'ab' AS x, " + "x + x AS x, " * 60 + "1 AS y FROM t", "SELECT"),
        ("SELECT 99 AS x, " + "x * x AS x, " * 60 + "1 AS y FROM t", "SELECT"),
        ("SELECT 1.5e300 * 1.5e300 AS x FROM t", "SELECT"),
        ("SELECT payload.b AS x, " + "x AS x.a, x AS x.b, " * 60 + "1 AS y FROM t", "SELECT"),
        ("SELECT [1..1000000000] AS x FROM t", "SELECT"),
        ("FOREACH [1..50000] FROM t", "FOREACH"),
    ],
)
def test_failure_names_its_clause(sql: str, clause: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        rows(sql)
    assert caught.value.clause == clause and caught.value.message


@pytest.mark.parametrize("payload", ["", "no json", "[" * 65 + "]" * 65, "[" * 100_000, b"\xff\x00"])
def test_payload_that_is_no_json_fails_only_who_reads_it_as_such(payload: str | bytes) -> None:
    with pytest.raises(EvaluationError, match="the payload is not JSON"):
        rows("SELECT payload.a FROM t", payload)
    assert rows("SELECT payload FROM t", payload) == [{"payload": payload}]


def test_payload_nests_64_deep_and_brackets_in_texts_do_not_count() -> None:
    assert type(value("payload[1]", "[" * 64 + "]" * 64)) is list
    assert value("payload.a", '{"a": "' + "[" * 200 + '"}') == "[" * 200


def test_decoded_payload_is_never_changed() -> None:
    columns = Columns({"payload": '{"a": {"b": [1]}}'})
    changed = program("SELECT payload, 2 AS payload.a.b[1], 3 AS payload.a.c FROM t").run(columns, Budget())
    assert changed == [{"payload": {"a": {"b": [2], "c": 3}}}]
    assert columns.payload_json() == {"a": {"b": [1]}}


def spy(calls: list[list[Any]]) -> dict[str, Function]:
    def call(context: FunctionContext, arguments: list[Any]) -> bool:
        calls.append(arguments)
        return True

    return {name: Function(name, 0, None, call) for name in ("spy", "kv_store_spy")}


@pytest.mark.parametrize(
    "function, condition, evaluated", [("spy", "a = 2", 0), ("kv_store_spy", "a = 2", 1), ("spy", "v = 2", 1)]
)
def test_where_comes_first_unless_it_needs_a_result_or_state_is_kept(
    function: str, condition: str, evaluated: int
) -> None:
    calls: list[list[Any]] = []
    made = compile(parse(f"SELECT {function}() AS v FROM t WHERE {condition}"), spy(calls))
    assert made.run(Columns({"a": 1}), Budget()) is None
    assert len(calls) == evaluated


def test_function_that_raises_anything_fails_the_rule_only() -> None:
    def call(context: FunctionContext, arguments: list[Any]) -> Any:
        raise KeyError("gone")

    made = compile(parse("SELECT broken() AS v FROM t"), {"broken": Function("broken", 0, 0, call)})
    with pytest.raises(EvaluationError, match="broken: KeyError: 'gone'"):
        made.run(Columns({}), Budget())


def test_metadata_belongs_to_the_rule() -> None:
    made = program("SELECT *, metadata.rule_id AS id FROM t", metadata={"rule_id": "rule:1"})
    assert made.run(Columns({"a": 1}), Budget()) == [{"a": 1, "metadata": {"rule_id": "rule:1"}, "id": "rule:1"}]


def test_foreach_without_result_is_empty_and_refused_is_none() -> None:
    assert rows("FOREACH payload.b INCASE item > 5 FROM t") == []
    assert rows("FOREACH payload.b FROM t WHERE payload.a = 2") is None
