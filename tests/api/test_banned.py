"""/banned: who may not connect, and clients that flap."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import assert_refused, connect_code, managed_node, segment
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio

BAN = {"who": "bad", "as": "clientid"}


@pytest.mark.parametrize("field", ["who", "as", "by", "reason", "at", "until"])
async def test_every_field(field: str) -> None:
    async with managed_node() as node:
        now = int(node.clock.now())
        given = {**BAN, "by": "me", "reason": "r", "at": now - 1, "until": now + 1000}
        assert (await node.api.post("/banned", given)).data == given
        listed = await node.api.get("/banned")
        (record,) = listed.data
        assert set(record) == set(given) and record[field] == given[field]
        assert listed.meta["count"] == 1


async def test_defaults() -> None:
    async with managed_node() as node:
        assert (await node.api.post("/banned", BAN)).data == BAN
        (record,) = (await node.api.get("/banned")).data
        assert record["by"] == "user" and record["reason"] == "" and record["until"] - record["at"] == 300
        assert abs(record["at"] - node.clock.now()) < 60


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind, who", [("clientid", "bad"), ("username", "ann"), ("peerhost", "127.0.0.1")])
async def test_a_ban_keeps_out_until_it_ends(version: int, kind: str, who: str) -> None:
    banned = 0x8A if version == 5 else 5
    async with managed_node() as node:
        assert await connect_code(node, "bad", "ann", b"x", version) == 0
        await node.api.post("/banned", {"who": who, "as": kind})
        assert await connect_code(node, "bad", "ann", b"x", version) == banned
        assert await connect_code(node, "good", version=version) == (banned if kind == "peerhost" else 0)
        assert node.server.metrics.refusals.snapshot()["banned"] >= 1
        await node.pass_time(301)
        assert await connect_code(node, "bad", "ann", b"x", version) == 0
        assert (await node.api.get("/banned")).data == [] and len(node.server.banned) == 0


async def test_lifting_and_changing_a_ban() -> None:
    async with managed_node() as node:
        await node.api.post("/banned", {**BAN, "reason": "one"})
        await node.api.post("/banned", {**BAN, "reason": "two", "until": int(node.clock.now()) + 1000})
        assert [each["reason"] for each in (await node.api.get("/banned")).data] == ["two"]
        await node.pass_time(400)
        assert await connect_code(node, "bad") == 0x8A
        for _ in range(2):
            assert (await node.api.delete("/banned/clientid/bad")).json == {"code": 0}
        assert await connect_code(node, "bad") == 0
        odd = "a/b c"
        await node.api.post("/banned", {**BAN, "who": odd})
        assert (await node.api.delete(f"/banned/clientid/{segment(odd)}")).json == {"code": 0}
        assert (await node.api.get("/banned")).data == []


async def test_a_ban_ends_no_connection() -> None:
    async with managed_node() as node:
        peer = Peer(node.address(), 5)
        await peer.connect("bad")
        await node.api.post("/banned", BAN)
        await peer.nothing()
        await peer.close()


async def test_a_ban_is_asked_before_the_password(caplog: pytest.LogCaptureFixture) -> None:
    async with managed_node(access={"hash_cost": 10}) as node:
        await node.api.post("/auth_user", {"login": "ann", "password": "right", "is_superuser": False})
        await node.api.post("/banned", {"who": "ann", "as": "username", "reason": "left us", "by": "boss"})
        with caplog.at_level("INFO"):
            assert await connect_code(node, "c", "ann", b"x") == 0x8A
        assert "reason=banned setting=/banned/username/ann detail=by boss" in caplog.text and "left us" in caplog.text
        assert node.server.metrics.client_authenticate == 0


@pytest.mark.parametrize(
    "changes, code, about",
    [
        ({"as": "nickname"}, 108, "as"),
        ({"as": "peerhost", "who": "1.2.3"}, 108, "who"),
        ({"who": ""}, 108, "who"),
        ({"until": "soon"}, 108, "until"),
        ({"at": -1}, 108, "at"),
        ({"reason": 1}, 108, "reason"),
    ],
)
async def test_bad_bans(changes: dict[str, Any], code: int, about: str) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/banned", {**BAN, **changes}), 400, code, about)
        for missing in ("who", "as"):
            given = {key: value for key, value in BAN.items() if key != missing}
            assert_refused(await node.api.post("/banned", given), 400, 107, missing)
        assert_refused(await node.api.delete("/banned/nickname/bad"), 400, 108)
        assert (await node.api.get("/banned")).data == []


async def test_addresses_are_compared_as_addresses() -> None:
    async with managed_node() as node:
        await node.api.post("/banned", {"who": "::ffff:127.0.0.1", "as": "peerhost"})
        assert await connect_code(node, "c") == 0x8A
        assert (await node.api.delete("/banned/peerhost/127.0.0.1")).json == {"code": 0}
        assert await connect_code(node, "c") == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_who_flaps_is_banned_for_a_while(version: int) -> None:
    zone = {"flapping_threshold": 3, "flapping_window": 60.0, "flapping_ban": 100.0}
    async with managed_node(zone=zone) as node:
        for _ in range(2):
            assert await connect_code(node, "f", version=version) == 0
        await node.pass_time(61)  # those are forgotten
        for _ in range(3):
            assert await connect_code(node, "f", version=version) == 0
        assert await connect_code(node, "f", version=version) == (0x8A if version == 5 else 5)
        assert await connect_code(node, "steady", version=version) == 0
        (record,) = (await node.api.get("/banned")).data
        assert record["as"] == "clientid" and record["who"] == "f" and record["until"] - record["at"] == 100
        assert "3 connections" in record["reason"]
        await node.pass_time(101)
        assert await connect_code(node, "f", version=version) == 0


async def test_nobody_flaps_unless_it_is_set() -> None:
    async with managed_node() as node:
        for _ in range(20):
            assert await connect_code(node, "f") == 0
        assert len(node.server.flapping) == 0


async def test_bans_outlive_the_node(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        await node.api.post("/banned", BAN)
        await node.api.post("/banned", {"who": "127.0.0.9", "as": "peerhost", "until": int(node.clock.now()) + 900})
    async with managed_node(**config) as node:
        assert len((await node.api.get("/banned")).data) == 2
        assert await connect_code(node, "bad") == 0x8A
        await node.pass_time(400)
        assert [each["who"] for each in (await node.api.get("/banned")).data] == ["127.0.0.9"]
        assert await connect_code(node, "bad") == 0


@pytest.mark.interpreted
async def test_a_ban_put_while_the_password_is_looked_at_keeps_out() -> None:
    async with managed_node() as node:
        passwords = node.server.access.authentication.passwords
        users = [{"login": "ann", "password": "x", "is_superuser": False}]
        assert (await node.api.post("/auth_user", users)).code == 0
        open_now = passwords._answer
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(*arguments: Any) -> Any:
            outcome = await open_now(*arguments)
            reached.set()
            await go_on.wait()
            return outcome

        passwords._answer = slowly  # type: ignore[method-assign]
        connecting = asyncio.ensure_future(connect_code(node, "late", "ann", b"x"))
        await reached.wait()
        ban = {"who": "late", "as": "clientid", "reason": "test"}
        assert (await node.api.post("/banned", ban)).code == 0
        go_on.set()
        assert await connecting == 0x8A
