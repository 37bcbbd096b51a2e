"""Exclusive subscriptions: ``$exclusive/<filter>`` is a subscription that one client at a time may have."""

from pathlib import Path
from typing import Any

import pytest

from taipan.broker.config import RuleSettings
from tests.support.clients import Clients, StartClients, tcp
from tests.support.cluster_nodes import cluster_nodes

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS: dict[str, Any] = {"zone": {"exclusive_subscription": True}}
TAKEN = 0x97
INVALID = 0x8F


def refused(clients: Clients, code: int) -> list[int]:
    return [code if clients.version == 5 else 0x80]


async def test_the_second_client_is_refused_until_the_first_unsubscribes(clients: Clients) -> None:
    first, second = await clients.connect(), await clients.connect()
    topic = clients.topic
    await first.subscribe(f"$exclusive/{topic}", qos=1)
    await first.subscribe(f"$exclusive/{topic}", qos=2)
    await second.subscribe(f"$exclusive/{topic}", expect=refused(clients, TAKEN))
    await second.publish(topic, b"1", 1)
    await first.expect_publish(topic, b"1", 1)
    await second.nothing()
    await first.unsubscribe(f"$exclusive/{topic}")
    await second.subscribe(f"$exclusive/{topic}", qos=1)
    await first.publish(topic, b"2", 1)
    await second.expect_publish(topic, b"2", 1)
    await first.nothing()


async def test_other_clients_may_subscribe_without_the_prefix(clients: Clients) -> None:
    first, second = await clients.connect(), await clients.connect()
    topic = clients.topic
    await first.subscribe(f"$exclusive/{topic}/#", qos=1)
    await second.subscribe(f"{topic}/#", f"$exclusive/{topic}/+", qos=1)
    await second.publish(f"{topic}/a", b"1", 1)
    await first.expect_publish(f"{topic}/a", b"1", 1)
    await second.expect_publish(f"{topic}/a", b"1", 1)


async def test_it_is_free_when_the_session_ends(clients: Clients) -> None:
    topic, name = clients.topic, clients.name()
    first = await clients.connect()
    await first.subscribe(f"$exclusive/{topic}")
    await first.disconnect()
    stored = await clients.persistent(name)
    await stored.subscribe(f"$exclusive/{topic}", qos=1)
    await stored.disconnect()
    other = await clients.connect()
    await other.subscribe(f"$exclusive/{topic}", expect=refused(clients, TAKEN))
    again = await clients.connect(name, True)
    await other.subscribe(f"$exclusive/{topic}")
    await again.subscribe(f"$exclusive/{topic}", expect=refused(clients, TAKEN))


async def test_retained_messages_follow(clients: Clients) -> None:
    publisher, peer = await clients.connect(), await clients.connect()
    await publisher.publish(clients.topic, b"kept", 1, True)
    await peer.subscribe(f"$exclusive/{clients.topic}", qos=1)
    await peer.expect_publish(clients.topic, b"kept", 1, retain=True)
    await publisher.publish(clients.topic, b"", 1, True)


async def test_of_the_same_filter_with_and_without_the_prefix_a_client_has_one(clients: Clients) -> None:
    first, second = await clients.connect(), await clients.connect()
    topic = clients.topic
    await first.subscribe(topic)
    await first.subscribe(f"$exclusive/{topic}", qos=1)
    await second.publish(topic, b"once", 1)
    await first.expect_publish(topic, b"once", 1)
    await first.nothing()
    await first.subscribe(topic)
    await second.subscribe(f"$exclusive/{topic}", qos=1)
    await second.publish(topic, b"both", 0)
    await first.expect_publish(topic, b"both", 0)
    await second.expect_publish(topic, b"both", 0)


@pytest.mark.parametrize("filter", ["$exclusive/", "$exclusive/$share/g/t", "$share/g/$exclusive/t", "$exclusive/a#"])
async def test_what_is_no_exclusive_filter_is_refused(clients: Clients, filter: str) -> None:
    peer = await clients.connect()
    await peer.subscribe(filter, expect=refused(clients, INVALID))


@tcp
async def test_it_is_refused_where_it_is_off(clients_of: StartClients) -> None:
    clients = await clients_of()
    peer = await clients.connect()
    await peer.subscribe("$exclusive/t", "t", expect=[*refused(clients, INVALID), 0])
    assert clients.server.metrics.refusals.snapshot()["subscribe_topic_filter_invalid"] == 1


@tcp
async def test_who_may_not_read_does_not_get_it(clients_of: StartClients) -> None:
    rules = [RuleSettings(allow=False, action="subscribe", topics=["secret"])]
    clients = await clients_of(**SETTINGS, access={"rules": rules})
    first = await clients.connect()
    await first.subscribe("$exclusive/secret", "$exclusive/open", expect=[*refused(clients, 0x87), 0])
    assert list(clients.server.broker.exclusive.holders) == ["open"]


@tcp
async def test_the_filter_is_rewritten_and_mounted_before_it_is_compared(clients_of: StartClients) -> None:
    rule = {"action": "subscribe", "source_topic": "old/+", "re": "^old/(.+)$", "dest_topic": "new/$1"}
    clients = await clients_of(zone={"exclusive_subscription": True, "mountpoint": "m/"}, rewrite={"rules": [rule]})
    first, second = await clients.connect(), await clients.connect()
    await first.subscribe("$exclusive/old/1", qos=1)
    await second.subscribe("$exclusive/new/1", expect=refused(clients, TAKEN))
    assert list(clients.server.broker.exclusive.holders) == ["m/new/1"]
    await second.publish("new/1", b"x", 1)
    await first.expect_publish("new/1", b"x", 1)
    await first.unsubscribe("$exclusive/old/1")
    assert not clients.server.broker.exclusive.holders


@tcp
async def test_a_mount_point_that_begins_like_the_prefix_makes_nothing_exclusive(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"exclusive_subscription": True, "mountpoint": "$exclusive/"})
    first, second, third = await clients.connect(), await clients.connect(), await clients.connect()
    await first.subscribe("$exclusive/t", qos=1)
    await second.subscribe("t", qos=1)
    await third.subscribe("$exclusive/t", expect=refused(clients, TAKEN))
    await third.publish("t", b"x", 1)
    await first.expect_publish("t", b"x", 1)
    await second.expect_publish("t", b"x", 1)


async def test_a_stored_session_has_it_after_kill_9(tmp_path: Path) -> None:
    async with cluster_nodes(1, directory=tmp_path, level="disk", zone={"exclusive_subscription": True}) as cluster:
        first = await cluster[0].client("first", clean_start=True, properties={0x11: 3600})
        await first.subscribe("$exclusive/t", qos=1)
        brief = await cluster[0].client("brief")
        await brief.subscribe("$exclusive/brief")
        await cluster.kill(0)
        await cluster.start(0)
        second = await cluster[0].client("second")
        await second.subscribe("$exclusive/t", expect=[TAKEN])
        await second.publish("t", b"waits", 1)
        again = await cluster[0].client("first", clean_start=False, properties={0x11: 3600})
        await again.expect_publish("t", b"waits", 1)
        assert list(cluster[0].server.broker.exclusive.holders) == ["t"]
