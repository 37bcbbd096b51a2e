"""FilterIndex: filters in, filters out, matching, what a match costs, and what happens beyond the bound of shapes."""

import pytest

from taipan.broker.routing.filter_index import MAX_SHAPES, FilterIndex
from tests.broker.routing.test_trie import ALL_FILTERS, MATCHES
from tests.support.calls import calls


def index_of(*filters: str, max_shapes: int = MAX_SHAPES) -> FilterIndex[str]:
    index: FilterIndex[str] = FilterIndex(max_shapes)
    for each in filters:
        index.put(each, each)
    return index


@pytest.mark.parametrize("max_shapes", [0, 1, 5, 100])
@pytest.mark.parametrize("topic, filters", MATCHES)
def test_match(topic: str, filters: set[str], max_shapes: int) -> None:
    """[MQTT-4.7.2-1] [MQTT-4.7.3-4] [MQTT-3.3.2-3]"""
    found = index_of(*ALL_FILTERS.split(), max_shapes=max_shapes).match(topic)
    assert set(found) == filters
    assert len(found) == len(set(found))


@pytest.mark.parametrize("max_shapes", [0, 1, 100])
def test_values_are_replaced_and_found_by_their_filter(max_shapes: int) -> None:
    index = index_of("a", "a/+", "a/#", max_shapes=max_shapes)
    for each in ("a", "a/+", "a/#"):
        index.put(each, "other " + each)
        assert index.get(each) == "other " + each
    assert (index.get("b"), index.get("+/a"), index.get("b/#"), index.get("b/+")) == (None, None, None, None)
    assert len(index) == 3
    assert index.match("a/b") == ["other a/+", "other a/#"] or index.match("a/b") == ["other a/#", "other a/+"]


def test_a_filter_stays_where_it_is() -> None:
    """One that came when there was no place for its shape: a place that becomes free later is for new ones."""
    index = index_of("a/+", "b/#", "c/#", max_shapes=1)
    assert [len(shape.values) for shape in index._flat] == [1]
    assert len(index._others) == 2
    assert index.remove("a/+") == "a/+"
    assert index.match("b/x") == ["b/#"]  # no shape is left
    index.put("d/#", "d/#")
    index.put("b/#", "new")
    assert len(index) == 3
    assert (index.match("b/x"), index.match("c/x"), index.match("d/x")) == (["new"], ["c/#"], ["d/#"])
    assert sorted(index.filters()) == ["b/#", "c/#", "d/#"]
    assert (index.remove("b/#"), index.remove("b/#")) == ("new", None)
    assert index.remove("d/#") == "d/#"
    assert index.remove("d/#") is None
    assert index._flat == []


def test_shapes_are_bounded() -> None:
    """Whatever is subscribed to: a match tries so many shapes and no more."""
    filters = [f"{'a/' * number}+" for number in range(1, 2 * MAX_SHAPES)]
    index = index_of(*filters)
    assert len(index._flat) == MAX_SHAPES
    assert len(index) == len(filters)
    for each in filters:
        assert index.match(each.replace("+", "x")) == [each]


def test_a_match_costs_the_same_whatever_the_number_of_filters() -> None:
    index = index_of("site/+/temperature", "site/7/#")
    before = calls(lambda: index.match("site/7/temperature"))
    for number in range(20_000):
        index.put(f"site/{number + 10}/#", "")
        index.put(f"other{number}/+/temperature", "")
        index.put(f"exact/{number}", "")
    assert set(index.match("site/7/temperature")) == {"site/7/#", "site/+/temperature"}
    assert calls(lambda: index.match("site/7/temperature")) == before


def test_thousands_of_levels() -> None:
    deep = "/".join(["+"] * 20_000)
    index = index_of(deep, "a/" * 20_000 + "#")
    assert index.match("a/" * 19_998 + "a") == []
    assert set(index.match("a/" * 19_999 + "a")) == {deep, "a/" * 20_000 + "#"}
    assert len(index.match("a/" * 20_000 + "b")) == 1


@pytest.mark.parametrize("max_shapes", [0, 1, 100])
def test_filters_of_system_topics_are_counted(max_shapes: int) -> None:
    index = index_of("a", "#", "$SYS/#", "$SYS/a", "+/a", "$SYS/+/a", max_shapes=max_shapes)
    index.put("$SYS/#", "another")
    assert index.system == 3
    for each in ("$SYS/a", "$SYS/a", "$SYS/b", "a", "$SYS/#"):
        index.remove(each)
    assert index.system == 1
    index.remove("$SYS/+/a")
    assert index.system == 0 and len(index) == 2
