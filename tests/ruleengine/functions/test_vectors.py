"""Every shared vector of a function as a case by its own name; those of bugs that we mend with what is right."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taipan.ruleengine.functions.registry import FUNCTIONS, FunctionError
from tests.ruleengine.functions.calls import alike, call, context, read_value

RULES = Path(__file__).resolve().parents[2] / "rules"
VECTORS = json.loads((RULES / "functions.json").read_text(encoding="utf-8"))
CORRECTED = {each["id"]: each for each in json.loads((RULES / "corrected_functions.json").read_text(encoding="utf-8"))}


@pytest.fixture(autouse=True)
def _zone_of_the_vectors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "vector", [pytest.param(each, id=each["name"]) for each in VECTORS if each["function"] != "$template"]
)
def test_vector(vector: dict[str, Any]) -> None:
    vector = {**vector, **CORRECTED.get(vector["name"], {})}
    arguments = [read_value(each) for each in vector["args"]]
    within = context(read_value(vector.get("context", {})))
    if vector.get("expect_error"):
        with pytest.raises(FunctionError):
            call(vector["function"], *arguments, within=within)
    else:
        got = call(vector["function"], *arguments, within=within)
        assert alike(got, read_value(vector["expect"]), vector.get("tolerance", 0.0)), got


def test_all_vectors_are_here_under_names_of_their_own() -> None:
    assert len(VECTORS) == len({each["name"] for each in VECTORS}) == 394
    assert {each["function"] for each in VECTORS} - {"$template"} <= FUNCTIONS.keys()


def test_what_is_corrected_is_a_vector_that_differs_and_has_a_reason() -> None:
    by_name = {each["name"]: each for each in VECTORS}
    for name, corrected in CORRECTED.items():
        assert corrected["reason"] and name in by_name
        assert any(corrected.get(key) != by_name[name].get(key) for key in ("expect", "expect_error"))
