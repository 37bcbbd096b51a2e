"""MemoryGuard: what is done when the node's memory is short.

Everything in steps, each no longer than an iteration should be: clients that send most are not read for a moment;
clients that read nothing of what waits for them are closed; so are those with the largest beginnings of packets, where
these are what takes the memory; then the largest queues lose their oldest messages.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import Final, Protocol

from ..channel import closing
from ..core.before_login import BeforeLogin
from ..core.broker import Broker
from ..core.memory import Memory
from ..persistence.durability import Durability
from ..session.memory_account import NORMAL, SHEDDING, SLOWING
from ..session.protocols import MEMORY
from ..session.queue import shed_queued
from ..session.session import Session
from .connection import Connection

logger = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds for which the clients that send most are not read."""
_RANK_EVERY: Final = 0.5
_LOOK_CONNECTIONS: Final = 5000  # connections, of whose buffers one tick asks
_SLICE_MESSAGES: Final = 2000  # messages of queues that go in one iteration
_AT_ONCE: Final = 200  # of one queue, before it is looked whether that was enough
_RANKED: Final = 2000  # the largest queues, of one look at all sessions
_LEAST_SENT: Final = 4096
_MUCH: Final = 1_048_576
"""Bytes that wait for a client from which on letting it go helps."""
_UNFINISHED: Final = 65_536
"""Bytes of a packet that is not complete, from which on letting its client go helps."""
_UNFINISHED_PART: Final = 20
"""Of the limit: the part that such packets have to take together for any client to be let go."""
_CLOSE_AT_ONCE: Final = 50
CONNECTION_BYTES: Final = 6000
"""About what a connection takes beside its buffers."""
_NEWCOMERS_PART: Final = 100
"""Of the limit: the part from which on closing connections without a login helps."""


class Sender(Protocol):
    """A connection over which something comes."""

    @property
    def unfinished_bytes(self) -> int:
        """What it has sent of something that is not complete."""
        ...

    def close_unfinished(self) -> None:
        """Close it at once, because memory is used up."""


