"""Paging: if too many messages wait in the queues of durable sessions, their bodies are removed from memory.

In memory remain the topic, the expiry and the position of the message's record in the log. The oldest bodies are
removed first. When a session reaches a paged message, the next messages of its queue are read together, and delivery
continues::

    queue:  [ body ][ body ][ paged ][ paged ] ... [ paged ][ body ][ body ]  ◄── publish
              │                 ▲
              ▼ advance         └── fetch: the next ones, read by the writer's thread, then advance again

Only deliveries in queues change: messages of clients without a durable session, retained messages and messages in
hooks stay complete.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Final

import msgspec

from ..mqtt.constants import MESSAGE_EXPIRY_INTERVAL, USER_PROPERTY
from ..mqtt.message import Delivery, Message
from ..mqtt.packets import NO_PROPERTIES, Properties
from ..session.protocols import UNREADABLE
from ..session.session import Session
from .log import records
from .log.errors import StoreError
from .log.write_ahead_log import WriteAheadLog
from .stored_message import StoredMessage, stored_of

logger = logging.getLogger(__name__)

FETCH_MESSAGES: Final = 256
FETCH_BYTES: Final = 262_144
"""Number of bytes to read ahead for a session; at least one message is read."""
_GAP: Final = 4096
"""Maximum gap in bytes between two records that are read together instead of with two reads."""
_SLICE: Final = 2000
_WHEN_SHORT: Final = 1_048_576
"""Bytes of bodies that stay in memory when memory is short."""
_MAX_TRIES: Final = 5
_RETRY_PAUSE = 1.0


def queue_properties(properties: Properties) -> Properties:
    """Return the properties of an evicted message that its queue needs."""
    expiry = properties.get(MESSAGE_EXPIRY_INTERVAL)
    return NO_PROPERTIES if expiry is None else {MESSAGE_EXPIRY_INTERVAL: expiry}


def properties_of(body: records.StoredBody) -> Properties:
    """Return the properties of a stored body, as they were before encoding."""
    return decoded_properties(body.properties)


def decoded_properties(properties: Properties) -> Properties:
    """Convert the properties of a message from the form that MessagePack returns."""
    if not properties:
        return NO_PROPERTIES
    if USER_PROPERTY in properties:
        properties[USER_PROPERTY] = [(name, value) for name, value in properties[USER_PROPERTY]]
    return properties


def evicted_copy(message: Message, size: int) -> Message:
    """Return the message without its body, of which ``size`` bytes are on disk."""
    properties = queue_properties(message.properties) if message.expires else NO_PROPERTIES
    copy = Message(
        message.topic, None, message.qos, message.retain, properties, message.publisher, message.timestamp, b"", -size
    )
    copy.id = message.id
    copy.hops = message.hops
    return copy


def reloaded_copy(message: Message, body: records.StoredBody) -> Message:
    """Return an evicted message with its body. Its size counts as before."""
    padding = -message.payload_at - len(body.payload)
    copy = Message(
        message.topic,
        None,
        message.qos,
        message.retain,
        properties_of(body),
        message.publisher,
        message.timestamp,
        bytes(padding) + body.payload if padding > 0 else body.payload,
        max(0, padding),
    )
    copy.id = message.id
    copy.hops = message.hops
    return copy


class Paging:
    """``bytes``: memory of the bodies in queues; ``bound``: its limit, 0: none. ``bodies``: memory of all bodies that
    durable sessions hold, including those in flight."""

    def __init__(self, log: WriteAheadLog, bound: int, now: Callable[[], float]) -> None:
        self._log = log
        self.bound = bound
        self.bytes = 0
        self.bodies = 0
        # The node's memory is short: evict everything that can be evicted.
        self._memory_short = False
        self._now = now
        # In memory and in a queue; the oldest is first.
        self._loaded: dict[int, StoredMessage] = {}
        self._fetching: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._more: asyncio.Handle | None = None

    # -------------------------------------------------------------------- evict

    def queued(self, delivery: Delivery) -> None:
        """Note that a delivery waits in the queue of a session that holds it."""
        message = delivery.message
        stored = stored_of(message)
        if stored is not None and not stored.weight and message.payload_at >= 0:
            stored.weight = weight = len(message.frame)
            if weight:
                self._loaded[stored.number] = stored
                self.bytes += weight

    def add(self, stored: StoredMessage) -> None:
        """Add a message that is in memory and in a queue."""
        if stored.weight and stored.number not in self._loaded:
            self._loaded[stored.number] = stored
            self.bytes += stored.weight

    def forgotten(self, stored: StoredMessage) -> None:
        """Remove a message that was in a queue and no longer has a holder."""
        if self._loaded.pop(stored.number, None) is not None:
            self.bytes -= stored.weight

    def dropped(self, stored: StoredMessage) -> None:
        """Note that one of the holders of a message that was in a queue no longer holds it."""
        if not stored.message.paged:
            self.add(stored)  # if it was skipped because it was in flight

    @property
    def busy(self) -> bool:
        """Whether a read is running, or more has to be evicted."""
        return bool(self._tasks) or self._more is not None

    def evict(self) -> None:
        """Evict in slices until memory is within the limit, or until nothing more can be evicted."""
        if self._more is None and self.bytes > self._goal:
            self._evict_slice()

    def set_memory_short(self, short: bool) -> None:
        """Set whether memory is short: then evict everything that can be evicted, otherwise apply the limit again."""
        self._memory_short = short
        self.evict()

    @property
    def _goal(self) -> int:
        """Return how many bytes may stay."""
        if self._memory_short:
            return min(self.bound or _WHEN_SHORT, _WHEN_SHORT)
        return self.bound or self.bytes

    def _evict_slice(self) -> None:
        self._more = None
        loaded = self._loaded
        durable = self._log.durable_batch
        # Slightly below the limit, so that not every slice evicts only one message.
        goal = self._goal
        goal -= goal // 16
        for number, stored in list(islice(loaded.items(), _SLICE)):
            if self.bytes <= goal or stored.key or not 0 < stored.seq <= durable:
                return
            del loaded[number]
            self.bytes -= stored.weight
            if not stored.sent:
                message = stored.message
                self.bodies -= len(message.frame)
                stored.replace_message(evicted_copy(message, stored.weight))
                message.stored = None
        if self.bytes > goal and loaded:
            self._more = asyncio.get_running_loop().call_soon(self._evict_slice)

    # --------------------------------------------------------------------- load

    def fetch(self, session: Session, delivery: Delivery) -> bool:
        """Read the next messages of the session's queue, then call its ``advance``. Return False if ``delivery`` cannot
        be read."""
        stored = stored_of(delivery.message)
        if stored is None or stored.lost:
            return False
        if session not in self._fetching:
            self._fetching.add(session)
            self._run(self._fetch(session, self._next_of(session)))
        return True

    @staticmethod
    def _next_of(session: Session) -> list[StoredMessage]:
        wanted: list[StoredMessage] = []
        size = 0
        for delivery in session.queue or ():
            message = delivery.message
            stored = stored_of(message)
            if not message.paged or stored is None or stored.lost:
                if wanted:
                    break
                continue
            size += stored.size
            if wanted and (size > FETCH_BYTES or len(wanted) == FETCH_MESSAGES):
                break
            wanted.append(stored)
        return wanted

    async def _fetch(self, session: Session, wanted: list[StoredMessage]) -> None:
        try:
            await self.load(wanted)
        finally:
            self._fetching.discard(session)
        session.advance(self._now())
        self.evict()

    def deliver_when_loaded(self, session: Session, delivery: Delivery) -> None:
        """Load an evicted message, then deliver it to a session that holds nothing on disk."""
        stored = stored_of(delivery.message)
        assert stored is not None
        self._run(self._deliver_when_loaded(session, delivery, stored))

    async def _deliver_when_loaded(self, session: Session, delivery: Delivery, stored: StoredMessage) -> None:
        await self.load([stored])
        delivery.message = stored.message
        if stored.lost:
            session.observer.delivery_dropped(session, delivery, UNREADABLE)
        else:
            session.deliver_shared(delivery)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load(
        self, wanted: Iterable[StoredMessage], then: Callable[[StoredMessage], None] = lambda _: None
    ) -> None:
        """Load bodies. ``then`` receives each one immediately, because it may soon be evicted again.

        A message that cannot be read after several attempts is ``lost``."""
        for left in range(_MAX_TRIES - 1, -1, -1):
            away = []
            for stored in wanted:
                if stored.message.paged:
                    away.append(stored)
                else:
                    then(stored)
            wanted = failed = await self._read(away, then)
            if not failed:
                return
            logger.error("store_read_failed messages=%s tries_left=%s setting=node.data_dir", len(failed), left)
            if left:
                await asyncio.sleep(_RETRY_PAUSE)
        for stored in wanted:
            stored.lost = True

    async def _read(self, wanted: list[StoredMessage], then: Callable[[StoredMessage], None]) -> list[StoredMessage]:
        """Read the bodies; return those that could not be read."""
        pieces = [
            (together, self._log.read(seq, begin, end - begin), begin) for seq, begin, end, together in _spans(wanted)
        ]
        failed = []
        for together, piece, begin in pieces:
            try:
                data = await piece
            except StoreError as error:
                logger.warning("store_read_failed error=%s", error)
                failed += [stored for stored, _, _ in together]
                continue
            for stored, offset, size in together:
                if self._put_back(stored, data[offset - begin : offset - begin + size]):
                    then(stored)
                else:
                    failed.append(stored)
        return failed

    def _put_back(self, stored: StoredMessage, encoded: bytes) -> bool:
        try:
            record = records.decode(encoded)
        except msgspec.MsgspecError:
            return False
        if not isinstance(record, records.MessageStored) or record.number != stored.number:
            return False
        message = stored.message
        if message.paged:
            if not stored.weight:
                stored.weight = -message.payload_at
            stored.replace_message(reloaded_copy(message, record.body))
            if stored.held:
                self.bodies += len(stored.message.frame)
                self.add(stored)
            else:
                stored.message.stored = None  # removed in the meantime: nothing is counted or written for it
        return True


def _spans(wanted: list[StoredMessage]) -> list[tuple[int, int, int, list[tuple[StoredMessage, int, int]]]]:
    """Return the ranges to read: (batch, begin, end, the messages in it with offset and size); adjacent messages
    share one."""
    spans: list[tuple[int, int, int, list[tuple[StoredMessage, int, int]]]] = []
    for stored in sorted(wanted, key=lambda each: (each.seq, each.offset)):
        seq, begin, size = stored.seq, stored.offset, stored.size
        if spans and spans[-1][0] == seq and begin - spans[-1][2] <= _GAP:
            spans[-1][3].append((stored, begin, size))
            spans[-1] = (seq, spans[-1][1], begin + size, spans[-1][3])
        else:
            spans.append((seq, begin, begin + size, [(stored, begin, size)]))
    return spans
