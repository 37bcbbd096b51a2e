"""Greeting: a node with new data accepts clients only when all running nodes know it and have its marks (``turns``).

Otherwise a message that it accepts could get lost while its session is moving. ``pump-7`` moves from A to B, and
C has just started with an empty disk. C sends only to A, because it does not know the route to B yet::

    B    asks A for the rest of the queue
    A    END, no node is late: A does not know C yet, and forgets the session
    C    publishes m1, and sends it to A
    B    knows C by now, and takes nothing of C before C's mark

So C asks A and B first. Each of them answers when it knows C and has received C's marks for all sessions there.
Messages of C follow its marks, and each later move takes C into account.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from ...core.cluster import CallFailed, NodeUnreachable
from ..calls import Calls
from ..changes import until
from ..context import ClusterContext
from ..links.link_receiver import LinkReceiver
from ..members.members import Members
from .mark_questions import MarkQuestions

logger = logging.getLogger(__name__)

GREET: Final = "handover.greet"
_HEARD: Final = 2.0
"""Seconds within which a running node is heard: two heartbeats."""
_AGAIN: Final = 0.1


class Greeting:
    """Asks the other nodes (``greet``), and answers their questions."""

    def __init__(
        self, context: ClusterContext, members: Members, calls: Calls, receiver: LinkReceiver, marks: MarkQuestions
    ) -> None:
        self._context = context
        self._members = members
        self._calls = calls
        self._receiver = receiver
        self._marks = marks
        calls.serve(GREET, self._greeted)

    async def greet(self) -> None:
        """Wait until every running node is ready for messages of this node, for at most ``cluster.stopped_after``."""
        loop = asyncio.get_running_loop()
        members, patience = self._members, self._context.settings.stopped_after
        end = loop.time() + patience
        await members.wait_until_known(patience)
        await until(self._all_heard, members.changes, timeout=min(_HEARD, patience))
        done = await asyncio.gather(*(self._greet(each.name, end) for each in members.running()))
        missing = [name for name in done if name]
        if missing:
            logger.warning("cluster_not_greeted nodes=%s setting=cluster.stopped_after", ",".join(missing))

    def _all_heard(self) -> bool:
        return all(each.running for each in self._members.peers.values())

    async def _greet(self, node: str, end: float) -> str:
        """Return the node's name, or an empty string if it is ready or has stopped."""
        loop, longest = asyncio.get_running_loop(), self._context.settings.call_timeout
        while (peer := self._members.peers.get(node)) is not None and peer.running:
            left = end - loop.time()
            if left <= 0.0:
                return node
            with suppress(NodeUnreachable, CallFailed):
                await self._calls.call(node, GREET, self._context.wire.uid.encode(), min(left, longest))
                return ""
            await asyncio.sleep(_AGAIN)
        return ""

    async def _greeted(self, node: str, argument: bytes) -> bytes:
        if not self._receiver.knows(node, argument.decode("ascii", "replace")):
            raise CallFailed(f"no link from {node} is open here")
        if not await self._marks.has_all_of(node, self._context.settings.call_timeout / 2):
            raise CallFailed(f"marks of {node} are missing")
        return b""
