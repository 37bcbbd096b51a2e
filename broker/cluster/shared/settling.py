"""Settling: before a node clears a retained message, it asks the other nodes which of their changes of its topic are
older than the clear (``retained``)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from ...core.cluster import SUSPECT, CallFailed, NodeUnreachable
from ..calls import Calls
from ..changes import Changes, until
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..tasks import Tasks

logger = logging.getLogger(__name__)

SETTLE: Final = "retained.settle"
ANSWER_TIMEOUT: Final = 2.0
"""Seconds that the first question waits for its answer. Each question that was not answered in time doubles the time of
the next one, in case the round trip takes that long."""
LONGEST_ANSWER_TIMEOUT: Final = 16.0
"""Maximum seconds that a question waits. Otherwise, one more lost message could delay a clear by hours."""
AGAIN: Final = 0.1
"""Seconds before a node that could not be asked is asked again, for example because it was not connected to NATS."""
_MOST_EARLY: Final = 64
"""Maximum number of unanswered questions that are asked early. Beyond it, for example while a node hangs, a question is
only asked when its clear can be written."""
_DRIFT: Final = 0.001
"""The fraction by which a duration may be longer on another node's clock."""

Moment = tuple[int, float]
"""A point in one node's time: the node's incarnation, and seconds by ``Clock.now``, which does not jump. Moments of one
node can be compared, those of different nodes cannot."""

BEFORE: Final[Moment] = (0, 0.0)
"""Earlier than any other moment; it means that nothing is known."""


class SettleAnswer(msgspec.Struct, array_like=True, frozen=True):
    """A node's answer about a topic. Its changes up to ``until`` are older than the clear, and all others are newer.
    ``until`` is ``None`` if the node has started since the clear, and therefore does not know. ``written``: the bucket
    has all its older changes."""

    until: Moment | None
    written: bool


class Settled(NamedTuple):
    """The other nodes' answers about a topic. ``until`` has ``SettleAnswer.until`` by the uid of each node.
    ``complete``: all other nodes have answered, and the bucket has all their changes that are older than the clear."""

    until: dict[str, Moment]
    complete: bool


NOBODY: Final = Settled({}, True)


class _Call:
    """A question that was sent to the start ``to`` of a node: its uid and incarnation. ``answered`` reports its
    answer."""

    __slots__ = ("answer", "answered", "to")

    def __init__(self, answer: asyncio.Future[bytes], to: tuple[str, int]) -> None:
        self.answer = answer
        self.to = to
        self.answered = Changes()

    def ended(self, _: asyncio.Future[bytes]) -> None:
        if not self.answer.cancelled():
            self.answer.exception()  # asyncio logs one that no task has read, for example because this node stops
        self.answered.tell()


class _Question:
    """One question to the other nodes about several keys. It has the time of each key's clear, the first call to each
    node that may answer, and the number of nodes at that time."""

    __slots__ = ("asked", "asking", "calls", "peers")

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.asking: asyncio.Task[dict[str, Settled]] | None = None
        self.calls: list[tuple[Peer, _Call]] = []
        self.peers = 0


