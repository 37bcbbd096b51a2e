"""``subscribe_check = "delivery"``: a subscription that is wider than the rules is granted, and each message judged."""

from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.packets import Pingreq, Suback, Subscribe, TopicFilter
from taipan.management.configuration.config import load
from tests.api.test_revoked import enter, filters_of, reviewed
from tests.support.api import ManagedNode, managed_node
from tests.support.cluster_nodes import cluster_nodes
from tests.support.users import users
from tests.support.wire import Publish

RULES = [
    {"allow": False, "username": "ann", "topics": ["home/secret/#"]},
    {"allow": True, "username": "ann", "topics": ["home/#"]},
    {"allow": True, "username": "bob"},
]
ACCESS: dict[str, Any] = {"hash_cost": 10, "users": users("ann", "bob"), "no_match": "deny", "rules": RULES}
DELIVERY = {"subscribe_check": "delivery"}
versions = pytest.mark.parametrize("version", [4, 5])
TOPICS = ("home/secret/a", "home/a", "home/secret", "other", "home/b")
READABLE = ["home/a", "home/b"]


async def publish_all(node: ManagedNode, qos: int = 1, retain: bool = False, name: str = "bob") -> None:
    bob = await enter(node, 5, name=name)
    for topic in TOPICS:
        await bob.publish(topic, topic.encode(), qos, retain=retain)
    await bob.disconnect()


@versions
@pytest.mark.parametrize("filter", ["home/#", "#", "+/+", "home/+"])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.asyncio
async def test_a_wide_filter_is_granted_and_each_message_is_judged(version: int, filter: str, qos: int) -> None:
    async with managed_node(access=ACCESS, zone=DELIVERY) as node:
        ann = await enter(node, version)
        await ann.subscribe(filter, qos=qos)
        for _ in range(2):  # the second time by routes that are remembered
            await publish_all(node, qos)
            assert [(await ann.expect_publish()).topic for _ in READABLE] == READABLE
        await ann.nothing()


def test_a_listener_may_say_it(tmp_path: Path) -> None:
    file = tmp_path / "taipan.toml"
    listener = '[[listeners]]\nname = "{}"\ntype = "tcp"\nbind = "127.0.0.1:{}"\n'
    file.write_text(listener.format("a", 1883) + 'subscribe_check = "delivery"\n' + listener.format("b", 1884))
    found = load(str(file), environ={}).broker.listener_zones
    assert [zone.subscribe_check for zone in found] == ["delivery", "filter"]


