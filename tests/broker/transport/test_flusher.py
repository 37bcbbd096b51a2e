"""Flusher: everybody is written once a turn, bounded, with exactly one run outstanding."""

from collections.abc import Callable
from typing import Any

import pytest

from taipan.broker.loop.budget import LoopBudget
from taipan.broker.transport import connection_writer as module
from taipan.broker.transport.connection_writer import BYTES_PER_ITERATION, SENDS_PER_ITERATION, Flusher
from tests.support.fake_node import FakeLoop

pytestmark = pytest.mark.interpreted  # its writers are the test's own, and compiled code asks for the class


class Target:
    """A writer and its target at once."""

    def __init__(self, on_flush: Callable[[], object] = lambda: None) -> None:
        self.target = self
        self.flushed = 0
        self.resumed = 0
        self.aborted = False
        self.on_flush = on_flush

    def flush(self) -> None:
        self.flushed += 1
        self.on_flush()

    def resume(self) -> None:
        self.resumed += 1
        self.on_flush()

    def abort(self) -> None:
        self.aborted = True


class FlusherHarness:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.turn = LoopBudget()
        self.flusher = Flusher(self.loop, self.turn)  # type: ignore[arg-type]

    def add(self, *targets: Any) -> None:
        for each in targets:
            self.flusher.add(each)

    @property
    def outstanding(self) -> int:
        return self.loop.waiting(self.flusher.run)


def test_all_of_a_turn_in_one_run() -> None:
    harness = FlusherHarness()
    targets = [Target() for _ in range(SENDS_PER_ITERATION)]
    for target in targets:
        harness.add(target)
        assert harness.outstanding == 1
    harness.turn.deliveries, harness.turn.bytes = 10, 1000
    assert harness.flusher.waiting == SENDS_PER_ITERATION
    harness.loop.turn()
    assert [each.flushed for each in targets] == [1] * SENDS_PER_ITERATION
    assert (harness.outstanding, harness.flusher.waiting) == (0, 0)
    assert (harness.turn.deliveries, harness.turn.bytes) == (0, 0)


def test_who_is_left_comes_first_in_the_next_turn() -> None:
    harness = FlusherHarness()
    order: list[int] = []
    count = 2 * SENDS_PER_ITERATION + 2
    targets = [Target(lambda n=number: order.append(n)) for number in range(count)]
    harness.add(*targets)
    harness.turn.bytes = count * 10
    harness.loop.turn()
    assert order == list(range(SENDS_PER_ITERATION))
    assert harness.turn.bytes == (SENDS_PER_ITERATION + 2) * 10
    assert harness.outstanding == 1
    harness.add(Target(lambda: order.append(-1)))
    assert harness.outstanding == 1
    harness.loop.turn()
    harness.loop.turn()
    assert order[SENDS_PER_ITERATION:] == [*range(SENDS_PER_ITERATION, count), -1]
    assert (harness.turn.bytes, harness.outstanding) == (0, 0)


def test_one_run_is_outstanding_whatever_a_flush_adds() -> None:
    """A flush that makes more output, as retained messages do, is written in the next turn."""
    harness = FlusherHarness()
    late = Target()
    first = Target(lambda: harness.add(late))
    harness.add(first, *[Target() for _ in range(SENDS_PER_ITERATION)])
    harness.loop.turn()
    assert (harness.outstanding, late.flushed) == (1, 0)
    harness.loop.turn()
    assert (harness.outstanding, late.flushed) == (0, 1)


def test_the_paused_resume_after_the_output() -> None:
    harness = FlusherHarness()
    order: list[str] = []
    held = Target(lambda: order.append("resume"))
    harness.flusher.resume_later(held)
    assert harness.outstanding == 1
    harness.add(Target(lambda: order.append("flush")))
    harness.flusher.resume_later(held)
    assert harness.outstanding == 1
    harness.loop.turn()
    assert order == ["flush", "resume", "resume"]
    assert harness.outstanding == 0


def test_holding_again_while_resuming_waits_for_another_run() -> None:
    harness = FlusherHarness()
    again = Target()

    def hold_again() -> None:
        if again.resumed < 3:
            harness.flusher.resume_later(again)

    again.on_flush = hold_again
    harness.flusher.resume_later(again)
    for expected in (1, 2, 3):
        assert harness.outstanding == 1
        harness.loop.turn()
        assert again.resumed == expected
    assert harness.outstanding == 0


def test_one_broken_connection_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    harness = FlusherHarness()

    def fail() -> None:
        raise RuntimeError("broken")

    broken, sound, held, waiting = Target(fail), Target(), Target(fail), Target()
    harness.add(broken, sound)
    harness.flusher.resume_later(held)
    harness.flusher.resume_later(waiting)
    harness.loop.turn()
    assert (sound.flushed, waiting.resumed) == (1, 1)
    assert (broken.aborted, held.aborted, sound.aborted, waiting.aborted) == (True, True, False, False)
    assert [each.getMessage() for each in caplog.records] == ["flush_failed", "packets_failed"]
    assert all(each.exc_info for each in caplog.records)
    assert module.logger.name == "taipan.broker.transport.connection_writer"


def test_who_had_a_share_of_the_turn_lets_the_others_go_first() -> None:
    harness = FlusherHarness()
    order: list[str] = []
    harness.flusher.resume_later(Target(lambda: order.append("flood")), last=True)
    harness.flusher.resume_later(Target(lambda: order.append("other")))
    harness.loop.turn()
    assert order == ["other", "flood"]


def test_much_output_is_written_over_many_turns() -> None:
    """Two megabytes for each of two hundred: a turn copies some of it, and others are heard in between."""
    harness = FlusherHarness()
    order: list[int] = []
    harness.add(*[Target(lambda n=number: order.append(n)) for number in range(200)])
    harness.turn.bytes = 200 * 2_000_000
    written = []
    while harness.outstanding:
        before = len(order)
        harness.loop.turn()
        written.append(len(order) - before)
    assert max(written) * 2_000_000 <= BYTES_PER_ITERATION
    assert order == list(range(200)) and harness.turn.bytes == 0


def test_one_client_at_least_is_written_to() -> None:
    harness = FlusherHarness()
    targets = [Target(), Target()]
    harness.add(*targets)
    harness.turn.bytes = 10 * BYTES_PER_ITERATION
    harness.loop.turn()
    assert [each.flushed for each in targets] == [1, 0]
    harness.loop.turn()
    assert [each.flushed for each in targets] == [1, 1]


def test_an_answer_does_not_wait_behind_large_messages_to_others() -> None:
    harness = FlusherHarness()
    large = [Target() for _ in range(100)]
    harness.add(*large)
    harness.turn.bytes = 100 * BYTES_PER_ITERATION
    harness.loop.turn()
    answer = Target()
    harness.add(answer)
    harness.loop.turn()
    assert (answer.flushed, sum(each.flushed for each in large)) == (1, 2)
    while harness.outstanding:
        harness.loop.turn()
    assert [each.flushed for each in large] == [1] * 100
    assert (harness.flusher.waiting, harness.turn.bytes) == (0, 0)
