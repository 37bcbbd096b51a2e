"""Buffers: order, bounds, batches, retries, the breaker, and what is left for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from taipan.broker.persistence.tables import Tables
from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.delivery.buffer import DELIVERED, Buffer, DeliveryOutcome
from taipan.ruleengine.delivery.buffer_store import TABLE, BufferStore
from taipan.ruleengine.delivery.buffered_row import BufferedRow, encode_row
from tests.support.fake_engine import QUICK, FakeReport
from tests.support.node import make_settings, start_node
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


class Sink:
    """Takes batches as ``answer`` says; remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.lanes: set[int] = set()
        self.answer: Callable[[BufferedRow], DeliveryOutcome] = lambda entry: DELIVERED
        self.hold: asyncio.Event | None = None

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        self.lanes.add(lane)
        self.batches.append([each.request for each in rows])
        if self.hold is not None:
            await self.hold.wait()
        return [self.answer(each) for each in rows]

    @property
    def taken(self) -> list[bytes]:
        return [each for batch in self.batches for each in batch]


def entry(
    number: int, key: str = "c", action: str = "a_1", group: str = "", most: int = 1, until: float = 0.0
) -> BufferedRow:
    return BufferedRow(action, key, group, most, 1.0, b"%d" % number, encode_row({"n": number}), until)


class BufferHarness:
    def __init__(self, settings: RuleEngineSettings = QUICK, lanes: int = 1, store: BufferStore | None = None) -> None:
        self.store = store or BufferStore(Tables())
        self.sink = Sink()
        self.report = self.store.reports["a_1"] = FakeReport()
        self.now = 1.0
        self.buffer = Buffer("resource:1", self.store, settings, self.sink, lanes, Random(1), now=lambda: self.now)


async def test_rows_arrive_in_order_and_are_told_of() -> None:
    harness = BufferHarness()
    harness.buffer.start()
    for number in range(50):
        harness.buffer.append(entry(number))
    await until(lambda: harness.report.successes == 50)
    assert harness.sink.taken == [b"%d" % number for number in range(50)]
    assert harness.buffer.status.waiting == harness.buffer.status.waiting_bytes == 0
    assert harness.store.after("resource:1", 0) == []
    await harness.buffer.close()


async def test_lanes_work_side_by_side_and_each_client_in_order() -> None:
    harness = BufferHarness(lanes=4)
    harness.buffer.start()
    for number in range(200):
        harness.buffer.append(entry(number, f"client-{number % 20}"))
    await until(lambda: harness.report.successes == 200)
    assert len(harness.sink.lanes) == 4
    for client in range(20):
        mine = [int(each) for each in harness.sink.taken if int(each) % 20 == client]
        assert mine == sorted(mine)
    await harness.buffer.close()


async def test_what_fails_for_now_is_tried_again_in_its_place() -> None:
    harness = BufferHarness()
    left = 3

    def answer(each: BufferedRow) -> DeliveryOutcome:
        nonlocal left
        if each.request == b"1" and left:
            left -= 1
            return DeliveryOutcome("away", retry=True, unreachable=True)
        return DELIVERED

    harness.sink.answer = answer
    harness.buffer.start()
    for number in range(3):
        harness.buffer.append(entry(number))
    await until(lambda: harness.report.successes == 3)
    assert harness.sink.taken == [b"0", b"1", b"1", b"1", b"1", b"2"]
    assert harness.buffer.status.retried == 3
    assert harness.buffer.status.last_error == "away"
    await harness.buffer.close()


async def test_what_is_refused_is_told_with_its_row_and_not_tried_again() -> None:
    harness = BufferHarness()
    harness.sink.answer = lambda each: DeliveryOutcome("HTTP 404") if each.request == b"0" else DELIVERED
    harness.buffer.start()
    harness.buffer.append(entry(0))
    harness.buffer.append(entry(1))
    await until(lambda: harness.report.count == 2)
    assert harness.report.failures == [("HTTP 404", {"n": 0})]
    assert harness.sink.taken == [b"0", b"1"]
    assert harness.buffer.status.dropped == {"refused": 1}
    await harness.buffer.close()