class Settling:
    """The questions about cleared topics to other nodes, and the answers of this node. ``ClusterRetained`` calls
    ``elsewhere`` before it writes a clear.

    ``written`` is called with keys, each with a time (``Clock.now``). It waits a moment until the bucket has this
    node's changes up to that time, and returns for each key whether it does.
    """

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        tasks: Tasks,
        written: Callable[[list[tuple[str, float]]], Awaitable[list[bool]]],
    ) -> None:
        self._wire = context.wire
        self._clock = context.clock
        self._started = context.clock.now()
        self._peers = members.peers
        self._members_changed = members.changes
        self._calls = calls
        self._tasks = tasks
        self._written = written
        # What is asked in this iteration, and all questions without answers.
        self._question: _Question | None = None
        self._under_way: set[asyncio.Task[dict[str, Settled]]] = set()
        context.before_frame.append(self.send)
        calls.serve(SETTLE, self._answer)

    def stop(self) -> None:
        """Forget the questions, after their tasks were cancelled."""
        self._question = None

    @property
    def moment(self) -> Moment:
        """The present moment at this node."""
        return self._wire.incarnation, self._clock.now()

    def ask(self, name: str, at: float) -> asyncio.Task[dict[str, Settled]]:
        """Ask the other nodes about a key that was cleared at the given time (``Clock.now``), together with all other
        clears of this iteration. The question is sent before any later message of a link."""
        question = self._question
        if question is None:
            question = self._question = _Question()
            question.asking = self._tasks.run(self._ask_others(question))
            self._under_way.add(question.asking)
            question.asking.add_done_callback(self._under_way.discard)
        question.asked[name] = at
        assert question.asking is not None
        return question.asking

    @property
    def may_ask(self) -> bool:
        """Whether another question may be asked early, because few questions are waiting for answers."""
        return len(self._under_way) < _MOST_EARLY

    async def elsewhere(self, name: str, at: float, asking: asyncio.Task[dict[str, Settled]] | None = None) -> Settled:
        """Return the other nodes' answers about a key that was cleared at a given time. ``asking`` is the result of an
        earlier ``ask``."""
        return (await asyncio.shield(asking or self.ask(name, at)))[name]

    def send(self) -> None:
        """Send the collected questions now."""
        question, self._question = self._question, None
        if question is not None:
            peers = [peer for peer in self._peers.values() if self._may_answer(peer)]
            question.peers = len(self._peers)
            data = self._encoded(question.asked)
            question.calls = [(peer, self._call(peer, data, ANSWER_TIMEOUT)) for peer in peers]

    async def _ask_others(self, question: _Question) -> dict[str, Settled]:
        await asyncio.sleep(0)  # all clears of this iteration together
        if question is self._question:
            self.send()
        asked, calls = question.asked, question.calls
        answers = await asyncio.gather(*(self._ask(peer, asked, call) for peer, call in calls))
        found = [(peer.uid, answer) for (peer, _), answer in zip(calls, answers, strict=True) if answer is not None]
        settled = {}
        for number, name in enumerate(asked):
            each = [(uid, answer[number]) for uid, answer in found]
            until = {uid: answer.until for uid, answer in each if answer.until is not None}
            settled[name] = Settled(until, len(until) == question.peers and all(answer.written for _, answer in each))
        return settled

    def _encoded(self, asked: dict[str, float]) -> bytes:
        now = self._clock.now()
        return msgspec.msgpack.encode([(name, now - at) for name, at in asked.items()])

    def _call(self, peer: Peer, question: bytes, timeout: float) -> _Call:
        """Send a question now."""
        try:
            asked = self._calls.send_call(peer.name, SETTLE, question, timeout)
        except (CallFailed, NodeUnreachable) as error:
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
        else:
            answer = self._tasks.run(asked)
        call = _Call(answer, (peer.uid, peer.incarnation))
        answer.add_done_callback(call.ended)
        return call

    async def _ask(self, peer: Peer, asked: dict[str, float], call: _Call) -> list[SettleAnswer] | None:
        """Wait for the answer to a question, and ask again until there is one, or the node is Suspect, or has stopped.
        Return ``None`` if there is no answer.

        Each question says how long ago the clear was. Therefore the answer is correct however late the question
        arrives, and whatever time the other node's clock shows.
        """
        loop = asyncio.get_running_loop()
        timeout = ANSWER_TIMEOUT
        while True:
            began = loop.time()
            try:
                answer = await self._answer_of(peer, call)
                answers = self._calls.decoded(peer.name, answer, list[SettleAnswer])
                return answers if len(answers) == len(asked) else None
            except CallFailed as error:
                logger.debug("cluster_retained_not_settled node=%s error=%s", peer.name, error)
                return None
            except NodeUnreachable as error:
                logger.debug("cluster_retained_not_settled node=%s error=%s", peer.name, error)
                if peer.status == SUSPECT or not self._may_answer(peer):
                    return None
            waited = loop.time() - began
            if waited > 0.9 * timeout:  # not if the node could not be asked, or has started again
                timeout = min(2 * timeout, LONGEST_ANSWER_TIMEOUT)
            await asyncio.sleep(max(AGAIN - waited, 0.0))
            call = self._call(peer, self._encoded(asked), timeout)

    async def _answer_of(self, peer: Peer, call: _Call) -> bytes:
        """Return the answer of a node.

        :raises CallFailed: the node runs, and cannot answer.
        :raises NodeUnreachable: there is no answer in time, or the node has stopped or started again before it.
        """
        answer = call.answer

        def is_over() -> bool:
            return answer.done() or (peer.uid, peer.incarnation) != call.to or not self._may_answer(peer)

        try:
            await until(is_over, call.answered, self._members_changed)
            if answer.done():
                return answer.result()
        finally:
            answer.cancel()
        raise NodeUnreachable(f"{peer.name} has stopped, or started again, before it answered")

    def _may_answer(self, peer: Peer) -> bool:
        """Return whether a node may run. It is asked even if it has not been heard yet, because this node or that one
        has only just started."""
        return self._peers.get(peer.name) is peer and peer.may_run

    async def _answer(self, node: str, argument: bytes) -> bytes:
        asked = self._calls.decoded(node, argument, list[tuple[str, float]])
        now = self._clock.now()
        # Rather too late than too early: the clear follows what its client has seen.
        untils = [now - max(age, 0.0) * (1.0 - _DRIFT) for _, age in asked]
        written = await self._written([(name, until) for (name, _), until in zip(asked, untils, strict=True)])
        return msgspec.msgpack.encode(
            [
                SettleAnswer((self._wire.incarnation, until) if until >= self._started else None, each)
                for until, each in zip(untils, written, strict=True)
            ]
        )
