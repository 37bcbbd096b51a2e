"""The page of functions names every function with its arguments, and every example on it is true."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taipan.ruleengine.functions.function import SchemaCodec
from taipan.ruleengine.functions.registry import FUNCTIONS, FunctionContext
from taipan.ruleengine.functions.undefined import UNDEFINED
from taipan.ruleengine.schemas.json_schema import JsonSchema
from taipan.ruleengine.schemas.sparkplug import SparkplugSchema
from tests.ruleengine.functions.calls import call, context

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rule-functions.md"
ROW = re.compile(r"\| `([^`]+)` \| .+ \| `([^`]+)` \| `([^`]+)` \|")
ROWS = [match.groups() for match in map(ROW.fullmatch, PAGE.read_text(encoding="utf-8").splitlines()) if match]
INFIX = re.compile(r"(\S+) (\+|-|\*|/|div) (\S+)")
SCHEMAS: dict[str, SchemaCodec] = {"reading": JsonSchema('{"required": ["t"]}'), "sparkplug_b": SparkplugSchema()}
COLUMNS = {
    "id": "0005E",
    "topic": "t/1/x",
    "clientid": "c1",
    "username": "u1",
    "peerhost": "192.168.0.10",
    "qos": 1,
    "flags": {"retain": True},
    "payload": '{"a": {"b": 7}}',
}


@pytest.fixture(autouse=True)
def _zone_of_the_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def signature(text: str) -> tuple[str, int, int | None]:
    """The name, the least and the most arguments that a signature on the page shows."""
    if infix := INFIX.fullmatch(text):
        return infix[2], 2, 2
    name, _, inside = text.removesuffix(")").partition("(")
    optional = sum(1 for each in re.split(r"[\[\]]", inside) if each and _is_optional(inside, each))
    whole = [each.strip(" []'") for each in inside.split(",")] if inside else []
    count = len([each for each in whole if each and each != "..."])
    return name, count - optional, None if "..." in whole else count


def _is_optional(inside: str, part: str) -> bool:
    depth = inside[: inside.index(part)].count("[") - inside[: inside.index(part)].count("]")
    return depth > 0


def evaluate(node: ast.AST, within: FunctionContext) -> Any:
    """The value of an example: calls, literals and lists, which SQL and Python write alike."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return call(node.func.id, *(evaluate(each, within) for each in node.args), within=within)
    if isinstance(node, ast.List):
        return [evaluate(each, within) for each in node.elts]
    return ast.literal_eval(node)


@pytest.mark.parametrize("shown, example, answer", [pytest.param(*row, id=row[0]) for row in ROWS])
def test_example(shown: str, example: str, answer: str) -> None:
    within = context(COLUMNS, codec=SCHEMAS.__getitem__)
    if infix := INFIX.fullmatch(example):
        got = call(infix[2], ast.literal_eval(infix[1]), ast.literal_eval(infix[3]), within=within)
        assert signature(shown)[0] == infix[2]
    else:
        assert signature(shown)[0] + "(" in example
        got = evaluate(ast.parse(example, mode="eval").body, within)
    expected = UNDEFINED if answer == "undefined" else json.loads(answer)
    assert type(got) is type(expected) and got == expected


def test_every_function_is_on_the_page_with_its_arguments() -> None:
    shown = {name: (least, most) for name, least, most in (signature(row[0]) for row in ROWS)}
    assert len(shown) == len(ROWS)
    assert shown == {each.name: (each.min_args, each.max_args) for each in FUNCTIONS.values()}
