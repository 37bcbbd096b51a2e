"""Settling: before a node clears a retained message, other nodes write what they have of its topic (``retained``)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from ...core.cluster import RUNNING, CallFailed, NodeUnreachable
from ..calls import Calls
from ..members.members import Members
from ..tasks import Tasks

logger = logging.getLogger(__name__)

SETTLE: Final = "retained.settle"
SETTLE_TIMEOUT: Final = 2.0
"""Seconds that other nodes have to write the messages that a clear follows."""


class Settled(NamedTuple):
    """What other nodes answered about a topic. ``nodes``: for each node that had written all its changes, the revision
    that it knew in the bucket then: any later change of that node gets a greater one; ``None``: it did not report one.
    ``complete``: all other nodes have answered."""

    nodes: dict[str, int | None]
    complete: bool


NOBODY: Final = Settled({}, True)


class Settling:
    """The questions to other nodes, and the answers of this node.

    ``written``: waits until the bucket has this node's changes of these keys, no longer than ``SETTLE_TIMEOUT``, and
    returns the revision that this node knows then for each. It raises CallFailed if they cannot be written."""

    def __init__(
        self, members: Members, calls: Calls, tasks: Tasks, written: Callable[[list[str]], Awaitable[list[int]]]
    ) -> None:
        self._peers = members.peers
        self._calls = calls
        self._tasks = tasks
        self._written = written
        # Keys that other nodes are asked about together, and their answer.
        self._asked: list[str] = []
        self._asking: asyncio.Task[dict[str, Settled]] | None = None
        calls.serve(SETTLE, self._answer)

    def stop(self) -> None:
        """Forget the questions, whose tasks were cancelled."""
        self._asked = []
        self._asking = None

    async def elsewhere(self, name: str) -> Settled:
        """Wait until the other nodes have written their changes of a key."""
        self._asked.append(name)
        asking = self._asking
        if asking is None:
            asking = self._asking = self._tasks.run(self._ask_others())
        return (await asyncio.shield(asking))[name]

    async def _ask_others(self) -> dict[str, Settled]:
        await asyncio.sleep(0)  # all clears of this iteration together
        self._asking = None
        names, self._asked = self._asked, []
        question = msgspec.msgpack.encode(names)
        peers = list(self._peers.values())
        running = [peer.name for peer in peers if peer.status == RUNNING]
        answers = await asyncio.gather(*(self._ask(node, question, len(names)) for node in running))
        found = [(node, answer) for node, answer in zip(running, answers, strict=True) if answer is not None]
        complete = len(found) == len(peers)
        return {
            name: Settled({node: answer[number] for node, answer in found}, complete)
            for number, name in enumerate(names)
        }

    async def _ask(self, node: str, question: bytes, count: int) -> list[int] | list[None] | None:
        """Ask a node, and return the revision for each of ``count`` keys; ``None``: it has not answered, or could
        not."""
        try:
            answer = await self._calls.call(node, SETTLE, question, SETTLE_TIMEOUT)
            revisions = self._calls.decoded(node, answer, list[int]) if answer else []
        except (NodeUnreachable, CallFailed) as error:
            logger.debug("cluster_retained_not_settled node=%s error=%s", node, error)
            return None
        return revisions if len(revisions) == count else [None] * count  # a node of an earlier version reports none

    async def _answer(self, node: str, argument: bytes) -> bytes:
        names = self._calls.decoded(node, argument, list[str])
        return msgspec.msgpack.encode(await self._written(names))
