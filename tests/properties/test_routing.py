"""Whatever is subscribed and retained: the indexes find what comparing every filter with every topic finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.mqtt.message import Message
from taipan.broker.routing import retained
from taipan.broker.routing.filter_index import FilterIndex
from taipan.broker.routing.retained import RetainedStore
from taipan.broker.routing.router import Router
from taipan.broker.routing.trie import Trie
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.support.sessions import make_session

LEVELS = ["", "a", "b", "A", "ä", "$x", "a.b", "*"]
levels = st.sampled_from(LEVELS)


@st.composite
def topics(draw: st.DrawFn) -> str:
    return "/".join(draw(st.lists(levels, min_size=1, max_size=5))) or "a"


@st.composite
def filters(draw: st.DrawFn) -> str:
    some = draw(st.lists(levels | st.just("+"), max_size=4))
    return "/".join([*some, *draw(st.sampled_from(([], ["#"])))]) or "#"


def naive(filter: str, topic: str) -> bool:
    """Section 4.7, as it reads [MQTT-4.7.2-1]."""

    def fits(wanted: list[str], given: list[str]) -> bool:
        if not wanted:
            return not given
        if wanted[0] == "#":
            return True
        if not given:
            return False
        return (wanted[0] == "+" or wanted[0] == given[0]) and fits(wanted[1:], given[1:])

    return not (topic[0] == "$" and filter[0] in "+#") and fits(filter.split("/"), topic.split("/"))


SESSIONS = [make_session(each) for each in "xyz"]

actions = st.tuples(st.sampled_from(SESSIONS), filters(), st.integers(0, 2), st.sampled_from((None, None, "g", "h")))


@given(st.lists(actions, max_size=40), st.lists(topics(), min_size=1, max_size=10), st.sampled_from((0, 2, 1000)))
@settings(deadline=None)
def test_the_router_is_a_naive_one(
    done: list[tuple[Session, str, int, str | None]], asked: list[str], cache_size: int
) -> None:
    router = Router(cache_size=cache_size)
    model: dict[tuple[Session, str], Subscription] = {}
    for session, topic_filter, qos, group in done:
        filter = f"$share/{group}/{topic_filter}" if group else topic_filter
        subscription = Subscription(session, filter, qos, False, False, 0, (), group, topic_filter)
        known = model.pop((session, filter), None)
        if known is not None and qos == known.qos:  # the very same once more takes it away again
            assert router.unsubscribe(subscription)
        else:
            assert router.subscribe(subscription) is known
            model[session, filter] = subscription
        for topic in asked:
            compare(router, model, topic)
    assert router.subscription_count == len(model)
    assert router.shared_count == sum(each.group is not None for each in model.values())
    assert sorted(router.filters()) == sorted({filter for _, filter in model})
    assert router.route_count() == len({filter for _, filter in model})
    for subscription in model.values():
        assert subscription in router.subscriptions(subscription.filter)
        assert router.unsubscribe(subscription)
    assert router.route_count() == router.subscription_count == router.shared_count == 0
    assert len(router._subscribers) == len(router._groups_by_filter) == 0
    assert not router._subscribers._flat and not router._groups_by_filter._flat


def compare(router: Router, model: dict[tuple[Session, str], Subscription], topic: str) -> None:
    route = router.match(topic)
    matching = [each for each in model.values() if naive(each.topic_filter, topic)]
    ordinary: dict[object, list[Subscription]] = {}
    for each in matching:
        if each.group is None:
            ordinary.setdefault(each.session, []).append(each)
    assert len(route.targets) == len(ordinary)
    for target in route.targets:
        expected = ordinary[target.session]
        assert target.qos == max(each.qos for each in expected)
        assert set(target.parts or (target,)) == set(expected)
    members = {(group.filter, each) for group in route.groups for each in group.members()}
    assert members == {(each.filter, each) for each in matching if each.group is not None}
    assert len(route.groups) == len({filter for filter, _ in members})


@given(st.lists(filters()), topics())
def test_the_trie_is_a_naive_one(put: list[str], topic: str) -> None:
    trie: Trie[str] = Trie()
    for each in put:
        trie.put(each, each)
    assert sorted(trie.match(topic)) == sorted(each for each in set(put) if naive(each, topic))
    assert sorted(trie.filters()) == sorted(set(put))
    for each in set(put):
        assert trie.get(each) == trie.remove(each) == each
    assert (len(trie), trie._root) == (0, {})


@given(st.lists(st.tuples(filters(), st.booleans()), max_size=40), topics(), st.sampled_from((0, 1, 3, 16)))
def test_the_index_of_filters_is_a_naive_one(put: list[tuple[str, bool]], topic: str, max_shapes: int) -> None:
    """Also when a shape's place becomes free while filters of that shape are among the others."""
    index: FilterIndex[str] = FilterIndex(max_shapes)
    model: dict[str, str] = {}
    for number, (each, stays) in enumerate(put):
        if stays:
            model[each] = f"{number}"
            index.put(each, model[each])
        else:
            assert index.remove(each) == model.pop(each, None)
        assert index.get(each) == model.get(each)
        assert sorted(index.match(topic)) == sorted(value for each, value in model.items() if naive(each, topic))
        assert (len(index), len(index._flat)) == (len(model), len(index._shapes))
    assert sorted(index.filters()) == sorted(model)
    for each, value in model.items():
        assert index.get(each) == index.remove(each) == value
    assert (len(index), index._flat, index._shapes, index._others._root) == (0, [], {}, {})


@given(st.lists(st.tuples(topics(), st.booleans()), max_size=40), filters(), st.sampled_from((0, 3, 1024)))
def test_the_retained_store_is_a_naive_one(put: list[tuple[str, bool]], filter: str, wide: int) -> None:
    before = retained.WIDE
    retained.WIDE = wide  # type: ignore[misc]
    try:
        store = RetainedStore()
        model: set[str] = set()
        for topic, stays in put:
            store.put(Message(topic, b"x" if stays else b""))
            (model.add if stays else model.discard)(topic)
        expected = sorted(each for each in model if naive(filter, each))
        assert sorted(store.walk(filter)) == expected
        assert len(store) == len(model)
        assert sum(store.delete(topic) for topic in store.walk(filter)) == len(expected)
        assert len(store) == len(model) - len(expected)
        assert list(store.walk(filter)) == []
    finally:
        retained.WIDE = before  # type: ignore[misc]
