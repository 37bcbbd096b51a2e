"""Evacuation: an operator wants this node empty. It lets nobody in and closes its connections. Sessions whose clients
do not come to another node by themselves it gives to nodes that run."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

import msgspec

from ..channel.closing import disconnect
from ..config import ZoneSettings
from ..core.cluster import RUNNING, CallFailed, ChangeRefused, NodeUnreachable
from ..core.outcome import Outcome
from ..mqtt import reason_codes
from ..session.client_info import CLIENT_ID_OWNER, RESTORED, USERNAME_OWNER, ClientInfo
from ..session.session import Session
from .calls import Calls
from .context import ClusterContext
from .handover import Handover
from .members import Members
from .ownership import Ownership

logger = logging.getLogger(__name__)

TAKE: Final = "evacuation.take"
SETTING: Final = "taipan-ctl cluster evacuation"
"""In place of a setting, in what clients and the log are told."""
ALARM: Final = "node_evacuating"
_DETAIL: Final = "an operator evacuates this node"
_CLOSED_AT_ONCE: Final = 50
_CLOSE_EVERY: Final = 0.1
_LOOK_EVERY: Final = 1.0
GRACE: Final = 5.0
"""Seconds in which a client whose connection was closed may come to a node of its own choice, with its session."""
_MOVED_AT_ONCE: Final = 50
_SLICE: Final = 1000


class Take(msgspec.Struct, array_like=True, frozen=True):
    """A node is to have a session of the one that asks. ``owner``: see ``ClientInfo.owner``."""

    client_id: str
    owner: str
    username: str | None


class Evacuation:
    """``active`` from ``start`` to ``end``, but no longer than the process: after a restart it lets clients in.
    ``grace``: ``GRACE``; the simulation makes it shorter."""

    def __init__(
        self, context: ClusterContext, members: Members, calls: Calls, handover: Handover, ownership: Ownership
    ) -> None:
        self._context = context
        self._members = members
        self._calls = calls
        self._handover = handover
        self._ownership = ownership
        self.active = False
        self.grace = GRACE
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        self._told = ""
        calls.serve(TAKE, self._take)

    def start(self) -> None:
        """:raises ChangeRefused: nobody could take the sessions, or it is under way."""
        if self.active:
            raise ChangeRefused(f"{self._context.node} is evacuated already")
        if self._members.left or self._members.outside or not self._members.joined:
            raise ChangeRefused(f"{self._context.node} is no member of the cluster {self._context.name} now")
        if not self._takers():
            raise ChangeRefused("no other node runs: nobody could take its clients")
        self.active = True
        self._told = ""
        logger.warning("evacuation_started node=%s", self._context.node)
        message = f"{_DETAIL}: it lets nobody in, and its clients and sessions go to others"
        self._context.alarms.activate(ALARM, message, {"setting": SETTING})
        self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Let clients in again.

        :raises ChangeRefused: it is not under way.
        """
        if not self.active:
            raise ChangeRefused(f"{self._context.node} is not evacuated")
        self.active = False
        if self._task is not None:
            self._task.cancel()
        logger.warning("evacuation_ended node=%s", self._context.node)
        self._context.alarms.deactivate(ALARM)

    async def stop(self) -> None:
        """The node stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def refusal(self) -> Awaitable[Outcome] | None:
        """Why nobody may connect now."""
        return self._refuse() if self.active else None

    async def _refuse(self) -> Outcome:
        return Outcome(reason_codes.USE_ANOTHER_SERVER, SETTING, _DETAIL)

    # --------------------------------------------------------------------- away

    def _takers(self) -> list[str]:
        return [each.name for each in self._members.running() if each.status == RUNNING]

    async def _run(self) -> None:
        done = False
        while True:
            if self._close_some():
                await asyncio.sleep(_CLOSE_EVERY)
                continue
            await self._move_sessions()
            empty = not self._context.channels.channels and not len(self._context.broker.sessions)
            if empty and not done:
                logger.info("evacuation_done node=%s", self._context.node)
            done = empty
            await asyncio.sleep(_LOOK_EVERY)

    def _close_some(self) -> bool:
        """Whether there were any."""
        code = reason_codes.USE_ANOTHER_SERVER
        some = list(self._context.channels.channels.values())[:_CLOSED_AT_ONCE]
        for channel in some:
            disconnect(channel, code, _DETAIL, reason_codes.name(code), SETTING)
        return bool(some)

    async def _move_sessions(self) -> None:
        """Once through all of them."""
        sessions = list(self._context.broker.sessions)
        for first in range(0, len(sessions), _SLICE):
            now = self._context.clock.now()
            due = [
                each
                for each in sessions[first : first + _SLICE]
                if not each.connected and now - each.disconnected_at >= self.grace
            ]
            for start in range(0, len(due), _MOVED_AT_ONCE):
                some = due[start : start + _MOVED_AT_ONCE]
                errors = [each for each in await asyncio.gather(*map(self._give, some)) if each]
                if errors and errors[0] != self._told:
                    self._told = errors[0]
                    logger.warning("evacuation_waits node=%s error=%s", self._context.node, errors[0])
                if len(errors) == len(some):
                    return  # it is no matter of one session
            await asyncio.sleep(0)

    async def _give(self, session: Session) -> str:
        """Why it stays here for now; empty: it goes, or is over."""
        client_id = session.client_id
        broker = self._context.broker
        if broker.sessions.get(client_id) is not session or not session.persistent:
            return ""
        if client_id in self._context.channels.channels or self._handover.leaves(client_id):
            return ""
        takers = self._takers()
        if not takers:
            return "no other node runs"
        self._turn += 1
        node = takers[self._turn % len(takers)]
        ask = Take(client_id, session.owner or "", session.client.username)
        try:
            refusal = (await self._calls.call(node, TAKE, msgspec.msgpack.encode(ask))).decode("utf-8", "replace")
        except (NodeUnreachable, CallFailed) as error:
            return str(error)
        return f"{node}: {refusal}" if refusal else ""

    # ------------------------------------------------------------------- coming

    async def _take(self, node: str, argument: bytes) -> bytes:
        """Get a session from the node that is evacuated; why not, or nothing."""
        ask = self._calls.decoded(node, argument, Take)
        if self.active:
            return b"it is evacuated itself"
        if self._context.broker.short_of_memory:
            return b"limits.memory: it has no memory for more sessions"
        client = ClientInfo(self._context.node, ZoneSettings(), client_id=ask.client_id, username=ask.username)
        if ask.owner.startswith(USERNAME_OWNER):
            client.username = ask.owner.removeprefix(USERNAME_OWNER)
            client.proved_by = RESTORED
        client.proved_client_id = ask.owner == CLIENT_ID_OWNER
        refusal = await self._ownership.bring(client, node)
        if not refusal:
            logger.info("session_brought client_id=%s node=%s", ask.client_id, node)
        return refusal.encode()
