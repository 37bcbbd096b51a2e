"""MarkQuestions: asks the other nodes for their marks (``turns``) when this node has a session, until every node that
may still send messages for the session elsewhere has sent one."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from ...core.cluster import CallFailed, NodeUnreachable
from ..calls import Calls
from ..changes import until
from ..context import ClusterContext
from ..links.routes import ClusterRoutes
from ..members.members import Members
from ..tasks import Tasks
from .incoming import FETCHING, IncomingSessions
from .session_nodes import SessionNodes
from .turns import TURN, Turn, TurnAsked, Turns

_ASK_AGAIN: Final = 1.0
_PAUSE: Final = 0.01
_PAUSE_NOTHING: Final = 0.25
"""Seconds until this node checks again whether there is a node to ask."""
_PAUSE_UNREACHABLE: Final = 0.5
_LOOKS: Final = 1000
"""Maximum number of checks per second for all sessions together. The checks continue for as long as a node is away."""


class MarkQuestions:
    """Asks for marks, with one task for each turn. ``Handover`` starts this when a session has arrived here.

    ``leaves`` returns whether a session is moving to another node, ``is_held`` whether messages of it are held.
    ``givers`` returns the nodes that may have a part of a session that continued here without them, and ``fetch``
    begins to fetch the next such part.
    """

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        routes: ClusterRoutes,
        turns: Turns,
        nodes: SessionNodes,
        incoming: IncomingSessions,
        leaves: Callable[[str], bool],
        is_held: Callable[[str], bool],
        givers: Callable[[str], list[str]],
        fetch: Callable[[str], None],
    ) -> None:
        self._context = context
        self._members = members
        self._calls = calls
        self._routes = routes
        self._turns = turns
        self._nodes = nodes
        self._incoming = incoming
        self._leaves = leaves
        self._is_held = is_held
        self._givers = givers
        self._fetch = fetch
        self._tasks = Tasks()
        # The turns for which this node asks. A session that left and came back has another turn.
        self._asking: set[Turn] = set()

    async def stop(self) -> None:
        await self._tasks.stop()

    def ask(self, turn: Turn) -> None:
        """Start asking for the marks of a session that this node has."""
        if turn not in self._asking:
            self._asking.add(turn)
            self._tasks.run(self._ask_until_all_have(turn))

    def nodes_of(self, client_id: str) -> list[str]:
        """Return the nodes that marks for this client are sent to, this node first."""
        coming = [each.row.node for each in self._incoming.of(client_id)]
        return list(dict.fromkeys([self._context.node, *coming, *self._givers(client_id)]))

    async def _ask_until_all_have(self, turn: Turn) -> None:
        client_id = turn.client_id
        loop = asyncio.get_running_loop()
        # For each node, when to ask it again, and how many questions in a row failed.
        asked: dict[str, float] = {}
        failed: dict[str, int] = {}
        try:
            while self._is_ours(turn):
                seen = turn.changed.count
                self._fetch(client_id)
                wanted = self._unmarked(turn)
                if wanted is None and self._is_settled(client_id):
                    self._turns.end(client_id)
                    return
                wanted = wanted or []
                now = loop.time()
                due = [name for name in wanted if asked.get(name, now) <= now]
                for name, answered in zip(due, await self._ask_nodes(turn, due), strict=True):
                    failed[name] = 0 if answered else failed.get(name, 0) + 1
                    pause = min(_PAUSE * 2 ** min(failed[name], 10), _PAUSE_UNREACHABLE)
                    asked[name] = loop.time() + (_ASK_AGAIN if answered else pause)
                nothing = max(_PAUSE_NOTHING, len(self._asking) / _LOOKS)
                wait = min([asked[name] - loop.time() for name in wanted if name in asked], default=nothing)
                await until(partial(self._has_changed, turn, seen), turn.changed, timeout=max(wait, 0.001))
        finally:
            self._asking.discard(turn)

    def _has_changed(self, turn: Turn, seen: int) -> bool:
        return turn.changed.count != seen

    def _is_ours(self, turn: Turn) -> bool:
        """Return whether this node has the session, and the session is not leaving."""
        client_id = turn.client_id
        return self._turns.get(client_id) is turn and not self._leaves(client_id)

    def _is_settled(self, client_id: str) -> bool:
        """Return whether this node knows all nodes, and knows that it has the session. A node that started without NATS
        knows neither."""
        return self._members.left or (self._members.known and self._nodes.has(client_id))

    def _unmarked(self, turn: Turn) -> list[str] | None:
        """Return the running nodes that have not sent their marks, or ``None`` if no more marks are needed."""
        late, peers = self._late(turn), self._members.peers
        return None if late is None else [name for name in late if peers[name].running]

    def _late(self, turn: Turn) -> list[str] | None:
        """Return the same as ``_unmarked``, including nodes that are not heard at present."""
        coming = self._incoming.of(turn.client_id)
        peers = self._members.peers
        if any(each.goes_by_marks and each.row.state == FETCHING for each in coming):
            late = set(peers)  # a node that has joined since the turn began, too
        else:
            late = {name for name in peers if not turn.takes(name) or name in turn.behind}
            late |= self._incoming.late_of(turn.client_id)
            settled = not late and not coming and not self._is_held(turn.client_id)
            if settled and not self._givers(turn.client_id):
                return None
        return [name for name in sorted(late) if name in peers and not turn.marked(name)]

    async def has_all_of(self, node: str, timeout: float) -> bool:
        """Wait until a node has sent its marks for all sessions here; return False after the timeout."""
        end = asyncio.get_running_loop().time() + timeout
        for client_id in self._turns.clients():
            turn = self._turns.get(client_id)
            left = end - asyncio.get_running_loop().time()
            if turn is not None and not await until(partial(self._has, turn, node), turn.changed, timeout=left):
                return False
        return True

    def _has(self, turn: Turn, node: str) -> bool:
        """Return whether a node has sent its mark for this turn, or need not."""
        return not self._is_ours(turn) or node not in (self._late(turn) or ())

    async def _ask_nodes(self, turn: Turn, nodes: list[str]) -> list[bool]:
        """Return, for each node, whether it answered the question."""
        session = self._context.broker.sessions.get(turn.client_id)
        place = self._nodes.place(turn.client_id)
        if not nodes or session is None or place is None or not self._nodes.is_ours(place):
            return [False] * len(nodes)
        # After its mark, a node sends nothing more to earlier nodes of the session. If this node dies now, it must know
        # after its restart that new messages wait here.
        if not await self._context.tables.stored():
            return [False] * len(nodes)
        revision = await self._routes.written([each.filter for each in session.subscriptions.values()])
        ask = msgspec.msgpack.encode(TurnAsked(turn.client_id, place.revision, revision, self.nodes_of(turn.client_id)))
        results = await asyncio.gather(*(self._calls.call(name, TURN, ask) for name in nodes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, (NodeUnreachable, CallFailed)):
                raise result
        return [isinstance(result, bytes) for result in results]
