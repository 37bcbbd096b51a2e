"""Functions that read the event's columns."""

from __future__ import annotations

from typing import Any

import pytest

from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from tests.ruleengine.functions.calls import call, context

ENTRIES = [{"topic": "t/a", "qos": 0}, {"topic": "t/b", "qos": 1}, "odd", {"qos": 1}]


@pytest.mark.parametrize("name", ["msgid", "qos", "topic", "clientid", "username", "clientip", "peerhost", "payload"])
def test_a_column_that_the_event_does_not_have_is_undefined(name: str) -> None:
    assert call(name) is UNDEFINED


@pytest.mark.parametrize(
    "name, column", [("msgid", "id"), ("clientid", "clientid"), ("clientip", "peerhost"), ("username", "username")]
)
def test_columns(name: str, column: str) -> None:
    assert call(name, within=context({column: "value"})) == "value"


def test_flags() -> None:
    assert call("flags") == {}
    assert call("flag", "retain") is UNDEFINED
    assert call("flag", "dup", within=context({"flags": {"retain": True}})) is UNDEFINED


@pytest.mark.parametrize("level", [0, -1, 4])
def test_a_level_that_the_topic_does_not_have(level: int) -> None:
    with pytest.raises(FunctionError, match=f"topic: there is no level {level} in a topic of 3"):
        call("topic", level, within=context({"topic": "a/b/c"}))


def test_a_level_of_no_topic() -> None:
    with pytest.raises(FunctionError, match="topic: the topic is undefined"):
        call("topic", 1)


@pytest.mark.parametrize("payload", ['{"a":{"b":1}}', b'{"a":{"b":1}}', {"a": {"b": 1}}, '{"a":"{\\"b\\":1}"}'])
def test_inside_the_payload(payload: Any) -> None:
    assert call("payload", "a.b", within=context({"payload": payload})) == 1
    assert call("payload", "a.c", within=context({"payload": payload})) is UNDEFINED


@pytest.mark.parametrize("payload", ["", "{", b"\xff"])
def test_inside_a_payload_that_is_no_json(payload: str | bytes) -> None:
    with pytest.raises(FunctionError, match="payload: no JSON"):
        call("payload", "a", within=context({"payload": payload}))


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("contains_topic", ["t/a"], True),
        ("contains_topic", ["t/+"], False),
        ("contains_topic", ["t/a", 1], False),
        ("contains_topic", ["t/b", 1], True),
        ("contains_topic_match", ["t/+"], True),
        ("contains_topic_match", ["t/+", 1], True),
        ("contains_topic_match", ["t/+", 2], False),
        ("contains_topic_match", ["#"], True),
        ("contains_topic_match", [""], False),
    ],
)
def test_topics_in_a_list(name: str, arguments: list[Any], expected: bool) -> None:
    assert call(name, ENTRIES, *arguments) is expected
