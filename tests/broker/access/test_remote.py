"""RemoteSource: what the contract suite does not reach, such as a service that connects and does not answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from taipan.broker.access.declaration import RemoteSettings
from taipan.broker.access.outside import ALLOW, DENY, IGNORE, Verdict
from taipan.broker.access.remote import RemoteSource, SourceFailed
from taipan.broker.access.remote_status import (
    BREAKER_FAILURES,
    CLOSED,
    CONNECTED,
    DOWN,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    NO_CONNECTION,
    OPEN,
    RemoteStatus,
)
from taipan.broker.access.source import SourceContext
from taipan.broker.config import AccessSettings
from taipan.broker.session.client_info import ClientInfo
from tests.support.clock import Clock
from tests.support.patience import patience

ALLOWED = Verdict(ALLOW, "", "access.box.key")


class Box(RemoteSource):
    """``answer``: what a question gets; ``connects``: what ``connect`` raises."""

    def __init__(self, **settings: Any) -> None:
        self.reasons: list[str] = []
        self.words: list[str] = []
        self.answer: Verdict | Exception | None = ALLOWED
        self.connects: Exception | None = None
        self.tries = 0
        context = SourceContext(
            Clock(), self.reasons.append, AccessSettings(), lambda source: self.words.append(source.status.word)
        )  # type: ignore[call-arg, arg-type]
        super().__init__("box", RemoteSettings(**settings), context)

    async def connect(self) -> None:
        self.tries += 1
        if self.connects is not None:
            raise self.connects

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        return None

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        return await self.ask("access.box.key", self._answer)

    async def _answer(self) -> Verdict:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.sleep(3600)
            raise AssertionError
        return self.answer

    async def asked(self) -> Verdict:
        return await self.authorize(ClientInfo("n@h", None), "publish", "t")  # type: ignore[arg-type]


pytestmark = pytest.mark.asyncio


async def until_tried(box: Box, count: int) -> None:
    async with asyncio.timeout(patience(40)):
        while box.tries < count or (box._reaching is not None and not box._reaching.done() and box.connects is None):
            await asyncio.sleep(0.01)


async def test_a_service_that_accepts_connections_and_does_not_answer() -> None:
    """An attempt to connect closes the breaker, and only an answer ends the alarm."""
    box = Box(timeout=0.01)
    box.start()
    await until_tried(box, 1)
    assert box.words == [CONNECTED]
    box.answer = None
    for _ in range(BREAKER_FAILURES):
        assert (await box.asked()).failure == "box_timeout"
    status = box.status
    assert (status.word, status.reason, status.breaker) == (DOWN, "timeout", OPEN)
    assert (await box.asked()) == Verdict(DENY, "box_down", "access.box.key")
    async with asyncio.timeout(patience(40)):
        while status.breaker != CLOSED:
            await asyncio.sleep(0.01)
    assert status.word == DOWN  # nothing has answered yet
    box.answer = ALLOWED
    assert (await box.asked()).allowed
    assert box.words == [CONNECTED, DOWN, CONNECTED] and status.next_pause() == FIRST_PAUSE
    await box.stop()


@pytest.mark.parametrize("on_failure, decision", [("deny", DENY), ("ignore", IGNORE)])
async def test_a_fault_of_the_source_itself(on_failure: str, decision: str, caplog: pytest.LogCaptureFixture) -> None:
    """It refuses as a failure does, and says nothing about the other side."""
    box = Box(on_failure=on_failure)
    box.answer = KeyError("no such row")
    for _ in range(2 * BREAKER_FAILURES):
        assert (await box.asked()) == Verdict(decision, "box_error", "access.box.key")
    assert box.status.breaker == CLOSED and not box.words and box.reasons == ["access_box_error"] * 10
    assert "no such row" in caplog.text
    box.connects = RuntimeError("no driver")
    with pytest.raises(SourceFailed) as failed:
        await box.try_connection()
    assert (failed.value.reason, failed.value.detail) == ("error", "RuntimeError")
    await box.stop()


async def slowly(box: Box) -> Verdict:
    """An answer that takes a quarter of the time-out."""
    await asyncio.sleep(0.05)
    return ALLOWED


async def test_the_wait_for_a_turn_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty questions take five times the time-out, each of them a quarter of it."""
    box = Box(pool_size=1, timeout=0.2)
    monkeypatch.setattr(Box, "_answer", slowly)
    verdicts = await asyncio.gather(*(box.asked() for _ in range(20)))
    assert verdicts == [ALLOWED] * 20 and box.status.failed == 0 and not box.reasons
    await box.stop()


