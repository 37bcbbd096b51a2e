"""A publisher on one node, a subscriber on another."""

import pytest

from taipan.broker.mqtt.constants import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
)
from taipan.broker.mqtt.reason_codes import NO_MATCHING_SUBSCRIBERS, SUCCESS
from tests.support.cluster_nodes import cluster_nodes

pytestmark = pytest.mark.asyncio

STRICT = {"strict_subscribe": True}


@pytest.mark.parametrize("level", ["memory", "disk"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_crosses_with_all_that_belongs_to_it(level: str, qos: int) -> None:
    async with cluster_nodes(2, level=level, cluster=STRICT) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("site/+/state", qos=2, identifier=7)
        properties = {
            PAYLOAD_FORMAT_INDICATOR: 1,
            MESSAGE_EXPIRY_INTERVAL: 60,
            CONTENT_TYPE: "text/plain",
            RESPONSE_TOPIC: "answer",
            CORRELATION_DATA: b"\x00\xff",
            USER_PROPERTY: [("a", "1"), ("a", "2")],
        }
        await publisher.publish("site/1/state", b"21.5", qos=qos, properties=properties)
        got = await subscriber.expect_publish("site/1/state", b"21.5", qos=qos)
        assert got.properties.pop(MESSAGE_EXPIRY_INTERVAL) in (59, 60)
        del properties[MESSAGE_EXPIRY_INTERVAL]
        assert got.properties == {**properties, SUBSCRIPTION_IDENTIFIER: [7]}


async def test_order_holds_between_nodes() -> None:
    async with cluster_nodes(2, level="disk", cluster=STRICT) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=2)
        for number in range(300):
            await publisher.publish("t", b"%d" % number, qos=number % 3)
        for number in range(300):
            await subscriber.expect_publish("t", b"%d" % number)


async def test_no_matching_subscribers_is_of_all_nodes() -> None:
    async with cluster_nodes(2, cluster=STRICT) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        assert await publisher.publish("t", b"1", qos=1) == NO_MATCHING_SUBSCRIBERS
        await subscriber.subscribe("t")
        assert await publisher.publish("t", b"2", qos=1) == SUCCESS
        await subscriber.expect_publish("t", b"2")
