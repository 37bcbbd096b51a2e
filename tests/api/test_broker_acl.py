"""/broker_acl: access rules by login, and what they mean for clients that are connected."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter
from tests.support.api import ManagedNode, assert_refused, managed_node, segment
from tests.support.peer import Peer
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio

ACCESS = {"users": users("alice", "bob")}
RULE = {"login": "alice", "topic": "t", "action": "pubsub", "allow": False}


def rule(**changes: Any) -> dict[str, Any]:
    return {**RULE, **changes}


async def connected(node: ManagedNode, username: str | None = "alice", version: int = 5, client_id: str = "c") -> Peer:
    peer = Peer(node.address(), version)
    await peer.connect(client_id, username=username, password=PASSWORD if username else None)
    return peer


async def may_publish(peer: Peer, topic: str) -> bool:
    """5.0 only."""
    return await peer.publish(topic, qos=1, expect=(0, 0x10, 0x87)) != 0x87


async def may_subscribe(peer: Peer, topic_filter: str) -> bool:
    refusal = 0x87 if peer.version == 5 else 0x80
    packet_id = 1000
    await peer.send(Subscribe(packet_id, [TopicFilter(topic_filter)]))
    (code,) = (await peer.answer(Suback, packet_id=packet_id)).reason_codes
    assert code in (0, refusal)
    return bool(code == 0)


async def test_post_answers_for_each_login() -> None:
    async with managed_node(access=ACCESS) as node:
        api = node.api
        both = [rule(topic="a", action="pub"), rule(topic="b", action="sub"), rule(login="bob", topic="b")]
        assert (await api.post("/broker_acl", both)).data == {"alice": "ok", "bob": "ok"}
        # The same once more changes nothing; the same topic with another action stands beside it.
        assert (await api.post("/broker_acl", [rule(topic="a", action="pub")])).data == {"alice": "ok"}
        assert (await api.get("/broker_acl")).meta["count"] == 3
        assert (await api.post("/broker_acl", rule(topic="a", action="pub", allow=True))).data == {"alice": "ok"}
        assert (await api.get("/broker_acl")).meta["count"] == 4


async def test_a_rule_that_never_decides_is_named() -> None:
    async with managed_node(access=ACCESS) as node:
        api = node.api
        first = rule(topic="a", action="pubsub", allow=False)
        assert (await api.post("/broker_acl", first)).json == {"code": 0, "data": {"alice": "ok"}}
        for action in ("pub", "sub", "pubsub"):
            reversed_ = rule(topic="a", action=action, allow=True)
            reply = await api.post("/broker_acl", [reversed_, rule(topic="b", action=action, allow=True)])
            assert reply.json == {"code": 0, "data": {"alice": "ok"}, "meta": {"without_effect": [reversed_]}}
            peer = await connected(node)
            assert not await may_publish(peer, "a") and not await may_subscribe(peer, "a")
            await peer.close()
        # What decides a half is not all of it; another login, topic or listener is another rule.
        assert (await api.post("/broker_acl", rule(topic="c", action="pub", allow=False))).code == 0
        for other in (
            rule(topic="c", action="pubsub", allow=True),
            rule(login="bob", topic="a", allow=True),
            rule(topic="eq a", allow=True),
        ):
            assert "meta" not in (await api.post("/broker_acl", other)).json, other
        assert (await api.delete("/broker_acl/alice/a")).code == 0
        assert "meta" not in (await api.post("/broker_acl", rule(topic="a", action="pub", allow=True))).json


@pytest.mark.parametrize("field", ["topic", "login", "allow", "action"])
async def test_every_field(field: str) -> None:
    async with managed_node(access=ACCESS) as node:
        given = [rule(), rule(login="$all", topic="u/%u", action="sub", allow=True)]
        await node.api.post("/broker_acl", given)
        listed = await node.api.get("/broker_acl")
        assert [record[field] for record in listed.data] == [each[field] for each in given]
        assert all(set(record) == set(RULE) for record in listed.data)
        assert listed.meta == {"page": 1, "limit": 10_000, "count": 2, "hasnext": False}


@pytest.mark.parametrize("action", ["pub", "sub", "pubsub"])
async def test_action(action: str) -> None:
    async with managed_node(access=ACCESS) as node:
        await node.api.post("/broker_acl", [rule(action=action)])
        peer = await connected(node)
        assert await may_publish(peer, "t") is (action == "sub")
        assert await may_subscribe(peer, "t") is (action == "pub")
        await peer.close()


async def test_rules_of_one_login() -> None:
    """Nothing, an object, or an array with the newest first: as the real one."""
    async with managed_node(access=ACCESS) as node:
        assert (await node.api.get("/broker_acl/alice")).data == {}
        await node.api.post("/broker_acl", [rule(topic="a")])
        assert (await node.api.get("/broker_acl/alice")).data == rule(topic="a")
        await node.api.post("/broker_acl", [rule(topic="b"), rule(login="$all", topic="c")])
        assert [each["topic"] for each in (await node.api.get("/broker_acl/alice")).data] == ["b", "a"]
        assert (await node.api.get("/broker_acl/$all")).data["topic"] == "c"


@pytest.mark.parametrize("missing", ["topic", "login", "allow", "action"])
async def test_a_missing_key_refuses_all(missing: str) -> None:
    async with managed_node(access=ACCESS) as node:
        bad = {key: value for key, value in RULE.items() if key != missing}
        assert_refused(await node.api.post("/broker_acl", [rule(), bad]), 400, 107, missing)
        assert (await node.api.get("/broker_acl")).data == []


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"action": "fly"}, 108),
        ({"allow": "yes"}, 108),
        ({"login": ""}, 108),
        ({"topic": 1}, 108),
        ({"topic": ""}, 115),
        ({"topic": "a/#/b"}, 115),
        ({"topic": "a+"}, 115),
        ({"topic": "$share/g/a"}, 115),
    ],
)
async def test_one_bad_item_refuses_all(changes: dict[str, Any], code: int) -> None:
    async with managed_node(access=ACCESS) as node:
        assert_refused(await node.api.post("/broker_acl", [rule(), rule(**changes)]), 400, code)
        assert (await node.api.get("/broker_acl")).data == []


async def test_bounds() -> None:
    async with managed_node(access=ACCESS) as node:
        many = [rule(login="$all", topic=f"t/{number}") for number in range(10_001)]
        assert_refused(await node.api.post("/broker_acl", many), 400, 108, "one request")
        assert (await node.api.post("/broker_acl", many[:-1])).data == {"$all": "ok"}
        assert_refused(await node.api.post("/broker_acl", many[-1:]), 400, 108, "$all")
        assert (await node.api.get("/broker_acl")).meta["count"] == 10_000
        peer = await connected(node)
        assert not await may_publish(peer, "t/9999") and await may_publish(peer, "t/10000")
        await peer.close()


async def test_bounds_of_requests_at_the_same_time() -> None:
    async with managed_node(access=ACCESS) as node:
        batches = [[rule(login="$all", topic=f"{batch}/{number}") for number in range(4000)] for batch in range(4)]
        replies = await asyncio.gather(*(node.api.post("/broker_acl", batch) for batch in batches))
        assert sorted(reply.code for reply in replies) == [0, 0, 108, 108]
        assert (await node.api.get("/broker_acl", _limit=1)).meta["count"] == 8000


async def test_bodies_that_are_none() -> None:
    async with managed_node(access=ACCESS) as node:
        assert_refused(await node.api.ask("POST", "/broker_acl", raw=b"["), 400, 109)
        assert_refused(await node.api.post("/broker_acl", []), 400, 107)
        assert_refused(await node.api.post("/broker_acl"), 400, 107)


async def test_delete() -> None:
    async with managed_node(access=ACCESS) as node:
        given = [rule(topic="a/b", action="pub"), rule(topic="a/b", action="sub", allow=True), rule(topic="c")]
        await node.api.post("/broker_acl", given)
        assert (await node.api.delete(f"/broker_acl/alice/{segment('a/b')}")).json == {"code": 0}
        assert [each["topic"] for each in (await node.api.get("/broker_acl")).data] == ["c"]
        assert_refused(await node.api.delete("/broker_acl/alice/nosuch"), 404, 102)
        assert_refused(await node.api.delete("/broker_acl/alice/a/b"), 404, 102)


@pytest.mark.parametrize("version", [4, 5])
async def test_rights_change_under_a_connected_client(version: int) -> None:
    """Each change counts for the next packet, whatever was decided and remembered before."""
    async with managed_node(access=ACCESS) as node:
        peer, watcher = await connected(node, version=version), await connected(node, "bob", client_id="w")
        await watcher.subscribe("news/p")
        for allowed in (True, False, True):
            assert await may_subscribe(peer, "news/s") is allowed
            await peer.publish("news/p", b"x", qos=1, expect=None)
            if allowed:
                await watcher.expect_publish("news/p", b"x")
                await node.api.post("/broker_acl", [rule(topic="news/#")])
            else:
                await node.api.delete(f"/broker_acl/alice/{segment('news/#')}")
        await watcher.nothing()
        for each in (peer, watcher):
            await each.close()


async def test_order_and_everybody() -> None:
    """A login's rules in the order they came, then those of $all, then the next source."""
    async with managed_node(access={**ACCESS, "rules": [{"allow": False, "topics": ["file"]}]}) as node:
        given = [
            rule(login="$all", topic="#", allow=False),
            rule(topic="a/1", allow=True),
            rule(topic="a/+"),
            rule(topic="a/2", allow=True),
            rule(topic="b/#", allow=True),
        ]
        await node.api.post("/broker_acl", given)
        alice, nobody = await connected(node), await connected(node, None, client_id="n")
        assert await may_publish(alice, "a/1") and not await may_publish(alice, "a/2")
        assert await may_publish(alice, "b/c") and not await may_publish(alice, "c")
        assert not await may_publish(nobody, "b/c")
        await node.api.delete("/broker_acl/$all/%23")
        assert await may_publish(alice, "c") and await may_publish(nobody, "a/2")
        assert not await may_publish(alice, "file")
        await node.api.post("/broker_acl", [rule(topic="file", allow=True)])
        assert await may_publish(alice, "file")
        for each in (alice, nobody):
            await each.close()


