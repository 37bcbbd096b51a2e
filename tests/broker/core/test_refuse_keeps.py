"""queue_full = "refuse": what was acknowledged stays in a full queue, whoever comes with more."""

from typing import Any

import pytest

from broker.mqtt.packets import Ack, Subscribe, TopicFilter, Will
from tests.support.durable import DurableHouse

from .test_restore import subscribed

pytestmark = pytest.mark.asyncio


async def full_house(**rooms: Any) -> tuple[DurableHouse, Any]:
    """Session ``r`` is away and its queue is full of 0, 1 and 2; the house and who published them."""
    house = DurableHouse({"max_queued_messages": 3, "queue_full": "refuse", "queue_qos0": True}, **rooms)
    (await subscribed(house)).vanish()
    writer = await house.join("w")
    for number in range(4):
        writer.publish("t/1", b"%d" % number, 1, number + 1)
    house.store()
    acks = [each for each in writer.received() if isinstance(each, Ack)]
    assert [each.reason_code for each in acks] == [0, 0, 0, 0x97]
    return house, writer


def held(house: DurableHouse) -> list[bytes]:
    session = house.broker.sessions.get("r")
    assert session is not None
    return [delivery.message.payload for delivery in session.queue or ()]


async def test_a_will_comes_on_top() -> None:
    house, _ = await full_house()
    other = await house.join("x", will=Will("t/will", b"gone", 1, False, {}))
    other.vanish()
    house.store()
    assert held(house) == [b"0", b"1", b"2", b"gone"]


async def test_a_message_of_qos_0_is_dropped() -> None:
    house, writer = await full_house()
    writer.publish("t/1", b"zero", 0)
    house.store()
    assert held(house) == [b"0", b"1", b"2"]


async def test_a_delayed_message_comes_on_top() -> None:
    house, writer = await full_house(delayed={"enabled": True})
    writer.publish("$delayed/5/t/1", b"late", 1, 9)
    house.store()
    house.pass_time(6)
    assert held(house) == [b"0", b"1", b"2", b"late"]


async def test_a_message_of_the_node_comes_on_top() -> None:
    house, _ = await full_house()
    house.publish("t/1", b"node", 1)
    assert held(house) == [b"0", b"1", b"2", b"node"]


async def test_retained_messages_wait_for_their_turn() -> None:
    house = DurableHouse({"max_queued_messages": 3, "queue_full": "refuse", "max_inflight": 1})
    reader = await subscribed(house)
    writer = await house.join("w")
    for number in range(5):
        writer.publish(f"ret/{number}", b"ret", 1, number + 20, retain=True)
    for number in range(4):
        writer.publish("t/1", b"%d" % number, 1, number + 1)
    house.store()
    reader.send(Subscribe(9, [TopicFilter("ret/#", 1)]))
    house.store()
    assert held(house)[:3] == [b"1", b"2", b"3"]
