"""How long a node waits for the other nodes that it asks before it clears a retained message, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from taipan.broker.cluster.calls import Calls
from taipan.broker.cluster.changes import Changes
from taipan.broker.cluster.context import ClusterContext
from taipan.broker.cluster.members.members import Members
from taipan.broker.cluster.members.peer import Peer
from taipan.broker.cluster.shared.settling import (
    AGAIN,
    ANSWER_TIMEOUT,
    LONGEST_ANSWER_TIMEOUT,
    SettleAnswer,
    Settled,
    Settling,
)
from taipan.broker.cluster.tasks import Tasks
from taipan.broker.cluster.wire import MemberRecord
from taipan.broker.core.cluster import RUNNING, STOPPED, SUSPECT, CallFailed, NodeUnreachable
from tools.simulation.loop import VirtualLoop

UNTIL = (1, 5.0)
NO_ANSWER = Settled({}, False)
ANSWER = Settled({"uid": UNTIL}, True)


class Asking:
    """A node that asks one other node about a clear. ``reply`` says what becomes of each question, and ``asked`` has
    for each when it was asked, and how long it may wait."""

    def __init__(self, reply: Callable[[], Awaitable[None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._reply = reply
        self.asked: list[tuple[float, float]] = []
        self.peer = Peer(MemberRecord("b@h", "uid", 1, "h", 1, 0.0, "1"), 1, 0.0, 0.0, -1e9)
        self.peer.status = RUNNING
        self.peers = {"b@h": self.peer}
        self.changes = Changes()
        self.tasks = Tasks()
        clock, wire = SimpleNamespace(now=self._loop.time), SimpleNamespace(incarnation=1)
        context = SimpleNamespace(clock=clock, wire=wire, before_frame=[])
        self.settling = Settling(
            cast("ClusterContext", context), cast("Members", self), cast("Calls", self), self.tasks, self._written
        )

    async def _written(self, asked: list[tuple[str, float]]) -> list[bool]:
        return [True for _ in asked]

    def serve(self, method: str, handler: object) -> None:
        pass

    def decoded(self, node: str, data: bytes, kind: Any) -> Any:
        return msgspec.msgpack.decode(data, type=kind)

    def send_call(self, node: str, method: str, argument: bytes, timeout: float) -> Coroutine[None, None, bytes]:
        self.asked.append((round(self._loop.time(), 3), timeout))
        return self._answered(timeout)

    async def _answered(self, timeout: float) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                await self._reply()
        except TimeoutError:
            raise NodeUnreachable("no answer in time") from None
        return msgspec.msgpack.encode([SettleAnswer(UNTIL, True)])

    def note(self, status: str = RUNNING, incarnation: int = 1, may_run_until: float = -1e9) -> None:
        """Note what this node has heard of the other one."""
        self.peer.status, self.peer.incarnation, self.peer.unheard_until = status, incarnation, may_run_until
        self.changes.tell()

    def remove(self) -> None:
        del self.peers["b@h"]
        self.note(STOPPED, may_run_until=1e9)

    async def settled(self) -> tuple[float, Settled]:
        """Return how long the question took, and what was answered."""
        began = self._loop.time()
        found = await self.settling.elsewhere("key", began)
        return round(self._loop.time() - began, 3), found


def in_virtual_time(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def nothing() -> None:
    """A question, or its answer, that was lost."""
    await asyncio.Event().wait()


def in_turn(*replies: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    left = list(replies)

    async def reply() -> None:
        await left.pop(0)()

    return reply


async def at_once() -> None:
    pass


async def refused() -> None:
    raise NodeUnreachable("not connected to NATS")


def test_a_lost_question_is_repeated_soon_though_the_node_could_not_be_asked_before() -> None:
    """For example, it was killed, is not yet Suspect, and has started again. Each attempt, ten in a second, once
    doubled the time that the next one waits: after one second, a lost question delayed the clear by half an hour."""

    async def scenario() -> None:
        asking = Asking(in_turn(*[refused] * 30, nothing, at_once))
        took, found = await asking.settled()
        assert (took, found) == (round(30 * AGAIN + ANSWER_TIMEOUT, 3), ANSWER)

    in_virtual_time(scenario)


def test_a_question_waits_twice_as_long_as_the_one_before_it_but_never_for_very_long() -> None:
    async def scenario() -> None:
        asking = Asking(in_turn(*[nothing] * 6, at_once))
        _, found = await asking.settled()
        waits = [ANSWER_TIMEOUT * 2**number for number in range(4)]
        assert waits[-1] == LONGEST_ANSWER_TIMEOUT
        assert [timeout for _, timeout in asking.asked] == [*waits, *[LONGEST_ANSWER_TIMEOUT] * 3]
        assert found == ANSWER

    in_virtual_time(scenario)


def test_a_way_that_takes_longer_than_the_first_question_waits_is_no_obstacle() -> None:
    async def slow() -> None:
        await asyncio.sleep(3 * ANSWER_TIMEOUT)

    async def scenario() -> None:
        asking = Asking(slow)
        took, found = await asking.settled()
        assert (took, found) == ((1 + 2 + 3) * ANSWER_TIMEOUT, ANSWER)

    in_virtual_time(scenario)


@pytest.mark.parametrize("removed", [False, True])
def test_nobody_waits_for_a_node_that_has_stopped(removed: bool) -> None:
    async def scenario() -> None:
        asking = Asking(nothing)
        gone = asking.remove if removed else lambda: asking.note(STOPPED)
        asyncio.get_running_loop().call_later(0.5, gone)
        assert await asking.settled() == (0.5, NO_ANSWER)

    in_virtual_time(scenario)


def test_a_node_that_has_started_again_is_asked_again_immediately() -> None:
    """Its earlier start took the question with it. Until its first heartbeat is heard, it is Stopped, but may run."""

    async def scenario() -> None:
        asking = Asking(in_turn(nothing, at_once))
        asyncio.get_running_loop().call_later(0.5, asking.note, STOPPED, 2, 10.0)
        assert await asking.settled() == (0.5, ANSWER)
        assert asking.asked == [(0.0, ANSWER_TIMEOUT), (0.5, ANSWER_TIMEOUT)]

    in_virtual_time(scenario)


def test_a_node_that_was_not_heard_yet_is_asked_until_it_is_certain_that_it_does_not_run() -> None:
    """It, or the asking node, has only just started."""

    async def scenario() -> None:
        asking = Asking(at_once)
        asking.note(STOPPED, may_run_until=3.0)
        assert await asking.settled() == (0.0, ANSWER)
        asking = Asking(refused)
        asking.note(STOPPED, may_run_until=3.0)
        took, found = await asking.settled()
        assert 3.0 <= took <= 3.0 + AGAIN and found == NO_ANSWER
        asking = Asking(at_once)
        asking.note(STOPPED)
        assert await asking.settled() == (0.0, NO_ANSWER)
        assert not asking.asked

    in_virtual_time(scenario)


def test_a_suspect_node_is_asked_once() -> None:
    async def scenario() -> None:
        asking = Asking(nothing)
        asking.note(SUSPECT)
        assert await asking.settled() == (ANSWER_TIMEOUT, NO_ANSWER)
        assert len(asking.asked) == 1

    in_virtual_time(scenario)


def test_a_node_that_cannot_answer_is_not_asked_again() -> None:
    async def fails() -> None:
        raise CallFailed("no such call")

    async def scenario() -> None:
        asking = Asking(fails)
        assert await asking.settled() == (0.0, NO_ANSWER)

    in_virtual_time(scenario)


def test_nothing_is_logged_when_the_asking_node_stops(caplog: pytest.LogCaptureFixture) -> None:
    """Also if a question has failed in the same iteration of the event loop."""

    async def scenario() -> None:
        for reply in (nothing, refused):
            asking = Asking(reply)
            waiting = asyncio.ensure_future(asking.settled())
            for _ in range(12):
                await asyncio.sleep(0)
                if asking.asked:
                    break
            asking.tasks.cancel()
            asking.settling.stop()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    in_virtual_time(scenario)
    assert not caplog.records
