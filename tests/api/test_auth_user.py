"""/auth_user: users by user name, and what their changes mean for real clients."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from broker.access.emqx_hash import EmqxHash
from broker.access.password import ScryptHash
from broker.access.stored_users import USERNAME
from tests.support.api import ManagedNode, Reply, managed_node, segment
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio

CHEAP = {"hash_cost": 10}
ALICE = {"login": "alice", "password": "a1", "is_superuser": False}
ROOT = {"login": "root1", "password": "r1", "is_superuser": True}


async def code_of(node: ManagedNode, username: str | None, password: bytes | None, version: int, **more: Any) -> int:
    """The Reason Code of a CONNECT with these credentials."""
    peer = Peer(node.address(), version)
    await peer.connect(more.pop("client_id", "c"), username=username, password=password, expect=None, **more)
    peer.abort()
    return peer.connack.reason_code


def refused(version: int) -> int:
    return 0x86 if version == 5 else 4


def assert_refused(reply: Reply, status: int, code: int, about: str = "") -> None:
    assert (reply.status, reply.code) == (status, code), reply.text
    assert about in reply.json["message"]


async def test_post_answers_for_each_login() -> None:
    async with managed_node(access=CHEAP) as node:
        api = node.api
        assert (await api.post("/auth_user", [ALICE, ROOT])).data == {"alice": "ok", "root1": "ok"}
        twice = [{**ALICE, "login": "bob"}, {**ALICE, "login": "bob", "password": "other"}]
        assert (await api.post("/auth_user", twice)).data == {"bob": "ok"}
        again = await api.post("/auth_user", [{**ALICE, "password": "new"}, {**ALICE, "login": "carol"}])
        assert again.data == {"alice": "{error,existed}", "carol": "ok"}
        # One alone, as the real one takes it.
        assert (await api.post("/auth_user", {**ALICE, "login": "dave"})).data == {"dave": "ok"}
        assert await code_of(node, "alice", b"a1", 5) == 0
        assert await code_of(node, "alice", b"new", 5) == 0x86
        assert await code_of(node, "bob", b"a1", 4) == 0


@pytest.mark.parametrize("field", ["login", "password", "is_superuser"])
async def test_every_field(field: str) -> None:
    async with managed_node(access=CHEAP) as node:
        assert (await node.api.post("/auth_user", [ROOT])).code == 0
        listed = await node.api.get("/auth_user")
        (record,) = listed.data
        assert set(record) == {"login", "password", "is_superuser"}
        if field == "password":
            assert ScryptHash.parse(record[field]).verify(b"r1")
        else:
            assert record[field] == ROOT[field]
        assert listed.meta == {"page": 1, "limit": 10_000, "count": 1, "hasnext": False}
        assert (await node.api.get("/auth_user/root1")).data == record
        assert (await node.api.get("/auth_user/nobody")).data == {}


@pytest.mark.parametrize(
    "item, code",
    [
        ({"password": "x", "is_superuser": False}, 107),
        ({"login": "x", "is_superuser": False}, 107),
        ({"login": "x", "password": "x"}, 107),
        ({"login": "", "password": "x", "is_superuser": False}, 108),
        ({"login": "x", "password": "", "is_superuser": False}, 108),
        ({"login": "x", "password": "x", "is_superuser": "yes"}, 108),
        ({"login": 7, "password": "x", "is_superuser": False}, 108),
        ("x", 108),
    ],
)
async def test_one_bad_item_refuses_all(item: Any, code: int) -> None:
    async with managed_node(access=CHEAP) as node:
        assert_refused(await node.api.post("/auth_user", [ALICE, item]), 400, code)
        listed = await node.api.get("/auth_user")
        assert listed.data == [] and listed.meta["count"] == 0


async def test_bodies_that_are_none() -> None:
    async with managed_node(access=CHEAP) as node:
        assert_refused(await node.api.ask("POST", "/auth_user", raw=b"{"), 400, 109)
        assert_refused(await node.api.post("/auth_user", []), 400, 107)
        assert_refused(await node.api.post("/auth_user"), 400, 107)
        many = [{**ALICE, "login": f"u{number}"} for number in range(2001)]
        assert_refused(await node.api.post("/auth_user", many), 400, 108, "2000")


async def test_put_changes_password_and_right() -> None:
    async with managed_node(access=CHEAP) as node:
        api = node.api
        odd = "sl/ash ü"
        assert (await api.post("/auth_user", [{**ALICE, "login": odd}])).data == {odd: "ok"}
        path = f"/auth_user/{segment(odd)}"
        assert await code_of(node, odd, b"a1", 5) == 0
        assert (await api.put(path, {"password": "a2", "is_superuser": True})).json == {"code": 0}
        assert (await api.get(path)).data["is_superuser"] is True
        assert await code_of(node, odd, b"a1", 5) == 0x86
        assert await code_of(node, odd, b"a2", 5) == 0
        assert_refused(await api.put(path, {"is_superuser": True}), 400, 107, "password")
        assert_refused(await api.put(path, {"password": "x"}), 400, 107, "is_superuser")
        assert_refused(await api.put(path, {"password": "x", "is_superuser": "x"}), 400, 108, "is_superuser")
        assert_refused(await api.put("/auth_user/nobody", {"password": "x", "is_superuser": True}), 404, 105)


@pytest.mark.parametrize("version", [4, 5])
async def test_delete(version: int) -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_user", [ALICE, ROOT])
        assert await code_of(node, "alice", b"a1", version) == 0
        assert (await node.api.delete("/auth_user/alice")).json == {"code": 0}
        # The broker remembered that she was right; it does no longer.
        assert await code_of(node, "alice", b"a1", version) == refused(version)
        assert_refused(await node.api.delete("/auth_user/alice"), 404, 105, "alice")


@pytest.mark.parametrize("version", [4, 5])
async def test_stored_users_and_anonymous_clients(version: int) -> None:
    """With users, a name must be known; who gives none is let in where anonymous clients are."""
    async with managed_node(access=CHEAP) as node:
        assert await code_of(node, "nobody", b"x", version) == 0
        await node.api.post("/auth_user", [ALICE])
        assert await code_of(node, "nobody", b"x", version) == refused(version)
        assert await code_of(node, "alice", None, version) == refused(version)
        assert await code_of(node, None, None, version) == 0
        await node.api.delete("/auth_user/alice")
        assert await code_of(node, "nobody", b"x", version) == 0


async def test_users_of_the_file_stay() -> None:
    users = [{"username": "fixed", "password_hash": str(ScryptHash.create(b"file", n=1024))}]
    async with managed_node(access={**CHEAP, "users": users}) as node:
        assert (await node.api.post("/auth_user", [{**ALICE, "login": "fixed"}])).data == {"fixed": "{error,existed}"}
        assert await code_of(node, "fixed", b"file", 5) == 0
        changed = {"password": "x", "is_superuser": True}
        assert_refused(await node.api.put("/auth_user/fixed", changed), 400, 108, "configuration")
        assert_refused(await node.api.delete("/auth_user/fixed"), 400, 108, "configuration")


@pytest.mark.parametrize("change", ["put", "delete"])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_connected_superuser_who_is_none_any_more(version: int, change: str) -> None:
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_user", [ROOT])
        peer = Peer(node.address(), version)
        await peer.connect("c", username="root1", password=b"r1")
        await peer.subscribe("free")
        if change == "put":
            await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": False})
        else:
            await node.api.delete("/auth_user/root1")
        await peer.subscribe("shut", expect=[0x87 if version == 5 else 0x80])
        if change == "put":
            await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": True})
            await peer.subscribe("open again")
        await peer.close()


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_topics_that_were_open_to_a_superuser_are_shut_with_the_right(change: str) -> None:
    """Also those it was just publishing to, which the broker remembers."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_user", [ROOT])
        peer = await node.client("c", username="root1", password=b"r1")
        assert await peer.publish("t", qos=1, expect=(0, 0x10, 0x87)) != 0x87
        if change == "put":
            await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": False})
        else:
            await node.api.delete("/auth_user/root1")
        assert await peer.publish("t", qos=1, expect=(0, 0x10, 0x87)) == 0x87


