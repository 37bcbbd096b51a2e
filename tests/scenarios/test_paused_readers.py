"""Clients whose messages wait (for a rate, for a service): all else that they send does not, nor does their end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.mqtt.packets import Disconnect, Pingreq, Pingresp, Will
from tests.support.peer import Peer
from tests.support.wire import Publish

from .test_tls import TlsNode

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

ONE = {"message_rate": [1, 1_000_000.0]}
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "ws", "ssl", "wss"])


@pytest_asyncio.fixture(loop_scope="module")
async def secure(tmp_path: Path, version: int, transport: str) -> AsyncIterator[TlsNode]:
    """A node that lets one message of each client pass, over TLS or not."""
    node = TlsNode(tmp_path, version, transport)
    await node.start(ONE)
    yield node
    await node.stop()


async def watcher(node: TlsNode) -> Peer:
    peer = await node.node.client("watcher", node.version)
    await peer.subscribe("#", qos=1)
    return peer


async def send_more_than_is_read(node: TlsNode, peer: Peer) -> None:
    """Its connection is read no more, and then more comes: as much as the system takes for it."""
    link = node.node.server.context.channels["fast"].connection
    number = 0
    while not link._stopped:  # type: ignore[attr-defined]
        await peer.send(*[Publish("out", b"%d" % each) for each in range(number, number + 500)])
        await asyncio.sleep(0)
        number += 500
        assert number < 50_000
    await peer.send(*[Publish("out", b"%d" % each) for each in range(number, number + 500)])


@TRANSPORTS
async def test_pings_and_acknowledgements_do_not_wait(secure: TlsNode) -> None:
    watching = await watcher(secure)
    peer = await secure.connect("fast")
    await peer.subscribe("in", qos=1)
    await peer.send(*[Publish("out", b"%d" % number) for number in range(500)], Pingreq())
    await peer.expect(Pingresp)
    await watching.expect_publish("out", b"0")
    await watching.publish("in", b"", 1)
    got = await peer.expect_publish("in", acknowledge=False)
    await peer.puback(got.packet_id)
    await peer.ping()
    assert secure.node.server.context.channels["fast"].session.inflight == {}  # type: ignore[union-attr]


@TRANSPORTS
async def test_who_is_gone_is_gone_at_once(secure: TlsNode) -> None:
    """Also behind more than is read of it: its side of the connection is closed, and nobody reads."""
    watching = await watcher(secure)
    peer = await secure.connect("fast", will=Will("will", b"gone"))
    await send_more_than_is_read(secure, peer)
    await watching.expect_publish("out", b"0")
    await peer.close()
    await watching.expect_publish("will", b"gone")
    assert "fast" not in secure.node.server.context.channels


@TRANSPORTS
async def test_a_goodbye_is_heard_behind_what_waits(secure: TlsNode) -> None:
    """[MQTT-3.14.4-3]: no Will, whatever waits before DISCONNECT."""
    watching = await watcher(secure)
    for much in (False, True):
        peer = await secure.connect("fast", will=Will("will", b"gone"))
        if much:
            await send_more_than_is_read(secure, peer)
        else:
            await peer.send(*[Publish("out", b"%d" % number) for number in range(10)])
        await peer.send(Disconnect())
        await watching.expect_publish("out", b"0")
        await peer.close()
        while "fast" in secure.node.server.context.channels:
            await watching.ping()
    await watching.nothing()
