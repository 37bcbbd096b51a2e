"""Every shared SQL vector as a case of its own; those that record a bug of EMQX stand in `corrected.json`."""

import json
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.topics import matches
from taipan.ruleengine.events.columns import Columns
from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.registry import FUNCTIONS
from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.sql.compiler import compile
from taipan.ruleengine.sql.error import EvaluationError, SqlError
from taipan.ruleengine.sql.parser import parse

RULES = Path(__file__).resolve().parents[2] / "rules"
VECTORS: list[dict[str, Any]] = json.loads((RULES / "sql.json").read_text(encoding="utf-8"))
CORRECTED: dict[str, dict[str, Any]] = {
    each["id"]: each for each in json.loads((RULES / "corrected.json").read_text(encoding="utf-8"))
}

EXAMPLE = {
    "id": "5F6D1E2C3B4A59687786954A3B2C1D0E",
    "clientid": "c_emqx",
    "username": "u_emqx",
    "event": "message.publish",
    "topic": "t/a",
    "qos": 1,
    "flags": {},
    "payload": '{"msg": "hello"}',
    "peerhost": "192.168.0.10",
    "timestamp": 1_600_000_000_000,
    "node": "taipan@127.0.0.1",
}


def read(value: Any) -> Any:
    """A value of the vectors, with its special objects made real."""
    if isinstance(value, dict):
        if value.keys() == {"$undefined"}:
            return UNDEFINED
        if value.keys() == {"$hex"}:
            return bytes.fromhex(value["$hex"])
        return {key: read(each) for key, each in value.items()}
    return [read(each) for each in value] if isinstance(value, list) else value


def equal(left: Any, right: Any) -> bool:
    """By value, but no boolean is a number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def run(sql: str, context: dict[str, Any]) -> tuple[str, Any]:
    """What became of it: ("parse_error" | "nomatch" | "exception", clause) or ("rows", rows)."""
    try:
        program = compile(parse(sql), FUNCTIONS, metadata={"rule_id": "rule:1"})
    except SqlError:
        return "parse_error", None
    columns = {**EXAMPLE, **read(context)}
    is_event = any(source.startswith("$events/") for source in program.sources)
    if not is_event and not any(matches(source, columns["topic"]) for source in program.sources):
        return "nomatch", None
    try:
        rows = program.run(Columns(columns), Budget())
    except EvaluationError as error:
        return "exception", error.clause.lower()
    if rows is None:
        return "nomatch", None
    return "rows", rows if program.is_foreach else rows[0]


def check(vector: dict[str, Any]) -> None:
    kind, found = run(vector["sql"], vector["context"])
    if "expect_error" in vector:
        assert (kind, found) == (vector["expect_error"], vector.get("error_clause"))
        return
    assert kind == "rows", (kind, found)
    wanted = read(vector["expect"])
    if vector["match"] == "exact":
        assert equal(found, wanted), found
    elif vector["match"] == "values":
        assert equal(list(found.values()), wanted), found
    else:
        rows, expected = (found, wanted) if isinstance(found, list) else ([found], [wanted])
        assert len(rows) == len(expected)
        for row, each in zip(rows, expected, strict=True):
            assert equal({key: row[key] for key in each}, each), row


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    correction = CORRECTED.get(vector["name"])
    if correction is not None:
        vector = {"sql": vector["sql"], "context": vector["context"], **correction["corrected"]}
    check(vector)


def test_all_vectors_are_there_and_every_correction_names_one() -> None:
    names = [vector["name"] for vector in VECTORS]
    assert len(set(names)) == len(names) == 179
    assert CORRECTED.keys() <= set(names)


@pytest.mark.parametrize("name", CORRECTED)
def test_a_correction_differs_from_the_vector_and_says_why(name: str) -> None:
    vector = next(vector for vector in VECTORS if vector["name"] == name)
    corrected = CORRECTED[name]["corrected"]
    assert any(vector.get(key) != value for key, value in corrected.items())
    assert len(CORRECTED[name]["reason"]) > 20
