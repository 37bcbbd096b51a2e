"""Buffer: the rows that wait for one resource. An action appends a row without waiting, and the buffer delivers it.

Lanes deliver in parallel, each in order::

    append ──► store (disk) ──► lane by key ──► batch ──► breaker ──► write ────► done: removed, reported
                                   ▲                                    │
                                   ├─ the lane waits ◄── jittered back-off ◄── the other side is away
                                   └─ its key waits ◄─── jittered back-off ◄── answered with an error of its own;
                                                                               dead letter after a few attempts

A row is delivered once if its answer arrives. If the answer is lost, because of a broken connection or the end of the
process, the row is delivered again."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..config import RuleEngineSettings
from ..network.allowed_networks import reason_of
from ..records import BufferStatus
from .buffer_store import BufferStore
from .buffered_row import BufferedRow, decode_row
from .circuit_breaker import HALF_OPEN, CircuitBreaker
from .dead_letters import DeadLetter
from .lane import Lane, WaitingRow
from .report import ActionFailed

logger = logging.getLogger(__name__)

_NO_LIMITS: Final[Mapping[str, int]] = {}
_LOG_INTERVAL: Final = 10.0
_MAX_SLICE: Final = 0.005
"""Seconds after which a series of failing rows lets other tasks run."""
_CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of the rows that have a deadline."""
_MAX_STALE: Final = 1000
_MAX_REFUSED_KEYS: Final = 1000


class DeliveryOutcome(NamedTuple):
    """The result of one row of a batch. ``retry``: try it again; ``unreachable``: without a limit; ``aside``: do not
    try it again, and keep it as a dead letter.

    ``attributed`` False: some rows of the batch failed, but the answer does not show which; no fallback runs for
    them."""

    reason: str = ""
    retry: bool = False
    unreachable: bool = False
    attributed: bool = True
    aside: bool = False


DELIVERED: Final = DeliveryOutcome()


class RowWriter(Protocol):
    """The resource to which the buffer delivers."""

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        """Return one outcome for each row, in order. Limits its own time."""
        ...