@pytest.mark.parametrize("dead_letters", [1000, 0])
async def test_a_row_that_goes_aside_is_kept_at_once_and_makes_no_other_wait(dead_letters: int) -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, dead_letters=dead_letters))
    refused = DeliveryOutcome("a constraint", aside=True)
    harness.sink.answer = lambda each: refused if each.request == b"1" else DELIVERED
    harness.buffer.start()
    for number in range(3):
        harness.buffer.append(entry(number, most=3))
    await until(lambda: harness.report.count == 3)
    assert harness.sink.batches == [[b"0", b"1", b"2"]]
    assert harness.report.failures == [("a constraint", {"n": 1})]
    letters = harness.store.dead_letters.of("resource:1").values()
    assert [(each.buffered.request, each.attempts, each.reason) for each in letters] == (
        [(b"1", 1, "a constraint")] if dead_letters else []
    )
    status = harness.buffer.status
    assert (status.set_aside, status.retried, status.dropped["refused"]) == (int(dead_letters > 0), 0, 1)
    harness.sink.answer = lambda each: DELIVERED
    assert [harness.buffer.send_again(number) for number in list(harness.store.dead_letters.of("resource:1"))] == (
        [True] if dead_letters else []
    )
    await until(lambda: harness.report.successes == 2 + int(dead_letters > 0))
    await harness.buffer.close()


async def test_a_row_that_is_refused_again_and_again_is_given_up_and_holds_up_nobody() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, retry_attempts=3, breaker_failures=100))
    harness.sink.answer = lambda each: DeliveryOutcome("HTTP 500", retry=True) if each.request == b"0" else DELIVERED
    harness.buffer.start()
    harness.buffer.append(entry(0))
    harness.buffer.append(entry(1))
    await until(lambda: harness.report.count == 2)
    assert harness.sink.taken == [b"0", b"0", b"0", b"1"]
    ((reason, row),) = harness.report.failures
    assert "HTTP 500" in reason and "ruleengine.retry_attempts" in reason and row == {"n": 0}
    assert harness.buffer.status.dropped == {"retry_attempts": 1} and harness.buffer.status.set_aside == 1
    await harness.buffer.close()


@pytest.mark.parametrize("setting, bound", [("buffer_messages", 3), ("buffer_bytes", 3 * entry(1).size)])
async def test_what_does_not_fit_is_refused_at_once_and_names_the_setting(
    setting: str, bound: int, caplog: pytest.LogCaptureFixture
) -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, **{setting: bound}))
    harness.sink.hold = asyncio.Event()
    harness.buffer.start()
    for number in range(3):
        harness.buffer.append(entry(number))
    for _ in range(2):
        with pytest.raises(ActionFailed, match=f"ruleengine.{setting} = {bound}"):
            harness.buffer.append(entry(9))
    assert harness.buffer.status.dropped == {"buffer_full": 2}
    lines = [each.getMessage() for each in caplog.records if "buffer_full" in each.getMessage()]
    assert len(lines) == 1 and f"setting=ruleengine.{setting}" in lines[0]
    harness.sink.hold.set()
    await until(lambda: harness.report.successes == 3)
    harness.buffer.append(entry(3))
    await until(lambda: harness.report.successes == 4)
    await harness.buffer.close()


async def test_rows_of_one_group_share_a_request_up_to_the_most() -> None:
    harness = BufferHarness()
    harness.buffer.start()
    for number in range(5):
        harness.buffer.append(entry(number, group="g", most=3))
    harness.buffer.append(entry(5, group="h", most=3))
    await until(lambda: harness.report.successes == 6)
    assert harness.sink.batches == [[b"0", b"1", b"2"], [b"3", b"4"], [b"5"]]
    await harness.buffer.close()


async def test_a_row_waits_for_others_no_longer_than_the_linger() -> None:
    harness = BufferHarness()
    harness.buffer.start()
    harness.buffer.append(entry(0, group="g", most=100))
    await until(lambda: harness.report.successes == 1)
    assert harness.sink.batches == [[b"0"]]
    await harness.buffer.close()


async def test_of_a_batch_only_what_failed_is_sent_again() -> None:
    harness = BufferHarness()
    seen: set[bytes] = set()

    def answer(each: BufferedRow) -> DeliveryOutcome:
        first = each.request not in seen
        seen.add(each.request)
        lost = first and each.request in (b"1", b"3")
        return DeliveryOutcome("lost", retry=True, unreachable=True) if lost else DELIVERED

    harness.sink.answer = answer
    harness.buffer.start()
    for number in range(4):
        harness.buffer.append(entry(number, most=4))
    await until(lambda: harness.report.successes == 4)
    assert harness.sink.batches == [[b"0", b"1", b"2", b"3"], [b"1", b"3"]]
    await harness.buffer.close()


async def test_a_failure_of_which_nobody_knows_the_row_is_counted_without_one() -> None:
    harness = BufferHarness()
    harness.sink.answer = lambda each: DeliveryOutcome("1 of 2", attributed=False)
    harness.buffer.start()
    harness.buffer.append(entry(0))
    await until(lambda: harness.report.count == 1)
    assert harness.report.failures == [("1 of 2", None)]
    await harness.buffer.close()


