"""Delayed publish: ``$delayed/<seconds>/<topic>``."""

from collections.abc import Awaitable, Callable

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.clients import Clients, tcp, v5

from .until_quiet import payloads

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_it_comes_when_its_time_has_come(clients: Clients, qos: int) -> None:
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/x", "$delayed/#", qos=2)
    await peer.publish(f"$delayed/10/{clients.topic}/x", b"later", qos)
    await peer.nothing()
    await clients.pass_time(9)
    await peer.nothing()
    await clients.pass_time(1.5)
    await peer.expect_publish(f"{clients.topic}/x", b"later", qos)
    await peer.nothing()


async def test_each_at_its_own_time(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for seconds in (30, 10, 20):
        await peer.publish(f"$delayed/{seconds}/{clients.topic}", b"%d" % seconds, 1)
    for seconds in (10, 20, 30):
        await clients.pass_time(10.1)
        assert await payloads(peer) == [b"%d" % seconds]


async def test_a_retained_one_is_retained_then(clients: Clients) -> None:
    """[MQTT-3.3.1-5]"""
    peer = await clients.connect()
    await peer.publish(f"$delayed/5/{clients.topic}", b"kept", 1, True)
    await peer.subscribe(clients.topic, qos=1)
    await peer.nothing()
    await clients.pass_time(6)
    await peer.expect_publish(clients.topic, b"kept")
    late = await clients.connect()
    await late.subscribe(clients.topic, qos=1)
    await late.expect_publish(clients.topic, b"kept", retain=True)
    await late.publish(clients.topic, b"", 1, True)


async def test_zero_seconds_is_soon(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.publish(f"$delayed/0/{clients.topic}", b"x", 1)
    await clients.pass_time(0.5)
    await peer.expect_publish(clients.topic, b"x")


async def test_it_outlives_its_publisher(clients: Clients) -> None:
    watcher, publisher = await clients.connect(), await clients.connect()
    await watcher.subscribe(clients.topic, qos=1)
    await publisher.publish(f"$delayed/5/{clients.topic}", b"x", 1)
    await publisher.disconnect()
    await clients.pass_time(6)
    await watcher.expect_publish(clients.topic, b"x")


async def test_a_will_may_be_delayed(clients: Clients) -> None:
    watcher = await clients.connect()
    await watcher.subscribe(clients.topic, qos=1)
    dying = await clients.connect(will=Will(f"$delayed/5/{clients.topic}", b"will", 1))
    await dying.drop()
    await watcher.nothing()
    await clients.pass_time(6)
    await watcher.expect_publish(clients.topic, b"will")


@v5
async def test_message_expiry_runs_meanwhile(clients: Clients) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for expiry in (5, 60):
        await peer.publish(
            f"$delayed/10/{clients.topic}", b"%d" % expiry, 1, properties={c.MESSAGE_EXPIRY_INTERVAL: expiry}
        )
    await clients.pass_time(10.5)
    message = await peer.expect_publish(clients.topic, b"60")
    assert 48 <= message.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 50
    await peer.nothing()


@v5
@pytest.mark.parametrize(
    "topic", ["$delayed/x/t", "$delayed/1", "$delayed/1/", "$delayed//t", "$delayed/-1/t", "$delayed/"]
)
async def test_what_is_not_well_formed_is_refused(clients: Clients, topic: str) -> None:
    peer = await clients.connect()
    assert await peer.publish(topic, b"x", 1, expect=None) == 0x90
    await peer.nothing()


@v5
async def test_nobody_reaches_sys_that_way(clients: Clients) -> None:
    peer = await clients.connect()
    assert await peer.publish("$delayed/1/$SYS/x", b"x", 1, expect=None) in (0x87, 0x90)


@v5
@tcp
async def test_bounds(clients_of: Start) -> None:
    clients = await clients_of(delayed={"max_messages": 3, "max_seconds": 100})
    peer = await clients.connect()
    await peer.publish("$delayed/101/t", b"x", 1, expect=0x97)
    for _ in range(3):
        await peer.publish("$delayed/50/t", b"x", 1)
    await peer.publish("$delayed/50/t", b"x", 1, expect=0x97)
    await clients.pass_time(51)
    await peer.publish("$delayed/50/t", b"x", 1)
    assert clients.server.metrics.snapshot()["messages.delayed"] == 4


@v5
@tcp
async def test_bound_of_bytes(clients_of: Start) -> None:
    clients = await clients_of(delayed={"max_bytes": 5000})
    peer = await clients.connect()
    await peer.publish("$delayed/50/t", bytes(4000), 1)
    await peer.publish("$delayed/50/t", bytes(4000), 1, expect=0x97)
    await peer.publish("$delayed/50/t", bytes(100), 1)


@tcp
async def test_switched_off_it_is_a_topic_like_others(clients_of: Start) -> None:
    clients = await clients_of(delayed={"enabled": False})
    peer = await clients.connect()
    await peer.subscribe("$delayed/#", "t", qos=1)
    for _ in range(2):
        await peer.publish("$delayed/1/t", b"x", 1)
        await peer.expect_publish("$delayed/1/t", b"x")
    await clients.pass_time(2)
    await peer.nothing()


@v5
@tcp
async def test_the_right_to_the_inner_topic_decides(clients_of: Start) -> None:
    clients = await clients_of(access={"rules": [{"allow": False, "action": "publish", "topics": ["secret/#"]}]})
    peer = await clients.connect()
    await peer.publish("$delayed/1/secret/x", b"x", 1, expect=0x87)
    await peer.publish("$delayed/1/open/x", b"x", 1)