class Buffer:
    """Limited in rows and bytes; a row beyond a limit is refused immediately, counted and logged.

    ``durable`` False: only in memory, whatever the node's durability level is. A new buffer of the same resource id
    must not start before the old one is closed.

    ``limits``: keys of ``[ruleengine]`` for which the resource has its own value."""

    def __init__(
        self,
        resource_id: str,
        store: BufferStore,
        settings: RuleEngineSettings,
        writer: RowWriter,
        lanes: int,
        rng: Random,
        durable: bool = True,
        now: Callable[[], float] = time.time,
        limits: Mapping[str, int] = _NO_LIMITS,
    ) -> None:
        self.resource_id = resource_id
        self.dropped: dict[str, int] = {}
        self.delivered = 0
        self.retried = 0
        self.set_aside = 0
        self.last_error = ""
        # Why the last row that will be retried was not delivered.
        self._last_failure = ""
        self._store = store
        self._settings = settings
        self._writer = writer
        self._rng = rng
        self._durable = durable
        self._now = now
        self._limits = limits
        self._lanes = [Lane(index) for index in range(lanes)]
        self._breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_pause)
        # Keys whose rows were answered with an error since the last success, and how often.
        self._refused: dict[str, int] = {}
        self._messages = 0
        self._bytes = 0
        self._restored = False
        self._closed = False
        self._restoring: asyncio.Task[None] | None = None
        self._retry = asyncio.Event()
        self._warned_at: dict[str, float] = {}
        # Rows with a deadline, the earliest first; some of them are already done.
        self._deadlines: list[tuple[float, int, WaitingRow, Lane]] = []
        self._deadline_count = 0
        self._expiring: asyncio.Task[None] | None = None

    @property
    def status(self) -> BufferStatus:
        return BufferStatus(
            self._messages,
            self._bytes,
            self.delivered,
            self.retried,
            dict(self.dropped),
            self.set_aside,
            self._store.dead_letters.count(self.resource_id),
            self._breaker.state,
            self._breaker.opened,
            self.last_error,
        )

    def append(self, buffered: BufferedRow, volatile: bool = False) -> None:
        """Store and enqueue a row; a ``volatile`` one only in memory. Never waits. Raises ActionFailed if a limit is
        exceeded."""
        if self._closed:
            raise ActionFailed(f"the resource {self.resource_id} has stopped")
        if buffered.single_attempt and self._breaker.blocked:
            self._count_drop("retry_for")
            raise ActionFailed(f"{self.resource_id} is unreachable, and retry_for is 0: {self._last_failure}")
        settings = self._settings
        if self._messages >= settings.buffer_messages:
            self._refuse("buffer_messages", settings.buffer_messages)
        size = buffered.size
        if self._bytes + size > settings.buffer_bytes:
            self._refuse("buffer_bytes", settings.buffer_bytes)
        number = self._store.put(self.resource_id, buffered, self._durable and not volatile)
        if self._restored:
            self._enqueue(number, buffered, size)
        else:  # ``_restore`` will enqueue it; counted now, so that the limits apply
            self._messages += 1
            self._bytes += size

    def _refuse(self, setting: str, bound: int) -> NoReturn:
        self._count_drop("buffer_full")
        self._warn("buffer_full", setting, bound, self.dropped["buffer_full"])
        raise ActionFailed(f"the buffer of {self.resource_id} is full (ruleengine.{setting} = {bound})")

    def _warn(self, event: str, setting: str, bound: float, count: int, reason: str = "") -> None:
        """Log a warning with the setting, at most once for each event within ``_LOG_INTERVAL`` seconds."""
        now = asyncio.get_running_loop().time()
        if now < self._warned_at.get(event, 0.0):
            return
        self._warned_at[event] = now + _LOG_INTERVAL
        logger.warning(
            "%s resource=%s setting=%s value=%s count=%s reason=%s",
            event,
            self.resource_id,
            setting if setting in self._limits else f"ruleengine.{setting}",
            bound,
            count,
            reason or "-",
        )

    def _limit(self, setting: str) -> int:
        return int(self._limits.get(setting, getattr(self._settings, setting)))

    def start(self) -> None:
        """Start delivery, beginning with the rows of an earlier buffer of this resource in the store."""
        self._restoring = asyncio.get_running_loop().create_task(self._restore())

    async def _restore(self) -> None:
        last = 0
        # Rows appended before the start were counted, but the stored ones were not: count all of them again.
        self._messages = self._bytes = 0
        rows = self._store.after(self.resource_id, last)
        self._messages = len(rows)
        self._bytes = sum(buffered.size for _, buffered in rows)
        work = CooperativeSlice()
        while rows and not self._closed:
            for number, buffered in rows:
                self._messages -= 1
                self._bytes -= buffered.size
                self._enqueue(number, buffered, buffered.size)
                last = number
                await work.checkpoint()
            rows = self._store.after(self.resource_id, last)
        self._restored = True

    def retry_now(self) -> None:
        """Retry now, because the other system is reachable again."""
        self._breaker.retry_now()
        for lane in self._lanes:
            lane.release_all()
        self._retry.set()
        self._retry = asyncio.Event()

    def send_again(self, number: int) -> bool:
        """Queue a dead letter again; return whether it existed. Raises ActionFailed."""
        letter = self._store.dead_letters.of(self.resource_id).get(number)
        if letter is None:
            return False
        buffered = letter.buffered
        now = self._now()
        until = now + buffered.until - buffered.at if buffered.until else 0.0
        self.append(msgspec.structs.replace(buffered, at=now, until=until))
        self._store.dead_letters.remove(self.resource_id, number)
        return True

    async def close(self) -> None:
        """Stop. Requests in flight have ``close_timeout`` seconds to end; other rows stay in the store."""
        self._closed = True
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        if self._expiring is not None:
            self._expiring.cancel()
            tasks.append(self._expiring)
        if self._restoring is not None:
            tasks.append(self._restoring)
        if not tasks:
            return
        for lane in self._lanes:
            if lane.task is not None and not lane.busy:
                lane.task.cancel()
        _, late = await asyncio.wait(tasks, timeout=self._settings.close_timeout)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---------------------------------------------------------------- lanes

    def _enqueue(self, number: int, buffered: BufferedRow, size: int) -> None:
        lane = self._lanes[zlib.crc32(buffered.key.encode("utf-8", "replace")) % len(self._lanes)]
        waiting = WaitingRow(number, buffered, size)
        lane.append(waiting)
        self._messages += 1
        self._bytes += size
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if buffered.until and not buffered.single_attempt:
            heapq.heappush(self._deadlines, (buffered.until, number, waiting, lane))
            self._deadline_count += 1
            if self._expiring is None:
                self._expiring = loop.create_task(self._expire())
        if lane.task is None:
            lane.task = loop.create_task(self._work(lane))

    async def _work(self, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._closed:
                lane.release(loop.time())
                if not lane.ready:
                    if lane.empty:
                        return
                    await _until_woken(lane, lane.due - loop.time())
                    continue
                if lane.single_attempts and self._breaker.blocked:
                    await self._fail_single_attempts(lane, self._last_failure)
                    continue
                await self._breaker.admit()
                self._pass_over_refused(lane)
                batch = [] if self._stopping() else lane.batch()
                if batch and len(batch) < batch[0].buffered.max_batch:
                    linger = batch[0].buffered.linger
                    linger = self._settings.batch_linger if linger is None else linger
                    if linger:
                        await asyncio.sleep(linger)
                        batch = lane.batch()
                if not batch:
                    self._breaker.withdraw()
                    continue
                lane.busy = True
                for each in batch:
                    each.in_flight = True
                outcomes = await self._attempt(lane, [each.buffered for each in batch])
                lane.busy = False
                away = self._apply(lane, batch, outcomes)
                if not away:
                    lane.failures = 0
                elif not self._stopping():
                    await self._fail_single_attempts(lane, away)
                    await self._back_off(lane)
        finally:
            lane.task = None

    def _stopping(self) -> bool:
        return self._closed

    async def _attempt(self, lane: Lane, batch: list[BufferedRow]) -> list[DeliveryOutcome]:
        try:
            outcomes = await self._writer.write(batch, lane.index)
        except Exception as error:
            logger.exception("deliver_failed resource=%s error=%s", self.resource_id, error)
            outcomes = [DeliveryOutcome(reason_of(error), retry=True)] * len(batch)
        assert len(outcomes) == len(batch)
        if any(each.retry for each in outcomes):
            was = self._breaker.state
            if self._counts_for_breaker(batch, outcomes):
                self._breaker.failed()
            else:
                self._breaker.withdraw()
            if self._breaker.state != was == "closed":
                reason = next(each.reason for each in outcomes if each.retry)
                logger.warning("breaker_opened resource=%s reason=%s", self.resource_id, reason)
        else:
            self._refused.clear()
            self._breaker.succeeded()
        return outcomes

    def _counts_for_breaker(self, batch: list[BufferedRow], outcomes: list[DeliveryOutcome]) -> bool:
        """Return whether this is a failure of the other system, and not just of one key whose rows keep failing."""
        counts = any(each.unreachable for each in outcomes) or len(self._refused) >= self._settings.breaker_failures
        for buffered, outcome in zip(batch, outcomes, strict=True):
            if outcome.retry and not outcome.unreachable:
                counts = counts or buffered.key not in self._refused
                if buffered.key in self._refused or len(self._refused) < _MAX_REFUSED_KEYS:
                    self._refused[buffered.key] = self._refused.get(buffered.key, 0) + 1
        return counts

    def _pass_over_refused(self, lane: Lane) -> None:
        """While the breaker is half open, try rows of a key without errors, if there are any."""
        if self._refused and self._breaker.state == HALF_OPEN:
            if any(each.reaches_past(self._refused) for each in self._lanes):
                lane.pass_over(self._refused, asyncio.get_running_loop().time() + self._pause(0))

    def _apply(self, lane: Lane, batch: list[WaitingRow], outcomes: list[DeliveryOutcome]) -> str:
        """Remove completed rows from the lane; return why the other system is unreachable, or an empty text."""
        away = ""
        for each, outcome in zip(batch, outcomes, strict=True):
            each.in_flight = False
            if not outcome.retry:
                if outcome.reason:
                    self._count_drop("refused")
                if outcome.aside:
                    self._set_aside(lane, each, outcome.reason, each.attempts + 1, "dead_letters")
                else:
                    self._done(lane, each, outcome)
                continue
            self.last_error = outcome.reason
            buffered = each.buffered
            each.attempts += not outcome.unreachable
            most = self._limit("retry_attempts")
            self._last_failure = outcome.reason
            if outcome.unreachable:
                away = outcome.reason
            if buffered.until and buffered.until <= self._now():
                self._fail_expired(lane, each, outcome.reason)
            elif each.attempts >= most:
                self._count_drop("retry_attempts")
                reason = f"{outcome.reason}; given up after ruleengine.retry_attempts = {most} attempts"
                self._set_aside(lane, each, reason, most, "retry_attempts")
                lane.hold_key(buffered.key, self._due(buffered.key, 0.0))
            else:
                self.retried += 1
                if not outcome.unreachable:
                    lane.hold(each, self._due(buffered.key, self._pause(each.attempts - 1)))
        return away

    def _set_aside(self, lane: Lane, waiting: WaitingRow, reason: str, attempts: int, setting: str) -> None:
        """Move a row to the dead letters. ``setting``: the limit to name in the log."""
        most = self._limit("dead_letters")
        if most:
            self.set_aside += 1
            self._warn("row_set_aside", setting, self._limit(setting), self.set_aside, reason)
            letter = DeadLetter(waiting.buffered, attempts, reason, self._now())
            letters = self._store.dead_letters
            removed = letters.put(self.resource_id, letter, most, self._settings.dead_letter_bytes, self._durable)
            if removed:
                self._count_drop("dead_letters", removed)
                full = letters.count(self.resource_id) < most
                setting = "dead_letter_bytes" if full else "dead_letters"
                bound = self._settings.dead_letter_bytes if full else most
                self._warn("dead_letters_full", setting, bound, self.dropped["dead_letters"])
        else:
            self._warn(
                "row_given_up",
                "dead_letters",
                most,
                self.dropped.get("retry_attempts", 0) + self.dropped.get("refused", 0),
                reason,
            )
        self._done(lane, waiting, DeliveryOutcome(reason))

    def _fail_expired(self, lane: Lane, waiting: WaitingRow, reason: str) -> None:
        """Fail a row because ``retry_for`` of its action has passed."""
        buffered = waiting.buffered
        self._count_drop("retry_for")
        limit = f"retry_for = {round(max(buffered.until - buffered.at, 0), 3):g} seconds"
        self._done(lane, waiting, DeliveryOutcome(f"{reason or 'it had to wait'}; given up after {limit}"))

    async def _fail_single_attempts(self, lane: Lane, reason: str) -> None:
        """Fail the rows with ``retry_for`` 0, because the other system is unreachable."""
        work = CooperativeSlice()
        for each in lane.single_attempt_rows() if lane.single_attempts else ():
            if not each.done and not each.in_flight:
                self._fail_expired(lane, each, reason)
            await work.checkpoint()

    async def _expire(self) -> None:
        """Fail the rows whose deadline has passed."""
        try:
            while self._deadlines and not self._closed:
                began = time.perf_counter()
                now = self._now()
                while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].done):
                    _, _, waiting, lane = heapq.heappop(self._deadlines)
                    if not waiting.done and not waiting.in_flight:  # the answer decides about rows in flight
                        self._fail_expired(lane, waiting, self._last_failure)
                    if time.perf_counter() - began > _MAX_SLICE:
                        break
                if len(self._deadlines) > 2 * self._deadline_count + _MAX_STALE:
                    self._deadlines = [each for each in self._deadlines if not each[2].done]
                    heapq.heapify(self._deadlines)
                left = self._deadlines[0][0] - now if self._deadlines else _CHECK_INTERVAL
                await asyncio.sleep(0 if left <= 0 else min(left, _CHECK_INTERVAL))
        finally:
            self._expiring = None

    def _done(self, lane: Lane, waiting: WaitingRow, outcome: DeliveryOutcome) -> None:
        lane.remove(waiting)
        buffered = waiting.buffered
        self._messages -= 1
        self._bytes -= waiting.size
        if buffered.until and not buffered.single_attempt:
            self._deadline_count -= 1
        self._store.remove(self.resource_id, waiting.number)
        report = self._store.reports.get(buffered.action)
        if not outcome.reason:
            self.delivered += 1
        else:
            self.last_error = outcome.reason
            logger.debug(
                "row_failed resource=%s action=%s reason=%s", self.resource_id, buffered.action, outcome.reason
            )
        if report is None:  # the rule was deleted
            return
        try:
            if not outcome.reason:
                report.success()
            else:
                report.failed(outcome.reason, decode_row(buffered.row) if outcome.attributed else None)
        except Exception as error:
            logger.exception("report_failed resource=%s action=%s error=%s", self.resource_id, buffered.action, error)

    def _count_drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self._store.count(f"rule_row_{reason}", count)

    def _pause(self, failures: int) -> float:
        settings = self._settings
        longest = min(settings.retry_backoff_max, settings.retry_backoff * 2.0 ** min(failures, 30))
        return longest * self._rng.uniform(0.5, 1.0)

    def _due(self, key: str, pause: float) -> float:
        """Return the time at which a key with a refused row is tried again. Many refusals extend the pause to the
        breaker's."""
        often = self._refused.get(key, 0) >= self._settings.breaker_failures
        return asyncio.get_running_loop().time() + (max(pause, self._settings.breaker_pause) if often else pause)

    async def _back_off(self, lane: Lane) -> None:
        lane.failures += 1
        try:
            async with asyncio.timeout(self._pause(lane.failures - 1)):
                await self._retry.wait()
        except TimeoutError:
            pass


async def _until_woken(lane: Lane, timeout: float) -> None:
    lane.woken.clear()
    try:
        async with asyncio.timeout(max(timeout, 0.0)):
            await lane.woken.wait()
    except TimeoutError:
        pass
