"""Rows that the other side answers with an error of its own: few attempts, then aside; rows that wait no longer than
their action wants."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from taipan.broker.persistence.tables import Tables
from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.delivery.buffer import DELIVERED, Buffer, DeliveryOutcome
from taipan.ruleengine.delivery.buffer_store import BufferStore
from taipan.ruleengine.delivery.buffered_row import BufferedRow
from taipan.ruleengine.delivery.dead_letters import TABLE, DeadLetter
from tests.ruleengine.delivery.test_buffer import BufferHarness, Sink, entry
from tests.support.fake_engine import QUICK
from tests.support.node import free_port, make_settings, start_node
from tests.support.rule_engine_node import KEEP, rule_engine_node
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

AWAY = DeliveryOutcome("away", retry=True, unreachable=True)
BROKEN = DeliveryOutcome("HTTP 500", retry=True)


def poison(*requests: bytes) -> Any:
    return lambda each: BROKEN if each.request in requests else DELIVERED


async def test_a_few_attempts_are_the_default() -> None:
    assert RuleEngineSettings().retry_attempts == 3


async def test_one_bad_row_holds_up_its_own_client_only_and_that_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """The back-off is an hour: who waits for it waits for ever."""
    harness = BufferHarness(msgspec.structs.replace(QUICK, retry_backoff=3600.0, retry_backoff_max=3600.0))
    harness.sink.answer = poison(b"0")
    harness.buffer.start()
    for number in range(100):
        harness.buffer.append(entry(number, f"k{number % 10}"))
    await until(lambda: harness.report.successes == 90)
    assert harness.sink.taken == [b"0", *(b"%d" % number for number in range(100) if number % 10)]
    assert harness.buffer.status.waiting == 10
    for _ in range(2):
        harness.buffer.retry_now()
        await asyncio.sleep(0.02)
    await until(lambda: harness.report.count == 100)
    mine = [each for each in harness.sink.taken if int(each) % 10 == 0]
    assert mine == [b"0", b"0", b"0", *(b"%d" % number for number in range(10, 100, 10))]
    status = harness.buffer.status
    assert (status.set_aside, status.dead_letters, status.waiting) == (1, 1, 0)
    assert status.dropped == {"retry_attempts": 1}
    (line,) = [each.getMessage() for each in caplog.records if "row_set_aside" in each.getMessage()]
    assert "setting=ruleengine.retry_attempts value=3" in line and "HTTP 500" in line
    await harness.buffer.close()


async def test_the_rows_of_one_client_that_are_refused_do_not_open_the_breaker_for_others() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, breaker_failures=2, breaker_pause=3600.0), lanes=2)
    harness.sink.answer = lambda each: BROKEN if each.key == "bad" else DELIVERED
    harness.buffer.start()
    for number in range(8):
        harness.buffer.append(entry(number, "bad"))
    await until(lambda: len(harness.sink.taken) == 2)
    await asyncio.sleep(0.1)
    assert len(harness.sink.taken) == 2  # it waits for the breaker's pause, alone
    assert harness.buffer.status.breaker == "closed"
    for number in range(20):
        harness.buffer.append(entry(100 + number, f"k{number}"))
    await until(lambda: harness.report.successes == 20)
    await harness.buffer.close()


async def test_of_an_open_breaker_rows_that_were_not_refused_try_first() -> None:
    harness = BufferHarness(
        msgspec.structs.replace(QUICK, breaker_failures=3, breaker_pause=0.3, retry_attempts=100), lanes=3
    )
    harness.sink.answer = lambda each: BROKEN if each.key.startswith("bad") else DELIVERED
    harness.buffer.start()
    for number in range(60):
        harness.buffer.append(entry(number, f"bad{number % 6}"))
    await until(lambda: harness.buffer.status.breaker == "open")
    refused = {int(each) % 6 for each in harness.sink.taken}
    for number in range(20):
        harness.buffer.append(entry(100 + number, f"k{number}"))
    tried = len(harness.sink.taken)
    await until(lambda: harness.report.successes == 20)
    since = [int(each) for each in harness.sink.taken[tried:]]
    before = since[: next(place for place, each in enumerate(since) if each >= 100)]
    assert [each for each in before if each % 6 in refused] == []
    await harness.buffer.close()


async def test_rows_that_come_while_their_key_is_held_stay_behind_it() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, retry_backoff=600.0, retry_backoff_max=600.0))
    failures = 1

    def answer(each: BufferedRow) -> DeliveryOutcome:
        nonlocal failures
        if each.request == b"0" and failures:
            failures -= 1
            return BROKEN
        return DELIVERED

    harness.sink.answer = answer
    harness.buffer.start()
    harness.buffer.append(entry(0, "a"))
    await until(lambda: harness.buffer.status.retried == 1)
    for number, key in ((1, "a"), (2, "b"), (3, "a")):
        harness.buffer.append(entry(number, key))
    await until(lambda: harness.report.successes == 1)
    harness.buffer.retry_now()
    await until(lambda: harness.report.successes == 4)
    assert harness.sink.taken == [b"0", b"2", b"0", b"1", b"3"]
    await harness.buffer.close()


async def test_what_was_set_aside_is_seen_sent_again_and_cleared() -> None:
    harness = BufferHarness()
    harness.sink.answer = poison(b"0", b"1")
    harness.buffer.start()
    for number in range(3):
        harness.buffer.append(entry(number, f"k{number}"))
    await until(lambda: harness.report.count == 3)
    letters = harness.store.dead_letters
    there = letters.of("resource:1")
    assert {(each.buffered.request, each.attempts) for each in there.values()} == {(b"0", 3), (b"1", 3)}
    assert "HTTP 500" in there[1].reason
    harness.sink.answer = lambda each: DELIVERED
    assert harness.buffer.send_again(1) and not harness.buffer.send_again(1) and not harness.buffer.send_again(7)
    await until(lambda: harness.report.successes == 2)
    assert list(letters.of("resource:1")) == [2]
    letters.forget("resource:1")
    assert harness.buffer.status.dead_letters == 0
    await harness.buffer.close()


@pytest.mark.parametrize(
    "bounds, left, setting",
    [
        ({"dead_letters": 2}, 2, "ruleengine.dead_letters"),
        ({"dead_letter_bytes": 3 * (entry(1).size + 100)}, 3, "ruleengine.dead_letter_bytes"),
    ],
)
async def test_of_many_the_oldest_make_room_counted_and_logged(
    bounds: dict[str, int], left: int, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, retry_attempts=1, breaker_failures=1000, **bounds))
    harness.sink.answer = lambda each: BROKEN
    harness.buffer.start()
    for number in range(5):
        harness.buffer.append(entry(number))
    await until(lambda: harness.report.count == 5)
    requests = [each.buffered.request for each in harness.store.dead_letters.of("resource:1").values()]
    assert requests == [b"%d" % number for number in range(5 - left, 5)]
    assert harness.buffer.status.dropped == {"retry_attempts": 5, "dead_letters": 5 - left}
    (line,) = [each.getMessage() for each in caplog.records if "dead_letters_full" in each.getMessage()]
    assert f"setting={setting} " in line
    await harness.buffer.close()


async def test_none_is_kept_where_none_is_wanted_and_a_resource_has_limits_of_its_own() -> None:
    harness = BufferHarness()
    store, limits = harness.store, {"dead_letters": 0, "retry_attempts": 2}
    buffer = Buffer("resource:1", store, QUICK, harness.sink, 1, Random(1), now=lambda: 1.0, limits=limits)
    harness.sink.answer = lambda each: BROKEN
    buffer.start()
    buffer.append(entry(0))
    await until(lambda: harness.report.count == 1)
    assert harness.sink.taken == [b"0", b"0"]
    assert buffer.status.dropped == {"retry_attempts": 1} and buffer.status.dead_letters == 0
    await buffer.close()


async def test_what_was_set_aside_survives_the_process_and_takes_no_row_with_it(tmp_path: Path) -> None:
    config: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    node = await start_node(**config)
    harness = BufferHarness(store=BufferStore(node.server.tables))
    harness.sink.answer = poison(b"0")
    harness.buffer.start()
    for number in range(3):
        harness.buffer.append(entry(number))
    await until(lambda: harness.report.count == 3)
    await harness.buffer.close()
    assert await node.server.tables.stored()
    await node.stop()

    from taipan.broker.server import Server

    server = Server(make_settings(**config))
    store = BufferStore(server.tables)
    await server.start()
    try:
        after = BufferHarness(store=store)
        assert [each.buffered.request for each in store.dead_letters.of("resource:1").values()] == [b"0"]
        assert store.after("resource:1", 0) == []
        after.buffer.start()
        assert after.buffer.send_again(1)
        await until(lambda: after.report.successes == 1)
        assert len(server.tables.open(TABLE, DeadLetter)) == 0
        await after.buffer.close()
    finally:
        await server.stop()


async def test_counts_go_to_the_nodes_refusals() -> None:
    counted: list[tuple[str, int]] = []
    store = BufferStore(Tables(), lambda reason, count: counted.append((reason, count)))
    harness = BufferHarness(msgspec.structs.replace(QUICK, dead_letters=0), store=store)
    harness.sink.answer = lambda each: BROKEN
    harness.buffer.start()
    harness.buffer.append(entry(0))
    await until(lambda: harness.report.count == 1)
    assert counted == [("rule_row_retry_attempts", 1)]
    await harness.buffer.close()


# retry_for


async def test_a_row_waits_no_longer_than_its_action_wants_and_others_go_on_waiting() -> None:
    harness = BufferHarness(lanes=2)
    harness.sink.answer = lambda each: AWAY
    harness.buffer.start()
    for number in range(20):
        harness.buffer.append(entry(number, f"k{number}", until=60.0 if number % 2 else 0.0))
    await until(lambda: harness.buffer.status.retried > 4)
    assert harness.report.count == 0
    harness.now = 60.5
    await until(lambda: harness.report.count == 10)
    assert sorted(row["n"] for _, row in harness.report.failures if row is not None) == list(range(1, 20, 2))
    assert all("away; given up after retry_for = 59 seconds" in reason for reason, _ in harness.report.failures)
    assert harness.buffer.status.dropped == {"retry_for": 10} and harness.buffer.status.waiting == 10
    harness.sink.answer = lambda each: DELIVERED
    harness.buffer.retry_now()
    await until(lambda: harness.report.successes == 10)
    assert harness.buffer.status.waiting == harness.buffer.status.waiting_bytes == 0
    assert harness.store.after("resource:1", 0) == []
    await harness.buffer.close()


async def test_what_is_on_its_way_when_its_time_is_over_counts_as_it_is_answered() -> None:
    harness = BufferHarness()
    harness.sink.hold = asyncio.Event()
    harness.buffer.start()
    harness.buffer.append(entry(0, until=60.0))
    await until(lambda: bool(harness.sink.batches))
    harness.now = 70.0
    await asyncio.sleep(0.05)
    assert harness.report.count == 0
    harness.sink.hold.set()
    await until(lambda: harness.report.count == 1)
    assert harness.report.successes == 1
    await harness.buffer.close()


async def test_with_retry_for_0_a_row_has_one_attempt_and_none_where_the_side_is_known_to_be_away() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, breaker_failures=2, breaker_pause=600.0))
    harness.sink.answer = lambda each: AWAY
    harness.buffer.start()
    for number in range(3):
        harness.buffer.append(entry(number, until=1.0))
    await until(lambda: harness.report.count == 3)
    assert harness.sink.taken == [b"0"]  # the others had to wait for it
    harness.buffer.append(entry(3, until=1.0))
    await until(lambda: harness.report.count == 4)
    assert harness.sink.taken == [b"0", b"3"] and harness.buffer.status.breaker == "open"
    with pytest.raises(ActionFailed, match="retry_for is 0: away"):
        harness.buffer.append(entry(4, until=1.0))
    assert harness.buffer.status.dropped == {"retry_for": 5}
    harness.buffer._breaker._until = 0.0  # the breaker's pause is over: one may try, or it would never close
    harness.sink.answer = lambda each: DELIVERED
    harness.buffer.append(entry(5, until=1.0))
    await until(lambda: harness.report.successes == 1)
    assert harness.buffer.status.breaker == "closed"
    await harness.buffer.close()


async def test_rows_of_retry_for_0_do_not_fail_because_others_are_before_them() -> None:
    harness = BufferHarness()
    harness.buffer.start()
    for number in range(50):
        harness.buffer.append(entry(number, until=1.0))
    await until(lambda: harness.report.count == 50)
    assert harness.report.successes == 50
    await harness.buffer.close()


async def test_delivered_rows_leave_nothing_behind_that_waits_for_their_time() -> None:
    harness = BufferHarness()
    harness.buffer.start()
    for number in range(6000):
        harness.buffer.append(entry(number, until=1e6 + number))
        if number % 100 == 99:
            await until(lambda number=number: harness.report.successes == number + 1)
    harness.now = 2.0
    await until(lambda: len(harness.buffer._deadlines) <= 1000)
    await harness.buffer.close()


async def test_rows_that_fail_together_hold_nobody_up() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, breaker_failures=1, breaker_pause=60.0))
    harness.sink.answer = lambda each: AWAY
    harness.buffer.start()
    for number in range(20_000):
        harness.buffer.append(entry(number, f"k{number % 100}", until=60.0))
    await until(lambda: harness.buffer.status.breaker == "open")
    harness.now, turns = 60.5, 0
    while harness.report.count < 20_000:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    await harness.buffer.close()
    assert isinstance(harness.sink, Sink)


async def test_a_row_whose_time_is_over_after_a_restart_runs_its_fallbacks_once(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"data_dir": str(tmp_path), "durability": {"level": "disk"}}
    rules = {"retry_backoff": 0.01, "retry_backoff_max": 0.05, "breaker_pause": 0.05}
    async with rule_engine_node(rules=rules, **tables) as node:
        config = {"url": f"http://127.0.0.1:{free_port()}"}
        await node.engine.resources.create("web_hook", config, id="hook")
        action = {
            "name": "data_to_webserver",
            "params": {"$resource": "hook", "retry_for": 2},
            "fallbacks": [KEEP],
        }
        await node.rule('SELECT payload as p FROM "t"', action, id="r")
        client = await node.client()
        await node.stand_still()  # no row's time is over here, however long this takes
        for number in range(3):
            await client.publish("t", b"%d" % number, 1)
        assert node.kept == []
    async with rule_engine_node(rules=rules, **tables) as node:
        assert [each["p"] for each in await node.until_kept(3)] == ["0", "1", "2"]
        node.engine.resources.tick()
        await asyncio.sleep(0.2)
        assert len(node.kept) == 3 and node.engine.rules.lookup("r").actions[0].metrics[0].failed == 3
        assert node.engine.buffers.after("hook", 0) == []
    async with rule_engine_node(rules=rules, **tables) as node:
        await asyncio.sleep(0.2)
        assert node.kept == []
