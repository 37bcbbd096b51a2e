"""The cost of routing and retaining: ``python -m tools.bench.routing [subscriptions ...]`` (default 1000 100000)."""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable

from taipan.broker.mqtt.message import Message
from taipan.broker.routing.retained import RetainedStore
from taipan.broker.routing.router import Router
from taipan.broker.session.subscription import Subscription


class FakeSession:
    __slots__ = ("client_id",)
    connected = True
    ready = True

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id


def microseconds(work: Callable[[str], object], topics: list[str]) -> float:
    """Return the time per topic: the best of three rounds over all topics."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for topic in topics:
            work(topic)
        best = min(best, time.perf_counter() - start)
    return best / len(topics) * 1e6


def fill(router: Router, count: int) -> list[Subscription]:
    """Add subscriptions: five percent of them with wildcards, ten subscriptions per session."""
    made = []
    session = FakeSession("")
    for number in range(count):
        if number % 10 == 0:
            session = FakeSession(f"client{number}")
        if number % 20:
            filter = f"site/{number % 100}/device/{number}/state"
        else:
            filter = f"site/{number % 100}/device/{number}/" + ("+" if number % 40 else "#")
        made.append(Subscription(session, filter, 1))  # type: ignore[arg-type]
        router.subscribe(made[-1])
    return made


def bench(count: int) -> None:
    gc.collect()
    tracemalloc.start()
    router = Router()
    made = fill(router, count)
    size = tracemalloc.get_traced_memory()[0] - sys.getsizeof(made)
    tracemalloc.stop()
    step = max(1, count // 20_000)
    topics = [each.filter.replace("+", "state").replace("#", "state") for each in made[::step]]
    cold = microseconds(router._find, topics)
    wild = microseconds(router._find, [f"site/{n % 100}/device/{n}/state" for n in range(0, count, 20 * step)])
    microseconds(router.match, topics)
    hot = microseconds(router.match, topics)
    some = made[:: 20 * step]
    start = time.perf_counter()
    for each in some:
        router.unsubscribe(each)
        router.subscribe(each)
    change = (time.perf_counter() - start) / len(some) / 2 * 1e6
    for topic in topics:
        router.match(topic)
    start = time.perf_counter()
    router._forget("#")
    clear = (time.perf_counter() - start) * 1e3
    start = time.perf_counter()
    gc.collect()
    collection = (time.perf_counter() - start) * 1e3
    print(
        f"{count:>9,} subscriptions: {size / count:4.0f} bytes each (Subscription, filter and a tenth of a session"
        f" included); match hot {hot:.2f} us, cold {cold:.2f} us, of a wildcard {wild:.2f} us; (un)subscribe"
        f" to a wildcard {change:.2f} us; emptying a cache of {len(topics):,} routes {clear:.1f} ms; full collection"
        f" {collection:.0f} ms"
    )


def bench_retained(count: int) -> None:
    gc.collect()
    messages = [Message(f"site/{number % 100}/device/{number}/state", b"x" * 20, 1, True) for number in range(count)]
    store = RetainedStore()
    slowest = 0.0
    start = time.perf_counter()
    for each in messages:
        store.put(each)
    put = (time.perf_counter() - start) / count * 1e6
    walk = store.walk("#")
    start = time.perf_counter()
    found = 0
    while True:
        before = time.perf_counter()
        piece = sum(1 for _, _ in zip(range(1000), walk, strict=False))
        slowest = max(slowest, time.perf_counter() - before)
        found += piece
        if piece < 1000:
            break
    took = time.perf_counter() - start
    assert found == count
    print(
        f"{count:>9,} retained: put {put:.2f} us; walking all {took / count * 1e6:.2f} us a topic, the slowest thousand"
        f" {slowest * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    for size in [int(each) for each in sys.argv[1:]] or [1000, 100_000]:
        bench(size)
        bench_retained(size)
