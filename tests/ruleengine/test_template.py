"""Templates: the shared vectors, binary, values of their own type, and what a template reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taipan.ruleengine.actions.template import Template
from taipan.ruleengine.functions.undefined import UNDEFINED
from tests.ruleengine.functions.calls import read_value

VECTORS = [
    each
    for each in json.loads((Path(__file__).resolve().parents[1] / "rules" / "functions.json").read_text("utf-8"))
    if each["function"] == "$template"
]


@pytest.mark.parametrize("vector", [pytest.param(each, id=each["name"]) for each in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    text, row = vector["args"]
    assert Template(text).render(read_value(row)) == vector["expect"]


def test_all_template_vectors_are_here() -> None:
    assert len(VECTORS) == 14


def test_an_empty_template_is_the_json_of_the_row() -> None:
    assert Template("").render({"a": 1, "b": UNDEFINED, "c": b"\xff"}) == '{"a":1,"b":null,"c":"/w=="}'


def test_binary_goes_through_as_it_is() -> None:
    row = {"payload": b"\xff\x00", "n": 1}
    assert Template("${payload}").render_bytes(row) == b"\xff\x00"
    assert Template("<${payload}|${n}>").render_bytes(row) == b"<\xff\x00|1>"


def test_a_template_that_is_one_placeholder_has_the_value_itself() -> None:
    assert Template("${flags.retain}").value({"flags": {"retain": True}}) is True
    assert Template("${missing}").value({}) is UNDEFINED
    assert Template("x${a}").value({"a": 1}) == "x1"


def test_what_a_template_reads_is_known_beforehand() -> None:
    assert Template("a ${x} ${payload.y.z} $w ${open").placeholders == (("x",), ("payload", "y", "z"))


def test_a_value_as_json_stays_one_value_whatever_is_in_it() -> None:
    nasty = 'a"}, "admin": true, {"\\ \n\t\x00 \u2028 \U0001f600'
    row = {"p": {"name": nasty, "n": 1.5, "b": True, "l": [1, "x"], "o": {"k": None}}, "bin": b"\xff\x00"}
    template = Template(
        '{"name": ${json(p.name)}, "n": ${json(p.n)}, "b": ${json(p.b)}, "l": ${json(p.l)}, "o": ${json(p.o)}, '
        '"bin": ${json(bin)}, "none": ${json(p.none)}}'
    )
    read = json.loads(template.render_bytes(row))
    assert read == {"name": nasty, "n": 1.5, "b": True, "l": [1, "x"], "o": {"k": None}, "bin": "/wA=", "none": None}
    assert template.placeholders[:2] == (("p", "name"), ("p", "n"))
    assert Template("${json(p.b)}").value(row) == "true"
    assert Template("${json(x)").render(row) == "${json(x)"


def test_a_rendering_that_grows_without_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="output"):
        Template("${a}" * 40).render({"a": "x" * 1_000_000})
