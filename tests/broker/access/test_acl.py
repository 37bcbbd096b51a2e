"""Access rules: matching, covering, intersecting, placeholders, conditions, order."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.access.acl import AclRule, covers, filter_levels, intersects
from taipan.broker.access.configuration.rules import ConfiguredAclRules
from taipan.broker.config import RuleSettings, ZoneSettings
from taipan.broker.mqtt.topics import valid_filter
from taipan.broker.session.client_info import ClientInfo
from tests.support.access import decided


def client(client_id: str = "c1", username: str | None = "u1", peer_host: str = "10.1.2.3") -> ClientInfo:
    return ClientInfo(
        "n@h", ZoneSettings(), client_id=client_id, username=username, peer_host=peer_host, proved_by="users"
    )


def rules(*given_rules: RuleSettings) -> ConfiguredAclRules:
    return ConfiguredAclRules(given_rules)


def allow(*topics: str, action: str = "pubsub", **conditions: str) -> RuleSettings:
    return RuleSettings(allow=True, action=action, topics=list(topics), **conditions)  # type: ignore[arg-type]


def deny(*topics: str, action: str = "pubsub", **conditions: str) -> RuleSettings:
    return RuleSettings(allow=False, action=action, topics=list(topics), **conditions)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern, topic, expected",
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("+/+", "/x", True),
        ("+", "/x", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("+/#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/#", "a/$x", True),
        ("eq a/b", "a/b", True),
        ("eq a/+", "a/b", False),
        ("eq %c", "c1", False),
        ("eq %c", "%c", True),
    ],
)
@pytest.mark.parametrize("allows", [True, False])
def test_publish(pattern: str, topic: str, expected: bool, allows: bool) -> None:
    """A Topic Name matches as it matches filters [MQTT-4.7.1-2] [MQTT-4.7.2-1], whatever the kind of rule."""
    decision = decided(rules(RuleSettings(allow=allows, topics=[pattern])), client(), "publish", topic)
    assert decision is (allows if expected else None)


@pytest.mark.parametrize(
    "pattern, topic_filter, allowed, denied",
    [
        ("a/b", "a/b", True, True),
        ("a/#", "#", False, True),
        ("a/#", "a/+/b", True, True),
        ("a/#", "a", True, True),
        ("a/#", "a/#", True, True),
        ("a/#", "+/b", False, True),
        ("a/#", "b/#", False, False),
        ("a/+", "a/#", False, True),
        ("a/+", "a/+", True, True),
        ("a/+", "a/+/#", False, True),
        ("a/+/c", "a/b/+", False, True),
        ("a/+/c", "a/b/d", False, False),
        ("a/b/c", "a/b", False, False),
        ("a/b", "a/b/#", False, True),
        ("a", "a/+", False, False),
        ("+/#", "#", True, True),
        ("#", "+/#", True, True),
        ("#", "+/+/x", True, True),
        ("#", "$SYS/#", False, False),
        ("+/x", "$SYS/x", False, False),
        ("$SYS/#", "#", False, False),
        ("$SYS/#", "$SYS/+/x", True, True),
        ("$SYS/#", "+/x", False, False),
        ("eq #", "#", True, True),
        ("eq #", "+/#", False, False),
        ("eq a/+", "a/+", True, True),
        ("eq a/+", "a/b", False, False),
        ("a/#", "$share/g/a/b", True, True),
        ("a/#", "$share/g/#", False, True),
        ("a/#", "$queue/a/b", True, True),
        ("eq a/b", "$share/g/a/b", True, True),
        ("secret/#", "$share/secret/x", False, False),
        # What follows the group of "$share/g/$share/x" and the like.
        ("#", "$share/x", False, False),
        ("+", "$queue/", False, False),
        ("eq a", "$share", False, False),
    ],
)
def test_subscribe(pattern: str, topic_filter: str, allowed: bool, denied: bool) -> None:
    """To allow, a rule must cover the filter; to deny, it is enough to meet it."""
    assert decided(rules(allow(pattern)), client(), "subscribe", topic_filter) is (True if allowed else None)
    assert decided(rules(deny(pattern)), client(), "subscribe", topic_filter) is (False if denied else None)


LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), min_size=1, max_size=4)
FILTERS = st.builds(lambda levels, hash_: "/".join(levels + ["#"] * hash_), LEVELS, st.integers(0, 1)) | st.just("#")
TOPICS = [
    "/".join(levels) for length in range(1, 6) for levels in itertools.product(["a", "b", "", "$x", "z"], repeat=length)
]


def naive_match(topic_filter: str, topic: str) -> bool:
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    want, have = topic_filter.split("/"), topic.split("/")
    if want[-1] == "#":
        want = want[:-1]
        have = have[: len(want)] if len(have) >= len(want) else have
    return len(want) == len(have) and all(w in ("+", h) for w, h in zip(want, have, strict=True))


@settings(deadline=None)
@given(FILTERS, FILTERS)
def test_covers_and_intersects_are_what_matching_says(pattern: str, topic_filter: str) -> None:
    """Checked against all topics of up to five levels of a small alphabet ("z" is in no filter)."""
    by_pattern = {topic for topic in TOPICS if naive_match(pattern, topic)}
    by_filter = {topic for topic in TOPICS if naive_match(topic_filter, topic)}
    a, b = filter_levels(pattern), filter_levels(topic_filter)
    assert intersects(a, b) is bool(by_pattern & by_filter)
    assert intersects(b, a) is intersects(a, b)
    assert covers(a, b) is (by_filter <= by_pattern)


@given(st.text(st.sampled_from("ab+#/$%cu\0"), max_size=6), st.sampled_from(["%u", "%u/#", "x/%u/+", "x-%u/y", "+/%u"]))
def test_placeholders_never_widen(username: str, pattern: str) -> None:
    """Whatever the user name is, an allow rule lets it reach only what the name to the letter is in."""
    source = rules(allow(pattern))
    somebody = client(username=username)
    for levels in itertools.product(["a", "b", "x", "x-a", "y", "%u", username], repeat=3):
        topic = "/".join(levels)
        if decided(source, somebody, "publish", topic):
            assert username
            assert not set(username) & set("+#/\0")
            assert naive_match(pattern.replace("%u", username), topic)
    for topic_filter in ("#", "+", "+/#", "+/+", "x/#", "x/+/+", "x/+/#"):
        assert decided(source, somebody, "subscribe", topic_filter) is None


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a/#", "/", "", None, "$share/g"])
@pytest.mark.parametrize("topic_filter", ["+", "#", "a/b", "a/#", "/", "u/+", "u/#", "u/a/b", "u/", "u/a/#"])
def test_hostile_names_match_nothing(name: str | None, topic_filter: str) -> None:
    source = rules(allow("%u"), allow("u/%u"), allow("u/%u/#"))
    assert decided(source, client(username=name), "subscribe", topic_filter) is None
    by_id = rules(allow("%c"), allow("u/%c"), allow("u/%c/#"))
    assert decided(by_id, client(client_id=name or ""), "subscribe", topic_filter) is None


def test_placeholders_are_filled_in_once() -> None:
    """A client identifier that spells ``%u`` is not filled in again."""
    source = rules(allow("d/%c/x"), allow("%u-%c"))
    assert decided(source, client(client_id="%u"), "publish", "d/%u/x") is True
    assert decided(source, client(client_id="%u"), "publish", "d/u1/x") is None
    assert decided(source, client(), "publish", "u1-c1") is True
    assert decided(source, client(), "subscribe", "d/c1/x") is True
    assert decided(source, client(), "subscribe", "d/+/x") is None


def test_first_match_wins() -> None:
    source = rules(allow("a/b"), deny("a/#"), allow("#"))
    assert decided(source, client(), "publish", "a/b") is True
    assert decided(source, client(), "publish", "a/c") is False
    assert decided(source, client(), "publish", "c") is True
    # "#" could match "a/c", which is denied before "#" is allowed.
    assert decided(source, client(), "subscribe", "#") is False
    assert decided(source, client(), "subscribe", "b/#") is True


def test_action() -> None:
    source = rules(allow("a", action="publish"), deny("a", action="subscribe"), deny("b"))
    assert decided(source, client(), "publish", "a") is True
    assert decided(source, client(), "subscribe", "a") is False
    assert decided(source, client(), "publish", "b") is False
    assert decided(source, client(), "subscribe", "b") is False
    assert decided(source, client(), "subscribe", "c") is None


def test_without_topics_all_of_them() -> None:
    source = rules(deny(username="u1"))
    assert decided(source, client(), "publish", "a") is False
    assert decided(source, client(), "subscribe", "$SYS/#") is False
    assert decided(source, client(username="u2"), "publish", "a") is None
    assert decided(rules(), client(), "publish", "a") is None


@pytest.mark.parametrize(
    "conditions, expected",
    [
        ({"username": "u1"}, True),
        ({"username": "u2"}, None),
        ({"client_id": "c1"}, True),
        ({"client_id": "C1"}, None),
        ({"username": "u1", "client_id": "c2"}, None),
        ({"address": "10.1.2.3"}, True),
        ({"address": "10.0.0.0/8"}, True),
        ({"address": "10.1.2.99/24"}, True),
        ({"address": "11.0.0.0/8"}, None),
        ({"address": "::/0"}, None),
        ({"username": "u1", "client_id": "c1", "address": "10.0.0.0/8"}, True),
    ],
)
def test_conditions_all_hold(conditions: dict[str, str], expected: bool | None) -> None:
    assert decided(rules(allow("a", **conditions)), client(), "publish", "a") is expected


@pytest.mark.parametrize(
    "network, host, expected",
    [
        ("10.0.0.0/8", "::ffff:10.1.1.1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("2001:db8::/32", "2001:db8::7", True),
        ("0.0.0.0/0", "2001:db8::7", False),
        ("0.0.0.0/0", "", False),
        ("0.0.0.0/0", "no address", False),
    ],
)
def test_addresses(network: str, host: str, expected: bool) -> None:
    assert AclRule(allow(address=network)).concerns(client(peer_host=host)) is expected


@pytest.mark.parametrize(
    "topic", ["", "a#", "#/a", "a+/b", "eq ", "eq a#", "a\0", "$share/g/a", "$queue/a", "x" * 65_536]
)
def test_bad_topics_are_refused(topic: str) -> None:
    with pytest.raises(ValueError):
        AclRule(allow(topic))


@pytest.mark.parametrize(
    "topic, words",
    [
        ("", "1 to 65535 bytes"),
        ("a\0", "without U+0000"),
        ("x" * 65_536, "1 to 65535 bytes"),
        ("\ud800" * 20_000, "1 to 65535 bytes"),
        ("a+/b", '"+" must be alone'),
        ("a/+b", '"+" must be alone'),
        ("#/a", '"#" must be alone'),
        ("a#", '"#" must be alone'),
        ("a/#/", '"#" must be alone'),
    ],
)
def test_what_is_wrong_with_a_topic_is_said(topic: str, words: str) -> None:
    """What is a Topic Filter is decided by ``mqtt.topics.valid_filter``, for a SUBSCRIBE and for a rule."""
    assert not valid_filter(topic)
    with pytest.raises(ValueError, match=re.escape(words)):
        AclRule(allow(topic))


@pytest.mark.parametrize("address", ["", "10", "10.0.0.0/33", "localhost"])
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError):
        AclRule(allow(address=address))


@pytest.mark.parametrize("name", [None, "ann"])
def test_anonymous_is_who_has_proved_nothing(name: str | None) -> None:
    """A name that is only said makes nobody less anonymous."""
    found = rules(RuleSettings(allow=True, anonymous=True, topics=["a"]))
    who = client(username=name)
    who.proved_by = ""
    assert decided(found, who, "publish", "a") is True
    who.proved_client_id = True
    assert decided(found, who, "publish", "a") is None
    assert decided(found, client(), "publish", "a") is None


def test_a_rule_for_one_listener() -> None:
    found = rules(RuleSettings(allow=False, listener="public", topics=["a/#"]))
    who = client()
    assert decided(found, who, "subscribe", "a/+") is None
    who.listener = "public"
    assert decided(found, who, "subscribe", "a/+") is False
