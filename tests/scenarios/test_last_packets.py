"""What a client sent last is taken, though a write to it fails first: it has closed its socket with data unread."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.mqtt.packets import Disconnect, Will
from tests.support.peer import Peer, _Tcp
from tests.support.wire import Publish

from .test_tls import TlsNode

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "ws", "ssl", "wss"])


@pytest_asyncio.fixture(loop_scope="module")
async def node(tmp_path: Path, version: int, transport: str) -> AsyncIterator[TlsNode]:
    node = TlsNode(tmp_path, version, transport)
    await node.start()
    yield node
    await node.stop()


def break_off(peer: Peer) -> None:
    """As the system does it where a program ends with data unread: RST, behind all that was sent."""
    stream = peer.stream
    transport = stream.writer.transport if isinstance(stream, _Tcp) else stream.socket.transport
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def watcher(node: TlsNode) -> Peer:
    peer = await node.node.client("watcher", node.version)
    await peer.subscribe("will", "out", qos=1)
    return peer


@TRANSPORTS
@pytest.mark.parametrize("goodbye", [True, False])
async def test_a_write_that_fails_before_the_rest_is_read(node: TlsNode, goodbye: bool) -> None:
    """[MQTT-3.14.4-3]"""
    watching = await watcher(node)
    peer = await node.connect("c", will=Will("will", b"gone", 1))
    await peer.subscribe("in")
    link = node.node.server.context.channels["c"].connection
    assert link.pause_reading(3600)  # type: ignore[attr-defined]
    await peer.send(Publish("out", b"last"), *[Disconnect()] * goodbye)
    await asyncio.sleep(0)
    break_off(peer)
    while "c" in node.node.server.context.channels:
        await watching.publish("in", bytes(1000))
        await watching.ping()
    await watching.expect_publish("out", b"last")
    if not goodbye:
        await watching.expect_publish("will", b"gone")
    await watching.nothing()


@TRANSPORTS
async def test_who_publishes_to_itself_and_says_goodbye(node: TlsNode) -> None:
    """Wherever the node is when the connection breaks."""
    watching = await watcher(node)
    for turns in range(6):
        peer = await node.connect("c", will=Will("will", b"gone", 1))
        await peer.subscribe("out")
        await peer.send(*[Publish("out", bytes(1000))] * 20)
        for _ in range(turns):
            await asyncio.sleep(0)
        await peer.send(*[Publish("out", bytes(1000))] * 20, Disconnect())
        break_off(peer)
        while "c" in node.node.server.context.channels:
            await watching.publish("away")
            await watching.ping()
        for _ in range(40):
            await watching.expect_publish("out")
    await watching.nothing()
