"""Subscription: options, the merged form of overlapping ones, and what No Local leaves of it."""

import pytest

from taipan.broker.session.subscription import Subscription, merge, without_no_local
from tests.support.sessions import make_session

SESSION = make_session("c")


def sub(filter: str = "a/#", qos: int = 1, **options: object) -> Subscription:
    return Subscription(SESSION, filter, qos, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options, plain",
    [
        ({}, True),
        ({"retain_handling": 2}, True),
        ({"no_local": True}, False),
        ({"retain_as_published": True}, False),
        ({"identifiers": (1,)}, False),
        ({"group": "g"}, False),
        ({"group": ""}, False),
    ],
)
def test_plain_is_what_needs_nothing_but_a_qos(options: dict[str, object], plain: bool) -> None:
    assert sub(**options).plain is plain


def test_facts() -> None:
    made = sub("$share/g/a/#", 2, no_local=True, retain_handling=1, group="g", topic_filter="a/#")
    assert (made.filter, made.topic_filter, sub().topic_filter) == ("$share/g/a/#", "a/#", "a/#")
    assert made.info() == {"qos": 2, "nl": 1, "rap": 0, "rh": 1}
    assert sub(retain_as_published=True).info() == {"qos": 1, "nl": 0, "rap": 1, "rh": 0}
    assert repr(made) == "Subscription('$share/g/a/#', qos=2)"


def test_merged_has_the_highest_qos_and_all_identifiers() -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    parts = [sub("a/#", 0, identifiers=(3,)), sub("a/b", 2), sub("+/b", 1, identifiers=(1,))]
    merged = merge(parts)
    assert (merged.session, merged.filter, merged.qos) == (SESSION, "a/#", 2)
    assert merged.identifiers == (3, 1)
    assert merged.parts == tuple(parts)
    assert not merged.plain


@pytest.mark.parametrize("option", ["no_local", "retain_as_published"])
def test_merged_has_an_option_where_any_has_it(option: str) -> None:
    assert getattr(merge([sub(), sub(**{option: True})]), option)
    assert not getattr(merge([sub(), sub()]), option)


def test_merged_plain_ones_are_plain() -> None:
    assert merge([sub("a"), sub("#")]).plain


def test_no_local_takes_only_what_came_through_its_own_filter() -> None:
    """[MQTT-3.8.3-3]"""
    local, own = sub("a/b", 0, identifiers=(1,)), sub("a/#", 2, no_local=True, identifiers=(2,))
    assert without_no_local(local) is local
    assert without_no_local(own) is None
    assert without_no_local(merge([own, sub("#", no_local=True)])) is None
    rest = without_no_local(merge([own, local]))
    assert rest is not None
    assert (rest.qos, rest.identifiers, rest.no_local, rest.parts) == (0, (1,), False, (local,))
