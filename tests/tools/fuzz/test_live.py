"""The fuzzer against a running node, over each transport."""

import pytest

from taipan import Node
from tools.fuzz.live import NotServed, Stream, Target, WebSocketStream, run


@pytest.mark.parametrize("scheme, path", [("tcp", ""), ("ws", "/mqtt")])
@pytest.mark.asyncio
async def test_a_node_goes_on_serving(scheme: str, path: str) -> None:
    async with Node(listeners=[f"{scheme}://127.0.0.1:0"], durability="memory") as node:
        counts = await run(Target(f"{scheme}://127.0.0.1:{node.port}{path}"), 1.0, 1, 4, 100.0)
    assert counts["connections"] > 5 and counts["watched"] >= 3 and counts["bytes"] > 100


@pytest.mark.asyncio
async def test_who_is_not_served_is_told() -> None:
    async with Node(
        listeners=[{"type": "tcp", "bind": "127.0.0.1:0", "allow_anonymous": False}], durability="memory"
    ) as node:
        with pytest.raises(NotServed, match="CONNECT answered"):
            await run(Target(f"127.0.0.1:{node.port}"), 0.1, 1, 1, 10.0)


@pytest.mark.asyncio
async def test_a_refused_handshake_is_no_connection() -> None:
    async with Node(listeners=["ws://127.0.0.1:0"], durability="memory") as node:
        with pytest.raises(ConnectionError, match="handshake"):
            await Target(f"ws://127.0.0.1:{node.port}/elsewhere").open()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "tcp://127.0.0.1", "ws://:80", "127.0.0.1:none", ""])
def test_what_is_no_target(url: str) -> None:
    with pytest.raises(ValueError):
        Target(url)


@pytest.mark.asyncio
async def test_frames_only_over_websocket() -> None:
    async with Node(listeners=["tcp://127.0.0.1:0"], durability="memory") as node:
        stream = await Target(f"tcp://127.0.0.1:{node.port}").open()
        assert isinstance(stream, Stream) and not isinstance(stream, WebSocketStream)
        await stream.close()
