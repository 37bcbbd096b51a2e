"""KafkaProducer: writes records into the partitions of their topics.

All records of a call become one batch for each partition (or several, if they are too large for one), and one request
for each broker that leads some of these partitions. If a broker refuses a batch because of a record, each half is sent
separately, until the refused records are known; the order within a partition is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from aiokafka.errors import for_code
from aiokafka.partitioner import murmur2
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from .client import ERRORS, KafkaClient, reason
from .options import ALL, KEY_DISPATCH, ROUND_ROBIN, KafkaRecord, ProduceOptions, read_options

_DIVIDED: Final = frozenset({2, 10, 18, 32, 87})
"""Errors because of a record: corrupt, too large, a batch that is too large, a timestamp, not valid for the topic."""
_AWAY: Final = frozenset({5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 56, 72, 74, 75, 76, 89})
"""Errors that end by themselves: no leader, another leader, too few replicas, a full disk, a quota."""
_SEQUENCE: Final = frozenset({45, 47, 59})
"""The broker does not know what this producer has written before."""
_DUPLICATE: Final = 46
_NAMES: Final = {56: "KafkaStorageError", 59: "UnknownProducerId", 87: "InvalidRecord", 89: "ThrottlingQuotaExceeded"}
"""Names of errors that aiokafka does not have."""
_KEYS: Final = 10_000
_RETRY: Final = 0.1
_IN_THREAD: Final = 16_384
"""Bytes from which a batch is compressed in a thread."""
_decode: Final = msgspec.msgpack.Decoder(KafkaRecord).decode
_hash: Final = lru_cache(_KEYS)(murmur2)


class _Writer(NamedTuple):
    """An identity that the brokers have given; with it, they write a batch that is sent twice once."""

    id: int
    epoch: int


_ANONYMOUS: Final = _Writer(-1, -1)


class _Partition:
    """The records of one call for one partition, and which of them are still to be sent."""

    __slots__ = ("acks", "batch", "end", "key", "parts", "rows", "start", "writer")

    def __init__(self, key: TopicPartition, acks: int) -> None:
        self.key = key
        self.acks = acks
        self.rows: list[int] = []
        # Ranges of ``rows`` that have not been written, the first one last.
        self.parts: list[tuple[int, int]] = []
        # The encoded batch of ``rows[start:end]``, and who writes it.
        self.batch: bytes | None = None
        self.writer = _ANONYMOUS
        self.start = 0
        self.end = 0


class _Topic:
    """The partitions of one topic for one call, and how one is chosen."""

    def __init__(self, options: ProduceOptions, every: list[int], available: list[int], turn: int) -> None:
        self.options = options
        self.partitions: dict[int, _Partition] = {}
        self._every = every
        self._available = available or every
        self.turn = turn

    def partition(self, key: bytes | None) -> _Partition:
        options = self.options
        if options.strategy == KEY_DISPATCH and key is not None:
            number = self._every[(_hash(key) & 0x7FFFFFFF) % len(self._every)]
        elif options.strategy == ROUND_ROBIN:
            self.turn += 1
            number = self._available[self.turn % len(self._available)]
        else:
            number = self._available[int(random.random() * len(self._available))]
        found = self.partitions.get(number)
        if found is None:
            found = self.partitions[number] = _Partition(TopicPartition(options.topic, number), options.acks)
        return found


class KafkaProducer:
    """Writes through a client, which its owner starts and closes. One ``write`` at a time."""

    def __init__(
        self, client: KafkaClient, compression: int, max_batch_bytes: int, timeout: float, idempotent: bool,
        metadata_interval: float,
    ) -> None:  # fmt: skip
        self._client = client
        self._compression = compression
        self._max_batch_bytes = max_batch_bytes
        self._timeout = timeout
        self._idempotent = idempotent
        self._metadata_interval = metadata_interval
        self._loop = asyncio.get_running_loop()
        self._writer: _Writer | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._turns: dict[str, int] = {}
        # When the partitions of each topic were asked for.
        self._asked: dict[str, float] = {}
        self._refreshed = float("-inf")

    async def write(self, rows: list[BufferedRow]) -> list[DeliveryOutcome]:
        """Return one outcome for each row. Raises one of ERRORS if no broker can be reached."""
        outcomes = [DELIVERED] * len(rows)
        records = [_decode(each.request) for each in rows]
        topics: dict[str, _Topic | DeliveryOutcome] = {}
        for number, record in enumerate(records):
            topic = topics.get(record.options)
            if topic is None:
                topic = topics[record.options] = await self._topic(read_options(record.options))
            if isinstance(topic, DeliveryOutcome):
                outcomes[number] = topic
            else:
                topic.partition(record.key).rows.append(number)
        waiting: list[_Partition] = []
        for topic in topics.values():
            if isinstance(topic, _Topic):
                self._turns[topic.options.topic] = topic.turn
                for each in topic.partitions.values():
                    each.parts.append((0, len(each.rows)))
                    waiting.append(each)
        give_up = self._loop.time() + self._timeout
        while waiting:
            waiting = await self._round(waiting, rows, records, outcomes, give_up)
        return outcomes

    # ---------------------------------------------------------------- topics

    async def _topic(self, options: ProduceOptions) -> _Topic | DeliveryOutcome:
        """Return the topic, or why its records cannot be written now."""
        client, topic = self._client, options.topic
        now = self._loop.time()
        every = client.cluster.partitions_for_topic(topic)
        for _ in range(2):
            if every is not None:
                break
            # A topic that is created automatically is created by this question.
            asked = client.add_topic(topic)
            if not await (asked if not asked.done() else client.force_metadata_update()):
                raise OSError(client.failure or "no broker answers")
            self._asked[topic] = now
            every = client.cluster.partitions_for_topic(topic)
        if not every:
            if topic in client.cluster.unauthorized_topics:
                return DeliveryOutcome(f"topic {topic}: the user may not write to it", retry=True)
            return DeliveryOutcome(f"topic {topic} does not exist", retry=True)
        if now - self._asked.setdefault(topic, now) >= options.refresh:
            self._asked[topic] = now
            client.force_metadata_update()
        available = client.cluster.available_partitions_for_topic(topic) or ()
        return _Topic(options, sorted(every), sorted(available), self._turns.get(topic, -1))

    def _refresh(self) -> None:
        """Ask for the leaders again, without waiting."""
        now = self._loop.time()
        if now - self._refreshed >= self._metadata_interval:
            self._refreshed = now
            self._client.force_metadata_update()

    # ---------------------------------------------------------------- requests

    async def _round(
        self,
        waiting: list[_Partition],
        rows: list[BufferedRow],
        records: list[KafkaRecord],
        outcomes: list[DeliveryOutcome],
        give_up: float,
    ) -> list[_Partition]:
        """Send a batch of each partition; return the partitions with records that are still to be sent."""
        requests: dict[tuple[int, int], list[_Partition]] = {}
        left: list[_Partition] = []
        again = False
        for each in waiting:
            if each.batch is None:
                try:
                    await self._build(each, rows, records)
                except ERRORS as error:  # batches of this call may have been written: only these records wait
                    self._end(each, _unreachable(each, reason(error)), outcomes)
                    continue
            leader = self._client.cluster.leader_for_partition(each.key)
            if leader is None or leader == -1:
                again = self._away(each, "it has no leader", outcomes, give_up, left) or again
            else:
                requests.setdefault((leader, each.acks), []).append(each)
        answers = await asyncio.gather(
            *(self._send(leader, acks, partitions) for (leader, acks), partitions in requests.items())
        )
        for partitions, codes in zip(requests.values(), answers, strict=True):
            for each in partitions:
                code = codes if isinstance(codes, str) else codes.get(each.key, -1)
                again = self._settle(each, code, outcomes, give_up, left) or again
        if again:
            await asyncio.sleep(_RETRY)
        return left

    async def _build(self, partition: _Partition, rows: list[BufferedRow], records: list[KafkaRecord]) -> None:
        """Encode as many of the next records as a batch may have. Raises one of ERRORS."""
        start, end = partition.start, partition.end = partition.parts.pop()
        writer = await self._identity() if self._idempotent and partition.acks == ALL else _ANONYMOUS
        builder = DefaultRecordBatchBuilder(
            2, self._compression, 0, writer.id, writer.epoch,
            -1 if writer is _ANONYMOUS else self._sequences.get(partition.key, 0), self._max_batch_bytes,
        )  # fmt: skip
        append = builder.append
        for count, number in enumerate(partition.rows[start:end]):
            _, key, value, headers = records[number]
            if append(count, int(rows[number].at * 1000), key, value, headers) is None:
                partition.parts.append((start + count, end))
                end = start + count
                break
        partition.end, partition.writer = end, writer
        if self._compression and builder.size() > _IN_THREAD:
            partition.batch = bytes(await asyncio.to_thread(builder.build))
        else:
            partition.batch = bytes(builder.build())

    async def _identity(self) -> _Writer:
        """Return the identity of this producer. Raises one of ERRORS."""
        if self._writer is None:
            self._sequences.clear()
            node = self._client.get_random_node()
            answer = await self._client.send(node, InitProducerIdRequest(None, int(self._timeout * 1000)))
            if answer.error_code:
                raise for_code(answer.error_code)("the broker gives producers no identity: set idempotence to false")
            self._writer = _Writer(answer.producer_id, answer.producer_epoch)
        return self._writer

    async def _send(self, leader: int, acks: int, partitions: Iterable[_Partition]) -> dict[TopicPartition, int] | str:
        """Send one request to a broker. Return the error code for each partition, or why it has not answered."""
        topics: dict[str, list[tuple[int, bytes | None]]] = {}
        for each in partitions:
            topics.setdefault(each.key.topic, []).append((each.key.partition, each.batch))
        request = ProduceRequest(None, acks, int(self._timeout * 1000), list(topics.items()))
        try:
            answer = await self._client.send(leader, request)
        except ERRORS as error:
            return self._client.failure or reason(error)
        if acks == 0:
            return dict.fromkeys((each.key for each in partitions), 0)
        return {
            TopicPartition(topic, partition): code
            for topic, found in answer.topics
            for partition, code, *_ in found
        }  # fmt: skip

    def _settle(
        self,
        partition: _Partition,
        code: int | str,
        outcomes: list[DeliveryOutcome],
        give_up: float,
        left: list[_Partition],
    ) -> bool:
        """Apply the answer for a batch; return whether the same batch has to be sent again."""
        start, end = partition.start, partition.end
        if isinstance(code, str):
            return self._away(partition, code, outcomes, give_up, left)
        if code in _AWAY:
            return self._away(partition, _text(code), outcomes, give_up, left)
        if code in _SEQUENCE:
            self._writer = None
            return self._away(partition, _text(code), outcomes, float("-inf"), left)
        partition.batch = None
        if code in (0, _DUPLICATE):
            # The numbers of another identity begin at 0.
            if partition.writer is self._writer:
                sequence = self._sequences.get(partition.key, 0) + end - start
                self._sequences[partition.key] = sequence & 0x7FFFFFFF
        elif code in _DIVIDED and end - start > 1:
            middle = (start + end) // 2
            partition.parts += [(middle, end), (start, middle)]
        elif code in _DIVIDED:
            outcomes[partition.rows[start]] = DeliveryOutcome(f"{_name(partition)}: {_text(code)}", aside=True)
        else:
            self._refresh()
            self._end(partition, DeliveryOutcome(f"{_name(partition)}: {_text(code)}", retry=True), outcomes)
        if partition.parts:
            left.append(partition)
        return False

    def _away(
        self,
        partition: _Partition,
        why: str,
        outcomes: list[DeliveryOutcome],
        give_up: float,
        left: list[_Partition],
    ) -> bool:
        """The batch may have been written or not. An idempotent producer sends the same batch again for a while."""
        self._refresh()
        if self._idempotent and partition.acks == ALL and self._loop.time() < give_up:
            left.append(partition)
            return True
        self._writer = None
        self._end(partition, _unreachable(partition, why), outcomes)
        return False

    @staticmethod
    def _end(partition: _Partition, outcome: DeliveryOutcome, outcomes: list[DeliveryOutcome]) -> None:
        """End a batch. Records that have to wait are sent before all later records of the partition."""
        for number in partition.rows[partition.start :]:
            outcomes[number] = outcome
        partition.parts.clear()


def _name(partition: _Partition) -> str:
    return f"topic {partition.key.topic}, partition {partition.key.partition}"


def _unreachable(partition: _Partition, why: str) -> DeliveryOutcome:
    return DeliveryOutcome(f"{_name(partition)}: {why}", retry=True, unreachable=True)


def _text(code: int) -> str:
    return f"{_NAMES.get(code) or for_code(code).__name__} (error {code})"
