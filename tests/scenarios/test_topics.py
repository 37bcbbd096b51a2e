"""Topic Names, Topic Filters and which matches which."""

import pytest

from taipan.broker.mqtt.packets import Subscribe, TopicFilter
from tests.support.clients import Clients, tcp
from tests.support.wire import Publish, frame

from .until_quiet import until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

# (filter, topics that it matches, topics that it does not match)
MATCHES = [
    ("a/b/c", ["a/b/c"], ["a/b", "a/b/c/", "a/b/c/d", "A/b/c", "/a/b/c"]),
    ("+", ["a", " ", "."], ["/a", "a/", "a/b"]),
    ("/+", ["/a", "/"], ["a", "a/b", "/a/b"]),
    ("+/+", ["/a", "a/", "/", "a/b"], ["a", "a/b/c", "//"]),
    ("a/+", ["a/b", "a/"], ["a", "a/b/c"]),
    ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/d", "a/b/b/c"]),
    ("a/#", ["a", "a/", "a/b", "a/b/c/d"], ["ab", "b/a", "/a"]),
    ("a/+/#", ["a/b", "a/", "a/b/c"], ["a"]),
    ("+/b/#", ["a/b", "/b", "a/b/c"], ["a", "a/c/b"]),
    ("/#", ["/", "/a", "//"], ["a"]),
    ("#", ["a", "/", "a/b/c", " "], []),
    ("a.b/*/>", ["a.b/*/>"], ["a.b/x/>", "a/b/*/>", "a.b/*/x"]),
    ("ä/日本/🐍", ["ä/日本/🐍"], ["Ä/日本/🐍", "a\u0308/日本/🐍"]),
]


@tcp
@pytest.mark.parametrize(("filter", "matching", "others"), MATCHES, ids=[each[0] for each in MATCHES])
async def test_matching(clients: Clients, filter: str, matching: list[str], others: list[str]) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.7.3-4] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]
    [3.1.1 MQTT-4.7.3-1] [3.1.1 MQTT-4.7.3-4]: live, retained, and once more where the route is known already."""
    peer = await clients.connect()
    await peer.subscribe(filter, qos=1)
    for _ in range(2):
        for topic in matching + others:
            await peer.publish(topic, topic.encode(), 1)
        assert [each.topic for each in await until_quiet(peer)] == matching
    await peer.unsubscribe(filter)
    for topic in matching + others:
        await peer.publish(topic, topic.encode(), 1, True)
    await peer.subscribe(filter, qos=1)
    found = await until_quiet(peer)
    assert sorted(each.topic for each in found if each.payload) == sorted(matching)
    await peer.unsubscribe(filter)
    for topic in matching + others:
        await peer.publish(topic, b"", 1, True)


@tcp
@pytest.mark.parametrize("filter", ["#", "+/monitor/Clients", "+/#", "+/+/Clients", "+/monitor/#"])
async def test_wildcards_in_front_do_not_match_dollar_names(clients: Clients, filter: str) -> None:
    """Neither live nor retained [MQTT-4.7.2-1] [3.1.1 MQTT-4.7.2-1]."""
    peer = await clients.connect()
    name = f"${clients.topic}/monitor/Clients"
    await peer.subscribe(filter, qos=1)
    await peer.publish(name, b"x", 1, True)
    await peer.nothing()
    await peer.subscribe(filter, qos=1)
    await peer.nothing()
    for own in (f"${clients.topic}/monitor/+", f"${clients.topic}/#"):
        await peer.subscribe(own, qos=1)
        await peer.expect_publish(name, b"x", 1, retain=True)
    await peer.publish(name, b"", 1, True)


async def test_clients_do_not_publish_under_sys(clients: Clients) -> None:
    """It is the broker's; the connection stays [MQTT-4.7.2-1] [3.1.1 MQTT-4.7.2-1]."""
    peer = await clients.connect()
    await peer.subscribe("$SYS/x/#", qos=2)
    for qos in (0, 1, 2):
        await peer.publish(f"$SYS/x/{clients.topic}", b"no", qos, expect=None)
    await peer.nothing()
    if clients.version == 5:
        assert await peer.publish(f"$SYS/x/{clients.topic}", b"no", 1, expect=None) in (0x87, 0x90)


@pytest.mark.parametrize("topic", ["a/#", "+/b", "#", "a/+/b", "a+"])
async def test_no_wildcard_in_a_topic_name(clients: Clients, topic: str) -> None:
    """[MQTT-3.3.2-2] [3.1.1 MQTT-3.3.2-2]"""
    peer = await clients.connect()
    await peer.send(Publish(topic, b"x", 1, packet_id=1))
    await peer.expect_disconnect(0x81, 0x90)


async def test_no_empty_topic_name(clients: Clients) -> None:
    """[MQTT-4.7.3-1] [MQTT-3.3.2-1] [3.1.1 MQTT-3.3.2-1]"""
    peer = await clients.connect()
    await peer.send(Publish("", b"x", 1, packet_id=1))
    await peer.expect_disconnect(0x82, 0x94, 0x90, 0x81)


async def test_no_null_in_a_topic_name(clients: Clients) -> None:
    """[MQTT-4.7.3-2] [MQTT-1.5.4-2] [3.1.1 MQTT-4.7.3-2] [3.1.1 MQTT-1.5.3-2]"""
    peer = await clients.connect()
    await peer.send(frame(0x30, b"\x00\x03a\x00b" + (b"\x00" if clients.version == 5 else b"") + b"x"))
    await peer.expect_disconnect(0x81)


async def test_a_topic_of_65535_bytes(clients: Clients) -> None:
    """[MQTT-4.7.3-3] [3.1.1 MQTT-4.7.3-3]"""
    peer = await clients.connect()
    topic = clients.topic + "/" + "x" * (65_535 - len(clients.topic) - 1)
    await peer.subscribe(topic, qos=1)
    await peer.publish(topic, b"x", 1)
    await peer.expect_publish(topic, b"x", 1)


async def test_thousands_of_levels_end_neither_broker_nor_others(clients: Clients) -> None:
    """How many levels there may be is a limit of our own; nothing may break over it."""
    other = await clients.connect()
    peer = await clients.connect()
    await peer.send(Publish("/" * 65_535, b"x", 1, packet_id=1))
    await peer.receive()
    deep = await clients.connect()
    await deep.send(Subscribe(1, [TopicFilter("+/" * 32_767 + "#")]))
    await deep.receive()
    await other.nothing()


async def test_byte_order_mark_is_data(clients: Clients) -> None:
    """[MQTT-1.5.4-3] [3.1.1 MQTT-1.5.3-3]"""
    peer = await clients.connect()
    marked = f"\ufeff{clients.topic}"
    await peer.subscribe(clients.topic, qos=1)
    await peer.publish(marked, b"unseen", 1)
    await peer.subscribe(marked, qos=1)
    await peer.publish(marked, b"seen", 1)
    await peer.expect_publish(marked, b"seen", 1)
    await peer.nothing()
