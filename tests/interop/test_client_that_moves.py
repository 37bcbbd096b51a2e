"""What paho sees of three real nodes and NATS servers when the node that has its session is killed and comes back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_processes import ClusterProcesses
from tests.support.nats_server import nats_server_program

from .clients.client import Address, InteropClient, LoopThread
from .conftest import adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FRESH = 'takeover = "fresh"\nsuspect_after = 2.0\nstopped_after = 3.0\ntakeover_timeout = 4.0'


class Cluster:
    """Three nodes, which run in a loop of their own."""

    def __init__(self, directory: Path) -> None:
        self._thread = LoopThread()
        self._directory = directory
        self._nodes = self._thread.run(self._make(), 120.0)

    async def _make(self) -> ClusterProcesses:
        return await ClusterProcesses(3, self._directory, FRESH).__aenter__()

    def __getitem__(self, number: int) -> Address:
        node = self._nodes[number]
        return Address("127.0.0.1", node.tcp.port, "127.0.0.1", node.ws.port)

    def kill(self, number: int) -> None:
        async def kill() -> None:
            node = self._nodes[number]
            node.process.kill()
            await node.end()

        self._thread.run(kill(), 60.0)

    def start(self, number: int) -> None:
        """Until all nodes see each other again."""

        async def start() -> None:
            await self._nodes[number].start()
            for each in range(3):
                while not await self._nodes._sees_all(each):
                    await asyncio.sleep(0.05)

        self._thread.run(start(), 90.0)

    def close(self) -> None:
        self._thread.run(self._nodes.__aexit__(None, None, None), 60.0)
        self._thread.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    nats_server_program()
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("version", [4, 5])
def test_each_message_comes_once_to_a_session_that_begins_anew(
    request: pytest.FixtureRequest, cluster: Cluster, version: int
) -> None:
    made_of = adapter("paho-mqtt", request)
    opened: list[InteropClient] = []

    def connect(number: int, name: str, persistent: bool = False) -> tuple[InteropClient, bool | None]:
        client = made_of(cluster[number], version, "tcp", name, persistent, True, None)
        opened.append(client)
        return client, client.connect()

    sent: list[bytes] = []

    def publish(*publishers: InteropClient) -> None:
        for _ in range(10):
            for publisher in publishers:
                sent.append(b"%d" % len(sent))
                publisher.publish("moves", sent[-1], 2)

    subscriber, _ = connect(0, "subscriber", True)
    subscriber.subscribe("moves", 2)
    publishers = [connect(number, f"publisher-{number}")[0] for number in (1, 2)]
    opened.remove(subscriber)
    subscriber.drop()
    cluster.kill(0)
    publish(*publishers)
    subscriber, present = connect(1, "subscriber", True)
    assert present is False
    publish(*publishers)
    before = len(sent)
    subscriber.subscribe("moves", 2)
    publish(*publishers)
    got = [subscriber.next().payload for _ in sent[before:]]
    assert sorted(got) == sorted(sent[before:])
    cluster.start(0)
    publish(*publishers, connect(0, "publisher-0")[0])
    got += [subscriber.next().payload for _ in sent[len(got) :]]
    assert sorted(got) == sorted(sent)
    subscriber.publish("moves", b"last", 2)
    assert subscriber.next().payload == b"last"
    assert subscriber.received.empty()
    for client in opened:
        client.disconnect()
