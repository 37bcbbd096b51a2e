"""/banned: who may not connect, and clients that flap."""

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest

from taipan.broker.mqtt.packets import Will
from tests.support.api import ManagedNode, assert_refused, connect_code, managed_node, segment
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio

BAN = {"who": "bad", "as": "clientid"}


@pytest.mark.parametrize("field", ["who", "as", "by", "reason", "at", "until", "kick"])
async def test_every_field(field: str) -> None:
    async with managed_node() as node:
        now = int(node.clock.now())
        given = {**BAN, "by": "me", "reason": "r", "at": now - 1, "until": now + 1000, "kick": False}
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
        assert record["kick"] is True
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


KINDS = [("clientid", "bad"), ("username", "ann"), ("peerhost", "127.0.0.1")]
SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL = 17, 24
OF_THE_BANNED = "127.0.0.2"


def session_for(version: int, seconds: int = 600) -> dict[str, Any]:
    """Arguments of a CONNECT whose session outlives its connection."""
    if version == 4:
        return {"clean_start": False}
    return {"clean_start": False, "properties": {SESSION_EXPIRY_INTERVAL: seconds}}


class Peers:
    """Clients of a node, which are gone when the block ends."""

    def __init__(self, node: ManagedNode) -> None:
        self._node = node
        self._all: list[Peer] = []

    async def connect(self, client_id: str, version: int, *, address: str = "127.0.0.1", **options: Any) -> Peer:
        peer = Peer(self._node.address(), version)
        self._all.append(peer)
        await peer.open(local_addr=(address, 0))
        await peer.connect(client_id, **options)
        return peer

    async def leave(self, client_id: str, version: int, **options: Any) -> None:
        """A session whose client is away."""
        peer = await self.connect(client_id, version, **session_for(version), **options)
        await peer.disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for peer in self._all:
            await peer.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kick", [None, False, True])
@pytest.mark.parametrize("kind, who", KINDS)
async def test_whether_a_ban_ends_connections_and_sessions(
    kind: str, who: str, kick: bool | None, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it says so, a ban of a client ID ends its session, and bans of usernames and addresses end none."""
    async with managed_node() as node, Peers(node) as peers:
        await peers.leave("away", version, username="ann", password=b"x")
        peer = await peers.connect("bad", version, username="ann", password=b"x", **session_for(version))
        ends = kind == "clientid" if kick is None else kick
        wanted = {} if kick is None else {"kick": kick}
        with caplog.at_level("INFO"):
            ban = {"who": who, "as": kind, "by": "boss", "reason": "floods", **wanted}
            assert (await node.api.post("/banned", ban)).code == 0
        sessions = node.server.broker.sessions
        counts = node.server.metrics.disconnects.snapshot()
        if ends:
            # It is done when the answer comes.
            assert ("bad" in sessions, counts.get("banned")) == (False, 1)
            assert ("away" in sessions) == (kind == "clientid")
            assert f"reason=banned setting=/banned/{kind}/{who} detail=by boss until" in caplog.text
            if kind != "clientid":
                assert f"session_of_banned_client client_id=away setting=/banned/{kind}/{who}" in caplog.text
            told = await peer.expect_disconnect(0x98)
            assert told is None or not told.properties  # why is for the log
        else:
            assert "bad" in sessions and "away" in sessions and "banned" not in counts
            await peer.ping()


async def test_a_ban_that_is_over_ends_nothing() -> None:
    async with managed_node() as node, Peers(node) as peers:
        peer = await peers.connect("bad", 5)
        await node.api.post("/banned", {**BAN, "until": int(node.clock.now()) - 1})
        await peer.ping()


async def will_and_watcher(peers: Peers, version: int, delay: int = 0) -> tuple[Peer, Peer]:
    """A client with a Will, a retained message and a delayed one; and one that reads everything."""
    watcher = await peers.connect("watcher", version)
    will = Will("t/will", b"gone", 1, False, {WILL_DELAY_INTERVAL: delay} if delay else {})
    peer = await peers.connect(
        "bad", version, address=OF_THE_BANNED, username="ann", password=b"x", will=will, **session_for(version)
    )
    await peer.publish("t/kept", b"kept", 1, True)
    await peer.publish("$delayed/100/t/later", b"later", 1)
    await watcher.subscribe("t/will", "t/later", qos=1)
    return peer, watcher


async def kept(peers: Peers, version: int) -> list[bytes]:
    """What a client that subscribes now gets of retained messages."""
    peer = await peers.connect("reader", version)
    await peer.subscribe("t/kept", qos=1)
    await peer.publish("t/kept", b"end", 1)
    found: list[bytes] = []
    while b"end" not in found:
        found.append((await peer.expect_publish()).payload)
    return found[:-1]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind, who", KINDS)
async def test_what_a_banned_client_has_sent_before_is_kept_back_while_the_ban_lasts(
    kind: str, who: str, version: int
) -> None:
    async with managed_node() as node, Peers(node) as peers:
        _, watcher = await will_and_watcher(peers, version)
        if kind == "peerhost":
            who = OF_THE_BANNED
        await node.api.post("/banned", {"who": who, "as": kind, "kick": True})
        assert await kept(peers, version) == []
        await node.pass_time(101)
        await watcher.nothing()
        counts = node.server.metrics.refusals.snapshot()
        assert (counts["will_banned"], counts["delayed_banned"], counts["retained_publisher_banned"]) == (1, 1, 1)
        await node.api.delete(f"/banned/{kind}/{who}")
        assert await kept(peers, version) == [b"kept"]


@pytest.mark.parametrize("version", [4, 5])
async def test_what_a_client_has_sent_before_a_ban_that_ends_nothing_is_published(version: int) -> None:
    async with managed_node() as node, Peers(node) as peers:
        peer, watcher = await will_and_watcher(peers, version)
        await node.api.post("/banned", {**BAN, "kick": False})
        assert await kept(peers, version) == [b"kept"]
        await node.pass_time(101)
        await watcher.expect_publish("t/later", b"later", 1)
        await peer.drop()
        await watcher.expect_publish("t/will", b"gone", 1)


async def test_a_will_that_waits_for_its_delay_is_dropped_with_the_session() -> None:
    async with managed_node() as node, Peers(node) as peers:
        peer, watcher = await will_and_watcher(peers, 5, delay=60)
        await peer.drop()
        async with asyncio.timeout(30):
            while node.server.broker.sessions.get("bad").will is None:  # type: ignore[union-attr]
                await asyncio.sleep(0.005)
        await node.api.post("/banned", {"who": "ann", "as": "username", "kick": True})
        assert "bad" not in node.server.broker.sessions
        await node.pass_time(61)
        await watcher.nothing()
        assert node.server.metrics.refusals.snapshot()["will_banned"] == 1


async def test_a_session_that_a_crash_has_left_ends_at_the_next_start(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node, Peers(node) as peers:
        await peers.leave("away", 5, username="ann", password=b"x")
        await peers.leave("good", 5, username="eve", password=b"x")
        node.server.banned.on_kick.clear()  # as if the node died before
        ban = {"who": "ann", "as": "username", "kick": True, "until": int(node.clock.now()) + 9000}
        assert (await node.api.post("/banned", ban)).code == 0
        assert "away" in node.server.broker.sessions
    async with managed_node(**config) as node:
        await node.server.banned_clients.carried_out()
        assert "away" not in node.server.broker.sessions and "good" in node.server.broker.sessions


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
        ({"kick": "yes"}, 108, "kick"),
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