async def test_a_subscription_is_covered_or_refused() -> None:
    async with managed_node(access={**ACCESS, "no_match": "deny"}) as node:
        await node.api.post(
            "/broker_acl", [rule(topic="secret/x"), rule(topic="secret/#", allow=True), rule(topic="a/+", allow=True)]
        )
        peer = await connected(node)
        assert await may_subscribe(peer, "a/b") and await may_subscribe(peer, "a/+")
        assert await may_subscribe(peer, "$share/g/a/+")
        assert not await may_subscribe(peer, "a/#") and not await may_subscribe(peer, "#")
        assert await may_subscribe(peer, "secret/y") and not await may_subscribe(peer, "secret/#")
        await peer.close()


async def test_placeholders() -> None:
    async with managed_node(access={**ACCESS, "no_match": "deny"}) as node:
        await node.api.post("/broker_acl", [rule(login="$all", topic="u/%u/%c", allow=True)])
        alice, nobody = await connected(node), await connected(node, None, client_id="n")
        assert await may_publish(alice, "u/alice/c") and not await may_publish(alice, "u/alice/n")
        assert not await may_publish(nobody, "u/%u/n") and not await may_publish(nobody, "u//n")
        for each in (alice, nobody):
            await each.close()


async def test_a_refusal_names_the_rule(caplog: pytest.LogCaptureFixture) -> None:
    async with managed_node(access=ACCESS) as node:
        await node.api.post("/broker_acl", [rule(topic="a b")])
        peer = await connected(node)
        with caplog.at_level("WARNING"):
            assert not await may_publish(peer, "a b")
        assert "setting=/broker_acl/alice/a%20b" in caplog.text
        await peer.close()