async def test_who_came_before_there_was_a_user_is_not_that_user() -> None:
    """A device that its client identifier's password let in may have called itself by any name."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        await node.api.post("/auth_clientid", {"clientid": "device", "password": "d1"})
        device = await node.client("device", username="root1", password=b"d1")
        await node.api.post("/auth_user", [ROOT])
        await node.api.put("/auth_user/root1", {"password": "r2", "is_superuser": False})
        await node.api.put("/auth_user/root1", {"password": "r2", "is_superuser": True})
        assert await device.publish("t", qos=1, expect=(0, 0x10, 0x87)) == 0x87
        assert await code_of(node, "root1", b"d1", 5, client_id="device") == 0x86


async def test_a_name_without_proof_makes_no_superuser() -> None:
    """Connected before there were users, under a name that a superuser gets later."""
    async with managed_node(access={**CHEAP, "no_match": "deny"}) as node:
        peer = Peer(node.address(), 5)
        await peer.connect("c", username="root1", password=b"whatever")
        await node.api.post("/auth_user", [{**ROOT, "is_superuser": False}])
        await node.api.put("/auth_user/root1", {"password": "r1", "is_superuser": True})
        await peer.subscribe("shut", expect=[0x87])
        await peer.close()


async def test_pages() -> None:
    async with managed_node(access=CHEAP) as node:
        names = [f"u{number}" for number in range(5)]
        await node.api.post("/auth_user", [{**ALICE, "login": name} for name in names])
        first = await node.api.get("/auth_user", _page=1, _limit=2)
        assert [user["login"] for user in first.data] == names[:2]
        assert first.meta == {"page": 1, "limit": 2, "count": 5, "hasnext": True}
        last = await node.api.get("/auth_user", _page=3, _limit=2)
        assert [user["login"] for user in last.data] == names[4:] and not last.meta["hasnext"]


@pytest.mark.parametrize(
    "stored, salted",
    [
        (hashlib.sha256(b"old").hexdigest().encode(), False),
        (hashlib.md5(b"old").hexdigest().encode(), False),
        (hashlib.sha1(b"old").hexdigest().encode(), False),
        (b"\x00\xff$:" + hashlib.sha256(b"\x00\xff$:old").hexdigest().encode(), True),
        (b"old", False),
    ],
    ids=["sha256", "md5", "sha", "salted", "plain"],
)
async def test_a_hash_of_emqx_is_replaced_at_the_next_login(stored: bytes, salted: bool) -> None:
    async with managed_node(access=CHEAP) as node:
        node.server.stored_users.put(USERNAME, "ann", EmqxHash.read(stored, salted))
        assert await code_of(node, "ann", b"wrong", 5) == 0x86
        before = (await node.api.get("/auth_user/ann")).data["password"]
        assert before.startswith("emqx$") and "old" not in before
        assert await code_of(node, "ann", b"old", 5) == 0
        async with asyncio.timeout(5):
            while (after := (await node.api.get("/auth_user/ann")).data["password"]).startswith("emqx$"):
                await asyncio.sleep(0)
        assert ScryptHash.parse(after).verify(b"old")
        assert await code_of(node, "ann", b"old", 5) == 0


async def test_hashing_many_holds_neither_the_loop_nor_a_login() -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/auth_user", [ALICE])
        many = [{**ALICE, "login": f"u{number}"} for number in range(400)]
        posted = asyncio.ensure_future(node.api.post("/auth_user", many))
        await asyncio.sleep(0)
        assert await code_of(node, "alice", b"a1", 5) == 0
        assert not posted.done(), "the login came after all of them"
        assert set((await posted).data.values()) == {"ok"}


async def test_users_outlive_the_node(tmp_path: Path) -> None:
    rooms: dict[str, Any] = {
        "node": {"data_dir": str(tmp_path)},
        "durability": {"level": "disk"},
        "access": CHEAP,
    }
    async with managed_node(**rooms) as node:
        await node.api.post("/auth_user", [ALICE, ROOT])
        await node.api.delete("/auth_user/alice")
    async with managed_node(**rooms) as node:
        listed = await node.api.get("/auth_user")
        assert [user["login"] for user in listed.data] == ["root1"] and listed.meta["count"] == 1
        assert await code_of(node, "root1", b"r1", 5) == 0
        assert await code_of(node, "alice", b"a1", 5) == 0x86
