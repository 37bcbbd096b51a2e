"""What waits for a client that is away or slow: bounds, what goes first, what is not kept."""

from collections.abc import Awaitable, Callable

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.clients import Clients, tcp, v4, v5
from tests.support.wire import Publish

from .until_quiet import payloads, until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]


async def away(clients: Clients, *filters: str, qos: int = 2) -> str:
    """A session whose client has gone; its Client Identifier."""
    peer = await clients.persistent(clients.name("away"))
    await peer.subscribe(*(filters or (clients.topic,)), qos=qos)
    await peer.disconnect()
    return peer.client_id


@pytest.mark.parametrize("qos", [1, 2])
async def test_in_order_and_once(clients: Clients, qos: int) -> None:
    """[MQTT-4.5.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-6] [3.1.1 MQTT-3.1.2-5]"""
    name = await away(clients)
    publisher = await clients.connect()
    for number in range(100):
        await publisher.publish(clients.topic, b"%d" % number, qos)
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"%d" % number for number in range(100)]
    await back.disconnect()
    again = await clients.persistent(name, session_present=True)
    await again.nothing()


async def test_each_session_is_known_by_its_client_identifier(clients: Clients) -> None:
    """Made where there was none, found again under its name alone [MQTT-3.1.2-6] [MQTT-3.1.3-2]
    [3.1.1 MQTT-3.1.3-2]."""
    names = [clients.name("known"), clients.name("known")]
    for name in names:
        peer = await clients.persistent(name, session_present=False)
        await peer.subscribe(f"{clients.topic}/{name}", qos=1)
        await peer.disconnect()
    publisher = await clients.connect()
    for name in names:
        await publisher.publish(f"{clients.topic}/{name}", name.encode(), 1)
    for name in names:
        back = await clients.persistent(name, session_present=True)
        assert await payloads(back) == [name.encode()]


async def test_qos_0_is_not_kept(clients: Clients) -> None:
    name = await away(clients)
    publisher = await clients.connect()
    for qos in (0, 1, 0):
        await publisher.publish(clients.topic, b"%d" % qos, qos)
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"1"]


async def test_what_was_queued_comes_before_what_is_new(clients: Clients) -> None:
    """QoS 0 does not overtake either [MQTT-4.6.0-6]."""
    name = await away(clients)
    publisher = await clients.connect()
    for number in range(50):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    back = clients.peer()
    properties = {c.RECEIVE_MAXIMUM: 5, c.SESSION_EXPIRY_INTERVAL: 100} if clients.version == 5 else {}
    await back.connect(name, False, properties=properties, session_present=True)
    for number in range(50, 60):
        await publisher.publish(clients.topic, b"%d" % number, number % 2)
    found = [int(each) for each in await payloads(back)]
    ordered = [each for each in found if each < 50 or each % 2]
    assert ordered == list(range(50)) + [51, 53, 55, 57, 59]
    assert found == sorted(found), "QoS 0 overtook"


@tcp
async def test_the_oldest_goes_when_the_queue_is_full(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_queued_messages": 10})
    name = await away(clients)
    publisher = await clients.connect()
    for number in range(25):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"%d" % number for number in range(15, 25)]
    assert clients.server.metrics.snapshot()["delivery.dropped.queue_full"] == 15


@tcp
async def test_bytes_are_bounded_too(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_queued_bytes": 50_000})
    name = await away(clients)
    publisher = await clients.connect()
    for number in range(20):
        await publisher.publish(clients.topic, b"%02d" % number + bytes(10_000), 1)
    back = await clients.persistent(name, session_present=True)
    left = [int(each[:2]) for each in await payloads(back)]
    assert left == list(range(20 - len(left), 20))
    assert 3 <= len(left) <= 5


@tcp
async def test_one_message_larger_than_the_queue(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_queued_bytes": 5000})
    name = await away(clients)
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"small", 1)
    await publisher.publish(clients.topic, bytes(10_000), 1)
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) in ([b"small"], [])
    await back.ping()