async def test_rules_outlive_the_node_in_their_order(tmp_path: Path) -> None:
    config: dict[str, Any] = {"access": ACCESS, "node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    topics = [f"t{number}" for number in range(12)]
    async with managed_node(**config) as node:
        await node.api.post("/broker_acl", [rule(topic=topic) for topic in topics])
        await node.api.delete("/broker_acl/alice/t3")
    async with managed_node(**config) as node:
        await node.api.post("/broker_acl", [rule(topic="last")])
        listed = await node.api.get("/broker_acl")
        assert [each["topic"] for each in listed.data] == [*topics[:3], *topics[4:], "last"]
        peer = await connected(node)
        assert not await may_publish(peer, "t11") and await may_publish(peer, "t3")
        await peer.close()


async def test_rules_for_anonymous_clients_and_for_one_listener() -> None:
    """Made in both views, listed with what they are for, and gone again."""
    access = {**ACCESS, "no_match": "deny"}
    async with managed_node(access=access, zone={"allow_anonymous": True}) as node:
        label = node.server.listeners[0].label
        for path, body in (
            ("/broker_acl", rule(login="$anonymous", topic="open/#", allow=True)),
            ("/broker_acl", rule(topic="here", allow=True, listener=label)),
            ("/acl", {"anonymous": True, "topic": "first", "action": "pub", "access": "deny", "listener": label}),
        ):
            assert (await node.api.post(path, body)).code == 0
        alice, nobody = await connected(node), await connected(node, None, client_id="n")
        assert await may_publish(nobody, "open/x") and await may_subscribe(nobody, "open/+")
        assert not await may_publish(nobody, "here") and not await may_publish(nobody, "first")
        assert await may_publish(alice, "here") and not await may_publish(alice, "open/x")
        told = (await node.api.get("/access/explain", clientid="n", topic="first", action="publish")).data
        assert (told["allowed"], told["rule"]) == (False, "/broker_acl/$anonymous/first")
        first = {"anonymous": "$anonymous", "topic": "first", "action": "pub", "access": "deny", "listener": label}
        opened = [
            {"anonymous": "$anonymous", "topic": "open/#", "action": each, "access": "allow"} for each in ("pub", "sub")
        ]
        assert (await node.api.get("/acl/$anonymous")).data == [first, *opened]
        listed = (await node.api.get("/broker_acl")).data
        assert {**RULE, "topic": "here", "allow": True, "listener": label} in listed
        wrong = rule(listener="elsewhere")
        assert_refused(await node.api.post("/broker_acl", wrong), 400, 108, "elsewhere")
        both = {"anonymous": True, "username": "ann", "topic": "t", "action": "pub", "access": "deny"}
        assert_refused(await node.api.post("/acl", both), 400, 108, "anonymous")
        assert (await node.api.delete(f"/acl/$anonymous/topic/{segment('open/#')}")).code == 0
        assert (await node.api.delete("/broker_acl/$anonymous/first")).code == 0
        assert (await node.api.get("/acl/$anonymous")).data == []
        assert not await may_publish(nobody, "open/x")
        for each in (alice, nobody):
            await each.close()


async def test_wildcards_mean_the_same_in_both_kinds_of_rules() -> None:
    """``#`` is about no topic that begins with ``$``; a rule without topics is about everything."""
    everybody = rule(login="$all", topic="#", action="sub", allow=False)
    for configured, open_ in (({"topics": ["#"]}, True), ({}, False), (None, True)):
        rules = [] if configured is None else [{"allow": False, "action": "subscribe", **configured}]
        async with managed_node(access={**ACCESS, "rules": rules}) as node:
            if configured is None:
                await node.api.post("/broker_acl", everybody)
            peer = await connected(node)
            assert not await may_subscribe(peer, "a") and not await may_subscribe(peer, "#")
            assert await may_subscribe(peer, "$SYS/#") is open_
            if configured is None:
                await node.api.post("/broker_acl", {**everybody, "topic": "$SYS/#"})
                assert not await may_subscribe(peer, "$SYS/#")
            await peer.close()