async def test_the_wait_for_a_turn_has_a_limit_and_a_reason_of_its_own() -> None:
    """It says nothing about the other side."""
    box = Box(pool_size=1, timeout=3600.0, wait_timeout=0.01)
    box.answer = None
    first = asyncio.ensure_future(box.asked())
    await asyncio.sleep(0)
    for _ in range(2 * BREAKER_FAILURES):
        assert (await box.asked()) == Verdict(DENY, "box_busy", "access.box.wait_timeout")
    assert box.status.breaker == CLOSED and box.reasons == ["access_box_busy"] * 10 and not box.tries
    first.cancel()
    box.answer = ALLOWED
    assert (await box.asked()).allowed
    await box.stop()


async def test_questions_that_wait_while_the_breaker_opens_are_not_asked() -> None:
    box = Box(pool_size=BREAKER_FAILURES, timeout=0.01)
    box.answer = None
    verdicts = await asyncio.gather(*(box.asked() for _ in range(50)))
    failures = [verdict.failure for verdict in verdicts]
    assert failures == ["box_timeout"] * BREAKER_FAILURES + ["box_down"] * (50 - BREAKER_FAILURES)
    await box.stop()


async def test_a_question_that_waits_at_the_end_is_not_asked() -> None:
    box = Box(pool_size=1)
    box.answer = None
    waiting = [asyncio.ensure_future(box.asked()) for _ in range(2)]
    await asyncio.sleep(0)
    assert box.under_way == 2
    await box.stop()
    waiting[0].cancel()
    assert (await waiting[1]).failure == "box_stopping" and box.under_way == 0


async def test_an_attempt_to_connect_has_ended_when_the_source_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    async def connect(box: Box) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)  # it takes a while to close what it has opened
            ended.append(True)

    monkeypatch.setattr(Box, "connect", connect)
    box = Box()
    box.start()
    await asyncio.sleep(0)
    box.retire()
    assert box.busy
    await box.stop()
    assert ended == [True] and not box.busy


async def test_an_answer_between_failures_keeps_the_breaker_closed() -> None:
    box = Box()
    for _ in range(BREAKER_FAILURES):
        for _ in range(BREAKER_FAILURES - 1):
            box.answer = SourceFailed("broken", away=True)
            await box.asked()
        box.answer = SourceFailed("status_500")  # it is there
        await box.asked()
    assert box.status.breaker == CLOSED and box.status.breaker_opened == 0
    await box.stop()


async def test_attempts_end_with_the_source() -> None:
    box = Box()
    box.connects = SourceFailed(NO_CONNECTION)
    box.start()
    await until_tried(box, 1)
    assert box.words == [DOWN]
    box.retire()
    tries = box.tries
    await asyncio.sleep(FIRST_PAUSE + 0.2)
    assert box.tries == tries and not box.busy
    assert (await box.asked()).failure == "box_stopping"


async def test_pauses() -> None:
    status = RemoteStatus(Clock(), lambda: None)  # type: ignore[arg-type]
    pauses = [status.next_pause() for _ in range(8)]
    assert pauses[:3] == [1.0, 2.0, 4.0] and pauses[-1] == LONGEST_PAUSE == max(pauses)
    status.reachable()
    assert status.next_pause() == LONGEST_PAUSE  # it has answered nothing
    status.answered(ALLOW, 0.2)
    assert status.next_pause() == FIRST_PAUSE


async def test_latency_and_counts() -> None:
    status = RemoteStatus(Clock(), lambda: None)  # type: ignore[arg-type]
    assert status.latency is None
    for decision in (ALLOW, DENY, IGNORE, DENY):
        status.answered(decision, 0.1)
    assert status.latency == pytest.approx(0.1) and status.decisions == {ALLOW: 1, DENY: 2, IGNORE: 1}
    status.answered(ALLOW, 0.2)
    assert 0.1 < status.latency < 0.2