@tcp
@v5
async def test_refusing_instead_is_told_to_5_0(clients_of: Start) -> None:
    """Nobody gets what was refused to one [MQTT-4.3.3-9]."""
    clients = await clients_of(zone={"max_queued_messages": 3, "queue_full": "refuse"})
    name = await away(clients)
    other, publisher = await clients.connect(), await clients.connect()
    await other.subscribe(clients.topic, qos=1)
    for number in range(3):
        await publisher.publish(clients.topic, b"%d" % number, 1, expect=0)
    await publisher.publish(clients.topic, b"3", 1, expect=0x97)
    await publisher.publish(clients.topic, b"4", 2, expect=0x97)
    assert await payloads(other) == [b"0", b"1", b"2"]
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"0", b"1", b"2"]
    await publisher.publish(clients.topic, b"5", 1, expect=0)
    await back.expect_publish(clients.topic, b"5")


@tcp
@v4
async def test_refusing_instead_is_withheld_from_3_1_1(clients_of: Start) -> None:
    """No PUBACK until there is room: nothing is lost."""
    clients = await clients_of(zone={"max_queued_messages": 3, "queue_full": "refuse"})
    name = await away(clients)
    publisher, other = await clients.connect(), await clients.connect()
    for number in range(3):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    await publisher.send(Publish(clients.topic, b"3", 1, packet_id=99))
    await other.nothing()  # others do not wait
    back = await clients.persistent(name, session_present=True)
    for number in range(4):
        await back.expect_publish(clients.topic, b"%d" % number)
    await publisher.expect_ack(c.PUBACK, 99)


@tcp
async def test_qos_0_is_kept_where_it_is_switched_on(clients_of: Start) -> None:
    clients = await clients_of(zone={"queue_qos0": True})
    name = await away(clients)
    publisher = await clients.connect()
    for qos in (0, 1, 2, 0):
        await publisher.publish(clients.topic, b"%d" % qos, qos)
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"0", b"1", b"2", b"0"]


@tcp
async def test_priorities(clients_of: Start) -> None:
    """Higher ones first, in order within each; the lowest goes first when it is full."""
    zone = {
        "queue_priorities": {"alarm/#": 200, "news/+": 100},
        "queue_default_priority": 1,
        "max_queued_messages": 6,
    }
    clients = await clients_of(zone=zone)
    name = await away(clients, "#")
    publisher = await clients.connect()
    for topic in ("x/1", "news/1", "x/2", "alarm/1", "news/2", "x/3", "alarm/2", "alarm/3"):
        await publisher.publish(topic, topic.encode(), 1)
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"alarm/1", b"alarm/2", b"alarm/3", b"news/1", b"news/2", b"x/3"]


@tcp
async def test_no_bound(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_queued_messages": 0, "max_queued_bytes": 0})
    name = await away(clients)
    publisher = await clients.connect()
    count = 3000
    messages = [Publish(clients.topic, b"%d" % n, 1, packet_id=n + 1) for n in range(count)]
    while messages:
        await publisher.send(*messages[:100])  # Receive Maximum
        await publisher.ping()
        del messages[:100]
    back = await clients.persistent(name, session_present=True)
    assert await payloads(back) == [b"%d" % number for number in range(count)]


async def test_an_ended_session_takes_its_queue_along(clients: Clients) -> None:
    """Clean Start is carried out [MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT-4.1.0-2] [3.1.1 MQTT-3.1.4-3]."""
    name = await away(clients)
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"x", 1)
    peer = await clients.connect(name, True, session_present=False)
    await peer.nothing()
    await peer.subscribe(clients.topic, qos=1)
    assert await until_quiet(peer) == []


async def test_a_slow_acknowledger_holds_up_nobody_else(clients: Clients) -> None:
    slow, quick, publisher = [await clients.connect() for _ in range(3)]
    for peer in (slow, quick):
        await peer.subscribe(clients.topic, qos=1)
    for number in range(200):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    assert len(await payloads(quick)) == 200
    first = await until_quiet(slow, acknowledge=False)
    assert 0 < len(first) < 200
    for each in first:
        await slow.puback(each.packet_id)
    assert [int(each.payload) for each in first] + [int(each) for each in await payloads(slow)] == list(range(200))
