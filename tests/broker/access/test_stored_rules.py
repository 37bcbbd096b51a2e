"""StoredAclRules: found by subject, tried in order, the same as a plain list would be."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from taipan.broker.access.acl import TopicPattern, covers, filter_levels, intersects
from taipan.broker.access.decision import Decision
from taipan.broker.access.stored import rules as stored_rules
from taipan.broker.access.stored.rules import (
    ALL,
    ANONYMOUS,
    CLIENT_ID,
    PUB,
    PUBSUB,
    SUB,
    USERNAME,
    RuleContent,
    StoredAclRule,
    StoredAclRules,
    path_of,
)
from taipan.broker.config import ZoneSettings
from taipan.broker.persistence.tables import Tables
from taipan.broker.session.client_info import ClientInfo
from tests.growth.operations import operations
from tests.support.access import decided


def client(client_id: str = "c", username: str | None = "ann") -> ClientInfo:
    return ClientInfo("n@h", ZoneSettings(), client_id=client_id, username=username, proved_by="users")


@pytest.fixture
def rules() -> StoredAclRules:
    return StoredAclRules(Tables())


def test_no_rule(rules: StoredAclRules) -> None:
    assert decided(rules, client(), "publish", "t") is None
    assert rules.remove(ALL, "", "t") == 0 and rules.of(ALL) == []


def test_a_row_that_cannot_be_read_keeps_its_place() -> None:
    """It is on disk as it was; a rule in its place would overwrite it."""
    tables = Tables()
    rules = StoredAclRules(tables)
    tables.recover({"rules_of_access": {"7": b"\x80", "-3": b"\xc1"}})
    rules.index_restored()
    rules.append(ALL, "", "t", PUBSUB, False, 0.0)
    rules.prepend(ALL, "", "u", PUB, False, 0.0)
    assert sorted(row.order for row in rules.walk(ALL)) == [-4, 8]
    assert tables.unreadable == {"rules_of_access": 2}


def test_the_order_of_subjects(rules: StoredAclRules) -> None:
    rules.append(ALL, "", "t", PUBSUB, False, 0.0)
    assert rules.decide(client(), "publish", "t") == Decision(False, "/broker_acl/$all/t")
    rules.append(USERNAME, "ann", "t", PUB, True, 0.0)
    assert decided(rules, client(), "publish", "t") is True and decided(rules, client(), "subscribe", "t") is False
    assert decided(rules, client(username="bob"), "publish", "t") is False
    assert decided(rules, client(username=None), "publish", "t") is False
    rules.append(CLIENT_ID, "c", "t", PUB, False, 0.0)
    assert rules.decide(client(), "publish", "t") == Decision(False, "/acl/clientid/c/topic/t")
    assert decided(rules, client("d"), "publish", "t") is True


def test_a_pattern_before_and_behind_a_topic(rules: StoredAclRules) -> None:
    rules.append(USERNAME, "ann", "a/b", PUB, True, 0.0)
    rules.append(USERNAME, "ann", "a/+", PUB, False, 0.0)
    rules.append(USERNAME, "ann", "a/c", PUB, True, 0.0)
    assert decided(rules, client(), "publish", "a/b") is True
    assert decided(rules, client(), "publish", "a/c") is False


def test_the_text_of_a_placeholder_is_no_topic(rules: StoredAclRules) -> None:
    rules.append(ALL, "", "u/%u", PUB, True, 0.0)
    rules.append(ALL, "", "eq e/#", SUB, True, 0.0)
    assert decided(rules, client(), "publish", "u/%u") is None
    assert decided(rules, client(), "publish", "u/ann") is True
    assert decided(rules, client(), "subscribe", "e/#") is True and decided(rules, client(), "subscribe", "e/+") is None
    assert rules.remove(ALL, "", "e/#") == 0 and rules.remove(ALL, "", "eq e/#") == 1


def test_append_and_prepend(rules: StoredAclRules) -> None:
    assert rules.append(ALL, "", "t", PUBSUB, False, 0.0)
    assert not rules.append(ALL, "", "t", PUBSUB, False, 1.0)
    assert rules.append(ALL, "", "t", PUBSUB, True, 0.0)
    rules.prepend(ALL, "", "u", PUB, True, 0.0)
    assert [rule.topic for rule in rules.of(ALL)] == ["u", "t", "t"]
    # Both halves for publishing go; what was about subscribing stays behind, in its order.
    rules.prepend(ALL, "", "t", PUB, True, 0.0)
    assert [(rule.topic, rule.action, rule.allow) for rule in rules.of(ALL)] == [
        ("t", PUB, True),
        ("u", PUB, True),
        ("t", SUB, False),
        ("t", SUB, True),
    ]
    assert rules.count(ALL) == rules.count(ALL, halves=True) == len(rules) == 4
    for topic in ("a+", ""):
        with pytest.raises(ValueError):
            rules.append(ALL, "", topic, PUB, True, 0.0)
        with pytest.raises(ValueError):
            rules.prepend(ALL, "", topic, PUB, True, 0.0)
    assert len(rules) == 4


def test_what_was_restored_is_in_order() -> None:
    tables = Tables()
    rules = StoredAclRules(tables)
    rows = [StoredAclRule(USERNAME, "ann", f"t{order}", PUBSUB, True, order) for order in (3, -2, 10)]
    tables.recover({"rules_of_access": {row.key: msgspec.msgpack.encode(row) for row in rows}})
    rules.index_restored()
    rules.append(USERNAME, "ann", "last", PUB, True, 0.0)
    rules.prepend(USERNAME, "ann", "first", PUB, True, 0.0)
    assert [rule.topic for rule in rules.of(USERNAME, "ann")] == ["first", "t-2", "t3", "t10", "last"]
    assert rules.count(USERNAME) == 5 and rules.count(USERNAME, halves=True) == 8
    assert next(rules.walk(USERNAME)).topic == "first" and list(rules.walk(ALL)) == []


def test_rules_about_anonymous_clients(rules: StoredAclRules) -> None:
    rules.append(ANONYMOUS, "", "a", PUBSUB, True, 0.0)
    rules.append(ALL, "", "#", PUBSUB, False, 0.0)
    nobody = client(username="ann")
    nobody.proved_by = ""
    assert decided(rules, nobody, "publish", "a") is True and decided(rules, nobody, "publish", "b") is False
    assert decided(rules, client(), "publish", "a") is False
    (row,) = rules.of(ANONYMOUS)
    assert path_of(row) == "/broker_acl/$anonymous/a"


@pytest.mark.parametrize("others", [0, 40])
def test_rules_for_one_listener(rules: StoredAclRules, others: int) -> None:
    """With an index and without."""
    for number in range(others):
        rules.append(ALL, "", f"other/{number}", PUB, False, 0.0)
    rules.append(ALL, "", "a", PUB, False, 0.0, "public")
    assert rules.append(ALL, "", "a", PUB, False, 0.0) and not rules.append(ALL, "", "a", PUB, False, 0.0, "public")
    rules.append(ALL, "", "b/+", SUB, False, 0.0, "public")
    rules.prepend(ALL, "", "a", PUB, True, 0.0)  # in place of the one for every listener
    who = client()
    who.listener = "private"
    assert decided(rules, who, "publish", "a") is True and decided(rules, who, "subscribe", "b/c") is None
    who.listener = "public"
    assert decided(rules, who, "publish", "a") is True and decided(rules, who, "subscribe", "b/c") is False
    rules.prepend(ALL, "", "a", PUB, False, 0.0, "public")
    assert decided(rules, who, "publish", "a") is False
    assert [row.listener for row in rules.of(ALL) if row.topic == "a"] == ["public", ""]
    who.listener = "private"
    assert decided(rules, who, "publish", "a") is True
    assert rules.remove(ALL, "", "a") == 2


LEVELS = ["a", "b", "+", "#", "%u", "$x"]


def some_filter(random: Random) -> str:
    levels = [random.choice(LEVELS) for _ in range(random.randint(1, 3))]
    return "/".join(level if level != "#" or at == len(levels) - 1 else "a" for at, level in enumerate(levels))


@pytest.mark.parametrize("seed", range(20))
def test_as_a_plain_list_would_decide(seed: int) -> None:
    """Against a model that knows no index, through additions at both ends and removals."""
    random = Random(seed)
    rules = StoredAclRules(Tables())
    model: list[tuple[str, str, bool]] = []
    who = client(username="b")
    for _ in range(160):
        topic, action, allow = some_filter(random), random.choice([PUB, SUB]), random.random() < 0.5
        step = random.random()
        if step < 0.55:
            if (topic, action, allow) not in model:
                model.append((topic, action, allow))
            rules.append(ALL, "", topic, action, allow, 0.0)
        elif step < 0.9:
            model = [each for each in model if each[:2] != (topic, action)]
            model.insert(0, (topic, action, allow))
            rules.prepend(ALL, "", topic, action, allow, 0.0)
        else:
            model = [each for each in model if each[0] != topic]
            rules.remove(ALL, "", topic)
        assert [(rule.topic, rule.action, rule.allow) for rule in rules.of(ALL)] == model
        asked = some_filter(random)
        plain = asked.replace("+", "a").replace("#", "b")
        for wanted, action, name in ((PUB, "publish", plain), (SUB, "subscribe", asked), (SUB, "subscribe", plain)):
            expected = next((each[2] for each in model if each[1] == wanted and matches(each, who, name)), None)
            assert decided(rules, who, action, name) is expected, (model, action, name)


def matches(rule: tuple[str, str, bool], who: ClientInfo, topic: str) -> bool:
    levels = TopicPattern(rule[0]).levels_for(who)
    return levels is not None and (covers if rule[2] else intersects)(levels, filter_levels(topic))


@pytest.mark.interpreted
def test_a_hundred_thousand_rules_do_not_slow_a_check(rules: StoredAclRules) -> None:
    """Against ten of them: the same work, whatever the number of logins."""
    few = StoredAclRules(Tables())
    for number in range(100_000):
        for each in (rules, few) if number < 10 else (rules,):
            each.append(USERNAME, f"u{number}", "d/%u/#", PUBSUB, True, 0.0)
    who = client(username="u7")

    def work(source: StoredAclRules) -> int:
        assert decided(source, who, "publish", "d/u7/x") is True  # what is made once is made
        return operations(lambda: decided(source, who, "publish", "d/u7/x"))

    assert work(rules) < 1.5 * work(few)


@pytest.mark.interpreted
def test_room(rules: StoredAclRules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rules, "MAX_RULES", 2)
    assert rules.room(ALL, "") == 2
    rules.append(ALL, "", "t", PUB, True, 0.0)
    assert rules.room(ALL, "") == 1


def _replace(rules: StoredAclRules, wanted: list[RuleContent]) -> Iterator[None]:
    """As ``Acl.replace`` does it, with a pause after each row."""
    gone, new = rules.replacement(USERNAME, "ann", wanted)
    for rule in new:
        rules.add_last(USERNAME, "ann", rule, 0.0)
        yield
    for row in gone:
        rules.drop(row)
        yield


def test_replacing_rules_decides_at_each_moment_as_before_or_as_after(rules: StoredAclRules) -> None:
    random = Random(42)
    topics = ["#", "a/#", "a/+", "a/b", "+/b", "eq a/b", "b", "%u/#"]
    asked = [(action, topic) for action in ("publish", "subscribe") for topic in ("a/b", "a/c", "b", "ann/x", "c")]

    def decisions() -> dict[tuple[str, str], object]:
        return {each: decided(rules, client(), *each) for each in asked}

    for _ in range(300):
        wanted = [
            RuleContent(random.choice(topics), random.choice((PUB, SUB, PUBSUB)), random.random() < 0.5)
            for _ in range(random.randrange(7))
        ]
        if random.random() < 0.5:  # a rule that moves
            wanted = [RuleContent(row.topic, row.action, row.allow, row.listener) for row in rules.of(USERNAME, "ann")]
            random.shuffle(wanted)
        plain = StoredAclRules(Tables())
        for rule in wanted:
            plain.append(USERNAME, "ann", *rule[:3], 0.0)
        after = {each: decided(plain, client(), *each) for each in asked}
        before = decisions()
        for _ in _replace(rules, wanted):
            for each, now in decisions().items():
                assert now in (before[each], after[each]), (each, wanted)
        assert decisions() == after
        there = [RuleContent(row.topic, row.action, row.allow, row.listener) for row in rules.of(USERNAME, "ann")]
        assert there == list(dict.fromkeys(wanted))


def test_rules_that_stay_at_the_front_are_not_written_again(rules: StoredAclRules) -> None:
    for topic in "abcd":
        rules.append(USERNAME, "ann", topic, PUB, True, 0.0)
    there = rules.of(USERNAME, "ann")
    kept = [RuleContent(row.topic, row.action, row.allow) for row in there]
    assert rules.replacement(USERNAME, "ann", kept) == ([], [])
    assert rules.replacement(USERNAME, "ann", kept[:3]) == ([there[3]], [])
    assert rules.replacement(USERNAME, "ann", []) == (there[::-1], [])
    assert rules.replacement(USERNAME, "ann", [kept[0], kept[2], kept[1], kept[3]]) == (
        there[:0:-1],
        [kept[2], kept[1], kept[3]],
    )
    for _ in _replace(rules, kept[1:]):
        pass
    rules.drop(there[0])  # what is gone already stays so
    assert [row.topic for row in rules.of(USERNAME, "ann")] == ["b", "c", "d"]
