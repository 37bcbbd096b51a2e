"""Buffer: what waits for one resource. The publisher puts a row in and goes on; everything else happens here.

Lanes work side by side, each in order::

    append ──► store (disk) ──► lane by key ──► batch ──► breaker ──► deliver ──► done: removed, reported
                                   ▲                                    │
                                   ├─ the lane waits ◄── jittered back-off ◄── the other side is away
                                   └─ its key waits ◄─── jittered back-off ◄── answered with an error of its own;
                                                                               set aside after a few attempts

A row is delivered once when the other side answered once. If the answer is lost, by a broken connection or with the
process, it is delivered again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..config import RuleEngineSettings
from ..networks import reason_of
from .buffer_store import BufferStore
from .circuit_breaker import HALF_OPEN, Breaker
from .dead_letters import DeadLetter
from .entry import Entry, decode_row
from .lane import Lane, Waiting
from .report import ActionFailed

logger = logging.getLogger(__name__)

_NO_LIMITS: Final[Mapping[str, int]] = {}
_QUIET: Final = 10.0
_LONGEST_TURN: Final = 0.005
"""Seconds after which rows that fail together let others run in between."""
_LOOK: Final = 1.0
"""Seconds between two looks at the rows whose time may be over."""
_STALE: Final = 1000
_MOST_REFUSED: Final = 1000


class Outcome(NamedTuple):
    """How one entry of a batch fared. ``again``: worth another attempt; ``down``: however many it takes.

    ``known`` False: so many of the batch failed, but nobody knows which; no fallback runs for this one.
    """

    reason: str = ""
    again: bool = False
    down: bool = False
    known: bool = True


DELIVERED: Final = Outcome()


class Sink(Protocol):
    """Who takes what the buffer gives: the resource."""

    async def deliver(self, lane: int, batch: list[Entry]) -> list[Outcome]:
        """One outcome for each entry, in order. Bounds its own time."""
        ...


class Buffer:
    """Bounded in messages and octets; what does not fit is refused at once, counted and logged.

    ``durable`` False: kept in memory only, whatever the node's durability level is. Between two buffers of one resource
    id the first must be closed before the second starts.

    ``limits``: keys of ``[ruleengine]`` that the resource has a value of its own for.
    """

    def __init__(
        self,
        resource_id: str,
        store: BufferStore,
        settings: RuleEngineSettings,
        sink: Sink,
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
        # What the other side said last of rows that are to be tried again.
        self._trouble = ""
        self._store = store
        self._settings = settings
        self._sink = sink
        self._rng = rng
        self._durable = durable
        self._now = now
        self._limits = limits
        self._lanes = [Lane(index) for index in range(lanes)]
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_pause)
        # Keys whose rows were answered with an error of their own since the last success, and how often.
        self._refused: dict[str, int] = {}
        self._messages = 0
        self._octets = 0
        self._taken_up = False
        self._closed = False
        self._taking_up: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        self._said: dict[str, float] = {}
        # Rows that do not wait for ever, by when their time is over; dealt with or not.
        self._mortal: list[tuple[float, int, Waiting, Lane]] = []
        self._mortals = 0
        self._watching: asyncio.Task[None] | None = None

    @property
    def status(self) -> dict[str, Any]:
        return {
            "waiting": self._messages,
            "waiting_bytes": self._octets,
            "delivered": self.delivered,
            "retried": self.retried,
            "dropped": dict(self.dropped),
            "set_aside": self.set_aside,
            "dead_letters": self._store.dead_letters.count(self.resource_id),
            "breaker": self._breaker.state,
            "breaker_opened": self._breaker.opened,
            "last_error": self.last_error,
        }

    def append(self, entry: Entry) -> None:
        """Take it. Never waits. Raises ActionFailed where it does not fit."""
        if self._closed:
            raise ActionFailed(f"the resource {self.resource_id} has stopped")
        if entry.at_once and self._breaker.blocked:
            self._count_drop("retry_for")
            raise ActionFailed(f"{self.resource_id} is away, and retry_for is 0: {self._trouble}")
        settings = self._settings
        if self._messages >= settings.buffer_messages:
            self._refuse("buffer_messages", settings.buffer_messages)
        if self._octets + entry.size > settings.buffer_bytes:
            self._refuse("buffer_bytes", settings.buffer_bytes)
        number = self._store.put(self.resource_id, entry, self._durable)
        if self._taken_up:
            self._enqueue(number, entry)
        else:  # taken up in its turn; counted now, so that the bounds hold
            self._messages += 1
            self._octets += entry.size

    def _refuse(self, setting: str, bound: int) -> NoReturn:
        self._count_drop("buffer_full")
        self._say("buffer_full", setting, bound, self.dropped["buffer_full"])
        raise ActionFailed(f"the buffer of {self.resource_id} is full (ruleengine.{setting} = {bound})")

    def _say(self, event: str, setting: str, bound: float, count: int, reason: str = "") -> None:
        """A line in the log that names the setting; not for each of a flood."""
        now = asyncio.get_running_loop().time()
        if now < self._said.get(event, 0.0):
            return
        self._said[event] = now + _QUIET
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
        """Begin to deliver, first of all what an earlier buffer of this resource left."""
        self._taking_up = asyncio.get_running_loop().create_task(self._take_up())

    async def _take_up(self) -> None:
        last = 0
        # What was appended before the start has been counted, what was there before has not: count all of it anew.
        self._messages = self._octets = 0
        rows = self._store.after(self.resource_id, last)
        self._messages = len(rows)
        self._octets = sum(entry.size for _, entry in rows)
        work = CooperativeSlice()
        while rows and not self._closed:
            for number, entry in rows:
                self._messages -= 1
                self._octets -= entry.size
                self._enqueue(number, entry)
                last = number
                await work.checkpoint()
            rows = self._store.after(self.resource_id, last)
        self._taken_up = True

    def nudge(self) -> None:
        """Word that the other side is back: try again now."""
        self._breaker.nudge()
        for lane in self._lanes:
            lane.release_all()
        self._nudged.set()
        self._nudged = asyncio.Event()

    def send_again(self, number: int) -> bool:
        """Whether there was a row of this number set aside; it waits among the others again. Raises ActionFailed."""
        letter = self._store.dead_letters.of(self.resource_id).get(number)
        if letter is None:
            return False
        entry = letter.entry
        now = self._now()
        until = now + entry.until - entry.at if entry.until else 0.0
        self.append(msgspec.structs.replace(entry, at=now, until=until))
        self._store.dead_letters.remove(self.resource_id, number)
        return True

    async def close(self) -> None:
        """Stop; what is on its way has a moment to arrive, and what has not stays in the store."""
        self._closed = True
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        if self._watching is not None:
            self._watching.cancel()
            tasks.append(self._watching)
        if self._taking_up is not None:
            tasks.append(self._taking_up)
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

    def _enqueue(self, number: int, entry: Entry) -> None:
        lane = self._lanes[zlib.crc32(entry.key.encode("utf-8", "replace")) % len(self._lanes)]
        waiting = Waiting(number, entry)
        lane.append(waiting)
        self._messages += 1
        self._octets += entry.size
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if entry.until and not entry.at_once:
            heapq.heappush(self._mortal, (entry.until, number, waiting, lane))
            self._mortals += 1
            if self._watching is None:
                self._watching = loop.create_task(self._watch())
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
                if lane.at_once and self._breaker.blocked:
                    await self._fail_at_once(lane, self._trouble)
                    continue
                await self._breaker.admit()
                self._let_others_try(lane)
                batch = [] if self._stopping() else lane.batch()
                if batch and len(batch) < batch[0].entry.most and self._settings.batch_linger:
                    await asyncio.sleep(self._settings.batch_linger)
                    batch = lane.batch()
                if not batch:
                    self._breaker.withdraw()
                    continue
                lane.busy = True
                for each in batch:
                    each.flying = True
                outcomes = await self._attempt(lane, [each.entry for each in batch])
                lane.busy = False
                away = self._settle(lane, batch, outcomes)
                if not away:
                    lane.failures = 0
                elif not self._stopping():
                    await self._fail_at_once(lane, away)
                    await self._back_off(lane)
        finally:
            lane.task = None

    def _stopping(self) -> bool:
        return self._closed

    async def _attempt(self, lane: Lane, batch: list[Entry]) -> list[Outcome]:
        try:
            outcomes = await self._sink.deliver(lane.index, batch)
        except Exception as error:
            logger.exception("deliver_failed resource=%s error=%s", self.resource_id, error)
            outcomes = [Outcome(reason_of(error), again=True)] * len(batch)
        assert len(outcomes) == len(batch)
        if any(each.again for each in outcomes):
            was = self._breaker.state
            if self._tells(batch, outcomes):
                self._breaker.failed()
            else:
                self._breaker.withdraw()
            if self._breaker.state != was == "closed":
                reason = next(each.reason for each in outcomes if each.again)
                logger.warning("breaker_opened resource=%s reason=%s", self.resource_id, reason)
        else:
            self._refused.clear()
            self._breaker.succeeded()
        return outcomes

    def _tells(self, batch: list[Entry], outcomes: list[Outcome]) -> bool:
        """Whether this says something of the other side, and not of the rows of one key again."""
        tells = any(each.down for each in outcomes) or len(self._refused) >= self._settings.breaker_failures
        for entry, outcome in zip(batch, outcomes, strict=True):
            if outcome.again and not outcome.down:
                tells = tells or entry.key not in self._refused
                if entry.key in self._refused or len(self._refused) < _MOST_REFUSED:
                    self._refused[entry.key] = self._refused.get(entry.key, 0) + 1
        return tells

    def _let_others_try(self, lane: Lane) -> None:
        """Who tries whether the other side is back: rows of a key that it did not refuse, where there are any."""
        if self._refused and self._breaker.state == HALF_OPEN:
            if any(each.reaches_past(self._refused) for each in self._lanes):
                lane.pass_over(self._refused, asyncio.get_running_loop().time() + self._pause(0))

    def _settle(self, lane: Lane, batch: list[Waiting], outcomes: list[Outcome]) -> str:
        """Take what is done out of the lane; why the other side is away, where it is."""
        away = ""
        for each, outcome in zip(batch, outcomes, strict=True):
            each.flying = False
            if not outcome.again:
                if outcome.reason:
                    self._count_drop("refused")
                self._done(lane, each, outcome)
                continue
            self.last_error = outcome.reason
            entry = each.entry
            each.attempts += not outcome.down
            most = self._limit("retry_attempts")
            self._trouble = outcome.reason
            if outcome.down:
                away = outcome.reason
            if entry.until and entry.until <= self._now():
                self._over(lane, each, outcome.reason)
            elif each.attempts >= most:
                self._aside(lane, each, outcome.reason, most)
                lane.hold_key(entry.key, self._due(entry.key, 0.0))
            else:
                self.retried += 1
                if not outcome.down:
                    lane.hold(each, self._due(entry.key, self._pause(each.attempts - 1)))
        return away

    def _aside(self, lane: Lane, waiting: Waiting, reason: str, attempts: int) -> None:
        """Out of the way of the others, to where an operator finds it."""
        most = self._limit("dead_letters")
        reason = f"{reason}; given up after ruleengine.retry_attempts = {attempts} attempts"
        self._count_drop("retry_attempts")
        if most:
            self.set_aside += 1
            self._say("row_set_aside", "retry_attempts", attempts, self.set_aside, reason)
            letter = DeadLetter(waiting.entry, attempts, reason, self._now())
            letters = self._store.dead_letters
            room = letters.put(self.resource_id, letter, most, self._settings.dead_letter_bytes, self._durable)
            if room:
                self._count_drop("dead_letters", room)
                full = letters.count(self.resource_id) < most
                setting = "dead_letter_bytes" if full else "dead_letters"
                bound = self._settings.dead_letter_bytes if full else most
                self._say("dead_letters_full", setting, bound, self.dropped["dead_letters"])
        else:
            self._say("row_given_up", "dead_letters", most, self.dropped["retry_attempts"], reason)
        self._done(lane, waiting, Outcome(reason))

    def _over(self, lane: Lane, waiting: Waiting, reason: str) -> None:
        """Its action does not want to wait longer than it has."""
        entry = waiting.entry
        self._count_drop("retry_for")
        limit = f"retry_for = {max(entry.until - entry.at, 0):g} seconds"
        self._done(lane, waiting, Outcome(f"{reason or 'it had to wait'}; given up after {limit}"))

    async def _fail_at_once(self, lane: Lane, reason: str) -> None:
        """The other side is away: what is not to wait for it fails now."""
        work = CooperativeSlice()
        for each in lane.rows_at_once() if lane.at_once else ():
            if not each.gone and not each.flying:
                self._over(lane, each, reason)
            await work.checkpoint()

    async def _watch(self) -> None:
        """Rows whose time is over fail, wherever they wait."""
        try:
            while self._mortal and not self._closed:
                began = time.perf_counter()
                now = self._now()
                while self._mortal and (self._mortal[0][0] <= now or self._mortal[0][2].gone):
                    _, _, waiting, lane = heapq.heappop(self._mortal)
                    if not waiting.gone and not waiting.flying:  # what is on its way is settled by its answer
                        self._over(lane, waiting, self._trouble)
                    if time.perf_counter() - began > _LONGEST_TURN:
                        break
                if len(self._mortal) > 2 * self._mortals + _STALE:
                    self._mortal = [each for each in self._mortal if not each[2].gone]
                    heapq.heapify(self._mortal)
                left = self._mortal[0][0] - now if self._mortal else _LOOK
                await asyncio.sleep(0 if left <= 0 else min(left, _LOOK))
        finally:
            self._watching = None

    def _done(self, lane: Lane, waiting: Waiting, outcome: Outcome) -> None:
        lane.remove(waiting)
        entry = waiting.entry
        self._messages -= 1
        self._octets -= entry.size
        if entry.until and not entry.at_once:
            self._mortals -= 1
        self._store.remove(self.resource_id, waiting.number)
        report = self._store.reports.get(entry.action)
        if not outcome.reason:
            self.delivered += 1
        else:
            self.last_error = outcome.reason
            logger.debug("row_failed resource=%s action=%s reason=%s", self.resource_id, entry.action, outcome.reason)
        if report is None:  # the rule is gone
            return
        try:
            if not outcome.reason:
                report.success()
            else:
                report.failed(outcome.reason, decode_row(entry.row) if outcome.known else None)
        except Exception as error:
            logger.exception("report_failed resource=%s action=%s error=%s", self.resource_id, entry.action, error)

    def _count_drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self._store.count(f"rule_row_{reason}", count)

    def _pause(self, failures: int) -> float:
        settings = self._settings
        longest = min(settings.retry_backoff_max, settings.retry_backoff * 2.0 ** min(failures, 30))
        return longest * self._rng.uniform(0.5, 1.0)

    def _due(self, key: str, pause: float) -> float:
        """When a key is tried again of which a row was refused: after the breaker's pause where that goes on and on."""
        often = self._refused.get(key, 0) >= self._settings.breaker_failures
        return asyncio.get_running_loop().time() + (max(pause, self._settings.breaker_pause) if often else pause)

    async def _back_off(self, lane: Lane) -> None:
        lane.failures += 1
        try:
            async with asyncio.timeout(self._pause(lane.failures - 1)):
                await self._nudged.wait()
        except TimeoutError:
            pass


async def _until_woken(lane: Lane, timeout: float) -> None:
    lane.woken.clear()
    try:
        async with asyncio.timeout(max(timeout, 0.0)):
            await lane.woken.wait()
    except TimeoutError:
        pass