class MemoryGuard:
    """``tick`` comes ten times a second; ``end_of_iteration`` costs nothing while little is queued and retained."""

    def __init__(
        self,
        memory: Memory,
        broker: Broker,
        connections: dict[Connection, None],
        alarm: Callable[[bool], None],
        before_login: BeforeLogin | None = None,
    ) -> None:
        """``alarm`` is told whether memory is short."""
        self._before_login = BeforeLogin() if before_login is None else before_login
        # Give those who have logged in elsewhere (HTTP), and have sent the beginning of something.
        self.senders: list[Callable[[], Iterable[Sender]]] = []
        # Whether a zone refuses messages for a full queue, whatever the memory.
        self.zone_refuses = False
        self._memory = memory
        self._broker = broker
        self._connections = connections
        self._alarm = alarm
        self._rank_at = 0.0
        self._sent: dict[Connection, int] = {}
        # What waits in the buffers of connections: of a round that is not through, and of the last one.
        self._round: list[Connection] = []
        self._sum = 0
        self.buffers = 0
        self._look_at = 0
        self._more: asyncio.Handle | None = None
        # Sessions whose queues are to be cut to so many bytes, those with the largest last.
        self._largest: list[Session] = []
        self._enough = 0
        memory.changed = self._changed

    def tick(self, now: float) -> None:
        """Count buffers, find out the level, and do something about it."""
        self._count_buffers()
        level = self._memory.look(now)
        self._look_at = self._queued + self._memory.limit // 100
        if level >= SLOWING and now >= self._rank_at:
            self._rank_at = now + _RANK_EVERY
            self._pause_the_largest()
        if level >= SHEDDING and self._more is None:
            self._shed()

    def end_of_iteration(self) -> None:
        """Look before the next tick where much was queued since."""
        if self._queued > self._look_at:
            self.tick(self._broker.clock.now())

    @property
    def _queued(self) -> int:
        """It grows by what is queued or retained, and by what is made for clients that do not read."""
        broker = self._broker
        account, durability = broker.account, broker.durability
        bodies = 0 if durability is None else durability.paging.bodies
        return account.queues + account.unread + broker.retained.bytes + bodies

    def _changed(self, before: int) -> None:
        level = self._broker.account.level
        durability = self._broker.durability
        if durability is not None:
            durability.paging.set_memory_short(level > NORMAL)
        self._broker.refusing = self.zone_refuses or level >= SHEDDING
        if level < SLOWING:
            self._sent = {}  # who has gone is not kept
        if (level > NORMAL) != (before > NORMAL):
            self._alarm(level > NORMAL)

    def _count_buffers(self) -> None:
        if not self._round:
            self.buffers = self._sum
            self._sum = 0
            self._round = list(self._connections)
        for _ in range(min(_LOOK_CONNECTIONS, len(self._round))):
            self._sum += self._round.pop().buffered_bytes
        if not self._round:
            self.buffers = self._sum

    # ------------------------------------------------------------ publishers

    def _pause_the_largest(self) -> None:
        """Those that sent half of all since the last look are not read for a while."""
        before = self._sent
        sent = self._sent = {each: each.publish_load for each in self._connections}
        grown = [(size - before.get(each, 0), each) for each, size in sent.items()]
        total = sum([size for size, _ in grown])
        if not before or total < _LEAST_SENT:
            return
        paused = 0
        now = self._broker.clock.now()
        for size, connection in sorted(grown, key=lambda each: -each[0]):
            if size < _LEAST_SENT or paused * 2 >= total:
                break
            paused += size
            if connection.pause_reading(PAUSE):
                self._broker.metrics.refusals.add("publisher_memory")
                client_id = connection.channel.client.client_id
                self._broker.throttled_log.warn("publisher_paused", client_id, "", MEMORY, "limits.memory", now)

    # -------------------------------------------------------------- shedding

    def _shed(self) -> None:
        """Go on with it, one iteration after the other, until memory is no more used up or nothing can go."""
        self._more = None
        if self._broker.account.level < SHEDDING:
            self._largest.clear()
            return
        if not (self._close_newcomers() or self._close_slowest() or self._close_unfinished() or self._shed_some()):
            return
        self._memory.look(self._broker.clock.now())
        if self._broker.account.level >= SHEDDING:
            self._more = asyncio.get_running_loop().call_soon(self._shed)

    def shed_at_once(self) -> None:
        """While sessions are recovered: drop at once what the budget has no room for."""
        self._memory.look(self._broker.clock.now(), restoring=True)
        while self._broker.account.level >= SHEDDING and self._shed_some():
            self._memory.look(self._broker.clock.now(), restoring=True)
        self._largest.clear()

    def _close_newcomers(self) -> bool:
        """Close connections without a login, where these are what takes memory. False: they are not."""
        newcomers = self._before_login
        if newcomers.bytes + CONNECTION_BYTES * len(newcomers) < self._memory.limit // _NEWCOMERS_PART:
            return False
        return newcomers.make_room(-1, _CLOSE_AT_ONCE) > 0

    def _close_slowest(self) -> bool:
        """Close the connection of the client for which most waits, if it is much and takes no more."""
        blocked = [each for each in self._connections if each.blocked]
        most = max(blocked, key=lambda each: each.buffered_bytes, default=None)
        if most is None or most.buffered_bytes < _MUCH:
            return False
        size = most.buffered_bytes
        logger.warning(
            "slow_reader_closed client_id=%s bytes=%s setting=limits.memory",
            most.channel.client.client_id[:256],
            size,
        )
        closing.too_much_memory(most.channel)
        most.abort()
        self.buffers = max(0, self.buffers - size)
        return True

    def _close_unfinished(self) -> bool:
        """Close the connections that have sent most of a packet and not its end: nothing of it was acknowledged, while
        what queues hold was. False: such packets are not what takes the memory."""
        large: list[tuple[int, Sender]] = [
            (each.unfinished_bytes, each) for each in self._connections if each.unfinished_bytes >= _UNFINISHED
        ]
        for senders in self.senders:
            large += [(each.unfinished_bytes, each) for each in senders() if each.unfinished_bytes >= _UNFINISHED]
        if sum([size for size, _ in large]) < self._memory.limit // _UNFINISHED_PART:
            return False
        for size, sender in nlargest(_CLOSE_AT_ONCE, large, key=_size_of_packet):
            if self._memory.excess <= 0:
                break
            sender.close_unfinished()
            if isinstance(sender, Connection):
                self.buffers = max(0, self.buffers - size)
        return True

    def _shed_some(self) -> bool:
        """Drop the oldest of the largest queues; of those whose clients are away first. False: there are none."""
        left = _SLICE_MESSAGES
        while left > 0 and self._memory.shedding_helps:
            if not self._largest and not self._rank():
                return left < _SLICE_MESSAGES
            session = self._largest[-1]
            queue = session.queue
            if queue is None or queue.size <= self._enough:
                self._largest.pop()
            else:
                left -= shed_queued(session, min(left, _AT_ONCE, (session.queued + 1) // 2), MEMORY)
        return left < _SLICE_MESSAGES

    def _rank(self) -> bool:
        """Find the largest queues, to be brought down to half of the largest one: a look at all sessions takes long
        where there are many, and serves many slices. False: nothing is queued."""
        waiting = [each for each in self._broker.sessions.all() if each.queued]
        away = [each for each in waiting if not each.connected]
        largest = nlargest(_RANKED, away or waiting, key=_size_of_queue)
        if not largest:
            return False
        self._enough = _size_of_queue(largest[0]) // 2
        self._largest = [each for each in reversed(largest) if _size_of_queue(each) > self._enough]
        return True


def _size_of_packet(unfinished: tuple[int, Sender]) -> int:
    return unfinished[0]


def _size_of_queue(session: Session) -> int:
    return 0 if session.queue is None else session.queue.size


def sources(
    broker: Broker,
    connections: dict[Connection, None],
    guard: MemoryGuard,
    before_login: BeforeLogin,
    sockets: Callable[[], int],
) -> dict[str, Callable[[], int]]:
    """What the node holds, and about how many bytes it takes; the figures for one of each are measured. ``sockets``:
    what TLS and WebSocket take below the connections."""
    account = broker.account
    router = broker.router

    def messages() -> int:
        durability: Durability | None = broker.durability
        if durability is None:
            return 0
        return (
            durability.paging.bodies
            + 700 * len(durability.sessions.messages)
            + durability.commit.pending_bytes_without_done
        )

    return {
        "queues": lambda: account.queues,
        "messages": messages,
        "retained": lambda: broker.retained.bytes,
        "subscriptions": lambda: router.filter_bytes + 350 * router.subscription_count,
        "sessions": lambda: 1400 * len(broker.sessions) + broker.sessions.names,
        "connections": lambda: guard.buffers + CONNECTION_BYTES * len(connections) + sockets(),
        "before_login": lambda: before_login.bytes,
        "aliases": lambda: account.aliases,
        "events": lambda: broker.throttled_log.events.size,
    }
