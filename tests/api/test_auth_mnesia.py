"""/auth_clientid, /auth_username and /acl: users and rules as EMQX 4.4 has them."""

from typing import Any

import pytest

from tests.support.api import assert_refused, connect_code, managed_node, segment
from tests.support.peer import Peer
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio

CHEAP = {"hash_cost": 10}
KINDS = ["clientid", "username"]


@pytest.mark.parametrize("kind", KINDS)
async def test_users(kind: str) -> None:
    async with managed_node(access=CHEAP) as node:
        api, path = node.api, f"/auth_{kind}"
        assert (await api.get(path)).data == []
        added = (await api.post(path, {kind: "dev1", "password": "p"})).json
        assert added == {"code": 0, "warning": added["warning"]}  # the first of all, which shuts out others
        assert_refused(await api.post(path, {kind: "dev1", "password": "p"}), 400, 113, "dev1")
        answers = (await api.post(path, [{kind: "dev1", "password": "x"}, {kind: "dev2", "password": "p"}])).data
        assert answers == {"dev1": "{error,existed}", "dev2": "ok"}
        listed = await api.get(path)
        assert [each[kind] for each in listed.data] == ["dev2", "dev1"] and listed.meta["count"] == 2
        assert all(set(each) == {kind, "created_at"} for each in listed.data)
        assert abs(listed.data[0]["created_at"] / 1000 - node.clock.now()) < 60
        assert (await api.get(f"{path}/dev1")).data[kind] == "dev1"
        assert (await api.get(f"{path}/nobody")).data == {}
        assert (await api.put(f"{path}/dev1", {"password": "q"})).json == {"code": 0}
        assert_refused(await api.put(f"{path}/nobody", {"password": "q"}), 404, 105)
        assert_refused(await api.put(f"{path}/dev1", {}), 400, 107, "password")
        assert (await api.delete(f"{path}/dev2")).json == {"code": 0}
        assert_refused(await api.delete(f"{path}/dev2"), 404, 105)
        assert (await api.get(path)).meta["count"] == 1
        assert_refused(await api.post(path, [{kind: "x"}]), 400, 107, "password")
        assert_refused(await api.ask("POST", path, raw=b"{"), 400, 109)


@pytest.mark.parametrize("kind", KINDS)
async def test_user_filters(kind: str) -> None:
    async with managed_node(access=CHEAP) as node:
        users = [{kind: name, "password": "p"} for name in ("one", "two", "twofold")]
        await node.api.post(f"/auth_{kind}", users)
        exact = await node.api.get(f"/auth_{kind}", **{kind: "two"})
        assert [each[kind] for each in exact.data] == ["two"] and exact.meta["count"] == -1
        like = await node.api.get(f"/auth_{kind}", **{f"_like_{kind}": "wo"})
        assert [each[kind] for each in like.data] == ["twofold", "two"]


@pytest.mark.parametrize("version", [4, 5])
async def test_who_must_give_which_password(version: int) -> None:
    wrong = 0x86 if version == 5 else 4
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_clientid", {"clientid": "dev1", "password": "device"})
        # A stored client identifier is nobody's without its password.
        assert await connect_code(node, "dev1", None, None, version) == wrong
        assert await connect_code(node, "other", None, None, version) == 0
        assert await connect_code(node, "dev1", "any", b"device", version) == 0
        if version == 5:
            assert await connect_code(node, "dev1", None, b"device", version) == 0
        assert await connect_code(node, "dev1", "any", b"wrong", version) == wrong
        # Where the user name is stored, it decides.
        await node.api.post("/auth_username", {"username": "ann", "password": "person"})
        assert await connect_code(node, "dev1", "ann", b"person", version) == 0
        assert await connect_code(node, "dev1", "ann", b"device", version) == wrong


async def test_both_interfaces_show_the_same_users() -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_user", {"login": "root", "password": "r", "is_superuser": True})
        assert (await node.api.get("/auth_username/root")).data["username"] == "root"
        await node.api.put("/auth_username/root", {"password": "s"})
        assert (await node.api.get("/auth_user/root")).data["is_superuser"] is True


RULE = {"username": "alice", "topic": "t", "action": "pub", "access": "deny"}


