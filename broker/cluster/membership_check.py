"""MembershipCheck: whether the others may take this node for stopped, or may have a moment ago.

Who was paused or cut off for so long may have been forced out meanwhile: it looks at its record before it writes
anything (``member_nats``). What others have done in its place may be on its way to it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ..config import ClusterSettings
from .member_nats import MemberNats
from .nats import Unavailable
from .peer import Peer

HEARTBEAT: Final = 1.0
"""Seconds between two signs of life of a node."""
LOOK_AGAIN: Final = 0.1


class MembershipCheck:
    """``may_be_out``: until it has its record, and after a time in which others may have forced it out, this node may
    be no member. ``peers``: the other nodes by name. ``read_record``: read the own record; whether it is there.
    """

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

    # ------------------------------------------------------------ what members does

    def tick(self) -> float:
        """Each second; by how many it is late."""
        now = self._loop.time()
        late = now - self._last_tick - HEARTBEAT
        self._last_tick = now
        return late

    def judge(self, late: float) -> None:
        """The other nodes were heard up to this tick."""
        now = self._loop.time()
        if late > HEARTBEAT or self._may_be_unheard(now):
            self._until = now + self._settings.stopped_after

    def beat(self) -> None:
        """This node says that it lives."""
        self._last_beat = self._loop.time()

    def notice_pause(self) -> None:
        """It may not have said so for long."""
        if self._loop.time() - self._last_beat >= self._settings.stopped_after:
            self.may_be_out = True

    # ------------------------------------------------------------------ questions

    @property
    def others_may_act(self) -> bool:
        """Whether another node may take this one for stopped, or may have a moment ago: what such a one has done in
        this node's place may be on its way."""
        now = self._loop.time()
        return now < self._until or self._may_be_unheard(now)

    def _may_be_unheard(self, now: float) -> bool:
        """Whether there is a node that does not say that it hears this one, or NATS is away, behind which there may be
        a new one. A node whose ticks are late did not run, and has not read yet what the others have done."""
        if not self._nats.connected or not self._nats.quorum or now - self._last_tick > 2 * HEARTBEAT:
            return True
        oldest = now - self._settings.suspect_after
        return any(each.heard <= oldest or self._key not in each.hears for each in self._peers.values())

    async def certain(self, timeout: float) -> float:
        """As ``MemberNats.certain``."""
        self.notice_pause()
        if not self.may_be_out:
            return timeout
        start = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                while not await self.look():
                    await asyncio.sleep(LOOK_AGAIN)
        except TimeoutError:
            raise Unavailable("it is not known whether this node is still a member") from None
        return timeout - (self._loop.time() - start)

    async def look(self) -> bool:
        """Whether it is known now if this node is a member."""
        async with self._looking:
            if self._member_nats.outside or not self.may_be_out:
                return True
            asked = self._loop.time()
            if not await self._read_record():
                return False
            self.may_be_out = self._loop.time() - asked >= self._settings.stopped_after
            return not self.may_be_out
