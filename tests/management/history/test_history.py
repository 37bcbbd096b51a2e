"""History: points by the node's clock, which the tests move, and what of them outlives the process."""

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from taipan.management.configuration.settings import HistorySettings, ManagementSettings
from taipan.management.history import disk_thread
from taipan.management.history.history import FILE, History, Ring, decoded
from taipan.management.history.point import FIGURES, Point
from taipan.management.history.ring_file import MAX_POINT
from taipan.ruleengine.config import RuleEngineSettings
from tests.support.api import ManagedNode
from tests.support.node import make_settings

pytestmark = pytest.mark.asyncio

NOON = 1_800_000_000.0
"""A whole minute; every node of these tests has a clock of its own that begins here."""


@asynccontextmanager
async def node_at(
    directory: Path, at: float, enabled: bool = True, cannot_write: bool = False
) -> AsyncIterator[ManagedNode]:
    settings = make_settings(node={"data_dir": str(directory)})
    management = ManagementSettings(enabled=False, bind="127.0.0.1:0")
    history = HistorySettings(enabled=enabled)
    node = ManagedNode(settings, management, RuleEngineSettings(), history=history)
    node.clock.stand_still()  # a start takes longer on a busy machine
    set_clock(node, at)
    if cannot_write:
        node.ignore(lambda record: "history_not_written" in record.getMessage())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def set_clock(node: ManagedNode, at: float) -> None:
    node.clock.shift += at - node.clock.now()


async def at(node: ManagedNode, *times: float) -> None:
    for time in times:
        set_clock(node, time)
        await node.server.tick()


def seconds(history: History, start: float = NOON - 3600, end: float = NOON + 7200) -> list[Point]:
    return [decoded(each) for each in history.between("second", int(start), int(end))]


def minutes(history: History) -> list[Point]:
    return [decoded(each) for each in history.between("minute", int(NOON - 86_400), int(NOON + 86_400))]


def long(history: History) -> list[Point]:
    return [decoded(each) for each in history.between("ten_minutes", 0, int(NOON + 86_400))]


async def test_one_point_each_second(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON + 0.5) as node:
        history = node.management.history
        await at(node, NOON + 0.9)
        assert seconds(history) == [] and history.latest is None
        await at(node, NOON + 1.02, NOON + 1.5, NOON + 1.98, NOON + 2.05)
        assert [(point.at, point.seconds) for point in seconds(history)] == [
            (NOON + 1, pytest.approx(0.52, abs=0.05)),
            (NOON + 2, pytest.approx(1.03, abs=0.05)),
        ]
        assert history.latest == seconds(history)[-1]


async def test_a_loop_that_was_held_makes_one_point_of_all_that_time(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON + 0.9) as node:
        await at(node, NOON + 1.05, NOON + 6.5, NOON + 7.05)
        points = seconds(node.management.history)
        assert [point.at for point in points] == [NOON + 1, NOON + 6, NOON + 7]
        assert points[1].seconds == pytest.approx(5.45, abs=0.05)


