"""MembershipCheck: whether the other nodes may consider this node stopped, or may have done so a moment ago.

A node that was paused or disconnected for that long may have been removed in the meantime: it reads its record before
it writes anything (``member_nats``). Changes that others have made on its behalf may not have arrived yet."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...config import ClusterSettings
from ..nats.interface import Unavailable
from .member_nats import MemberNats
from .peer import Peer

HEARTBEAT: Final = 1.0
"""Seconds between two heartbeats of a node."""
LOOK_AGAIN: Final = 0.1


class MembershipCheck:
    """``may_be_out``: this node may not be a member, because it has no record yet, or because others may have removed
    it during a pause. ``peers``: the other nodes by name. ``read_record``: reads the node's own record and returns
    whether it exists."""

    def __init__(
        self,
        settings: ClusterSettings,
        nats: MemberNats,
        key: str,
        peers: dict[str, Peer],
        read_record: Callable[[], Awaitable[bool]],
    ) -> None:
        self._settings = settings
        self._member_nats = nats
        self._nats = nats.raw
        self._key = key
        self._peers = peers
        self._read_record = read_record
        self.may_be_out = True
        self._looking = asyncio.Lock()
        self._last_tick = 0.0
        self._last_beat = 0.0
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop
        nats.certain = self.certain

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_tick = self._last_beat = self._loop.time()

    # ------------------------------------------------------------ called by members

    def tick(self) -> float:
        """Called each second; return how many seconds it is late."""
        now = self._loop.time()
        late = now - self._last_tick - HEARTBEAT
        self._last_tick = now
        return late

    def judge(self, late: float) -> None:
        """Check how late this tick is, after the other nodes' messages up to it have been processed."""
        now = self._loop.time()
        if late > HEARTBEAT or self._may_be_unheard(now):
            self._until = now + self._settings.stopped_after

    def beat(self) -> None:
        """Note that this node sends a heartbeat."""
        self._last_beat = self._loop.time()

    def notice_pause(self) -> None:
        """Note whether this node sent no heartbeat for so long that it may have been removed."""
        if self._loop.time() - self._last_beat >= self._settings.stopped_after:
            self.may_be_out = True

    # ------------------------------------------------------------------ queries

    @property
    def others_may_act(self) -> bool:
        """Whether another node may consider this one stopped, or did a moment ago: changes that it made on this node's
        behalf may not have arrived yet."""
        now = self._loop.time()
        return now < self._until or self._may_be_unheard(now)

    def _may_be_unheard(self, now: float) -> bool:
        """Return whether a node does not confirm that it hears this one, or whether NATS is unreachable and may know a
        new node. A node whose ticks are late did not run, and has not yet read what the others have done."""
        if not self._nats.connected or not self._nats.quorum or now - self._last_tick > 2 * HEARTBEAT:
            return True
        oldest = now - self._settings.suspect_after
        return any(each.heard <= oldest or self._key not in each.hears for each in self._peers.values())

    async def certain(self, timeout: float) -> float:
        """See ``MemberNats.certain``."""
        self.notice_pause()
        if not self.may_be_out:
            return timeout
        start = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                while not await self.look():
                    await asyncio.sleep(LOOK_AGAIN)
        except TimeoutError:
            raise Unavailable("this node cannot determine whether it is still a member") from None
        return timeout - (self._loop.time() - start)

    async def look(self) -> bool:
        """Find out whether this node is a member; return whether this is now known."""
        async with self._looking:
            if self._member_nats.outside or not self.may_be_out:
                return True
            asked = self._loop.time()
            if not await self._read_record():
                return False
            self.may_be_out = self._loop.time() - asked >= self._settings.stopped_after
            return not self.may_be_out
