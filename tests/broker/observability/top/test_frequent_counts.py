"""FrequentCounts and RecentCounts: what they keep in a fixed amount of memory, against exact counting."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.observability.top.frequent_counts import FrequentCounts, RecentCounts

# Few keys are frequent, many are seen once.
KEYS = st.integers(0, 5) | st.integers(0, 400)
EVENTS = st.lists(st.tuples(KEYS, st.integers(1, 9)), max_size=800)


@given(EVENTS, st.integers(1, 20))
def test_against_exact_counting(events: list[tuple[int, int]], capacity: int) -> None:
    found: FrequentCounts[int] = FrequentCounts(capacity)
    exact: Counter[int] = Counter()
    for key, weight in events:
        found.add(key, weight, (weight,))
        exact[key] += weight
        assert len(found) <= 2 * capacity and len(found.notes) <= 2 * capacity
    assert found.total == exact.total()
    assert found.error * (capacity + 1) <= found.total
    for key, count in exact.items():
        known = found.counts.get(key, 0)
        assert known <= count <= known + found.error
    # No frequent key is missing.
    assert {key for key, count in exact.items() if count > found.total / (capacity + 1)} <= set(found.counts)
    last = dict(events)
    assert all(found.notes[key] == (last[key],) for key in found.counts)


@given(st.lists(st.tuples(KEYS, st.integers(0, 30)), max_size=300))
def test_periods(events: list[tuple[int, int]]) -> None:
    """Each event comes some time after the one before."""
    found: RecentCounts[int] = RecentCounts(500, 3, 10.0)
    exact: Counter[tuple[int, int]] = Counter()
    now = 1000.0
    for key, after in events:
        now += after
        found.add(key, now, 2)
        exact[key, int(now // 10)] += 2
    current = int(now // 10)
    wanted = {}
    for key, period in exact:
        if period > current - 3:
            wanted[key] = [exact[key, current - 2], exact[key, current - 1], exact[key, current]]
    rows = found.recent(now)
    assert {row.key: row.counts for row in rows} == wanted
    assert [row.total for row in rows] == sorted((sum(counts) for counts in wanted.values()), reverse=True)


def test_a_quiet_time_ends_all_periods_and_the_first_one_is_short() -> None:
    found: RecentCounts[str] = RecentCounts(4, 6, 10.0)
    found.add("a", 12.0)
    assert found.covered(15.0) == 5.0
    assert [row.counts for row in found.recent(31.0)] == [[0, 0, 0, 1, 0, 0]]
    assert found.covered(31.0) == 21.0
    assert found.recent(1e6) == [] and len(found) == 0
    assert found.covered(1e6) == 50.0


def test_the_latest_note_of_all_periods() -> None:
    found: RecentCounts[str] = RecentCounts(4, 3, 10.0)
    found.add("a", 1.0, 1, ("first",))
    found.add("a", 11.0, 1, ("second",))
    found.add("a", 12.0)
    assert [row.note for row in found.recent(13.0)] == [("second",)]
