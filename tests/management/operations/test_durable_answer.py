"""Stored: while the store is in trouble a change is refused and nothing of it counts."""

from typing import Any

import pytest

from taipan.broker.persistence.durability import Durability
from taipan.management.operations.durable_answer import UNSURE, wait_until_stored
from taipan.management.operations.refusal import Refusal
from tests.support.api import ManagedNode, managed_node

pytestmark = pytest.mark.asyncio

USER = {"login": "alice", "password": "a1", "is_superuser": True}
RULE = {"login": "alice", "topic": "t", "action": "pub", "allow": False}
BAN = {"who": "c", "as": "clientid", "by": "me", "reason": "r", "at": 1, "until": 4_000_000_000}
APP = {"app_id": "other", "name": "n", "secret": "s"}
TRACE = {"name": "t1", "type": "clientid", "clientid": "c"}

CHANGES: list[tuple[str, str, Any, str]] = [
    ("POST", "/auth_user", [{**USER, "login": "bob"}], "/auth_user"),
    ("PUT", "/auth_user/alice", {"password": "a2", "is_superuser": False}, "/auth_user"),
    ("DELETE", "/auth_user/alice", None, "/auth_user"),
    ("POST", "/auth_clientid", {"clientid": "c", "password": "x"}, "/auth_clientid"),
    ("POST", "/broker_acl", [{**RULE, "topic": "u"}], "/broker_acl"),
    ("DELETE", "/broker_acl/alice/t", None, "/broker_acl"),
    ("POST", "/acl", {"username": "alice", "topic": "t", "action": "pub", "access": "allow"}, "/acl/username/alice"),
    ("POST", "/banned", {**BAN, "who": "d"}, "/banned"),
    ("DELETE", "/banned/clientid/c", None, "/banned"),
    ("POST", "/apps", {**APP, "app_id": "third"}, "/apps"),
    ("PUT", "/apps/other", {"status": False}, "/apps"),
    ("DELETE", "/apps/other", None, "/apps"),
    ("POST", "/topic-metrics", {"topic": "b"}, "/topic-metrics"),
    ("DELETE", "/topic-metrics/a", None, "/topic-metrics"),
    ("DELETE", "/topic-metrics", None, "/topic-metrics"),
    ("POST", "/trace", {**TRACE, "name": "t2", "clientid": "d"}, "/trace"),
]


def durability_of(node: ManagedNode) -> Durability:
    durability = node.server.broker.durability
    assert durability is not None
    return durability


@pytest.mark.parametrize(
    "method, path, body, listing", CHANGES, ids=[f"{method} {path}" for method, path, *_ in CHANGES]
)
async def test_nothing_changes_in_trouble(method: str, path: str, body: Any, listing: str) -> None:
    async with managed_node(access={"hash_cost": 10}, durability={"level": "disk"}) as node:
        api = node.api
        for there, given in (
            ("/auth_user", USER), ("/broker_acl", RULE), ("/banned", BAN), ("/apps", APP), ("/trace", TRACE),
            ("/topic-metrics", {"topic": "a"}),
        ):  # fmt: skip
            assert (await api.post(there, given)).code == 0, there
        before = (await api.get(listing)).text
        durability_of(node).commit.trouble = "the disk is full"
        reply = await api.ask(method, path, body)
        assert (reply.status, reply.code) == (500, 101), reply.text
        assert (await api.get(listing)).text == before
        durability_of(node).commit.trouble = None
        reply = await api.ask(method, path, body)
        assert (reply.status, reply.code) == (200, 0), reply.text
        assert (await api.get(listing)).text != before


async def test_trouble_that_comes_after_the_change() -> None:
    async with managed_node(durability={"level": "disk"}) as node:
        tables = node.server.tables
        durability = durability_of(node)
        tables.put("t", "k", b"v")
        durability.commit.trouble = "the disk is full"
        with pytest.raises(Refusal) as refused:
            await wait_until_stored(tables)
        durability.commit.trouble = None
        assert (refused.value.code, refused.value.message) == (101, UNSURE)
