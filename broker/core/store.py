"""Store: durability level ``disk``, assembled - the log file, its journal, what is restored from it, and its housekeeping."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ..config import ZoneSettings
from ..mqtt.message import Message
from ..session.session import Limits
from ..storage import records
from ..storage.batch import decode
from ..storage.journal import Journal
from ..storage.sqlite_log import SqliteLog
from ..storage.trouble import StoreError
from .broker import Broker
from .durability import COMPACT_ABOVE, Durability
from .restore import Restored, read, restore

logger = logging.getLogger(__name__)

FILE: Final = "taipan.db"
_A_SLICE: Final = 2000
"""Records that one tick of a compaction writes."""


class Store:
    """Opened before the first listener, closed after the last client.

    ``trouble`` says why nothing can be written at present, None when all is well.
    """

    def __init__(self, directory: Path) -> None:
        self._log = SqliteLog(directory / FILE)
        self._state: Restored | None = None
        self._live: Iterator[records._Record] | None = None
        self._from = 0
        self.trouble: str | None = None
        self.durability: Durability

    def open(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> Durability:
        """Read the file. Raises StoreError with one line where it cannot be used."""
        log = self._log
        log.open()
        self._state = read(self._batches())
        if log.salvaged is not None:
            logger.error("store_damaged file=%s report=%s", log.path, log.salvaged)
        journal = Journal(log, loop, self._on_durable, self._on_trouble)
        self.durability = Durability(journal, wake)
        journal.start()
        return self.durability

    def _batches(self) -> Iterator[list[bytes]]:
        for seq, data in self._log.scan():
            try:
                yield decode(data)
            except StoreError as error:
                logger.error("store_batch_unreadable batch=%s error=%s", seq, error)

    def restore(
        self,
        broker: Broker,
        zone_of: Callable[[str], tuple[ZoneSettings, Limits]],
        delay: Callable[[Message, float, int], None],
        may_publish: Callable[[Message], bool],
    ) -> None:
        """Put what was read into the broker."""
        state, self._state = self._state, None
        assert state is not None
        restore(state, broker, self.durability, zone_of, delay, may_publish)

    def _on_durable(self, seq: int) -> None:
        self.durability.on_durable(seq)

    def _on_trouble(self, trouble: str | None) -> None:
        self.trouble = trouble
        if trouble is None:
            logger.warning("store_recovered file=%s", self._log.path)
        else:
            logger.error("store_trouble file=%s error=%s setting=node.data_dir", self._log.path, trouble)

    def housekeep(self, broker: Broker) -> None:
        """Compact, a slice at a time, when less than half of a large log says anything that is still true."""
        journal = self.durability.journal
        if self._live is None:
            size = journal.size_bytes
            if size < COMPACT_ABOVE or size < 2 * self.durability.live_octets(broker):
                return
            self._from = journal.batch
            self._live = self.durability.live(broker)
            logger.info("store_compaction_started bytes=%s", size)
        if journal.congested or self.trouble is not None:
            return
        for _ in range(_A_SLICE):
            record = next(self._live, None)
            if record is None:
                self._live = None
                asyncio.ensure_future(self._drop(self.durability.barrier))
                return
            self.durability.write_again(record)

    async def _drop(self, barrier: int) -> None:
        """Everything that is true stands in newer batches: the older ones may go."""
        if barrier:
            await self.durability.wait(barrier)
        self.durability.journal.drop_before(self._from)
        logger.info("store_compacted before=%s", self._from)

    async def flush(self) -> None:
        """Until everything written so far is on disk."""
        self.durability.end_of_turn()
        barrier = self.durability.barrier
        if barrier:
            await self.durability.wait(barrier)

    async def close(self) -> None:
        """Write the rest and leave one tidy file."""
        self.durability.end_of_turn()
        if not await self.durability.journal.close():
            logger.error("store_not_flushed file=%s", self._log.path)
