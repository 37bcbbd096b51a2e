"""Shipping: sends the batches of this node's log to its followers while they are written to its own disk.

``origin`` decides which followers an acknowledgement waits for. This module is the shell around it, with the messages,
the timers, and the alarms ``replica_missing`` and ``replicas_one_machine``. The node's record in NATS is written by
``origin_record``.
"""

import asyncio
import logging
import socket
import zlib
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple, cast

from ...core.cluster import IN_SYNC
from ...persistence.log.backup_file import LogRow
from ...persistence.log.check_file import Digests
from ...persistence.log.errors import StoreError
from ...persistence.log.salvage import checksum, crc_of_data
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..tasks import Tasks
from ..wire import OVERHEAD
from .choice import CopyPlace, choose
from .frames import (
    Answer,
    Ask,
    At,
    Begin,
    CopiedBatch,
    CopyRefused,
    DropBatches,
    Forget,
    Frame,
    Have,
    HoldingCopy,
    Resume,
)
from .origin import Follower, OriginCopies
from .origin_record import OriginRecord
from .records import ReplicaRecords
from .tail import LogTail

logger = logging.getLogger(__name__)

TICK: Final = 0.1
"""Seconds between two checks of the followers."""
WINDOW: Final = 8_388_608
"""Maximum size in bytes of the batches in transit to a follower; a single batch may exceed it."""
_MOST_UNDER_WAY: Final = 4096
_PIECE: Final = 1_048_576
"""Size in bytes of the rows that are read from the file at a time."""
_NEAR: Final = 1_048_576
"""Maximum size in bytes of the batches that a follower may lack when acknowledgements start to wait for it."""
_RETRY: Final = 0.5
_DROP_AGAIN: Final = 5.0
_ASK_AFTER: Final = 0.3
_LAST_BATCHES: Final = 2.0
"""Seconds that a node waits for its followers when it stops."""
_ALARM: Final = "replica_missing"
_TROUBLE: Final = "replicas_trouble"
_ONE_MACHINE: Final = "replicas_one_machine"
_SETTING: Final = "cluster.replicas"
_DAMAGED: Final = "replica_batch_damaged"
_LEFT: Final = "replica_left"

_ASKED: Final = "asked"
_COMPARING: Final = "comparing"
_EMPTYING: Final = "emptying"
_RESUMING: Final = "resuming"
_SENDING: Final = "sending"


class ReplicaStatus(NamedTuple):
    """A follower of this node. ``state``: as in ``origin``. ``batches`` and ``bytes``: how far it is behind; ``bytes``
    includes only batches in memory. ``since``: how many seconds ago the state began."""

    node: str
    state: str
    batches: int
    bytes: int
    since: float


class _Session:
    """What this node sends to one follower. ``sent``: the newest batch that was sent. ``under_way`` has the number and
    size of the batches that are not acknowledged yet. ``has_old``: the copy has batches that this node has deleted, and
    these may be incomplete. ``drop_told``: when the follower was last told to delete them."""

    def __init__(self, name: str, subject: str, run: int) -> None:
        self.name = name
        self.subject = subject
        self.run = run
        self.state = _ASKED
        self.sent = 0
        self.resume: Resume | None = None
        self.under_way: deque[tuple[int, int]] = deque()
        self.bytes = 0
        self.heard = -1e9
        self.told = -1e9
        self.went_back = (-1, -1e9)
        self.reading = False
        self.dropped = 0
        self.drop_told = -1e9
        self.has_old = False

    def forget_under_way(self) -> None:
        self.under_way.clear()
        self.bytes = 0


