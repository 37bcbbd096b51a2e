"""Evacuation: empties this node when an operator asks for it, for example before an upgrade, or when this is a lost
node that another node runs from its copy. The node accepts no clients and closes its connections. If the clients do not
connect to other nodes themselves, it moves their sessions to running nodes."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

import msgspec

from ...channel.closing import disconnect
from ...config import ZoneSettings
from ...core.cluster import RUNNING, CallFailed, ChangeRefused, NodeUnreachable
from ...core.outcome import Outcome
from ...mqtt import reason_codes
from ...session.client_info import CLIENT_ID_OWNER, RESTORED, USERNAME_OWNER, ClientInfo
from ...session.session import Session
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from .claims import Claims
from .handover import Handover

logger = logging.getLogger(__name__)

CAN: Final = "evacuation.can"
TAKE: Final = "evacuation.take"
SETTING: Final = "taipan-ctl cluster evacuation"
"""The name that stands for the evacuation in place of a setting, for clients and in the log."""
_SETTING_HOSTED: Final = "cluster.failover_after"
ALARM: Final = "node_evacuating"
_DETAIL: Final = "an operator evacuates this node"
_CLOSED_AT_ONCE: Final = 50
_CLOSE_EVERY: Final = 0.1
_LOOK_EVERY: Final = 1.0
GRACE: Final = 5.0
"""Seconds in which a client whose connection was closed may connect to a node of its own choice, to which its session
then moves."""
_MOVED_AT_ONCE: Final = 50
_LOOK_AT_CLAIMS: Final = 0.05
"""Seconds until this node checks again whether fewer sessions are moving at the request of clients on other nodes."""
_MOST_COMING: Final = 100
"""Maximum number of sessions with an incomplete queue with which a node accepts another session."""
_SLICE: Final = 1000
_SET_ASIDE: Final = 5.0
"""Seconds during which a node is not asked after it did not answer, or accepted nothing."""
_SOON: Final = 0.25
"""Seconds during which a node is not asked while it is busy with the sessions that it has accepted."""
_MOST_TOLD: Final = 20


class Take(msgspec.Struct, array_like=True, frozen=True):
    """The request to accept a session of the asking node. ``owner`` is that of ``ClientInfo.owner``."""

    client_id: str
    owner: str


class TakeAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer to ``Take``. ``error`` says why the node cannot accept the session, and is empty if the session has
    moved or soon will have moved. ``wait`` is the time in seconds in which the node accepts no session."""

    error: str = ""
    wait: float = 0.0


