"""Trie: filters in, filters out, matching, and what a step costs."""

import pytest

from taipan.broker.routing.trie import Trie
from tests.support.calls import calls


def trie_of(*filters: str) -> Trie[str]:
    trie: Trie[str] = Trie()
    for each in filters:
        trie.put(each, each)
    return trie


ALL_FILTERS = """
a/b a/+ +/b +/+ a/# # +/# a/b/# +/+/# a/+/# + /+ /# a/+/b a//b a/b/c b/+ $SYS/# $SYS/+ +/SYS/# A a/B a.b *
"""


MATCHES: list[tuple[str, set[str]]] = [
    ("a/b", {"a/b", "a/+", "+/b", "+/+", "a/#", "#", "+/#", "a/b/#", "+/+/#", "a/+/#"}),
    ("a", {"#", "+", "a/#", "+/#"}),
    ("/", {"#", "+/+", "/+", "/#", "+/#", "+/+/#"}),
    ("/a", {"#", "+/+", "/+", "/#", "+/#", "+/+/#"}),
    ("a/", {"a/+", "+/+", "a/#", "#", "+/#", "+/+/#", "a/+/#"}),
    ("a//b", {"a/#", "#", "+/#", "+/+/#", "a/+/#", "a/+/b", "a//b"}),
    ("A/b", {"+/b", "+/+", "#", "+/#", "+/+/#"}),
    ("$SYS/b", {"$SYS/#", "$SYS/+"}),
    ("$SYS", {"$SYS/#"}),
    ("$", set()),
]


@pytest.mark.parametrize("topic, filters", MATCHES)
def test_match(topic: str, filters: set[str]) -> None:
    """[MQTT-4.7.2-1] [MQTT-4.7.3-4] [MQTT-3.3.2-3]"""
    found = trie_of(*ALL_FILTERS.split()).match(topic)
    assert set(found) == filters
    assert len(found) == len(set(found))


def test_values_are_replaced_and_found_by_their_filter() -> None:
    trie = trie_of("a", "a/+")
    trie.put("a", "other")
    trie.put("a/+", "another")
    assert (trie.get("a"), trie.get("a/+"), trie.get("b"), trie.get("+/a"), trie.get("a/#")) == (
        "other",
        "another",
        None,
        None,
        None,
    )
    assert len(trie) == 2


def test_removing_leaves_no_node_behind() -> None:
    filters = ["a/+/c", "a/+/d", "a/+", "a/#", "#", "+/b/c/d/#", "x"]
    trie = trie_of(*filters)
    assert trie.remove("a/+/x") is None
    assert trie.remove("q/+") is None
    assert trie.remove("nothing") is None
    for count, each in enumerate(filters, 1):
        assert trie.remove(each) == each
        assert trie.remove(each) is None
        assert len(trie) == len(filters) - count
        assert trie.get(each) is None
        left = filters[count:]
        assert set(trie.filters()) == set(left)
    assert trie._root == {}


def test_thousands_of_levels_do_not_recurse() -> None:
    deep = "/".join(["+"] * 20_000)
    trie = trie_of(deep, "a/" * 20_000 + "#")
    assert trie.match("a/" * 19_998 + "a") == []
    assert set(trie.match("a/" * 19_999 + "a")) == {deep, "a/" * 20_000 + "#"}
    assert set(trie.filters()) == {deep, "a/" * 20_000 + "#"}
    assert len(trie.match("a/" * 20_000 + "b")) == 1
    assert trie.remove(deep) == deep
    assert trie.remove("a/" * 20_000 + "#") is not None
    assert trie._root == {}


def test_a_match_costs_the_same_whatever_the_number_of_filters() -> None:
    trie = trie_of("site/+/temperature", "site/7/#")
    before = calls(lambda: trie.match("site/7/temperature"))
    for number in range(20_000):
        trie.put(f"site/{number + 10}/#", "")
        trie.put(f"other{number}/+/temperature", "")
        trie.put(f"exact/{number}", "")
    assert trie.match("site/7/temperature") == ["site/7/#", "site/+/temperature"]
    assert calls(lambda: trie.match("site/7/temperature")) == before


def test_a_change_costs_the_same_whatever_the_number_of_filters() -> None:
    trie: Trie[str] = Trie()
    trie.put("a/+/b", "")
    before = calls(lambda: trie.put("a/x/+", "")), calls(lambda: trie.remove("a/x/+"))
    for number in range(20_000):
        trie.put(f"a/{number}/+", "")
    assert (calls(lambda: trie.put("a/x/+", "")), calls(lambda: trie.remove("a/x/+"))) == before
