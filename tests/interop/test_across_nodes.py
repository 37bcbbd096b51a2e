"""What client libraries see of three real nodes at once: publisher and subscriber are on different ones."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster_processes import ClusterProcesses
from tests.support.nats_server import nats_server_program

from .clients.client import Address, InteropClient, LoopThread, Received
from .conftest import adapter

SUBJECTS = [
    ("paho-mqtt", 4, "tcp"),
    ("paho-mqtt", 5, "ws"),
    ("aiomqtt", 4, "tcp"),
    ("aiomqtt", 5, "tcp"),
    ("MQTT.js", 4, "ws"),
    ("MQTT.js", 5, "tcp"),
]

ConnectTo = Callable[..., InteropClient]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("subject", SUBJECTS, ids=lambda each: f"{each[0]}-v{each[1]}-{each[2]}"),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Address]]:
    """Where three nodes of one cluster listen."""
    nats_server_program()
    thread = LoopThread()
    directory: Path = tmp_path_factory.mktemp("cluster")

    async def make() -> ClusterProcesses:
        return await ClusterProcesses(3, directory).__aenter__()

    cluster = thread.run(make(), 90.0)
    yield [Address("127.0.0.1", node.tcp.port, "127.0.0.1", node.ws.port) for node in cluster.nodes]
    thread.run(cluster.__aexit__(None, None, None), 60.0)
    thread.stop()


@pytest.fixture
def connect_to(
    request: pytest.FixtureRequest, nodes: list[Address], unique: str, subject: tuple[str, int, str]
) -> Iterator[ConnectTo]:
    """Makes connected clients of the library under test, at the node of a number."""
    library, version, transport = subject
    made_of = adapter(library, request)
    open_clients: list[InteropClient] = []

    def make(number: int, name: str, persistent: bool = False, present: bool = False) -> InteropClient:
        client = made_of(nodes[number], version, transport, f"{unique}-{name}", persistent, True, None)
        told = client.connect()
        if told is not None:
            assert told is present
        open_clients.append(client)
        return client

    yield make
    for client in open_clients:
        if not getattr(client, "ended", False):
            client.disconnect()


def leave(client: InteropClient) -> None:
    client.disconnect()
    client.ended = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_crosses_at_the_qos_it_was_sent(connect_to: ConnectTo, unique: str, qos: int) -> None:
    publisher = connect_to(0, "publisher")
    subscribers = [connect_to(number, f"subscriber-{number}") for number in (1, 2)]
    for subscriber in subscribers:
        subscriber.subscribe(f"{unique}/+", 2)
    for number in range(20):
        publisher.publish(f"{unique}/a", b"%d" % number, qos)
    for subscriber in subscribers:
        found = [subscriber.next() for _ in range(20)]
        assert [message.payload for message in found] == [b"%d" % number for number in range(20)]
        assert {(message.topic, message.qos, message.retain) for message in found} == {(f"{unique}/a", qos, False)}


def test_a_retained_message_is_on_every_node(connect_to: ConnectTo, unique: str) -> None:
    publisher, watcher = connect_to(0, "publisher"), connect_to(2, "watcher")
    watcher.subscribe(f"{unique}/kept", 1)
    publisher.publish(f"{unique}/kept", b"kept", 1, retain=True)
    assert watcher.next().payload == b"kept"
    for number in range(3):
        late = connect_to(number, f"late-{number}")
        message = first_retained(late, f"{unique}/kept")
        assert (message.payload, message.qos, message.retain) == (b"kept", 1, True)


def first_retained(client: InteropClient, topic: str) -> Received:
    """Nodes have it some milliseconds after its PUBACK."""
    for _ in range(20):
        client.subscribe(topic, 1)
        try:
            return client.next(0.5)
        except queue.Empty:
            client.unsubscribe(topic)
    raise AssertionError(f"{topic} is not retained")


def test_one_member_of_a_shared_subscription_gets_a_message(connect_to: ConnectTo, unique: str) -> None:
    members = [connect_to(number, f"member-{number}") for number in (1, 2)]
    for member in members:
        member.subscribe(f"$share/{unique}/{unique}/+", 1)
        member.subscribe(f"{unique}-end", 1)
    publisher = connect_to(0, "publisher")
    for number in range(40):
        publisher.publish(f"{unique}/a", b"%d" % number, 1)
    publisher.publish(f"{unique}-end", b"", 1)
    found: list[int] = []
    for member in members:
        while (message := member.next()).topic != f"{unique}-end":
            found.append(int(message.payload))
    assert sorted(found) == list(range(40))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_moves_with_what_its_client_missed(connect_to: ConnectTo, unique: str, qos: int) -> None:
    away = connect_to(0, "away", persistent=True)
    away.subscribe(f"{unique}/missed", qos)
    leave(away)
    publisher = connect_to(1, "publisher")
    for number in range(5):
        publisher.publish(f"{unique}/missed", b"%d" % number, qos)
    back = connect_to(2, "away", persistent=True, present=True)
    assert [back.next().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    publisher.publish(f"{unique}/missed", b"live", qos)
    assert back.next().payload == b"live"
