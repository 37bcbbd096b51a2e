"""Proxy subscription of a durable session: whoever has a CONNACK has the subscription, whatever happens afterwards."""

from typing import Any

import pytest

from taipan.broker.mqtt.packets import Connack
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio

TOPICS: dict[str, Any] = {"auto_subscribe": {"topics": [{"topic": "to/%c", "qos": 1}]}}


async def first_answer(node: DurableFakeNode, version: int) -> None:
    """Connect, and let the disk write until CONNACK is sent, and no further."""
    client = node.send_connect("r", version)
    for _ in range(10):
        await node.settle()
        packets = client.arrived()
        if packets:
            assert isinstance(packets[0], Connack) and packets[0].reason_code == 0
            return
        assert node.journal.write()
    raise AssertionError("no CONNACK")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("known", [False, True])
async def test_the_subscription_is_on_disk_before_connack(version: int, known: bool) -> None:
    """``known``: the session is from before the proxy subscription was configured."""
    node = DurableFakeNode(**TOPICS)
    if known:
        node.server.auto_subscribe.unload()
        client = await node.connect_durable("r", version)
        client.vanish()
        node.store()
    node.server.auto_subscribe.load()
    await first_answer(node, version)
    again = node.crash()
    again.server.auto_subscribe.unload()  # the subscription can only be the one from before
    publisher = again.connect("p")
    publisher.feed(Publish("to/r", b"while it is away", 1, packet_id=1))
    again.store()
    reader = await again.connect_durable("r", version)
    assert reader.connack.session_present and reader.payloads() == [b"while it is away"]


@pytest.mark.parametrize("version", [4, 5])
async def test_connack_comes_before_retained_messages(version: int) -> None:
    node = DurableFakeNode(**TOPICS)
    publisher = node.connect("p")
    publisher.feed(Publish("to/r", b"kept", 1, True, packet_id=1))
    node.store()
    for _ in range(2):
        reader = await node.connect_durable("r", version)  # expects CONNACK first
        (message,) = reader.messages()
        assert (message.topic, message.payload, message.retain) == ("to/r", b"kept", True)
        reader.puback(message.packet_id)
        reader.vanish()
        node.store()