async def test_the_breaker_opens_after_failures_and_closes_when_one_attempt_succeeds() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, breaker_failures=3, breaker_pause=30.0), lanes=3)
    harness.sink.answer = lambda each: DeliveryOutcome("away", retry=True, unreachable=True)
    harness.buffer.start()
    for number in range(6):
        harness.buffer.append(entry(number, f"k{number}"))
    await until(lambda: harness.buffer.status.breaker == "open")
    await until(lambda: harness.buffer.status.waiting == 6)
    attempts = len(harness.sink.batches)
    await asyncio.sleep(0.1)  # several back-offs long
    assert len(harness.sink.batches) <= attempts + 3
    assert harness.buffer.status.breaker_opened == 1
    harness.sink.answer = lambda each: DELIVERED
    harness.buffer.retry_now()
    await until(lambda: harness.report.successes == 6)
    assert harness.buffer.status.breaker == "closed"
    await harness.buffer.close()


async def test_the_breaker_lets_one_attempt_through_after_its_pause() -> None:
    harness = BufferHarness(msgspec.structs.replace(QUICK, breaker_failures=1, breaker_pause=0.02))
    harness.sink.answer = lambda each: DeliveryOutcome("away", retry=True, unreachable=True)
    harness.buffer.start()
    harness.buffer.append(entry(0))
    await until(lambda: len(harness.sink.batches) >= 3)
    harness.sink.answer = lambda each: DELIVERED
    await until(lambda: harness.report.successes == 1)
    await harness.buffer.close()


async def test_an_error_of_the_sink_is_no_end_of_the_lane() -> None:
    harness = BufferHarness()
    first = True

    def answer(each: BufferedRow) -> DeliveryOutcome:
        nonlocal first
        if first:
            first = False
            raise RuntimeError("a bug")
        return DELIVERED

    harness.sink.answer = answer
    harness.buffer.start()
    harness.buffer.append(entry(0))
    await until(lambda: harness.report.successes == 1)
    assert harness.buffer.status.last_error == "a bug"
    await harness.buffer.close()


async def test_a_closed_buffer_leaves_what_waits_to_the_next_of_its_resource() -> None:
    harness = BufferHarness()
    harness.sink.answer = lambda each: DeliveryOutcome("away", retry=True, unreachable=True)
    harness.buffer.start()
    for number in range(1200):
        harness.buffer.append(entry(number))
    await until(lambda: bool(harness.sink.batches))
    async with asyncio.timeout(patience(40)):
        await harness.buffer.close()
    with pytest.raises(ActionFailed):
        harness.buffer.append(entry(9))
    after = BufferHarness(store=harness.store)
    after.buffer.append(entry(1200))
    after.buffer.start()
    after.buffer.append(entry(1201))
    await until(lambda: after.report.successes == 1202)
    assert after.sink.taken == [b"%d" % number for number in range(1202)]
    assert after.buffer.status.waiting == after.buffer.status.waiting_bytes == 0
    await after.buffer.close()


async def test_what_is_on_its_way_has_a_moment_to_arrive_when_a_buffer_closes() -> None:
    harness = BufferHarness()
    harness.sink.hold = asyncio.Event()
    harness.buffer.start()
    harness.buffer.append(entry(0))
    await until(lambda: bool(harness.sink.batches))
    closing = asyncio.ensure_future(harness.buffer.close())
    await asyncio.sleep(0)
    harness.sink.hold.set()
    await closing
    assert harness.report.successes == 1 and harness.store.after("resource:1", 0) == []


async def test_a_deleted_resource_takes_what_waited_with_it() -> None:
    harness = BufferHarness()
    harness.buffer.append(entry(0))
    assert harness.store.forget("resource:1") == 1
    assert harness.store.after("resource:1", 0) == []


async def test_entries_survive_the_process_at_level_disk(tmp_path: Path) -> None:
    config: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    node = await start_node(**config)
    store = BufferStore(node.server.tables)
    buffer = Buffer("resource:1", store, QUICK, Sink(), 1, Random(1))
    for number in range(5):
        buffer.append(entry(number))
    memory_only = Buffer("resource:2", store, QUICK, Sink(), 1, Random(1), durable=False)
    memory_only.append(entry(7))
    number, _ = store.after("resource:1", 0)[1]
    store.remove("resource:1", number)
    assert await node.server.tables.stored()
    await node.stop()

    from taipan.broker.server import Server

    server = Server(make_settings(**config))
    restored = BufferStore(server.tables)
    await server.start()
    try:
        assert restored.after("resource:1", 0)
        harness = BufferHarness(store=restored)
        harness.buffer.start()
        await until(lambda: harness.report.successes == 4)
        assert harness.sink.taken == [b"0", b"2", b"3", b"4"]
        harness.buffer.append(entry(5))
        await until(lambda: harness.report.successes == 5)
        await harness.buffer.close()
        assert len(server.tables.open(TABLE, BufferedRow)) == 0
    finally:
        await server.stop()