class NodeEvacuation:
    """The evacuation of this node, which is ``active`` from ``start`` to ``end``. It does not survive a restart:
    afterwards, the node accepts clients. ``grace`` is ``GRACE``; the simulation uses a shorter time."""

    def __init__(
        self, context: ClusterContext, members: Members, calls: Calls, handover: Handover, claims: Claims
    ) -> None:
        self._context = context
        self._members = members
        self._calls = calls
        self._handover = handover
        self._claims = claims
        host = context.hosted_by
        self._detail = f"{host} runs this lost node from its copy" if host else _DETAIL
        self._setting = _SETTING_HOSTED if host else SETTING
        self.active = False
        self._starting = False
        self.grace = GRACE
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        # Until when these nodes are not asked, on the loop's clock.
        self._set_aside: dict[str, float] = {}
        self._told: set[str] = set()
        calls.serve(CAN, self._can)
        calls.serve(TAKE, self._take)

    async def start(self) -> None:
        """:raises ChangeRefused: no node could take the sessions, or an evacuation is running."""
        node = self._context.node
        if self.active or self._starting:
            raise ChangeRefused(f"{node} is already evacuated")
        if self._members.left or self._members.outside or not self._members.joined:
            raise ChangeRefused(f"{node} is not a member of the cluster {self._context.name} now")
        if not self._context.nats.quorum:
            raise ChangeRefused("NATS accepts no writes now: no session can move")
        # If two nodes ask each other, neither must be told that the other one stays.
        self._starting = True
        try:
            refusals = await asyncio.gather(*(self._ask(each.name) for each in self._members.running()))
        finally:
            self._starting = False
        if all(refusals):
            raise ChangeRefused(f"no other node can accept its clients: {'; '.join(refusals) or 'none runs'}")
        self.active = True
        self._set_aside.clear()
        self._told.clear()
        logger.warning("evacuation_started node=%s", node)
        message = f"{self._detail}: it accepts no clients, and its clients and sessions move to other nodes"
        self._context.alarms.activate(ALARM, message, {"setting": self._setting})
        self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Accept clients again.

        :raises ChangeRefused: no evacuation is running."""
        if not self.active or self._task is None:
            raise ChangeRefused(f"{self._context.node} is not evacuated")
        self.active = False
        self._task.cancel()
        self._task = None
        logger.warning("evacuation_ended node=%s", self._context.node)
        self._context.alarms.deactivate(ALARM)

    async def stop(self) -> None:
        """Stop the evacuation, because the node stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def refusal(self) -> Awaitable[Outcome] | None:
        """Return why no client may connect now."""
        return self._refuse() if self.active else None

    async def _refuse(self) -> Outcome:
        return Outcome(reason_codes.USE_ANOTHER_SERVER, self._setting, self._detail)

    # --------------------------------------------------------------------- sending

    async def _ask(self, node: str) -> str:
        """Return why a node cannot take sessions, or an empty string if it can."""
        try:
            refusal = (await self._calls.call(node, CAN, b"")).decode("utf-8", "replace")
        except (NodeUnreachable, CallFailed) as error:
            return _of(node, str(error))
        return _of(node, refusal) if refusal else ""

    def _takers(self, within: float = 0.0) -> list[str]:
        """Return the running nodes that can be asked to accept sessions now, or within this many seconds."""
        until = asyncio.get_running_loop().time() + within
        running = [each.name for each in self._members.running() if each.status == RUNNING]
        return [each for each in running if self._set_aside.get(each, 0.0) <= until]

    async def _run(self) -> None:
        done = False
        while True:
            try:
                await self._go_on()
            except Exception:  # an error must not leave a node that accepts no clients and moves nothing
                logger.exception("evacuation_failed node=%s", self._context.node)
            empty = not self._context.channels.channels and not len(self._context.broker.sessions)
            if empty and not done and not len(self._handover.outgoing.kept):
                logger.info("evacuation_done node=%s", self._context.node)
                done = True
            await asyncio.sleep(_LOOK_EVERY)

    async def _go_on(self) -> None:
        while self._close_some():
            await asyncio.sleep(_CLOSE_EVERY)
        await self._move_sessions()

    def _close_some(self) -> bool:
        """Close some connections; return whether there were any. If no client would find its session on another node,
        the remaining clients stay."""
        if not (self._context.nats.quorum and self._takers()):
            return False
        code = reason_codes.USE_ANOTHER_SERVER
        some = list(self._context.channels.channels.values())[:_CLOSED_AT_ONCE]
        for channel in some:
            disconnect(channel, code, self._detail, reason_codes.name(code), self._setting)
        return bool(some)

    async def _move_sessions(self) -> None:
        """Try to move each session once. Up to ``_MOVED_AT_ONCE`` move at the same time. Sessions for which clients
        have asked on other nodes are included, and come first."""
        sessions = list(self._context.broker.sessions)
        giving: set[asyncio.Task[str]] = set()
        try:
            for number, session in enumerate(sessions):
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
                if not self._is_due(session, self._context.clock.now()):
                    continue
                while max(len(giving), self._handover.outgoing.asked_for) >= _MOVED_AT_ONCE:
                    await self._one_given(giving)
                while not self._takers():
                    if not self._takers(_SOON):
                        self._tell("no other node accepts sessions now")
                        return
                    await asyncio.sleep(_SOON)
                self._close_some()  # whose CONNECT was being processed
                giving.add(asyncio.get_running_loop().create_task(self._give(session)))
            while giving:
                await self._one_given(giving)
        finally:
            for task in giving:
                task.cancel()

    async def _one_given(self, giving: set[asyncio.Task[str]]) -> None:
        """Wait until one of these attempts has ended, but only for a moment."""
        if not giving:
            await asyncio.sleep(_LOOK_AT_CLAIMS)
            return
        done, _ = await asyncio.wait(giving, timeout=_LOOK_AT_CLAIMS, return_when=asyncio.FIRST_COMPLETED)
        giving -= done
        for task in done:
            error = task.result()
            if error:
                self._tell(error)

    def _is_due(self, session: Session, now: float) -> bool:
        """Return whether the client of a session has had time to connect to another node. The time of its disconnection
        may be in the future, because the clock may have been ahead."""
        return not session.connected and not 0 <= now - session.disconnected_at < self.grace

    def _tell(self, error: str) -> None:
        """Log the same error only once per evacuation."""
        if error not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(error)
            logger.warning("evacuation_waits node=%s error=%s", self._context.node, error)

    async def _give(self, session: Session) -> str:
        """Move a session. Return why it stays here for now, or an empty string if it is moving or has ended."""
        client_id = session.client_id
        broker = self._context.broker
        if broker.sessions.get(client_id) is not session or not session.persistent:
            return ""
        if client_id in self._context.channels.channels or self._handover.leaves(client_id):
            return ""
        takers = self._takers()
        if not takers:
            return ""
        self._turn += 1
        node = takers[self._turn % len(takers)]
        ask = msgspec.msgpack.encode(Take(client_id, session.owner))
        try:
            taken = self._calls.decoded(node, await self._calls.call(node, TAKE, ask), TakeAnswer)
        except (NodeUnreachable, CallFailed) as error:
            taken = TakeAnswer(str(error), _SET_ASIDE)
        if taken.wait > 0:
            self._set_aside[node] = asyncio.get_running_loop().time() + min(taken.wait, _SET_ASIDE)
        return _of(node, taken.error) if taken.error else ""

    # ------------------------------------------------------------------- receiving

    def _cannot(self) -> str:
        if self.active or self._starting:
            return "that node is being evacuated, too"
        if self._context.broker.short_of_memory:
            return "limits.memory: that node has no memory for more sessions"
        return ""

    async def _can(self, node: str, argument: bytes) -> bytes:
        """Return why this node accepts no sessions, or an empty string if it does."""
        return self._cannot().encode()

    async def _take(self, node: str, argument: bytes) -> bytes:
        """Accept a session from the node that is being evacuated."""
        return msgspec.msgpack.encode(await self._taken(node, self._calls.decoded(node, argument, Take)))

    async def _taken(self, node: str, ask: Take) -> TakeAnswer:
        cannot = self._cannot()
        if cannot:
            return TakeAnswer(cannot, _SET_ASIDE)
        if self._claims.waits_for_turn(node) or self._handover.coming >= _MOST_COMING:
            return TakeAnswer("", _SOON)
        if self._claims.session_keys.busy(ask.client_id):
            return TakeAnswer()  # its client is connecting here
        client = ClientInfo(self._context.node, ZoneSettings(), client_id=ask.client_id)
        if ask.owner.startswith(USERNAME_OWNER):
            client.username = ask.owner.removeprefix(USERNAME_OWNER)
            client.proved_by = RESTORED
        client.proved_client_id = ask.owner == CLIENT_ID_OWNER
        refusal = await self._claims.bring(client, node)
        session = self._context.broker.sessions.get(ask.client_id)
        if not refusal and session is not None:
            logger.info("session_brought client_id=%s node=%s", ask.client_id, node)
            # By this node's rules. For a connecting client this is done at its CONNECT.
            self._context.channels.reviews.add(session)
        return TakeAnswer(refusal)


def _of(node: str, error: str) -> str:
    return error if error.startswith(node) else f"{node}: {error}"
