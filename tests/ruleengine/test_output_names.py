"""Which placeholders a rule can fill in, told from its SQL alone."""

import pytest

from taipan.ruleengine.events.kinds import CLIENT_CONNECTED, MESSAGE_PUBLISH
from taipan.ruleengine.params import Param, ParamError, Text
from taipan.ruleengine.rules.output_names import check_placeholders, output_names, warnings
from taipan.ruleengine.sql.parser import parse

PUBLISHED = set(MESSAGE_PUBLISH.makers) | {"metadata"}
WORDS = Text("for tests", "用于测试")
PARAMS = (Param("text", 1, "string", WORDS, WORDS), Param("map", 2, "object", WORDS, WORDS))


@pytest.mark.parametrize(
    "sql, names",
    [
        ('SELECT topic, payload.x.y, clientid as who FROM "t"', {"topic", "payload", "who"}),
        ('SELECT payload.x as a.b[1].c FROM "t"', {"a"}),
        ("SELECT 'text', payload.list[1..2] FROM \"t\"", {"text", "payload"}),
        ('SELECT *, qos as q FROM "t"', PUBLISHED | {"q"}),
        ('SELECT * FROM "$events/client_connected"', set(CLIENT_CONNECTED.makers) | {"metadata"}),
        ('SELECT * FROM "t", "$events/client_connected"', PUBLISHED | set(CLIENT_CONNECTED.makers)),
        ('FOREACH payload.list FROM "t"', PUBLISHED | {"item"}),
        ('FOREACH qos as q, payload.list as e FROM "t"', PUBLISHED | {"q", "e"}),
        ('FOREACH payload.list as e DO e.n as n, topic FROM "t"', {"n", "topic"}),
    ],
)
def test_output_names(sql: str, names: set[str]) -> None:
    assert output_names(parse(sql)) == names


@pytest.mark.parametrize(
    "sql, params, expected",
    [
        ('FOREACH payload.l as e DO e.n as n INCASE n > 1 FROM "t"', {}, ["INCASE: n is undefined there"]),
        ('FOREACH payload.l as e DO e.n as n INCASE e.n > 1 FROM "t"', {}, []),
        ('FOREACH qos as n, payload.l as e DO e.n as n INCASE n > 1 FROM "t"', {}, []),
        ('FOREACH payload.l DO item.qos as qos INCASE qos > 1 FROM "t"', {}, []),
        ('FOREACH payload.l INCASE n > 1 FROM "t"', {}, []),
        ('SELECT qos FROM "t"', {"made": "${payload}"}, ["made: its default ${payload} becomes undefined"]),
        ('SELECT qos FROM "t"', {"made": "${qos}"}, []),
        ('SELECT payload FROM "t"', {"made": "${payload}"}, []),
    ],
)
def test_warnings(sql: str, params: dict[str, object], expected: list[str]) -> None:
    declared = (Param("made", 1, "string", WORDS, WORDS, default="${payload}"),)
    found = warnings(parse(sql), [(params, declared)])
    assert len(found) == len(expected)
    assert all(each.startswith(words) for each, words in zip(found, expected, strict=True))


def test_what_has_no_name_of_its_own_is_no_placeholder() -> None:
    (name,) = output_names(parse('SELECT 1 + 1 FROM "t"'))
    assert name.startswith("_v_")


@pytest.mark.parametrize("params", [{"text": "${a} ${b.c}"}, {"map": {"${a}": "${b}"}}, {"other": "${no}"}, {}])
def test_placeholders_that_can_be_filled_in(params: dict[str, object]) -> None:
    check_placeholders(params, PARAMS, frozenset({"a", "b"}))


@pytest.mark.parametrize("params", [{"text": "${a} ${no.c}"}, {"map": {"k": "${no}"}}, {"map": {"${no}": ""}}])
def test_a_placeholder_that_cannot(params: dict[str, object]) -> None:
    with pytest.raises(ParamError, match="no"):
        check_placeholders(params, PARAMS, frozenset({"a", "b"}))
