"""Messages from Kafka in a real process that is killed: what was committed there is on the disk here.

With Tansu: Noida never forgets a member of a group that has ended without leaving it, and no other gets its records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.test_rules_after_a_kill import CONFIG, api_of, killed
from tests.support.api import APP_ID, SECRET
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer
from tests.support.wire import Publish
from tests.systems.servers.kafka import Tansu

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(180)]

TOPIC = "in"
GROUP = "taipan"
PARTITIONS = 2
PART = 150
"""Records between two kills."""


@pytest.fixture
def kafka() -> Iterator[Tansu]:
    made = Tansu()
    made.start()
    yield made
    made.close()


def write(kafka: Tansu, first: int, end: int) -> None:
    kafka.write(TOPIC, [{"value": b"%d" % n, "partition": n % PARTITIONS} for n in range(first, end)])


async def committed(kafka: Tansu, at_least: int) -> int:
    """The records that have been acknowledged to Kafka; waits for that many."""
    async with asyncio.timeout(patience(60)):
        while (count := sum((await asyncio.to_thread(kafka.committed, GROUP, TOPIC)).values())) < at_least:
            await asyncio.sleep(0.05)
    return count


async def session(port: int, version: int) -> Peer:
    """Of a durable subscriber."""
    peer = Peer(Address("127.0.0.1", port), version)
    properties = {0x11: 3600} if version == 5 else {}
    await peer.connect("subscriber", False, properties=properties)
    return peer


@pytest.mark.parametrize("version", [4, 5])
async def test_what_kafka_was_told_is_kept_and_the_rest_comes_again(tmp_path: Path, kafka: Tansu, version: int) -> None:
    port = free_port()
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", port=port, app=APP_ID, secret=SECRET))
    kafka.create(TOPIC, PARTITIONS)
    node = await NodeProcess(config).start()
    try:
        peer = await session(port, version)
        await peer.subscribe("k/#", qos=1)
        await peer.drop()
        api = api_of(node)
        mapping = [{"kafka_topic": TOPIC, "mqtt_topic": "k/${partition}", "qos": 1, "payload_template": "${value}"}]
        await api.post("/resources", {
            "id": "resource:in", "type": "kafka_consumer",
            "config": {"servers": kafka.address, "group_id": GROUP, "offset_reset_policy": "reset_to_earliest",
                       "topic_mapping": mapping},
        })  # fmt: skip
        await api.close()
        write(kafka, 0, PART)
        await committed(kafka, 1)
        await killed(node)
        told = await asyncio.to_thread(kafka.committed, GROUP, TOPIC)
        assert sum(told.values()) > 0

        write(kafka, PART, 2 * PART)
        node = await NodeProcess(config).start()
        await committed(kafka, sum(told.values()) + 1)
        await killed(node)  # perhaps with messages that are stored and not committed
        node = await NodeProcess(config).start()
        write(kafka, 2 * PART, 3 * PART)

        peer = await session(port, version)
        assert peer.connack.session_present
        found: list[int] = []
        async with asyncio.timeout(patience(90)):
            while len(set(found)) < 3 * PART:
                packet = await peer.expect(Publish, patience(60))
                assert packet.topic == f"k/{int(packet.payload) % PARTITIONS}"
                await peer.puback(packet.packet_id)
                found.append(int(packet.payload))
        assert set(found) == set(range(3 * PART))
        times = Counter(found)
        for partition in range(PARTITIONS):
            mine = [each for each in found if each % PARTITIONS == partition]
            assert list(dict.fromkeys(mine)) == sorted(set(mine))
            # Kafka does not send these again: they came from the disk.
            kept = [partition + PARTITIONS * offset for offset in range(told.get(partition, 0))]
            assert {times[each] for each in kept} <= {1}
        await peer.disconnect()
    finally:
        await node.stop()
