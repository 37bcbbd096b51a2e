"""Buffer: what waits for one resource. The publisher puts a row in and goes on; everything else happens here.

Lanes work side by side, each in order::

    append ──► store (disk) ──► lane by key ──► batch ──► breaker ──► deliver ──► done: removed, reported
                                   ▲                                    │
                                   └──────── jittered back-off ◄────────┘ again

A row is delivered once when the other side answered once. If the answer is lost, by a broken connection or with the
process, it is delivered again.
"""

import asyncio
import logging
import zlib
from collections import deque
from random import Random
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from ..config import RuleEngineSettings
from ..networks import reason_of
from .action import ActionFailed
from .breaker import Breaker
from .buffer_store import BufferStore
from .entry import Entry, decode_row

logger = logging.getLogger(__name__)

_SLICE: Final = 500
_QUIET: Final = 10.0


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


class _Waiting:
    __slots__ = ("attempts", "entry", "number")

    def __init__(self, number: int, entry: Entry) -> None:
        self.number = number
        self.entry = entry
        self.attempts = 0


class _Lane:
    __slots__ = ("busy", "failures", "index", "task", "waiting")

    def __init__(self, index: int) -> None:
        self.index = index
        self.waiting: deque[_Waiting] = deque()
        self.task: asyncio.Task[None] | None = None
        # Something is on its way, and its answer may still come.
        self.busy = False
        self.failures = 0


class Buffer:
    """Bounded in messages and octets; what does not fit is refused at once, counted and logged.

    ``durable`` False: kept in memory only, whatever the node's durability level is. Between two buffers of one resource
    id the first must be closed before the second starts.
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
    ) -> None:
        self.resource_id = resource_id
        self.dropped: dict[str, int] = {}
        self.delivered = 0
        self.retried = 0
        self.last_error = ""
        self._store = store
        self._settings = settings
        self._sink = sink
        self._rng = rng
        self._durable = durable
        self._lanes = [_Lane(index) for index in range(lanes)]
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_pause)
        self._messages = 0
        self._octets = 0
        self._taken_up = False
        self._closed = False
        self._taking_up: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        self._said = 0.0

    @property
    def status(self) -> dict[str, Any]:
        return {
            "waiting": self._messages,
            "waiting_bytes": self._octets,
            "delivered": self.delivered,
            "retried": self.retried,
            "dropped": dict(self.dropped),
            "breaker": self._breaker.state,
            "breaker_opened": self._breaker.opened,
            "last_error": self.last_error,
        }

    def append(self, entry: Entry) -> None:
        """Take it. Never waits. Raises ActionFailed where it does not fit."""
        if self._closed:
            raise ActionFailed(f"the resource {self.resource_id} has stopped")
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
        now = asyncio.get_running_loop().time()
        if now - self._said >= _QUIET:
            self._said = now
            logger.warning(
                "buffer_full resource=%s setting=ruleengine.%s value=%s dropped=%s",
                self.resource_id,
                setting,
                bound,
                self.dropped["buffer_full"],
            )
        raise ActionFailed(f"the buffer of {self.resource_id} is full (ruleengine.{setting} = {bound})")

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
        while rows and not self._closed:
            for index, (number, entry) in enumerate(rows):
                self._messages -= 1
                self._octets -= entry.size
                self._enqueue(number, entry)
                last = number
                if index % _SLICE == _SLICE - 1:
                    await asyncio.sleep(0)
            rows = self._store.after(self.resource_id, last)
        self._taken_up = True

    def nudge(self) -> None:
        """Word that the other side is back: try again now."""
        self._breaker.nudge()
        self._nudged.set()
        self._nudged = asyncio.Event()

    async def close(self) -> None:
        """Stop; what is on its way has a moment to arrive, and what has not stays in the store."""
        self._closed = True
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
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
        lane.waiting.append(_Waiting(number, entry))
        self._messages += 1
        self._octets += entry.size
        if lane.task is None and not self._closed:
            lane.task = asyncio.get_running_loop().create_task(self._work(lane))

    async def _work(self, lane: _Lane) -> None:
        try:
            while lane.waiting and not self._closed:
                await self._breaker.admit()
                if self._stopping():
                    return
                batch = self._batch(lane)
                if len(batch) < batch[0].entry.most and self._settings.batch_linger:
                    await asyncio.sleep(self._settings.batch_linger)
                    batch = self._batch(lane)
                lane.busy = True
                outcomes = await self._attempt(lane, [each.entry for each in batch])
                lane.busy = False
                if not self._settle(lane, batch, outcomes):
                    lane.failures = 0
                elif not self._stopping():
                    await self._back_off(lane)
        finally:
            lane.task = None

    def _stopping(self) -> bool:
        return self._closed

    def _batch(self, lane: _Lane) -> list[_Waiting]:
        first = lane.waiting[0].entry
        batch: list[_Waiting] = []
        for each in lane.waiting:
            if len(batch) >= first.most or each.entry.group != first.group:
                break
            batch.append(each)
        return batch

    async def _attempt(self, lane: _Lane, batch: list[Entry]) -> list[Outcome]:
        try:
            outcomes = await self._sink.deliver(lane.index, batch)
        except Exception as error:
            logger.exception("deliver_failed resource=%s error=%s", self.resource_id, error)
            outcomes = [Outcome(reason_of(error), again=True)] * len(batch)
        assert len(outcomes) == len(batch)
        if any(each.again for each in outcomes):
            was = self._breaker.state
            self._breaker.failed()
            if self._breaker.state != was == "closed":
                reason = next(each.reason for each in outcomes if each.again)
                logger.warning("breaker_opened resource=%s reason=%s", self.resource_id, reason)
        else:
            self._breaker.succeeded()
        return outcomes

    def _settle(self, lane: _Lane, batch: list[_Waiting], outcomes: list[Outcome]) -> bool:
        """Take what is done out of the lane; whether something stays for another attempt."""
        again: list[_Waiting] = []
        for _ in batch:
            lane.waiting.popleft()
        for each, outcome in zip(batch, outcomes, strict=True):
            if outcome.again:
                self.last_error = outcome.reason
                if not outcome.down:
                    each.attempts += 1
                if each.attempts < self._settings.retry_attempts:
                    self.retried += 1
                    again.append(each)
                    continue
                reason = f"{outcome.reason}; given up after ruleengine.retry_attempts = {each.attempts} attempts"
                outcome = Outcome(reason)
                self._count_drop("retry_attempts")
            elif outcome.reason:
                self._count_drop("refused")
            self._done(each, outcome)
        lane.waiting.extendleft(reversed(again))
        return bool(again)

    def _done(self, waiting: _Waiting, outcome: Outcome) -> None:
        entry = waiting.entry
        self._messages -= 1
        self._octets -= entry.size
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

    def _count_drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    async def _back_off(self, lane: _Lane) -> None:
        settings = self._settings
        longest = min(settings.retry_backoff_max, settings.retry_backoff * 2 ** min(lane.failures, 30))
        lane.failures += 1
        try:
            async with asyncio.timeout(longest * self._rng.uniform(0.5, 1.0)):
                await self._nudged.wait()
        except TimeoutError:
            pass
