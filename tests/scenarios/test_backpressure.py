"""Slow readers and floods: what waits is bounded, what is dropped is counted with its reason, others get everything."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taipan.broker.core.broker import PUBLISH_STEPS
from taipan.broker.loop.budget import DELIVERIES_PER_ITERATION
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Pingreq, Pingresp
from taipan.broker.transport import connection
from tests.support.clients import Clients, tcp, v5
from tests.support.peer import Peer
from tests.support.wire import Publish

from .until_quiet import payloads

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

Start = Callable[..., Awaitable[Clients]]

SUBSCRIBERS = 100
MESSAGES = 200  # more than all kernels on the way hold
PAYLOAD = bytes(1000)
OUTBOX = 10_000
HIGH = 16_384


def narrow(clients: Clients, client_id: str) -> None:
    """Whatever the kernel would hold for a client that does not read, now it holds little."""
    channel = clients.server.context.channels[client_id]
    transport = channel.connection._transport  # type: ignore[attr-defined]
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def held(clients: Clients, client_id: str) -> int:
    """Bytes that the node itself has for a client."""
    link = clients.server.context.channels[client_id].connection
    return int(link.traffic().held)  # type: ignore[attr-defined]


def drops(clients: Clients, client_id: str) -> dict[str, int]:
    session = clients.server.broker.sessions.get(client_id)
    assert session is not None
    return dict(session.client.dropped or {})


@tcp
@v5
@pytest.mark.parametrize("qos", [0, 1])
async def test_one_slow_reader_among_a_hundred(clients_of: Start, monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
    """The others get every message in order; the slow one's losses are its own, bounded and counted."""
    monkeypatch.setattr(connection, "WRITE_HIGH", HIGH)
    monkeypatch.setattr(connection, "WRITE_LOW", HIGH // 4)
    clients = await clients_of(
        zone={"max_outbox_bytes": OUTBOX, "max_queued_messages": 20, "max_inflight": 10, "slow_reader_timeout": 0}
    )
    slow = clients.peer()
    await slow.open(limit=1024)
    stream: Any = slow.stream.writer.transport  # type: ignore[union-attr]
    stream.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await slow.connect("slow")
    others = [await clients.connect(f"other-{number}") for number in range(SUBSCRIBERS - 1)]
    for peer in [slow, *others]:
        await peer.subscribe("t", qos=qos)
    narrow(clients, "slow")
    publisher = await clients.connect("publisher")
    stream.pause_reading()
    most = 0
    for begin in range(0, MESSAGES, 20):
        for number in range(begin, begin + 20):
            await publisher.publish("t", b"%4d" % number + PAYLOAD, qos)
        for peer in others:
            got = [each[:4] for each in await payloads(peer)]
            assert got == [b"%4d" % number for number in range(begin, begin + 20)]
        most = max(most, held(clients, "slow"))
    # The transport takes until it is above its mark, then the outbox does.
    assert most < HIGH + OUTBOX + 2 * len(PAYLOAD) + 4096
    lost = drops(clients, "slow")
    assert set(lost) == {"queue_full"} and lost["queue_full"] > 0
    assert clients.server.metrics.snapshot()["delivery.dropped.queue_full"] == lost["queue_full"]
    assert not any(drops(clients, f"other-{number}") for number in range(SUBSCRIBERS - 1))
    stream.resume_reading()
    numbers = [int(each[:4]) for each in await payloads(slow)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) + lost["queue_full"] == MESSAGES


@tcp
@v5
async def test_a_flood_of_qos_0(clients_of: Start) -> None:
    """Ten flooding publishers: no turn takes more than its share, nothing is lost for a reader that keeps up, and a
    pair of clients of QoS 1 goes on meanwhile."""
    clients = await clients_of()
    node = clients.server
    turn = node.broker.budget
    before: list[int] = []  # what the turn had delivered when the next message was taken

    def look(message: Message) -> Message:
        before.append(turn.deliveries)
        return message

    node.broker.hooks.message_publish.add(look)
    reader = await clients.connect("reader")
    await reader.subscribe("flood/#")
    ping, pong = await clients.connect("ping"), await clients.connect("pong")
    await pong.subscribe("pair", qos=1)
    writers = [await clients.connect(f"w{number}") for number in range(10)]
    floods = 1000

    async def flood(number: int, writer: Peer) -> None:
        await writer.send(*[Publish(f"flood/{number}", b"%d" % each) for each in range(floods)], Pingreq())
        await writer.answer(Pingresp)

    async def converse() -> None:
        for number in range(20):
            await ping.publish("pair", b"%d" % number, 1)
            await pong.expect_publish("pair", b"%d" % number, 1)

    async def read() -> dict[str, list[int]]:
        got: dict[str, list[int]] = {}
        for _ in range(floods * len(writers)):
            packet = await reader.receive()
            assert isinstance(packet, Publish)
            got.setdefault(packet.topic, []).append(int(packet.payload))
        return got

    flooded = asyncio.gather(*(flood(number, writer) for number, writer in enumerate(writers)))
    got, _, _ = await asyncio.gather(read(), converse(), flooded)
    assert got == {f"flood/{number}": list(range(floods)) for number in range(len(writers))}
    assert max(before) <= DELIVERIES_PER_ITERATION + PUBLISH_STEPS
    assert not drops(clients, "reader")


@tcp
@v5
async def test_a_flood_at_a_client_that_is_away(clients_of: Start) -> None:
    """Its queue stays within its bound, the oldest are dropped and counted, and the rest comes when it is back."""
    clients = await clients_of(zone={"max_queued_messages": 100})
    away = await clients.persistent("away")
    await away.subscribe("t", qos=1)
    await away.drop()
    publisher = await clients.connect("publisher")
    await publisher.send(*[Publish("t", b"%d" % number) for number in range(50)], Pingreq())
    await publisher.answer(Pingresp)
    for number in range(300):
        await publisher.publish("t", b"%d" % number, 1)
    session = clients.server.broker.sessions.get("away")
    assert session is not None and session.queued == 100
    assert drops(clients, "away") == {"queue_full": 200, "qos0_msg": 50}
    back = await clients.persistent("away")
    assert [int(each) for each in await payloads(back)] == list(range(200, 300))
