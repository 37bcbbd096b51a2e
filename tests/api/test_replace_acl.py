"""PUT /acl/...: all rules of one subject, in an order."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.users import users

from .test_broker_acl import connected, may_publish, may_subscribe

pytestmark = pytest.mark.asyncio

ACCESS = {"users": users("alice", "bob")}
SUBJECTS = {
    "username": "/acl/username/alice",
    "clientid": "/acl/clientid/c",
    "anonymous": "/acl/$anonymous",
    "all": "/acl/$all",
}


def rule(topic: str, action: str = "pubsub", access: str = "allow", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "action": action, "access": access, **more}


async def listed(node: ManagedNode, path: str = SUBJECTS["username"]) -> list[tuple[str, str, str, str | None]]:
    return [
        (each["topic"], each["action"], each["access"], each.get("listener"))
        for each in (await node.api.get(path)).data
    ]


@pytest.mark.parametrize("kind", SUBJECTS)
async def test_rules_of_a_subject_in_an_order(kind: str) -> None:
    async with managed_node(access=ACCESS) as node:
        path = SUBJECTS[kind]
        peer = await connected(node, username=None if kind == "anonymous" else "alice")
        deny_first = [rule("a/b", "pub", "deny"), rule("a/#"), rule("#", access="deny")]
        assert (await node.api.put(path, {"rules": deny_first})).json == {"code": 0}
        assert await listed(node, path) == [
            ("a/b", "pub", "deny", None),
            ("a/#", "pub", "allow", None),
            ("a/#", "sub", "allow", None),
            ("#", "pub", "deny", None),
            ("#", "sub", "deny", None),
        ]
        # It applies at once, and the order decides.
        assert (
            not await may_publish(peer, "a/b") and await may_publish(peer, "a/c") and not await may_publish(peer, "b")
        )
        assert (await node.api.put(path, {"rules": [deny_first[1], deny_first[0], deny_first[2]]})).code == 0
        assert (
            await may_publish(peer, "a/b") and await may_subscribe(peer, "a/x") and not await may_subscribe(peer, "b")
        )
        assert (await node.api.put(path, {"rules": []})).code == 0
        assert await listed(node, path) == [] and await may_publish(peer, "b")
        await peer.close()


async def test_other_subjects_keep_theirs() -> None:
    async with managed_node(access=ACCESS) as node:
        for path in SUBJECTS.values():
            assert (await node.api.put(path, {"rules": [rule("x")]})).code == 0
        assert (await node.api.put("/acl/username/bob", {"rules": [rule("y")]})).code == 0
        assert (await node.api.put(SUBJECTS["username"], {"rules": []})).code == 0
        assert [each["username"] for each in (await node.api.get("/acl/username")).data] == ["bob", "bob"]
        for kind in ("clientid", "anonymous", "all"):
            assert await listed(node, SUBJECTS[kind]) == [("x", "pub", "allow", None), ("x", "sub", "allow", None)]


async def test_a_list_that_has_changed_meanwhile_is_refused() -> None:
    async with managed_node(access=ACCESS) as node:
        path = SUBJECTS["username"]
        read = [rule("a"), rule("b", "sub", "deny", listener="mqtt:tcp:default")]
        assert (await node.api.put(path, {"rules": read[:1], "instead_of": []})).code == 0
        changed = await node.api.put(path, {"rules": [], "instead_of": []})
        assert_refused(changed, 400, 108, "instead_of: the rules of alice have changed")
        assert await listed(node) == [("a", "pub", "allow", None), ("a", "sub", "allow", None)]
        # Both halves are the whole; a second time is the same request.
        halves = [rule("a", "pub"), rule("a", "sub")]
        for _ in range(2):
            assert (await node.api.put(path, {"rules": halves, "instead_of": halves})).code == 0
        assert_refused(await node.api.put(path, {"rules": [], "instead_of": halves[::-1]}), 400, 108, "instead_of")


async def test_a_rule_that_repeats_another_is_left_out() -> None:
    async with managed_node(access=ACCESS) as node:
        assert (
            await node.api.put(SUBJECTS["all"], {"rules": [rule("a", "pub"), rule("b", "pub"), rule("a", "pub")]})
        ).code == 0
        assert await listed(node, SUBJECTS["all"]) == [("a", "pub", "allow", None), ("b", "pub", "allow", None)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (rule("a/#/b"), 115),
        (rule(""), 115),
        (rule("a", listener="nowhere"), 108),
        (rule("a", action="all"), 108),
        (rule("a", access="perhaps"), 108),
        ({"topic": "a", "action": "pub"}, 107),
    ],
    ids=str,
)
async def test_one_bad_rule_refuses_all(bad: dict[str, Any], code: int) -> None:
    async with managed_node(access=ACCESS) as node:
        path = SUBJECTS["username"]
        assert (await node.api.put(path, {"rules": [rule("kept", "pub")]})).code == 0
        reply = await node.api.put(path, {"rules": [rule("x"), bad]})
        assert (reply.status, reply.code) == (400, code), reply.text
        assert await listed(node) == [("kept", "pub", "allow", None)]


async def test_bounds() -> None:
    async with managed_node(access=ACCESS, management={"max_body": 10_000_000}) as node:
        path = SUBJECTS["username"]
        many = [rule(f"t/{number}", "pub") for number in range(10_000)]
        assert (await node.api.put(path, {"rules": many})).code == 0
        # A full list may be replaced by another one.
        assert (await node.api.put(path, {"rules": many[::-1]})).code == 0
        assert [each["topic"] for each in (await node.api.get(path)).data] == [each["topic"] for each in many[::-1]]
        assert_refused(await node.api.put(path, {"rules": [*many, rule("x")]}), 400, 108, "10000")
        assert_refused(await node.api.put("/acl/username/" + "u" * 65_536, {"rules": []}), 400, 108, "username")


async def test_the_order_outlives_the_node(tmp_path: Path) -> None:
    config: dict[str, Any] = {"access": ACCESS, "node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    topics = ["c", "a", "d", "b"]
    async with managed_node(**config) as node:
        await node.api.put(SUBJECTS["username"], {"rules": [rule(topic, "pub") for topic in sorted(topics)]})
        await node.api.put(SUBJECTS["username"], {"rules": [rule(topic, "pub") for topic in topics]})
    async with managed_node(**config) as node:
        assert [topic for topic, *_ in await listed(node)] == topics
