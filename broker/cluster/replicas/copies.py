"""Copies: this node's copies of the logs of other nodes. Each is a log like the node's own, with a thread that writes
it."""

import asyncio
import contextlib
import json
import logging
import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from ...core.cluster import RUNNING
from ...persistence.log.check_file import CheckFile
from ...persistence.log.errors import StoreError
from ...persistence.log.files import replace_file
from ...persistence.log.log_writer import Append, LogWriter, Stop, WriterCall
from ...persistence.log.log_writer import Drop as DropJob
from ...persistence.log.sqlite_log import SqliteLog
from ...store.store import CHECK_FILE, FILE
from ..context import ClusterContext
from ..members.members import Members
from ..tasks import Tasks
from ..wire import Header
from .frames import Ask, At, Begin, CopiedBatch, CopyRefused, DropBatches, Forget, Frame, Have, HoldingCopy, Resume
from .records import DIRECTORY, ORIGIN_FILE, ReplicaRecords, copy_directory

logger = logging.getLogger(__name__)

MAX_QUEUED: Final = 67_108_864
"""Maximum size in bytes of one origin's batches that wait for the disk; further ones are sent again later."""
LOOK: Final = 5.0
"""Seconds between two checks of the copies that receive nothing."""
_IDLE: Final = 30.0
"""Seconds without a frame after which the origin is asked whether it needs the copy."""
_ORPHANED: Final = 60.0
"""Seconds without a record after which the copy of a node that runs, or is not a member, is deleted."""
CLOSE_TIMEOUT: Final = 10.0
"""Seconds after which a disk that has not closed the files of a copy is considered to have failed."""

_REFUSED: Final = "replica_refused"
_DELETED: Final = "replica_deleted"


class _Copy:
    """The copy of one origin. ``log`` is ``None`` while its files are closed. ``receiving`` is set when the origin
    knows what the copy has, and sends what follows. ``received`` is the newest batch that has arrived, and ``disk`` the
    newest on disk. ``attempt`` grows with each attempt to copy, including those of other starts of the origin, whose
    runs have the same numbers. ``closing``: the writer has to close the files, and has not done so yet."""

    def __init__(self, origin: str, directory: Path, uid: str) -> None:
        self.origin = origin
        self.directory = directory
        self.uid = uid
        self.run = 0
        self.incarnation = 0
        self.attempt = 0
        self.log: SqliteLog | None = None
        self.writer: LogWriter | None = None
        self.closed: asyncio.Future[None] | None = None
        self.closing = False
        self.lock = asyncio.Lock()
        self.receiving = False
        self.received = self.disk = 0
        self.parts: list[bytes] = []
        self.part_of = 0
        self.part_bytes = 0
        self.queued: deque[tuple[int, int]] = deque()
        self.queued_bytes = 0
        self.told_missing = -1
        self.trouble = ""
        self.heard = -1e9
        self.orphaned_since: float | None = None
        self.damaged = False

    def forget_parts(self) -> None:
        self.parts.clear()
        self.part_bytes = 0


