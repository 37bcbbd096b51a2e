"""Topic Names, Topic Filters, Shared Subscriptions."""

import pytest

from taipan.broker.mqtt.topics import has_wildcard, is_shared, levels, matches, parse_shared, valid_filter, valid_name


@pytest.mark.parametrize("name", ["a", "/", "a/b", "//", "$SYS/x", " ", "a.b", "ä", "\U0001f40d", "t" * 65535])
def test_names(name: str) -> None:
    assert valid_name(name)
    assert valid_filter(name)


@pytest.mark.parametrize("name", ["", "a\0b", "t" * 65536, "ä" * 32768, "\ud800" * 20000])
def test_neither_name_nor_filter(name: str) -> None:
    """[MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3]"""
    assert not valid_name(name)
    assert not valid_filter(name)


@pytest.mark.parametrize("filter", ["#", "+", "a/#", "+/+", "/+", "+/", "a/+/b", "+/#", "/#", "$SYS/#", "a//#"])
def test_filters(filter: str) -> None:
    """[MQTT-4.7.0-1] [MQTT-4.7.1-1] [MQTT-4.7.1-2]"""
    assert valid_filter(filter)
    assert not valid_name(filter)
    assert has_wildcard(filter)


@pytest.mark.parametrize("filter", ["a#", "#a", "a/#/b", "##", "#/", "a+", "+a", "a/b+/c", "++", "a/+b", "#/#", "+#"])
def test_bad_filters(filter: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]"""
    assert not valid_filter(filter)


@pytest.mark.parametrize(
    "filter, name",
    [
        ("a", "a"),
        ("a/b", "a/b"),
        ("#", "a"),
        ("#", "a/b/c"),
        ("#", "/"),
        ("a/#", "a"),
        ("a/#", "a/"),
        ("a/#", "a/b/c"),
        ("+", "a"),
        ("+", " "),
        ("+/+", "/a"),
        ("/+", "/a"),
        ("+/+", "/"),
        ("a/+", "a/"),
        ("a/+/c", "a//c"),
        ("a/+/c", "a/b/c"),
        ("+/b/#", "a/b"),
        ("+/#", "a"),
        ("$SYS/#", "$SYS/a"),
        ("$SYS/#", "$SYS"),
        ("$SYS/+", "$SYS/a"),
        ("a/+", "a/$b"),
        ("a.b/+", "a.b/*"),
    ],
)
def test_matches(filter: str, name: str) -> None:
    assert matches(filter, name)


@pytest.mark.parametrize(
    "filter, name",
    [
        ("a", "A"),
        ("a", "a/"),
        ("a", "/a"),
        ("a", "a "),
        ("a/#", "ab"),
        ("a/#", "b/a"),
        ("+", "a/b"),
        ("+", "/a"),
        ("a/+", "a"),
        ("a/+", "a/b/c"),
        ("+/+", "a"),
        ("a/+/c", "a/b"),
        ("#", "$SYS"),
        ("#", "$SYS/a"),
        ("+/a", "$SYS/a"),
        ("+", "$x"),
        ("+/#", "$SYS/a"),
        ("a.b", "a/b"),
        ("\u00e4", "a\u0308"),
    ],
)
def test_does_not_match(filter: str, name: str) -> None:
    """[MQTT-4.7.2-1] [MQTT-4.7.3-4]"""
    assert not matches(filter, name)


def test_levels() -> None:
    assert levels("/a//b") == ["", "a", "", "b"]


@pytest.mark.parametrize(
    "filter, group, topic_filter",
    [
        ("a/b", None, "a/b"),
        ("$SYS/#", None, "$SYS/#"),
        ("$shared/a", None, "$shared/a"),
        ("$sharegroup", None, "$sharegroup"),
        ("$share/g/a", "g", "a"),
        ("$share/g/#", "g", "#"),
        ("$share/g//", "g", "/"),
        ("$share/g/a/+/b", "g", "a/+/b"),
        ("$share/$x/a", "$x", "a"),
        ("$queue/a/b", "$queue", "a/b"),
        ("$queue/#", "$queue", "#"),
    ],
)
def test_shared(filter: str, group: str | None, topic_filter: str) -> None:
    assert parse_shared(filter) == (group, topic_filter)
    assert is_shared(filter) == (group is not None)


@pytest.mark.parametrize(
    "filter",
    ["$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a", "$queue", "$queue/"],
)
def test_bad_shared(filter: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    assert is_shared(filter)
    with pytest.raises(ValueError):
        parse_shared(filter)
