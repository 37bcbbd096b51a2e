"""MemoryGuard: the measures when the node's memory is short.

All measures are taken in steps that fit into an iteration: clients that send most are not read for a moment; events
that wait in plugins are dropped; clients that do not read their waiting data are closed; so are clients with the
largest incomplete packets, if these use the memory; then the largest queues lose their oldest messages."""

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
_LOOK_CONNECTIONS: Final = 5000  # connections whose buffers one tick reads
_SLICE_MESSAGES: Final = 2000  # queued messages that are dropped in one iteration
_AT_ONCE: Final = 200  # messages dropped from one queue before the next check
_RANKED: Final = 2000  # the largest queues, of one pass over all sessions
_LEAST_SENT: Final = 4096
_MUCH: Final = 1_048_576
"""Bytes waiting for a client above which closing its connection helps."""
_UNFINISHED: Final = 65_536
"""Bytes of an incomplete packet above which closing its connection helps."""
_UNFINISHED_PART: Final = 20
"""Fraction of the limit that such packets have to use together before any client is closed for them."""
_CLOSE_AT_ONCE: Final = 50
CONNECTION_BYTES: Final = 6000
"""Approximate memory of a connection without its buffers."""
_EVENTS_PART: Final = 100
"""Fraction of the limit above which dropping the events of plugins helps."""
_NEWCOMERS_PART: Final = 100
"""Fraction of the limit above which closing connections without a login helps."""


class Sender(Protocol):
    """A connection over which data arrives."""

    @property
    def unfinished_bytes(self) -> int:
        """Return the size of the incomplete data that it has sent."""
        ...

    def close_unfinished(self) -> None:
        """Close the connection immediately, because memory is exhausted."""


class EventQueue(Protocol):
    """Events that wait for a program outside. ``waiting_bytes``: their memory."""

    waiting_bytes: int

    def shed(self) -> None:
        """Drop those that wait, because memory is exhausted."""


class MemoryGuard:
    """``tick`` is called ten times a second; ``end_of_iteration`` does nothing while little is queued and retained."""

    def __init__(
        self,
        memory: Memory,
        broker: Broker,
        connections: dict[Connection, None],
        alarm: Callable[[bool], None],
        before_login: BeforeLogin | None = None,
    ) -> None:
        """``alarm`` is called with whether memory is short."""
        self._before_login = BeforeLogin() if before_login is None else before_login
        # Returns HTTP connections that have logged in and have sent the beginning of a body.
        self.senders: list[Callable[[], Iterable[Sender]]] = []
        # Those of the plugins that send events.
        self.event_queues: list[EventQueue] = []
        # Whether a zone refuses messages because of a full queue, regardless of memory.
        self.zone_refuses = False
        self._memory = memory
        self._broker = broker
        self._connections = connections
        self._alarm = alarm
        self._rank_at = 0.0
        self._sent: dict[Connection, int] = {}
        # Bytes in the buffers of connections: of the unfinished pass, and of the last one.
        self._round: list[Connection] = []
        self._sum = 0
        self.buffers = 0
        self._look_at = 0
        self._more: asyncio.Handle | None = None
        # Sessions whose queues are cut to this size, the largest last.
        self._largest: list[Session] = []
        self._enough = 0
        memory.changed = self._changed

    def tick(self, now: float) -> None:
        """Count buffers, determine the memory level, and act on it."""
        self._count_buffers()
        level = self._memory.look(now)
        self._look_at = self._queued + self._memory.limit // 100
        if level >= SLOWING and now >= self._rank_at:
            self._rank_at = now + _RANK_EVERY
            self._pause_the_largest()
        if level >= SHEDDING and self._more is None:
            self._shed()

    def end_of_iteration(self) -> None:
        """Check before the next tick if much has been queued since."""
        if self._queued > self._look_at:
            self.tick(self._broker.clock.now())

    @property
    def _queued(self) -> int:
        """Return a number that grows with queued and retained messages, and with output for clients that do not
        read."""
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
            self._sent = {}  # clients that have disconnected are removed
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
        """Pause the clients that together sent half of all data since the last check."""
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
        """Shed in one iteration after another until memory is no longer exhausted, or nothing can be shed."""
        self._more = None
        if self._broker.account.level < SHEDDING:
            self._largest.clear()
            return
        if not (
            self._shed_events()
            or self._close_newcomers()
            or self._close_slowest()
            or self._close_unfinished()
            or self._shed_some()
        ):
            return
        self._memory.look(self._broker.clock.now())
        if self._broker.account.level >= SHEDDING:
            self._more = asyncio.get_running_loop().call_soon(self._shed)

    def shed_at_once(self) -> None:
        """During recovery: drop immediately everything beyond the budget."""
        self._memory.look(self._broker.clock.now(), restoring=True)
        while self._broker.account.level >= SHEDDING and self._shed_some():
            self._memory.look(self._broker.clock.now(), restoring=True)
        self._largest.clear()

    def _shed_events(self) -> bool:
        """Drop the waiting events of the plugins, if their memory causes the shortage. Return False if nothing is
        dropped."""
        before = self.event_bytes
        if before < self._memory.limit // _EVENTS_PART:
            return False
        for queue in self.event_queues:
            queue.shed()
        return self.event_bytes < before

    @property
    def event_bytes(self) -> int:
        """Memory of the events that wait in the plugins."""
        return sum([queue.waiting_bytes for queue in self.event_queues])

    def _close_newcomers(self) -> bool:
        """Close connections without a login, if their memory causes the shortage. Return False if it does not."""
        newcomers = self._before_login
        if newcomers.bytes + CONNECTION_BYTES * len(newcomers) < self._memory.limit // _NEWCOMERS_PART:
            return False
        return newcomers.make_room(-1, _CLOSE_AT_ONCE) > 0

    def _close_slowest(self) -> bool:
        """Close the connection of the client with most waiting data, if that is much and the client does not read."""
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
        """Close the connections with the largest incomplete packets: these are not acknowledged, while queued messages
        are. Return False if such packets do not use the memory."""
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
        """Drop the oldest messages of the largest queues, those of offline clients first. Return False if there are
        none."""
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
        """Find the largest queues, which are cut to half of the largest one. A pass over all sessions takes long if
        there are many, and is enough for many slices. Return False if nothing is queued."""
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
    """Return the kinds of objects that the node holds, with functions that return their approximate memory, based on
    measured sizes. ``sockets``: memory of TLS and WebSocket below the connections."""
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
            + durability.copies_bytes()
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
        "events": lambda: broker.throttled_log.size + broker.topic_sample.size,
        "event_plugins": lambda: guard.event_bytes,
    }