@versions
@pytest.mark.asyncio
async def test_without_it_a_wide_filter_is_refused(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        ann = await enter(node, version)
        await ann.send(Subscribe(1, [TopicFilter("home/#", 1)]))
        assert (await ann.answer(Suback, packet_id=1)).reason_codes[0] >= 0x80


@versions
@pytest.mark.parametrize("filter", ["home/secret/#", "home/secret/a", "other", "other/#", "$SYS/#", "home/secret/+/x"])
@pytest.mark.asyncio
async def test_what_is_wholly_denied_is_refused(version: int, filter: str) -> None:
    async with managed_node(access=ACCESS, zone=DELIVERY) as node:
        ann = await enter(node, version)
        await ann.send(Subscribe(1, [TopicFilter(filter, 1), TopicFilter("home/#", 1)]))
        codes = (await ann.answer(Suback, packet_id=1)).reason_codes
        assert codes[0] >= 0x80 and codes[1] == 1


@versions
@pytest.mark.asyncio
async def test_stored_rules_and_overlapping_filters(version: int) -> None:
    """What one filter of a session may not deliver, none does."""
    async with managed_node(access={**ACCESS, "rules": RULES[2:]}, zone=DELIVERY) as node:
        for topic, allow in (("home/secret/#", False), ("home/#", True)):
            rule = {"login": "ann", "topic": topic, "action": "sub", "allow": allow}
            assert (await node.api.post("/broker_acl", rule)).code == 0
        ann = await enter(node, version)
        await ann.subscribe("home/#", "#", "home/a", qos=1)
        await publish_all(node)
        assert [(await ann.expect_publish()).topic for _ in READABLE] == READABLE
        await ann.nothing()


@versions
@pytest.mark.asyncio
async def test_retained_messages(version: int) -> None:
    async with managed_node(access=ACCESS, zone=DELIVERY) as node:
        await publish_all(node, retain=True)
        ann = await enter(node, version)
        await ann.subscribe("#", qos=1)
        assert sorted([(await ann.expect_publish()).topic for _ in READABLE]) == READABLE
        await ann.nothing()


@versions
@pytest.mark.asyncio
async def test_a_shared_subscription_passes_over_who_may_not(version: int) -> None:
    access = {**ACCESS, "users": users("ann", "bob", "cid"), "rules": [*RULES, {"allow": True, "username": "cid"}]}
    async with managed_node(access=access, zone=DELIVERY) as node:
        ann = await enter(node, version)
        await ann.subscribe("$share/g/#", qos=1)
        await publish_all(node)
        assert [(await ann.expect_publish()).topic for _ in READABLE] == READABLE
        await ann.nothing()
        cid = await enter(node, version, name="cid")
        await cid.subscribe("$share/g/#", qos=1)
        for _ in range(5):
            await publish_all(node)
        # Each message goes to one of them, and to ann none that only cid may read.
        got: dict[str, list[str]] = {"ann": [], "cid": []}
        for name, peer in (("ann", ann), ("cid", cid)):
            await peer.send(Pingreq())
            while isinstance(packet := await peer.receive(), Publish):
                got[name].append(packet.topic)
        assert len(got["ann"]) + len(got["cid"]) == 5 * len(TOPICS) and set(got["ann"]) <= set(READABLE)
        assert {"home/secret/a", "home/secret", "other"} <= set(got["cid"])


@versions
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.asyncio
async def test_a_session_that_comes_back(version: int, restart: bool, tmp_path: Path) -> None:
    """Subscription and queue stay; what waits is judged."""
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(access=ACCESS, zone=DELIVERY, **config) as node:
        ann = await enter(node, version)
        await ann.subscribe("home/#", qos=1)
        await ann.drop()
        await publish_all(node)
        if not restart:
            back = await enter(node, version)
            assert [(await back.expect_publish()).topic for _ in READABLE] == READABLE
            await back.nothing()
    if restart:
        async with managed_node(access=ACCESS, zone=DELIVERY, **config) as node:
            await publish_all(node)
            back = await enter(node, version)
            assert [(await back.expect_publish()).topic for _ in range(4)] == READABLE * 2
            assert await filters_of(node) == ["home/#"]
            await publish_all(node)
            assert [(await back.expect_publish()).topic for _ in READABLE] == READABLE
            await back.nothing()


@versions
@pytest.mark.asyncio
async def test_rules_that_change_hold_for_the_next_message_and_for_what_waits(version: int) -> None:
    async with managed_node(access=ACCESS, zone=DELIVERY) as node:
        ann = await enter(node, version)
        await ann.subscribe("home/#", qos=1)
        await publish_all(node)
        assert [(await ann.expect_publish()).topic for _ in READABLE] == READABLE
        deny = {"login": "ann", "topic": "home/b", "action": "sub", "allow": False}
        assert (await node.api.post("/broker_acl", deny)).code == 0
        await publish_all(node)
        assert (await ann.expect_publish()).topic == "home/a"
        await ann.drop()
        await publish_all(node)
        deny["topic"] = "home/a"
        assert (await node.api.post("/broker_acl", deny)).code == 0
        await reviewed(node)
        ann = await enter(node, version)
        assert await filters_of(node) == ["home/#"]
        await ann.nothing()
        # With all of it denied the subscription ends; with none it needs no judge.
        deny["topic"] = "#"
        assert (await node.api.post("/broker_acl", deny)).code == 0
        await reviewed(node)
        assert await filters_of(node) == []


@versions
@pytest.mark.asyncio
async def test_a_superuser_who_is_none_any_more(version: int) -> None:
    async with managed_node(access={**ACCESS, "users": users("bob")}, zone=DELIVERY) as node:
        user = {"login": "ann", "password": "secret", "is_superuser": True}
        assert (await node.api.post("/auth_user", [user])).code == 0
        ann = await node.client("ann", version, username="ann", password=b"secret")
        await ann.subscribe("#", qos=1)
        await publish_all(node)
        assert [(await ann.expect_publish()).topic for _ in TOPICS] == list(TOPICS)
        assert (await node.api.put("/auth_user/ann", {"password": "secret", "is_superuser": False})).code == 0
        await reviewed(node)
        await publish_all(node)
        assert [(await ann.expect_publish()).topic for _ in READABLE] == READABLE
        await ann.nothing()


@versions
@pytest.mark.asyncio
async def test_mount_points(version: int) -> None:
    zone = {**DELIVERY, "mountpoint": "site/"}
    async with managed_node(access=ACCESS, zone=zone) as node:
        ann = await enter(node, version)
        await ann.subscribe("#", qos=1)
        await publish_all(node)
        assert [(await ann.expect_publish()).topic for _ in READABLE] == READABLE
        await ann.nothing()


@pytest.mark.asyncio
async def test_what_explains_it(caplog: pytest.LogCaptureFixture) -> None:
    async with managed_node(access=ACCESS, zone=DELIVERY) as node:
        await enter(node)
        query = {"clientid": "ann", "action": "subscribe"}
        found = (await node.api.get("/access/explain", **query, topic="home/#")).data
        assert (found["allowed"], found["rule"]) == (True, "subscribe_check")
        assert found["steps"][-1]["source"] == "subscribe_check" and "checked by its topic" in found["reason"]
        for topic in ("home/secret/a", "other/#"):
            found = (await node.api.get("/access/explain", **query, topic=topic)).data
            assert found["allowed"] is False and found["rule"].startswith("access.")
        assert (await node.api.get("/access/explain", **query, topic="home/a")).data["allowed"] is True


@pytest.mark.asyncio
@versions
async def test_a_session_that_moves(version: int, tmp_path: Path) -> None:
    """What waited at the other node is judged, and what comes at the new one, from either."""
    async with cluster_nodes(2, level="disk", directory=tmp_path, access=ACCESS, zone=DELIVERY) as cluster:
        ann = await enter(cluster[0], version)
        await ann.subscribe("home/#", qos=1)
        await cluster.wait_until_quiet()
        await ann.drop()
        await publish_all(cluster[1])
        await cluster.wait_until_quiet()
        back = await enter(cluster[1], version)
        for publisher in (0, 1):
            assert [(await back.expect_publish()).topic for _ in READABLE] == READABLE
            await cluster.wait_until_quiet()
            await publish_all(cluster[publisher])
        assert [(await back.expect_publish()).topic for _ in READABLE] == READABLE
        await back.nothing()
