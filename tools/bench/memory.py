"""Measure the memory that each further object of a kind needs.

``python -m tools.bench.memory`` (``COUNT=20000``) writes its section of ``docs/performance.md``. ``tracemalloc`` counts
the memory that Python has allocated, including names, but not the allocator's own reserve of a few percent. The
durability level is ``memory``, and there are no sockets."""

import asyncio
import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from typing import Final

from taipan.broker.access.password_hash import N, ScryptHash
from taipan.broker.access.stored.rules import PUB
from taipan.broker.access.stored.users import USERNAME
from taipan.broker.mqtt.message import Message
from taipan.broker.session.subscription import Subscription
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine
from tests.growth.populations import session
from tests.support.fake_node import FakeNode
from tools.bench.page import write
from tools.bench.results import commit

PAYLOAD: Final = 64

Fill = Callable[[int], object]
"""Creates this number of objects, and returns what keeps them alive."""


def _subscriptions(filter: str) -> Fill:
    def fill(count: int) -> object:
        node = FakeNode()
        one = session(node, "one")
        tracemalloc.start()
        for number in range(count):
            node.broker.subscribe(one, Subscription(one, filter.format(number % 100, number), 1))
        return node

    return fill


def _members(count: int) -> object:
    node = FakeNode()
    sessions = [session(node, f"client-{number}") for number in range(count)]
    tracemalloc.start()
    for each in sessions:
        node.broker.subscribe(each, Subscription(each, "site/+/state", 1))
    return node


def _sessions(count: int) -> object:
    node = FakeNode()
    tracemalloc.start()
    for number in range(count):
        session(node, f"client-{number}")
    return node


def _retained(count: int) -> object:
    node = FakeNode()
    tracemalloc.start()
    for number in range(count):
        node.publish(f"site/{number % 100}/device/{number}/state", bytes(PAYLOAD), 0, True)
    return node


def _queued(count: int) -> object:
    """Queue messages, each with its own payload, for one session each."""
    node = FakeNode({"max_queued_messages": 0})
    away = session(node, "away")
    node.broker.subscribe(away, Subscription(away, "#", 1))
    tracemalloc.start()
    for number in range(count):
        node.publish(f"site/{number % 100}", bytes(PAYLOAD), 1)
    return node


def _queued_for_many(count: int) -> object:
    """Queue the same messages for a hundred sessions: the cost of each further session."""
    node = FakeNode({"max_queued_messages": 0})
    for number in range(100):
        away = session(node, f"away-{number}")
        node.broker.subscribe(away, Subscription(away, "#", 1))
    tracemalloc.start()
    for _ in range(count // 100):
        node.publish("site/1", bytes(PAYLOAD), 1)
    return node


def _delayed(count: int) -> object:
    node = FakeNode()
    tracemalloc.start()
    for number in range(count):
        message = Message(f"$delayed/60/site/{number % 100}", bytes(PAYLOAD), 1, timestamp=node.clock.time)
        node.server.delayed.accept(message, node.clock.time)
    return node


def _rules(count: int) -> object:
    node = FakeNode()
    engine = RuleEngine(node.server, RuleEngineSettings())

    async def create() -> None:
        await engine.rules.create('SELECT 1 FROM "warm/up"', [{"name": "do_nothing", "params": {}}])
        tracemalloc.start()
        for number in range(count):
            sql = f'SELECT payload.x AS x, clientid FROM "site/{number}/+" WHERE payload.x > {number}'
            await engine.rules.create(sql, [{"name": "do_nothing", "params": {}}])

    asyncio.run(create())
    return node, engine


def _users(count: int) -> object:
    node = FakeNode()
    tracemalloc.start()
    for number in range(count):
        node.server.stored_users.put(
            USERNAME, f"user-{number}", ScryptHash(N, 8, 1, b"%016d" % number, b"%032d" % number)
        )
    return node


def _access_rules(count: int) -> object:
    node = FakeNode()
    tracemalloc.start()
    for number in range(count):
        node.server.stored_rules.append(USERNAME, f"user-{number}", f"site/{number}/#", PUB, True, 0.0)
    return node


THINGS: Final[tuple[tuple[str, str, Fill], ...]] = (
    (
        "subscription",
        "a subscription without wildcard, its filter of 24 characters",
        _subscriptions("site/{}/device/{}/state"),
    ),
    ("wildcard", "a subscription with a wildcard, in nodes of its own", _subscriptions("site/{}/device/{}/+")),
    ("member", "a further subscription to a filter that has many", _members),
    (
        "session",
        "a session whose client is away (its identifier, address and counters, and the timer that ends it)",
        _sessions,
    ),
    ("retained", f"a retained message of {PAYLOAD} bytes, its topic of 24 characters", _retained),
    ("queued", f"a queued message of {PAYLOAD} bytes for one session", _queued),
    ("queued further", "the same message queued for a further session", _queued_for_many),
    ("delayed", f"a delayed message of {PAYLOAD} bytes", _delayed),
    ("rule", "a rule of the rule engine, of 60 characters, with one action", _rules),
    ("user", "a stored user", _users),
    ("access rule", "a stored access rule, each of another user", _access_rules),
)
"""Name, description, and the function that creates many."""


def octets(fill: Fill, count: int) -> float:
    """Return the bytes of one of ``count`` objects."""
    gc.collect()
    try:
        kept = fill(count)
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    return size / count


def main() -> int:
    count = int(os.environ.get("COUNT", "20000"))
    rows = []
    for name, what, fill in THINGS:
        some = min(count, 2000) if name == "rule" else count
        size = octets(fill, some)
        print(f"{name}: {size:.0f} bytes")
        rows.append(f"| {what} | {size:,.0f} |")
    write(
        "Memory per item",
        f"Written by `python -m tools.bench.memory` (`COUNT={count}`) at commit {commit()}; CPython "
        f"{sys.version.split()[0]}. Bytes that Python allocates for one item, including its "
        f"names and payload, measured by `tracemalloc` over {count:,} of them (2,000 rules), without sockets and at "
        "durability level `memory`. The reserve of the allocator adds a few percent.\n\n| Item | Bytes |\n"
        "|---|---|\n" + "\n".join(rows),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