class Shipping:
    """Implements ``write_ahead_log.LogCopies``. ``core``: the decisions. ``record``: this node's record in NATS."""

    def __init__(self, context: ClusterContext, members: Members, records: ReplicaRecords) -> None:
        settings = context.settings
        self._context = context
        self._settings = settings
        self._members = members
        self._nats = context.nats
        self._wire = context.wire
        self._answers = context.wire.reader(cast(type[Any], Answer))
        self._sessions: dict[str, _Session] = {}
        self._not_before: dict[str, float] = {}
        self._run = 0
        self._place = CopyPlace(settings.rack, socket.gethostname())
        self._chosen: list[str] = []
        # Since when all chosen nodes are on this machine.
        self._one_machine: float | None = None
        # (batches before this one can be deleted, once a follower has this one)
        self._dropped = (0, 0)
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._trouble: str | None = None
        self._alarmed = False
        self._stopped = True
        self._listens = False
        self.record = OriginRecord(context, members, records, self._record_changed, self._removed)
        self.core: OriginCopies
        self._tail: LogTail
        self._loop: asyncio.AbstractEventLoop

    # -------------------------------------------------------------- start, stop

    def attach(self) -> None:
        """Make acknowledgements wait for the copies from now on."""
        self._loop = asyncio.get_running_loop()
        durability = self._context.broker.durability
        assert durability is not None
        self._commit = durability.commit
        self._log = log = durability.commit.log
        settings = self._settings
        self.core = OriginCopies(
            settings.replicas,
            settings.replicas_min,
            settings.replica_timeout,
            settings.replicas_isolated == "alone",
            log.batch - 1,
            self._loop.time(),
        )
        self.core.wrote(log.written_batch)
        self._tail = LogTail(log.batch - 1, log.max_pending, self._context.tables.access())
        self._dropped = (log.first_batch, log.batch - 1)
        self._stopped = False
        self.record.attach(self.core)
        log.attach_copies(self)

    def start(self) -> None:
        """Find followers; this node is a member, or will be."""
        if not self._listens:
            self._listens = True
            self._nats.subscribe(self._context.subject("copied", self._context.node), self._answered)
            self._nats.on_connected.append(self._connected)
            self._members.on_change.append(self._peer_changed)
        self.core.started(self._loop.time())
        self.record.start(self._tasks)
        self._tick()

    async def stop(self) -> None:
        """Wait for a short time until the followers have everything, and continue without them."""
        if self._stopped:
            return
        deadline = self._loop.time() + _LAST_BATCHES
        commit = self._commit
        commit.end_of_iteration()
        while commit.barrier and self.core.trouble(self._loop.time()) is None and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        await self.end()

    async def end(self) -> None:
        """Acknowledge everything on this node's disk from now on."""
        if self._stopped:
            return
        self._stopped = True
        self.record.end()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()
        self._sessions.clear()
        self._commit.on_copies_trouble(None)
        self._log.end_copies()
        self._trouble, self._alarmed = None, False
        self._context.alarms.deactivate(_ALARM)
        self._context.alarms.deactivate(_TROUBLE)
        self._context.alarms.deactivate(_ONE_MACHINE)

    @property
    def may_be_used(self) -> bool:
        """Whether a node may take over this one from a copy, as far as is known."""
        return not self.core.known or bool(self.core.replaced or self.core.waited_for)

    async def withdraw(self) -> None:
        """Delete the record, so that no node takes over this one. Raises Unavailable, Unknown or NoAnswer."""
        if self._stopped:
            return
        await self.record.delete()
        await self.end()

    # ------------------------------------------------------------------ the log

    @property
    def durable(self) -> int:
        return self.core.durable

    @property
    def pending_bytes(self) -> int:
        return self._tail.bytes_after(self.core.needed() - 1)

    @property
    def tail_bytes(self) -> int:
        """Size of the batches in memory."""
        return self._tail.bytes

    def appended(self, seq: int, data: bytes, access: Digests | None) -> None:
        core = self.core
        core.appended(seq, self._loop.time())
        self._tail.append(seq, data, access, core.needed())
        for session in self._sessions.values():
            if session.state == _SENDING:
                self._send_more(session)

    def written(self, seq: int) -> None:
        self.core.wrote(seq)

    def dropped(self, seq: int) -> None:
        self._dropped = (seq, self.core.last)

    # -------------------------------------------------------------- the followers

    def _choose(self, now: float) -> None:
        running = [each for each in self._members.running() if each.name != self._context.hosted_by]
        places = [(each.name, each.record.rack, each.record.host) for each in running]
        candidates = {name: CopyPlace(rack, host) for name, rack, host in places if rack is not None}
        chosen = choose(self._context.node, self._place, candidates, self._settings.replicas)
        if chosen != self._chosen:
            self._chosen = chosen
            logger.info("replicas_chosen nodes=%s setting=%s", ",".join(chosen) or "-", _SETTING)
        self.core.want(chosen, now)
        self._look_at_machines([candidates[name].host for name in chosen], now)

    def _look_at_machines(self, hosts: list[str], now: float) -> None:
        """Raise an alarm while all copies would be lost with this machine. ``hosts``: the machines of the chosen
        nodes."""
        own = self._place.host
        if not hosts or self._context.hosted_by or any(host != own for host in hosts):
            self._one_machine = None
            self._context.alarms.deactivate(_ONE_MACHINE)
            return
        if self._one_machine is None:
            self._one_machine = now
        elif now - self._one_machine > self._settings.replica_timeout:
            message = f"the nodes that are to have copies of this node's data are all on its machine, {own}"
            details = {"setting": _SETTING, "host": own, "nodes": ",".join(self._chosen)}
            self._context.alarms.activate(_ONE_MACHINE, message, details)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK, self._tick)
        now = self._loop.time()
        self._choose(now)
        for name in list(self._sessions):
            if name not in self.core.followers:
                del self._sessions[name]
        if self._nats.connected and not self.core.replaced:
            for follower in list(self.core.followers.values()):
                self._look_after(follower.name, now)
        self.core.tick(now)
        self._tail.trim(self.core.needed())
        self._decide(now)

    def _look_after(self, name: str, now: float) -> None:
        peer = self._members.peers.get(name)
        session = self._sessions.get(name)
        if session is None:
            if peer is not None and peer.running and now >= self._not_before.get(name, 0.0):
                self._begin(name, now)
            return
        if session.state == _EMPTYING and name not in self.core.waited_for:
            session.state = _RESUMING
        if session.state == _ASKED and now - session.told >= _RETRY:
            self._send(session, Begin(session.run), now)
        elif session.state == _RESUMING and now - session.told >= _RETRY:
            assert session.resume is not None
            self._send(session, session.resume, now)
        elif session.state == _SENDING and self._waits_for(session):
            quiet = now - max(session.heard, session.told)
            if quiet >= min(_ASK_AFTER, self._settings.replica_timeout / 4):
                self._send(session, Ask(session.run, session.sent), now)

    def _waits_for(self, session: _Session) -> bool:
        """Return whether an answer of the follower may have been lost, because it still has something to report."""
        if session.under_way or session.has_old or session.dropped < self._dropped[0]:
            return True
        follower = self.core.followers[session.name]
        return follower.state != IN_SYNC or bool(follower.failed)

    def _begin(self, name: str, now: float) -> None:
        self._run += 1
        session = self._sessions[name] = _Session(name, self._context.subject("copy", name), self._run)
        self._send(session, Begin(session.run), now)

    def _send(self, session: _Session, frame: Frame, now: float) -> None:
        session.told = now
        self._nats.publish(session.subject, self._wire.write(frame))

    def _drop_session(self, session: _Session, now: float, wait: float = 0.0) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
            self._not_before[session.name] = now + wait
            self.core.lost(session.name, now)

    def _peer_changed(self, peer: Peer, before: str) -> None:
        """End the session with a node that has restarted, because that node no longer knows it."""
        session = self._sessions.get(peer.name)
        if session is not None and not peer.running:
            self._drop_session(session, self._loop.time())

    def _connected(self) -> None:
        if self._stopped:
            return
        now = self._loop.time()
        self.core.reconnected(now)
        for session in self._sessions.values():
            if session.state == _SENDING:
                self._send(session, Ask(session.run, session.sent), now)

    # ------------------------------------------------------------------- answers

    def _answered(self, data: bytes, reply: str) -> None:
        found = self._answers.message(data)
        if found is None or self._stopped:
            return
        name, answer = found[0].node, found[1]
        if isinstance(answer, HoldingCopy):
            self._maybe_forget(name, answer.run)
            return
        session = self._sessions.get(name)
        if session is None or answer.run != session.run:
            return
        now = self._loop.time()
        session.heard = now
        if isinstance(answer, Have):
            if session.state == _ASKED:
                session.state = _COMPARING
                self._tasks.run(self._compare(session, answer))
        elif isinstance(answer, CopyRefused):
            if not answer.unknown:
                logger.warning("replica_refused node=%s reason=%s setting=%s", name, answer.reason, _SETTING)
            self._drop_session(session, now, 0.0 if answer.unknown else 1.0)
        elif isinstance(answer, At):
            self._at(session, answer, now)

    def _at(self, session: _Session, answer: At, now: float) -> None:
        name = session.name
        if session.state == _RESUMING:
            assert session.resume is not None
            session.state = _SENDING
            session.sent = answer.disk
            session.forget_under_way()
            self.core.found(name, answer.disk, self._is_in_tail(session), now)
        if session.state != _SENDING:
            return
        under_way = session.under_way
        while under_way and under_way[0][0] <= answer.disk:
            session.bytes -= under_way.popleft()[1]
        if answer.missing and answer.received < session.sent:
            place, when = session.went_back
            if place != answer.received or now - when >= _ASK_AFTER:
                session.went_back = (answer.received, now)
                session.sent = answer.received
                while under_way and under_way[-1][0] > answer.received:
                    session.bytes -= under_way.pop()[1]
        near = self.core.last - answer.disk <= 1 or self._tail.bytes_after(answer.disk) <= _NEAR
        in_tail = self._is_in_tail(session)
        before, needs = self._dropped
        session.has_old = answer.first < before
        if answer.trouble:
            self.core.failed(name, answer.trouble)
            changed = True
        else:
            near = near and in_tail and not session.has_old
            changed = self.core.acknowledged(name, answer.disk, in_tail, near, now)
        lost = session.has_old and now - session.drop_told >= _DROP_AGAIN
        if (session.dropped < before or lost) and answer.disk >= needs:
            session.dropped = before
            session.drop_told = now
            self._send(session, DropBatches(session.run, before), now)
        self._send_more(session)
        if changed or self._trouble is not None:
            self._decide(now)
        else:
            self._log.copied()

    def _is_in_tail(self, session: _Session) -> bool:
        return session.sent + 1 >= self._tail.first

    async def _compare(self, session: _Session, have: Have) -> None:
        """Find the newest batch that the copy and this log have in common."""
        now = self._loop.time()
        position = -1
        try:
            for number, crc in ((have.last, have.crc), (have.previous, have.previous_crc)):
                if number and number < self._log.batch and await self._crc_of(number) == crc:
                    position = number
                    break
        except StoreError as error:
            logger.warning("replica_compare_failed node=%s error=%s", session.name, error)
            self._drop_session(session, now, 1.0)
            return
        if self._sessions.get(session.name) is not session:
            return
        if position >= 0:
            session.resume = Resume(session.run, position, False, self._tail.access_after(position))
            session.state = _RESUMING
        else:
            if have.last:
                logger.warning("replica_differs node=%s last=%s setting=%s", session.name, have.last, _SETTING)
            session.resume = Resume(session.run, 0, True)
            session.state = _EMPTYING
            self.core.differs(session.name, self._loop.time())
        session.told = -1e9
        self._decide(self._loop.time())
        self._look_after(session.name, self._loop.time())

    async def _crc_of(self, number: int) -> int | None:
        """Return the CRC32 of the data of batch ``number``, or ``None`` if the log does not have it. Raises
        StoreError."""
        batch = self._tail.at(number)
        if batch is not None:
            return zlib.crc32(batch.data)
        rows = await self._log.rows_after(number - 1, 1)
        if not rows or rows[0][0] != number:
            return None
        seq, low, crc, _ = rows[0]
        return crc_of_data(seq, low, crc)

    # ------------------------------------------------------------------- sending

    def _send_more(self, session: _Session) -> None:
        """Send the next batches, as far as the follower's window allows."""
        under_way = session.under_way
        while not under_way or (session.bytes < WINDOW and len(under_way) < _MOST_UNDER_WAY):
            batch = self._tail.after(session.sent)
            if batch is None:
                if session.sent < self.core.last and not session.reading:
                    session.reading = True
                    after = session.sent
                    reading = self._log.rows_after(after, _PIECE)
                    reading.add_done_callback(partial(self._read, session, after))
                return
            self._send_batch(session, batch.number, batch.data, batch.access)

    def _read(self, session: _Session, after: int, done: "asyncio.Future[list[LogRow]]") -> None:
        session.reading = False
        if self._sessions.get(session.name) is not session or session.state != _SENDING or self._stopped:
            return
        try:
            rows = done.result()
        except StoreError as error:
            logger.warning("replica_read_failed node=%s error=%s", session.name, error)
            self._drop_session(session, self._loop.time(), 1.0)
            return
        if session.sent != after:
            self._send_more(session)
            return
        for number, low, crc, data in rows:
            if checksum(number, low, data) != crc:
                self._context.refusals.add(_DAMAGED, self._context.node, "node.data_dir")
                continue
            self._send_batch(session, number, data, self._tail.access_with(number))
        if not rows or session.sent == after:
            first = self._tail.at(self._tail.first)
            if rows:
                session.sent = rows[-1][0]  # they were damaged
            elif first is not None and session.sent < first.number:
                self._send_batch(session, first.number, first.data, first.access)
        self._send_more(session)

    def _send_batch(self, session: _Session, number: int, data: bytes, access: Digests | None) -> None:
        most = max(self._nats.max_payload - OVERHEAD, OVERHEAD)
        run, previous = session.run, session.sent
        if len(data) <= most:
            self._publish(session, CopiedBatch(run, previous, number, 0, 1, data, access))
        else:
            parts = (len(data) + most - 1) // most
            for part in range(parts):
                piece = data[part * most : (part + 1) * most]
                self._publish(session, CopiedBatch(run, previous, number, part, parts, piece, access))
        session.sent = number
        session.under_way.append((number, len(data)))
        session.bytes += len(data)

    def _publish(self, session: _Session, batch: CopiedBatch) -> None:
        self._nats.publish(session.subject, self._wire.write(batch))

    # ----------------------------------------------------------------- decisions

    def _record_changed(self) -> None:
        self._decide(self._loop.time())

    def _decide(self, now: float) -> None:
        """Act on the changes of the core."""
        core = self.core
        self.record.check()
        trouble = core.trouble(now)
        if trouble != self._trouble:
            if trouble is not None:
                logger.error("replicas_trouble error=%s", trouble)
            else:
                logger.warning("replicas_trouble_over")
            self._trouble = trouble
            self._commit.on_copies_trouble(trouble)
            if trouble is not None:
                message = f"nothing that has to be stored is acknowledged: {trouble}"
                self._context.alarms.activate(_TROUBLE, message, {"setting": _SETTING, "error": trouble})
            else:
                self._context.alarms.deactivate(_TROUBLE)
        since = core.missing_since
        alarmed = since is not None and now - since > self._settings.replica_timeout
        if alarmed != self._alarmed:
            self._alarmed = alarmed
            if alarmed:
                details = {"setting": _SETTING, "complete": core.copies, "replicas": self._settings.replicas}
                message = f"{core.copies} of {self._settings.replicas} copies of this node's data are complete"
                self._context.alarms.activate(_ALARM, message, details)
            else:
                self._context.alarms.deactivate(_ALARM)
        self._log.copied()

    def _removed(self, follower: Follower) -> None:
        """Handle a follower that has left the record."""
        logger.warning(
            "replica_removed node=%s behind=%s error=%s setting=%s", follower.name,
            self.core.last - follower.position, follower.failed or "-", "cluster.replica_timeout",
        )  # fmt: skip
        self._context.refusals.count(_LEFT)
        self._maybe_forget(follower.name, 0)

    # ------------------------------------------------------------------- others

    def _maybe_forget(self, name: str, run: int) -> None:
        """Tell the follower to delete its copy if it is not needed."""
        if self.core.is_spare(name):
            session = self._sessions.get(name)
            frame = Forget(session.run if session is not None else run)
            self._nats.publish(self._context.subject("copy", name), self._wire.write(frame))
            if session is not None:
                self._drop_session(session, self._loop.time())

    def status(self) -> list[ReplicaStatus]:
        """Return the followers of this node, and how far each is behind."""
        now = self._loop.time()
        found = []
        for follower in sorted(self.core.followers.values(), key=lambda each: each.name):
            behind = self.core.last - follower.position
            size = self._tail.bytes_after(follower.position)
            found.append(ReplicaStatus(follower.name, follower.state, behind, size, now - follower.since))
        return found
