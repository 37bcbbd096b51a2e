"""clients, subscriptions, routes."""

import asyncio
import re

import pytest

from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done, refused
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

LINE = re.compile(
    r"Client\((?P<clientid>.+), username=(?P<username>\S+), peername=127\.0\.0\.1:\d+, clean_start=(?P<clean>\w+), "
    r"keepalive=(?P<keepalive>\d+), session_expiry_interval=(?P<expiry>\d+), subscriptions=(?P<subs>\d+), "
    r"inflight=\d+, awaiting_rel=0, delivered_msgs=\d+, enqueued_msgs=(?P<queued>\d+), dropped_msgs=0, "
    r"connected=(?P<connected>\w+), created_at=\d{13}, connected_at=\d{13}(?P<rest>.*)\)"
)


async def test_clients_list_and_show() -> None:
    async with managed_node() as node:
        assert await done(node, "clients", "list") == []
        await node.client("here", 5, keep_alive=77, username="somebody", password=b"x")
        await node.leave_session("away", "t/#")
        async with asyncio.timeout(patience(40)):
            while (await ctl_json(node, "clients", "show", "away"))[0]["connected"]:
                await asyncio.sleep(0)
        first, second = await done(node, "clients", "list")
        here, away = LINE.fullmatch(first), LINE.fullmatch(second)
        assert here and away
        assert (here["clientid"], here["username"], here["keepalive"]) == ("here", "somebody", "77")
        assert (here["connected"], here["rest"], here["clean"]) == ("true", "", "true")
        assert (away["connected"], away["subs"], away["clean"]) == ("false", "1", "false")
        assert re.fullmatch(r", disconnected_at=\d{13}", away["rest"])
        assert await done(node, "clients", "show", "away") == [second]
        assert await ctl_json(node, "clients", "show", "here") == (await node.api.get("/clients/here")).data
        assert await ctl_json(node, "clients", "list") == (await node.api.get("/clients")).data
        missing = await ctl(node, "clients", "show", "nobody")
        assert missing == (1, "error: client nobody: not found\n", "")
        assert (await ctl(node, "clients", "show", "nobody", as_json=True)).out == (
            '{"code":112,"message":"no client nobody"}\n'
        )


async def test_clients_kick() -> None:
    async with managed_node() as node:
        peer = await node.client("here", 4)
        assert await done(node, "clients", "kick", "here") == ["ok"]
        await peer.expect_disconnect()
        assert await refused(node, "clients", "kick", "here") == "client here: not found"
        await node.client("here", 4)
        assert await ctl_json(node, "clients", "kick", "here") == {"code": 0}


async def test_a_name_cannot_draw_on_the_terminal() -> None:
    async with managed_node() as node:
        await node.client("a\x1b[2J\nb", 5)
        (line,) = await done(node, "clients", "list")
        assert line.startswith("Client(a\\x1b[2J\\nb, ")


async def test_long_listings_are_streamed_and_hold_nobody_up() -> None:
    async with managed_node() as node:
        peer = await node.client("many", 5)
        for start in range(0, 20_000, 2000):
            await peer.subscribe(*(f"topic/{number:040}" for number in range(start, start + 2000)))
        # Nobody reads this one: what the socket does not take waits there, and the node goes on.
        _, unread = await asyncio.open_unix_connection(str(node.management.control.path), limit=1)
        unread.write(b'{"args":["subscriptions","list"]}\n')
        listing = asyncio.create_task(done(node, "subscriptions", "list"))
        turns = 0
        while not listing.done():
            turns += 1
            await asyncio.sleep(0)
        lines = listing.result()
        assert len(lines) == 20_000 and lines[19_999] == f"many -> topic/{19_999:040}"
        assert turns > 5
        assert len(await done(node, "routes", "list")) == 20_000
        assert len(await ctl_json(node, "subscriptions", "list")) == 20_000
        assert len(node.management.control._tasks) == 1
        unread.transport.abort()
        await asyncio.sleep(0)


async def test_subscriptions() -> None:
    async with managed_node() as node:
        assert await done(node, "subscriptions", "list") == []
        peer = await node.client("a", 4)
        await peer.subscribe("t/1", "$share/g/t/2", qos=1)
        assert await done(node, "subscriptions", "show", "a") == ["a -> t/1", "a -> $share/g/t/2"]
        assert await done(node, "subscriptions", "add", "a", "t/3", "2") == ["ok"]
        assert await done(node, "subscriptions", "list") == ["a -> t/1", "a -> $share/g/t/2", "a -> t/3"]
        assert (await ctl_json(node, "subscriptions", "show", "a"))[2]["qos"] == 2
        for word in ("del", "delete"):
            assert await done(node, "subscriptions", word, "a", "t/3") == ["ok"]
        assert len(await done(node, "subscriptions", "list")) == 2
        assert await refused(node, "subscriptions", "show", "b") == "client b: not found"
        assert await refused(node, "subscriptions", "add", "b", "t", "0") == "client b: not found"
        assert await refused(node, "subscriptions", "del", "b", "t") == "client b: not found"
        assert await refused(node, "subscriptions", "add", "a", "t", "3") == "argument QoS: expected 0, 1 or 2"
        bad = await ctl(node, "subscriptions", "add", "a", "t/#/u", "0")
        assert bad.status == 1 and bad.out == "error: argument Topic: 't/#/u' is not a topic filter\n"


async def test_routes() -> None:
    async with managed_node() as node:
        peer = await node.client("a", 4)
        await peer.subscribe("t/1", "t/+")
        assert await done(node, "routes", "list") == [f"t/1 -> {node.name}", f"t/+ -> {node.name}"]
        assert await done(node, "routes", "show", "t/+") == [f"t/+ -> {node.name}"]
        assert await ctl_json(node, "routes", "show", "t/1") == [{"topic": "t/1", "node": node.name}]
        assert await refused(node, "routes", "show", "t/2") == "route t/2: not found"
