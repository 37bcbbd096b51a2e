"""KafkaConsumer: publishes the records that a consumer group reads.

The offset of a record is committed when its message is accepted and stored, as a PUBACK is sent. If the node refuses a
message for now, the partition is paused, and the record is read again later; nothing is skipped for that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiokafka.errors import CommitFailedError, IllegalStateError

from taipan.broker.core.outcome import SOURCE
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.message import Message
from taipan.broker.observability.throttle import Throttle
from taipan.broker.session.memory_account import SLOWING

from ...network.allowed_networks import Networks
from ...resources.resource import NodeContext
from .client import ERRORS, CheckedConsumer, KafkaClient, reason
from .connection import KafkaConnectionSettings
from .topic_mapping import TopicMapping, Unpublishable

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

logger = logging.getLogger(__name__)

_RECORDS: Final = 500
"""The most records between two commits."""
_SLICE: Final = 20
"""After so many records, others run."""
_POLL: Final = 500
"""Milliseconds that a call waits for records."""
_HELD: Final = 0.2
"""Seconds until a message that was refused for now is offered again."""
"""Seconds between two log lines about records that are skipped."""
_JOINING: Final = "the group has not assigned partitions yet: a member that ended without leaving it is waited for"
_FETCH: Final = 16
"""Maximum size of a broker's answer, as a multiple of ``max_bytes``."""


class KafkaConsumer:
    """One member of the group. ``received`` and ``refused`` are counted since the resource started."""

    def __init__(
        self, id: str, node: NodeContext, settings: KafkaConnectionSettings, group: str, reset: str, max_bytes: int,
        mappings: dict[str, TopicMapping], learn: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``learn`` is called with why the cluster cannot be used, empty if it can."""
        self.received = 0
        self.refused = 0
        self._id = id
        self._node = node
        self._settings = settings
        self._networks = Networks(node.settings.refused_networks)
        self._group = group
        self._reset = reset
        self._max_bytes = max_bytes
        self._mappings = mappings
        self._learn = learn
        self._throttle = Throttle()

    async def test(self) -> None:
        """Check that the brokers can be reached and the topics exist. Raises one of ERRORS."""
        client = KafkaClient(self._settings, self._networks)
        try:
            await client.bootstrap()
            await client.set_topics(list(self._mappings))
            for each in self._mappings:
                if not client.cluster.partitions_for_topic(each):
                    raise OSError(f"topic {each} does not exist, or the user may not read it")
        finally:
            await client.close()

    async def consume(self) -> None:
        """Consume until an error or a cancellation. Raises one of ERRORS."""
        client = KafkaClient(self._settings, self._networks)
        consumer = CheckedConsumer(
            client,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset=self._reset,
            isolation_level="read_committed",
            max_partition_fetch_bytes=self._max_bytes,
            fetch_max_bytes=self._max_bytes * _FETCH,
            request_timeout_ms=int(self._settings.request_timeout * 1000),
        )
        joined = asyncio.Event()
        watching = asyncio.get_running_loop().create_task(self._watch(client, joined))
        try:
            consumer.subscribe(list(self._mappings))
            await consumer.start()
            joined.set()
            await self._loop(consumer)
        finally:
            watching.cancel()
            with contextlib.suppress(*ERRORS):
                async with asyncio.timeout(self._node.settings.close_timeout):
                    await consumer.stop()
            await client.close()

    async def _watch(self, client: KafkaClient, joined: asyncio.Event) -> None:
        """Note whether the cluster answers. aiokafka retries automatically, and does not report failures."""
        while True:
            with contextlib.suppress(TimeoutError):  # it usually joins sooner
                async with asyncio.timeout(self._node.settings.liveness_interval):
                    await joined.wait()
            try:
                await client.ping()
            except ERRORS as error:
                self._learn(reason(error))
            else:
                self._learn("" if joined.is_set() else _JOINING)
            if joined.is_set():
                await asyncio.sleep(self._node.settings.liveness_interval)

    async def _loop(self, consumer: AIOKafkaConsumer) -> None:
        loop = asyncio.get_running_loop()
        # When reading from a partition continues. A member that requests nothing would have to leave the group.
        paused: dict[TopicPartition, float] = {}
        while True:
            now = loop.time()
            if self._node.account.level >= SLOWING:
                paused.update(dict.fromkeys(consumer.assignment(), now + _HELD))
                consumer.pause(*consumer.assignment())
            for each in [each for each, until in paused.items() if until <= now]:
                del paused[each]
                if each in consumer.assignment():
                    consumer.resume(each)
            taken: dict[TopicPartition, int] = {}
            wait = _HELD * 1000 if paused else _POLL
            for partition, records in (await consumer.getmany(timeout_ms=wait, max_records=_RECORDS)).items():
                for record in records:
                    if not await self._take(record):
                        paused[partition] = loop.time() + _HELD
                        if partition in consumer.assignment():
                            consumer.seek(partition, record.offset)
                            consumer.pause(partition)
                        break
                    taken[partition] = record.offset + 1
                    if record.offset % _SLICE == 0:
                        await asyncio.sleep(0)
            if taken:
                await self._commit(consumer, taken)

    async def _commit(self, consumer: AIOKafkaConsumer, taken: dict[TopicPartition, int]) -> None:
        """Commit offsets when all their messages are on disk. Raises OSError if they cannot be stored."""
        if not await self._node.tables.stored():
            raise OSError("nothing can be stored at present (node.data_dir)")
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await consumer.commit(taken)
        except (CommitFailedError, IllegalStateError) as error:
            # Another member has the partition now, and reads these records again.
            logger.info("kafka_not_committed resource=%s reason=%s", self._id, error)

    async def _take(self, record: ConsumerRecord) -> bool:
        """Publish a record, or skip it; return whether it is done. False: the node refuses it for now."""
        try:
            made = self._mappings[record.topic].message(record)
        except Unpublishable as error:
            self._skip(record, "unpublishable", str(error))
            return True
        if made.hops >= self._node.settings.max_hops:
            self._skip(record, "max_hops", "a loop: the message has passed ruleengine.max_hops rules and brokers")
            return True
        message = Message(made.topic, made.payload, made.qos, made.retain, timestamp=self._node.clock.now())
        message.hops = made.hops + 1
        inspection = self._node.broker.inspection
        if inspection is None:
            outcome = self._node.accept(message, SOURCE)
        else:
            outcome = await inspection.accept(message, SOURCE)
        if not outcome.refused:
            self.received += 1
            return True
        if outcome.code == reason_codes.QUOTA_EXCEEDED:
            return False
        self._skip(record, reason_codes.name(outcome.code), outcome.detail or outcome.setting)
        return True

    def _skip(self, record: ConsumerRecord, name: str, why: str) -> None:
        self.refused += 1
        self._node.metrics.refusals.add(f"kafka_{name}")
        if self._throttle.due(self._node.clock.now()):
            logger.warning(
                "kafka_record_skipped resource=%s topic=%s partition=%s offset=%s reason=%s detail=%r skipped=%s",
                self._id, record.topic, record.partition, record.offset, name, why, self.refused,
            )  # fmt: skip