async def test_rules_newest_first() -> None:
    async with managed_node() as node:
        api = node.api
        assert (await api.post("/acl", RULE)).data == {**RULE, "result": "ok"}
        many = [
            {"clientid": "c", "topic": "a/#", "action": "pubsub", "access": "deny"},
            {"topic": "all", "action": "sub", "access": "allow"},
        ]
        assert (await api.post("/acl", many)).data == [
            {"clientid": "c", "topic": "a/#", "action": "pubsub", "access": "deny", "result": "ok"},
            {"all": "$all", "topic": "all", "action": "sub", "access": "allow", "result": "ok"},
        ]
        everybody = await api.get("/acl/$all")
        assert everybody.data == [{"all": "$all", "topic": "all", "action": "sub", "access": "allow"}]
        halves = await api.get("/acl/clientid")
        assert sorted(each["action"] for each in halves.data) == ["pub", "sub"] and halves.meta["count"] == 2
        assert (await api.get("/acl/clientid/c")).data == halves.data
        assert (await api.get("/acl/clientid/nobody")).data == []
        peer = Peer(node.address(), 5)
        await peer.connect("c", username="alice", password=b"x")
        assert await peer.publish("a/b", qos=1, expect=None) == 0x87
        # Newer, so it is asked first.
        await api.post("/acl", {"clientid": "c", "topic": "a/b", "action": "pub", "access": "allow"})
        assert await peer.publish("a/b", qos=1, expect=None) != 0x87
        # The same action and topic: in place of the old one.
        await api.post("/acl", {"clientid": "c", "topic": "a/#", "action": "pub", "access": "allow"})
        assert await peer.publish("a/c", qos=1, expect=None) != 0x87
        assert len((await api.get("/acl/clientid/c")).data) == 3
        await peer.subscribe("a/c", expect=[0x87])
        await peer.close()


async def test_client_identifier_before_user_name_before_everybody() -> None:
    async with managed_node(access={"users": users("alice")}) as node:
        peer = Peer(node.address(), 5)
        await peer.connect("c", username="alice", password=PASSWORD)
        for who, allowed in ({}, False), ({"username": "alice"}, True), ({"clientid": "c"}, False):
            access = "allow" if allowed else "deny"
            await node.api.post("/acl", {**who, "topic": "t", "action": "pub", "access": access})
            assert (await peer.publish("t", qos=1, expect=None) != 0x87) is allowed
        for path, allowed in ("clientid/c", True), ("username/alice", False), ("$all", True):
            assert (await node.api.delete(f"/acl/{path}/topic/t")).json == {"code": 0}
            assert (await peer.publish("t", qos=1, expect=None) != 0x87) is allowed
            assert_refused(await node.api.delete(f"/acl/{path}/topic/t"), 404, 102)
        await peer.close()


async def test_one_rule_in_both_interfaces() -> None:
    """A rule of 4.1's interface is two of 4.4's, which may replace one half and leave the other where it was."""
    async with managed_node() as node:
        both = {"login": "alice", "topic": "t", "action": "pubsub", "allow": False}
        await node.api.post("/broker_acl", both)
        assert sorted(each["action"] for each in (await node.api.get("/acl/username/alice")).data) == ["pub", "sub"]
        await node.api.post("/acl", {**RULE, "access": "allow"})
        listed = (await node.api.get("/broker_acl")).data
        assert listed == [{**both, "action": "pub", "allow": True}, {**both, "action": "sub"}]
        assert (await node.api.get("/broker_acl")).meta["count"] == 2
        # Rules about client identifiers have no login.
        await node.api.post("/acl", {"clientid": "c", "topic": "t", "action": "pub", "access": "deny"})
        assert (await node.api.get("/broker_acl")).meta["count"] == 2
        await node.api.delete(f"/acl/username/{segment('alice')}/topic/t")
        assert (await node.api.get("/broker_acl")).data == []


@pytest.mark.parametrize(
    "query, topics",
    [
        ({"username": "bob"}, ["b/1"]),
        ({"_like_username": "lic"}, ["a/2", "a/1"]),
        ({"topic": "a/1"}, ["a/1"]),
        ({"_like_topic": "/1"}, ["a/1", "b/1"]),
        ({"action": "sub"}, ["a/2"]),
        ({"access": "allow"}, ["b/1"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_rule_filters(query: dict[str, str], topics: list[str]) -> None:
    async with managed_node() as node:
        rules = [
            {**RULE, "topic": "a/1"},
            {**RULE, "topic": "a/2", "action": "sub"},
            {**RULE, "username": "bob", "topic": "b/1", "access": "allow"},
        ]
        await node.api.post("/acl", rules)
        listed = await node.api.get("/acl/username", **query)
        assert [each["topic"] for each in listed.data] == topics and listed.meta["count"] == -1


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"action": "fly"}, 108),
        ({"access": "maybe"}, 108),
        ({"clientid": "c"}, 108),
        ({"topic": "a#"}, 115),
        ({"topic": None}, 108),
    ],
)
async def test_bad_rules(changes: dict[str, Any], code: int) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/acl", [RULE, {**RULE, **changes}]), 400, code)
        missing = {key: value for key, value in RULE.items() if key != "topic"}
        assert_refused(await node.api.post("/acl", missing), 400, 107, "topic")
        assert (await node.api.get("/acl/username")).data == []
