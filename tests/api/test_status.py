"""/status: whether the node serves, for whoever asks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.api import ApiClient, ManagedNode, managed_node
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def anonymous(node: ManagedNode) -> AsyncIterator[ApiClient]:
    client = ApiClient(node.management.url, "", app=None)
    try:
        yield client
    finally:
        await client.close()


async def test_no_answer_tells_versions() -> None:
    async with managed_node() as node:
        replies = [
            await node.api.ask("GET", "/brokers"),
            await node.api.get("/nothing"),
            await node.api.get("/clients"),
        ]
        assert {reply.headers["Server"] for reply in replies} == {"taipan"}
        reader, writer = await asyncio.open_connection("127.0.0.1", int(node.management.url.rpartition(":")[2]))
        writer.write(b"this is no HTTP\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert b"\r\nServer: taipan\r\n" in head and b"400" in head.split(b"\r\n")[0]


async def test_running() -> None:
    async with managed_node() as node, anonymous(node) as asks:
        reply = await asks.get("/status")
        assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain")
        assert reply.text == f"Node {node.name} is started\nemqx is running"
        head = await asks.ask("HEAD", "/status")
        assert head.status == 200


async def test_stopping() -> None:
    async with managed_node() as node, anonymous(node) as asks:
        node.server.context.closing = True  # what Server.stop does first
        reply = await asks.get("/status")
        assert (reply.status, reply.text) == (503, f"Node {node.name} is stopping\nemqx is not_running")
        node.server.context.closing = False  # or it does nothing of what is to be done


async def test_evacuating() -> None:
    """A balancer sends nobody there."""
    async with fake_nodes(2) as nodes, anonymous(nodes[0]) as asks:
        await nodes[0].server.cluster.evacuate()
        reply = await asks.get("/status")
        assert (reply.status, reply.text) == (503, f"Node {nodes[0].name} is evacuating\nemqx is not_running")
        nodes[0].server.cluster.end_evacuation()
        assert (await asks.get("/status")).status == 200


async def test_starting() -> None:
    async with managed_node() as node, anonymous(node) as asks:
        monitoring = node.management.operations.monitoring
        assert monitoring.running
        monitoring._restored = False
        reply = await asks.get("/status")
        assert (reply.status, reply.text) == (503, f"Node {node.name} is starting\nemqx is not_running")


async def test_only_at_the_root() -> None:
    async with managed_node() as node, anonymous(node) as asks:
        reply = await node.api.get("/status")
        assert (reply.status, reply.code) == (404, 102)
        assert (await asks.post("/status")).status == 404