class Copies:
    """``pending_bytes``: size of the batches that have arrived and are not on disk. ``make_log`` creates the log of a
    copy."""

    def __init__(self, context: ClusterContext, members: Members, records: ReplicaRecords, data_dir: Path) -> None:
        self._context = context
        self._members = members
        self._records = records
        self._data_dir = data_dir
        self._nats = context.nats
        self._frames = context.wire.reader(cast(type[Any], Frame))
        self._copies: dict[str, _Copy] = {}
        # Origins whose copy was given to a node that runs here.
        self._released: set[str] = set()
        self._tasks = Tasks()
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self.make_log: Callable[[Path, CheckFile], SqliteLog] = lambda path, check: SqliteLog(path, check=check)

    def start(self) -> None:
        """Accept batches of other nodes."""
        if self._timer is not None:
            return
        self._loop = asyncio.get_running_loop()
        for file in sorted((self._data_dir / DIRECTORY).glob(f"*/{ORIGIN_FILE}")):
            try:
                found = json.loads(file.read_bytes())
                origin, uid = str(found["node"]), str(found["uid"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("replica_unreadable file=%s error=%s", file, error)
                continue
            if file.parent == copy_directory(self._data_dir, origin):
                self._copies[origin] = _Copy(origin, file.parent, uid)
        self._nats.subscribe(self._context.subject("copy", self._context.node), self._heard)
        self._records.on_change.append(self._record_changed)
        self._look()

    async def stop(self) -> None:
        """Accept no more batches, and leave complete files."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopped = True
        await self._tasks.stop()
        for copy in list(self._copies.values()):
            with contextlib.suppress(StoreError):  # it is logged, and the process ends anyway
                await self._close(copy)

    @property
    def pending_bytes(self) -> int:
        return sum([copy.queued_bytes + copy.part_bytes for copy in self._copies.values()])

    def held(self) -> list[str]:
        """Return the names of the nodes of which this node has a copy, complete or not."""
        return sorted(self._copies)

    async def release(self, origin: str) -> Path | None:
        """Close the copy of ``origin``, and accept nothing more from that node. Return its directory, which has the
        files of a data directory, or ``None`` if there is no copy. Raises StoreError if its files are still open."""
        self._released.add(origin)
        copy = self._copies.get(origin)
        if copy is None:
            return None
        async with copy.lock:
            await self._close(copy)
        return copy.directory

    def accept_again(self, origin: str) -> None:
        """Accept batches of ``origin`` again after ``release``."""
        self._released.discard(origin)

    def distrust(self, origin: str) -> None:
        """Request that the copy of ``origin`` be filled again, because it is damaged."""
        copy = self._copies.get(origin)
        if copy is not None:
            copy.damaged = True

    # ------------------------------------------------------------------- frames

    def _heard(self, data: bytes, reply: str) -> None:
        found = None if self._stopped else self._frames.message(data)
        if found is None:
            return
        header, frame = found
        copy = self._copies.get(header.node)
        if isinstance(frame, Begin):
            self._begin(header, frame.run)
        elif isinstance(frame, Forget):
            if copy is not None and copy.uid == header.uid:
                self._tasks.run(self._forget(copy, "its node has enough others"))
        elif copy is None or copy.run != frame.run or copy.incarnation != header.incarnation:
            self._answer(header.node, CopyRefused(frame.run, "unknown run", True))
        else:
            copy.heard = self._loop.time()
            if isinstance(frame, CopiedBatch):
                self._batch(copy, frame)
            elif isinstance(frame, Ask):
                if copy.receiving:
                    self._tell(copy, missing=copy.received < frame.sent)
                else:
                    # An origin asks only about what it has sent: this copy was closed in the meantime.
                    self._answer(header.node, CopyRefused(frame.run, "the copy was closed", True))
            elif isinstance(frame, Resume):
                self._tasks.run(self._resume(copy, frame, copy.attempt))
            elif isinstance(frame, DropBatches):
                if copy.receiving and copy.writer is not None and copy.received >= frame.before:
                    copy.writer.post(DropJob(frame.before))

    def _refusal(self, header: Header) -> str:
        """Return why this node accepts nothing from the origin, or an empty string if it does."""
        if header.node in self._released:
            return "this node has started it from its copy"
        record = self._records.of(header.node)
        if record is None or record.ended:
            return ""
        if record.hosted_by and record.uid == header.uid and header.incarnation < record.incarnation:
            return f"{record.hosted_by} has started it from its copy"
        if record.uid != header.uid and self._context.node in record.in_sync:
            return "this node has a copy of other data of this name"
        return ""

    def _begin(self, header: Header, run: int) -> None:
        refusal = self._refusal(header)
        if refusal:
            self._context.refusals.add(_REFUSED, header.node, "cluster.replicas")
            self._answer(header.node, CopyRefused(run, refusal))
            return
        copy = self._copies.get(header.node)
        if copy is None:
            directory = copy_directory(self._data_dir, header.node)
            copy = self._copies[header.node] = _Copy(header.node, directory, header.uid)
        if copy.uid == header.uid and (header.incarnation, run) < (copy.incarnation, copy.run):
            return  # it was late
        again = (header.incarnation, run) == (copy.incarnation, copy.run)
        copy.incarnation, copy.run = header.incarnation, run
        copy.heard = self._loop.time()
        if again and (copy.receiving or copy.lock.locked()):
            return  # it was repeated
        copy.receiving = False
        copy.attempt += 1
        self._tasks.run(self._open(copy, header.uid, run, copy.attempt))

    async def _open(self, copy: _Copy, uid: str, run: int, attempt: int) -> None:
        """Open the copy, and report what it contains."""
        async with copy.lock:
            if copy.attempt != attempt or copy.origin in self._released:
                return
            found: list[tuple[int, int]] = []
            try:
                if copy.uid == uid and not copy.damaged and (copy.directory / ORIGIN_FILE).exists():
                    if copy.log is None:
                        await self._open_files(copy)
                    log = copy.log
                    assert log is not None
                    # A copy that was damaged lacks something: it is filled again.
                    if log.salvaged is None:
                        found = await self._run(copy, lambda: log.newest(2))
            except StoreError as error:
                logger.error("replica_trouble node=%s error=%s setting=node.data_dir", copy.origin, error)
                self._answer(copy.origin, CopyRefused(run, str(error)))
                return
            copy.uid = uid
            newest, before = [*found, (0, 0), (0, 0)][:2]
            self._answer(copy.origin, Have(run, *newest, *before))

    async def _resume(self, copy: _Copy, frame: Resume, attempt: int) -> None:
        async with copy.lock:
            if copy.attempt != attempt or copy.origin in self._released:
                return
            if not copy.receiving:
                try:
                    if frame.empty:
                        if self._is_relied_on(copy):
                            self._answer(copy.origin, CopyRefused(frame.run, "its record still names this copy"))
                            return
                        await self._close(copy)
                        await asyncio.to_thread(self._make_empty, copy)
                    if copy.log is None:
                        await self._open_files(copy)
                    log = copy.log
                    assert log is not None
                    await self._run(copy, lambda: _set_back(log, frame))
                except (StoreError, OSError) as error:
                    logger.error("replica_trouble node=%s error=%s setting=node.data_dir", copy.origin, error)
                    self._answer(copy.origin, CopyRefused(frame.run, str(error)))
                    return
                if copy.attempt != attempt:
                    return  # the origin has begun again in the meantime
                copy.received = copy.disk = frame.position
                copy.queued.clear()
                copy.queued_bytes = 0
                copy.forget_parts()
                copy.told_missing = -1
                copy.receiving = True
                logger.info("replica_receives node=%s after=%s", copy.origin, frame.position)
            self._tell(copy)

    def _is_relied_on(self, copy: _Copy) -> bool:
        """Return whether the copy may be the last one of some data."""
        record = self._records.of(copy.origin)
        relied_on = record is not None and self._context.node in (*record.in_sync, record.hosted_by)
        return relied_on and copy.log is not None and copy.log.last > 0

    def _batch(self, copy: _Copy, frame: CopiedBatch) -> None:
        if not copy.receiving or frame.number <= copy.received:
            return
        begins = frame.part == 0
        follows = begins or (frame.number == copy.part_of and frame.part == len(copy.parts))
        full = copy.queued_bytes + copy.part_bytes > MAX_QUEUED
        if frame.previous != copy.received or not follows or full:
            if copy.told_missing != copy.received:
                copy.told_missing = copy.received
                self._tell(copy, missing=True)
            return
        if begins:
            copy.forget_parts()
            copy.part_of = frame.number
        data = frame.data
        if frame.parts > 1:
            copy.parts.append(data)
            copy.part_bytes += len(data)
            if len(copy.parts) < frame.parts:
                return
            data = b"".join(copy.parts)
            copy.forget_parts()
        copy.received = frame.number
        copy.told_missing = -1
        copy.queued.append((frame.number, len(data)))
        copy.queued_bytes += len(data)
        assert copy.writer is not None
        copy.writer.post(Append(frame.number, data, frame.access))

    def _tell(self, copy: _Copy, missing: bool = False) -> None:
        first = 0 if copy.log is None else copy.log.first
        self._answer(copy.origin, At(copy.run, copy.disk, copy.received, missing, copy.trouble, first))

    def _answer(self, origin: str, answer: Have | At | CopyRefused | HoldingCopy) -> None:
        self._nats.publish(self._context.subject("copied", origin), self._context.wire.write(answer))

    # -------------------------------------------------------------------- files

    async def _open_files(self, copy: _Copy) -> None:
        """:raises StoreError: they cannot be used."""
        await self._close(copy)  # an earlier attempt may have failed
        log = await asyncio.to_thread(self._opened, copy.directory)
        copy.log = log
        copy.closed = self._loop.create_future()
        copy.writer = LogWriter(
            log,
            self._loop,
            lambda seq: self._written(copy, log, seq),
            lambda text: self._troubled(copy, text),
            partial(_set_result, copy.closed),
        )
        copy.trouble = ""
        copy.writer.start()

    def _opened(self, directory: Path) -> SqliteLog:
        check = CheckFile(directory / CHECK_FILE)
        check.read()
        log = self.make_log(directory / FILE, check)
        log.open()
        check.follow(log.last, None)
        try:
            log.flush_rest()  # the origin is about to be told that these batches are on disk
        except StoreError:
            with contextlib.suppress(StoreError):
                log.checkpoint_and_close()
            raise
        return log

    def _make_empty(self, copy: _Copy) -> None:
        """Delete the files of a copy, and create its directory again."""
        if copy.directory.exists():
            shutil.rmtree(copy.directory)
        copy.directory.mkdir(mode=0o700, parents=True)
        copy.damaged = False
        file = copy.directory / ORIGIN_FILE
        new = file.with_name(ORIGIN_FILE + ".new")
        new.write_text(json.dumps({"node": copy.origin, "uid": copy.uid}), encoding="utf-8")
        replace_file(new, file)

    async def _run(self, copy: _Copy, act: Callable[[], Any]) -> Any:
        """Return the result of ``act``, which the writer's thread calls after its earlier work."""
        assert copy.writer is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        copy.writer.post(WriterCall(act, future))
        return await future

    async def _close(self, copy: _Copy) -> None:
        """Close the files. Until the disk has done so, the copy stays as it is, and the next call waits again.

        :raises StoreError: the disk does not answer; nothing else may use the files."""
        copy.receiving = False
        copy.log = None
        writer = copy.writer
        if writer is None or copy.closed is None:
            return
        if not copy.closing:
            copy.closing = True
            writer.post(Stop())
        await asyncio.wait([copy.closed], timeout=CLOSE_TIMEOUT)
        if not copy.closed.done():
            text = f"the disk has not closed the files of the copy within {CLOSE_TIMEOUT:.0f} seconds"
            logger.error("replica_not_closed node=%s error=%s setting=node.data_dir", copy.origin, text)
            raise StoreError(text)
        await asyncio.to_thread(writer.join)
        copy.writer = None
        copy.closing = False
        copy.queued.clear()
        copy.queued_bytes = 0
        copy.forget_parts()

    def _written(self, copy: _Copy, log: SqliteLog, seq: int) -> None:
        if copy.log is not log or not copy.receiving:
            return
        copy.disk = seq
        queued = copy.queued
        while queued and queued[0][0] <= seq:
            copy.queued_bytes -= queued.popleft()[1]
        self._tell(copy)

    def _troubled(self, copy: _Copy, text: str | None) -> None:
        copy.trouble = text or ""
        if text is None:
            logger.warning("replica_recovered node=%s setting=node.data_dir", copy.origin)
        else:
            logger.error("replica_trouble node=%s error=%s setting=node.data_dir", copy.origin, text)
        if copy.receiving:
            self._tell(copy)

    # ----------------------------------------------------------------- deletion

    async def _forget(self, copy: _Copy, why: str) -> None:
        record = self._records.of(copy.origin)
        if record is not None and not record.ended and self._context.node in (*record.in_sync, record.hosted_by):
            return
        async with copy.lock:
            if copy.origin in self._released:
                return
            try:
                await self._close(copy)
            except StoreError:
                return  # it is tried again when this copy is looked at
            copy.run = 0
            copy.attempt += 1
            try:
                await asyncio.to_thread(shutil.rmtree, copy.directory, True)
            finally:
                if self._copies.get(copy.origin) is copy:
                    del self._copies[copy.origin]
            self._context.refusals.count(_DELETED)
            logger.info("replica_deleted node=%s reason=%s", copy.origin, why)

    def _record_changed(self, origin: str) -> None:
        """Close the copy of a node that another node now runs. A copy of that later start continues."""
        copy = self._copies.get(origin)
        record = self._records.of(origin)
        if copy is None or record is None or not record.hosted_by or copy.writer is None:
            return
        if copy.uid == record.uid and copy.incarnation < record.incarnation:
            self._tasks.run(self._rest(copy, record.incarnation))

    async def _rest(self, copy: _Copy, before: int) -> None:
        """Close a copy of an earlier start of the origin."""
        async with copy.lock:
            if copy.incarnation < before:
                with contextlib.suppress(StoreError):  # whoever needs the files waits for them
                    await self._close(copy)

    def _look(self) -> None:
        """Ask the origins of copies that receive nothing whether these are needed, and delete copies that no record
        mentions."""
        self._timer = self._loop.call_later(LOOK, self._look)
        now = self._loop.time()
        for copy in list(self._copies.values()):
            if copy.origin in self._released or not self._records.current or not self._members.known:
                continue
            peer = self._members.peers.get(copy.origin)
            runs = peer is not None and peer.status == RUNNING
            record = self._records.of(copy.origin)
            if record is not None and record.ended and record.uid == copy.uid:
                self._tasks.run(self._forget(copy, "its node has left for good"))
                continue
            if record is None and (peer is None or runs):
                if copy.orphaned_since is None:
                    copy.orphaned_since = now
                elif now - copy.orphaned_since > _ORPHANED:
                    self._tasks.run(self._forget(copy, "its node no longer has copies"))
                continue
            copy.orphaned_since = None
            if runs and now - copy.heard > _IDLE:
                self._answer(copy.origin, HoldingCopy(copy.run))


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _set_back(log: SqliteLog, frame: Resume) -> None:
    """Delete everything newer than the position: the origin never had it on its disk."""
    if log.last > frame.position:
        log.truncate(frame.position)
    if log.check is not None:
        log.check.follow(frame.position, frame.access)