async def test_an_hour_is_kept(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        await at(node, *(NOON + second for second in range(3700)))
        points = seconds(node.management.history)
        assert [point.at for point in points] == list(range(int(NOON) + 100, int(NOON) + 3700))
        assert [point.at for point in minutes(node.management.history)] == [NOON + 60 * each for each in range(62)]


async def test_a_minute_is_that_of_its_seconds(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        history = node.management.history
        await at(node, NOON)
        node.server.metrics.bytes_sent += 600
        await at(node, *(NOON + second for second in range(1, 60)))
        assert [point.at for point in minutes(history)] == [NOON]
        await at(node, NOON + 60)
        minute = minutes(history)[-1]
        assert minute.at == NOON + 60 and minute.seconds == pytest.approx(60, abs=1)
        assert minute.figures[FIGURES.index("bytes_sent")] == pytest.approx(10, abs=0.5)


async def test_the_past_is_there_after_a_restart(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        await at(node, *(NOON + second for second in range(91)))
        before = seconds(node.management.history)
        (first, second) = minutes(node.management.history)
    async with node_at(tmp_path, NOON + 120.5) as node:
        history = node.management.history
        assert seconds(history) == before
        await at(node, NOON + 121)
        # The minute that was not over is made of its seconds.
        assert [point.at for point in minutes(history)] == [NOON, NOON + 60, NOON + 120]
        assert minutes(history)[:2] == [first, second]
        assert minutes(history)[2].seconds == pytest.approx(30, abs=1)
        assert [point.at for point in seconds(history)] == [*(point.at for point in before), NOON + 121]


async def test_ten_minutes_are_made_of_their_minutes(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        history = node.management.history
        await at(node, *(NOON + second for second in range(900)))
        # Some of the second ten minutes are minutes already, and some are seconds.
        assert [point.at for point in long(history)] == [NOON, NOON + 600]
        assert long(history)[-1].seconds == pytest.approx(600, abs=1)
    async with node_at(tmp_path, NOON + 900.5) as node:
        history = node.management.history
        await at(node, *(NOON + 901 + second for second in range(300)))
        assert [point.at for point in long(history)] == [NOON, NOON + 600, NOON + 1200]
        assert long(history)[-1].seconds == pytest.approx(600, abs=2)


async def test_what_is_too_old_or_to_come_is_not_shown(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        await at(node, *(NOON + second for second in range(10)))
    async with node_at(tmp_path, NOON + 3604.5) as node:
        assert [point.at for point in seconds(node.management.history)] == [NOON + each for each in range(5, 10)]
    async with node_at(tmp_path, NOON + 4.5) as node:  # the wall clock was set back
        assert [point.at for point in seconds(node.management.history)] == [NOON + each for each in range(5)]
    async with node_at(tmp_path, NOON - 86_400 * 30) as node:
        assert seconds(node.management.history) == minutes(node.management.history) == []


async def test_a_clock_that_is_set_back_writes_over(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        history = node.management.history
        await at(node, *(NOON + second for second in range(10)))
        node.clock.jump = -5.0
        assert [point.at for point in seconds(history)] == [NOON + each for each in range(5)]
        await at(node, *(NOON + 9 + second for second in range(1, 7)))
        assert [point.at for point in seconds(history)][-3:] == [NOON + 8, NOON + 9, NOON + 10]


@pytest.mark.parametrize("damage", ["cut", "empty", "head", "bytes", "directory", "unreadable head"])
async def test_no_file_keeps_a_node_from_starting(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / FILE
    if damage == "directory":
        file.mkdir()
    else:
        async with node_at(tmp_path, NOON - 0.5) as node:
            await at(node, NOON, NOON + 1)
        content = bytearray(file.read_bytes())
        if damage == "cut":
            del content[len(content) // 2 :]
        elif damage == "empty":
            content.clear()
        elif damage == "head":
            content[3] ^= 0xFF
        elif damage == "unreadable head":
            content[:4096] = bytes(4096)
        else:
            content[4096:] = os.urandom(len(content) - 4096)
        file.write_bytes(content)
    async with node_at(tmp_path, NOON + 9.5, cannot_write=damage == "directory") as node:
        history = node.management.history
        assert seconds(history) == []
        await at(node, NOON + 10)
        assert [point.at for point in seconds(history)] == [NOON + 10]
    said = {"directory": "history_not_written", "bytes": "history_points_damaged", "empty": ""}
    assert said.get(damage, "history_damaged") in caplog.text


async def test_a_disk_that_is_full_is_said_once_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, full = os.pwrite, True
    tried = threading.Semaphore(0)

    def pwrite(file: int, data: bytes, offset: int) -> int:
        tried.release()
        if full:
            raise OSError(28, "No space left on device")
        return real(file, data, offset)

    async with node_at(tmp_path, NOON - 0.5, cannot_write=True) as node:
        monkeypatch.setattr(os, "pwrite", pwrite)
        await at(node, NOON + 1, NOON + 2, NOON + 3)
        for _ in range(3):
            assert tried.acquire(timeout=20)
        full = False
        await at(node, NOON + 4)
        assert [point.at for point in seconds(node.management.history)] == [NOON + each for each in range(1, 5)]
    assert caplog.text.count("history_not_written") == 1 and "No space left" in caplog.text
    assert "history_written_again" in caplog.text and "lost=3" in caplog.text
    async with node_at(tmp_path, NOON + 5.5) as node:
        assert [point.at for point in seconds(node.management.history)] == [NOON + 4]


async def test_a_disk_that_does_not_answer_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    real = os.pwrite

    def pwrite(file: int, data: bytes, offset: int) -> int:
        answers.wait(60)
        return real(file, data, offset)

    monkeypatch.setattr(disk_thread, "STOP_TIMEOUT", 0.05)
    monkeypatch.setattr(disk_thread, "MAX_WAITING", 64)
    async with node_at(tmp_path, NOON - 0.5, cannot_write=True) as node:
        monkeypatch.setattr(os, "pwrite", pwrite)
        await at(node, *(NOON + second for second in range(200)))
        assert len(seconds(node.management.history)) == 200
    assert "the disk does not answer" in caplog.text
    answers.set()


async def test_nothing_is_kept_where_that_is_off(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5, enabled=False) as node:
        history = node.management.history
        await at(node, NOON, NOON + 1)
        assert seconds(history) == [] and history.latest is not None and history.latest.at == NOON + 1
    assert not (tmp_path / FILE).exists()


async def test_a_second_with_many_reasons_fits(tmp_path: Path) -> None:
    async with node_at(tmp_path, NOON - 0.5) as node:
        await at(node, NOON)
        for number in range(100):
            node.server.metrics.refusals.add(f"a_reason_of_some_length_{number}", 100 + number)
        await at(node, NOON + 1)
    async with node_at(tmp_path, NOON + 2.5) as node:
        point = seconds(node.management.history)[-1]
        assert point.at == NOON + 1 and len(msgspec.msgpack.encode(point)) <= MAX_POINT
        assert sum(point.drops.values()) == pytest.approx(sum(range(100, 200)), rel=0.1)
        assert "a_reason_of_some_length_99" in point.drops and "other" in point.drops


async def test_a_ring_gives_what_its_time_has() -> None:
    ring = Ring("minute")
    for at_ in range(0, 60 * 4440, 60):
        ring.put(at_, str(at_).encode())
    now = 60 * 4439
    found = ring.between(0, now, now)
    assert [int(each) for each in found] == list(range(60 * 1560, 60 * 4440, 60))
    assert ring.between(60 * 2000 + 1, 60 * 2001 + 59, now) == [str(60 * 2001).encode()]
    assert ring.between(now, now - 1, now) == []
    assert ring.between(now + 60, now + 600, now) == []
