"""/live: server-sent events over real HTTP, of a node with real clients."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.support.api import APP_ID, SECRET, ManagedNode, assert_refused, managed_node

pytestmark = pytest.mark.asyncio

PATIENCE = 10.0


class Events:
    """A live stream as a page reads it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.seen: list[tuple[str, Any]] = []

    async def next(self, name: str | None = None) -> Any:
        """The data of the next event, or of the next one of this name."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event, data = await self._read()
                self.seen.append((event, data))
                if name in (None, event):
                    return data

    async def ended(self) -> bool:
        """Whether nothing more comes, but the end."""
        async with asyncio.timeout(PATIENCE):
            return await self.response.content.read() == b""

    async def _read(self) -> tuple[str, Any]:
        name, data = "", ""
        while line := await self.response.content.readline():
            text = line.decode()
            assert text.endswith("\n")
            text = text[:-1]
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data += text.removeprefix("data: ")
            elif not text and name:
                return name, json.loads(data)
        raise AssertionError("the stream is over")


@asynccontextmanager
async def live(node: ManagedNode, app: tuple[str, str] = (APP_ID, SECRET), **query: Any) -> AsyncIterator[Events]:
    """A stream for as long as the block lasts."""
    credentials = "Basic " + base64.b64encode(":".join(app).encode()).decode()
    async with aiohttp.ClientSession(headers={"Authorization": credentials}) as session:
        url = node.management.url + "/api/v4/live"
        async with session.get(url, params={key: str(value) for key, value in query.items()}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream"
            yield Events(response)


async def until(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_hello_comes_first() -> None:
    async with managed_node() as node, live(node, every=250) as events:
        hello = await events.next()
        assert events.seen == [("hello", hello)]
        assert hello["node"] == node.name and hello["every"] == 250
        assert hello["version"] == node.server.version
        assert abs(hello["at"] - node.clock.wall() * 1000) < 60_000


async def test_figures_are_those_of_clients() -> None:
    async with managed_node() as node:
        client = await node.client("one")
        await client.subscribe("a/+", qos=1)
        async with live(node, figures=1, every=250) as events:
            await events.next("hello")
            for _ in range(20):
                await client.publish("a/b", b"x" * 100)
            while True:
                figures = await events.next("figures")
                if figures["messages_received"]:
                    break
            assert figures["messages_received"] > 0 and figures["bytes_received"] > figures["messages_received"] * 100
            assert figures["connections"] == figures["sessions"] == figures["subscriptions"] == figures["topics"] == 1
            assert figures["disk_free"] > 0 and figures["memory"] > 0
            assert figures["loop_lag"] >= 0 and "commit_time" in figures
            await client.publish("nobody/reads", b"x")
            while not (figures := await events.next("figures"))["messages_dropped"]:
                pass
            assert set(figures["drops"]) == {"messages.dropped.no_subscribers"}
            assert figures["drops"]["messages.dropped.no_subscribers"] == figures["messages_dropped"]


async def test_alarms_come_when_they_change() -> None:
    async with managed_node() as node, live(node, alarms=1, figures=1, every=250) as events:
        assert await events.next("alarms") == {"active": []}
        await events.next("figures")
        await events.next("figures")
        node.server.alarms.activate("something", "it is so", {"setting": "x"})
        (alarm,) = (await events.next("alarms"))["active"]
        assert (alarm["name"], alarm["message"], alarm["activated"]) == ("something", "it is so", True)
        node.server.alarms.deactivate("something")
        assert await events.next("alarms") == {"active": []}
        assert [name for name, _ in events.seen].count("alarms") == 3


@pytest.mark.parametrize("query", [{"every": 249}, {"every": 10_001}, {"every": "soon"}, {"figures": "perhaps"}])
async def test_what_cannot_be_watched(query: dict[str, Any]) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/live", **query), 400, 108, next(iter(query)))
        assert node.management.operations.live.count == 0


async def test_a_node_that_is_none() -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/live", node="nobody@nowhere"), 404, 102, "nobody@nowhere")


async def test_streams_are_bounded() -> None:
    async with managed_node({"max_live_streams": 2}) as node, live(node) as first:
        await first.next("hello")
        async with live(node) as second:
            await second.next("hello")
            assert_refused(await node.api.get("/live"), 500, 101, "management.max_live_streams")
            assert node.server.metrics.refusals.snapshot()["live_streams"] == 1
        await until(lambda: node.management.operations.live.count == 1)
        async with live(node) as third:
            await third.next("hello")


async def test_a_head_opens_none() -> None:
    async with managed_node() as node:
        reply = await node.api.ask("HEAD", "/live")
        assert reply.status == 200 and reply.headers["Content-Type"] == "text/event-stream"
        assert node.management.operations.live.count == 0


async def test_a_reader_who_goes_is_forgotten() -> None:
    async with managed_node() as node:
        async with live(node, every=250) as events:
            await events.next("hello")
            assert node.management.operations.live.count == 1
        await until(lambda: node.management.operations.live.count == 0)


async def test_it_ends_when_its_application_is_deleted() -> None:
    async with managed_node() as node:
        secret = (await node.api.post("/apps", {"app_id": "page", "name": "page"})).data["secret"]
        async with live(node, ("page", secret), every=250, figures=1) as events:
            await events.next("figures")
            assert (await node.api.delete("/apps/page")).code == 0
            assert await events.next("bye") == {"reason": "not_allowed"}
            assert await events.ended()
        assert node.management.operations.live.count == 0


async def test_it_ends_when_its_application_is_disabled() -> None:
    async with managed_node() as node:
        secret = (await node.api.post("/apps", {"app_id": "page", "name": "page"})).data["secret"]
        async with live(node, ("page", secret), every=250) as events:
            await events.next("hello")
            body = {"name": "page", "status": False}
            assert (await node.api.put("/apps/page", body)).code == 0
            assert await events.next("bye") == {"reason": "not_allowed"}
            assert await events.ended()


async def test_a_stop_says_so_and_does_not_wait() -> None:
    async with managed_node() as node:
        async with live(node, every=10_000) as events:
            await events.next("hello")
            loop = asyncio.get_running_loop()
            stopping = asyncio.ensure_future(node.management.stop())
            assert await events.next("bye") == {"reason": "node_stops"}
            assert await events.ended()
            async with asyncio.timeout(PATIENCE):
                await stopping
            assert loop.is_running()
        with contextlib.suppress(aiohttp.ClientError):
            await node.api.get("/live")
