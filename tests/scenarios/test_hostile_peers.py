"""Peers that mean ill: slow, greedy, endless, deceitful. The node stays up, bounded, and good to the others."""

import asyncio
import io
import logging
import random
import socket
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Connect, Subscribe, TopicFilter, Will
from taipan.management.log_lines import TextLines
from tests.support.clients import Clients, tcp, v5
from tests.support.wire import Publish, encode, frame, string

from .until_quiet import payloads

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

Start = Callable[..., Awaitable[Clients]]


# --- slow ------------------------------------------------------------------------------------------------------------


async def test_a_connect_that_never_comes(clients: Clients) -> None:
    """[MQTT-3.1.4-1] leaves the time to us: 10 seconds."""
    silent, slow = await clients.open(), await clients.open()
    await slow.send(b"\x10\x20\x00\x04MQ")
    await clients.pass_time(5)
    await slow.send(b"T")
    await clients.pass_time(6)
    await clients.pass_time(0.1)  # what lies in the socket is read before
    await silent.expect_closed()
    await slow.expect_closed()


async def test_byte_at_a_time(clients: Clients) -> None:
    """[MQTT-6.0.0-2]"""
    peer = await clients.open()
    peer.client_id = clients.name()
    for byte in encode(Connect(clients.version, peer.client_id), clients.version):
        await peer.send(bytes([byte]))
    await peer.receive()
    stream = encode(Subscribe(1, [TopicFilter(clients.topic, 1)]), clients.version)
    stream += encode(Publish(clients.topic, b"x", 1, packet_id=2), clients.version)
    for byte in stream:
        await peer.send(bytes([byte]))
    await peer.receive()
    await peer.answer(Ack, type=c.PUBACK, packet_id=2)
    await peer.expect_publish(clients.topic, b"x", 1)


async def test_pieces_of_packets_do_not_keep_alive(clients: Clients) -> None:
    """[MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24]"""
    peer = await clients.connect(keep_alive=10)
    packet = encode(Publish(clients.topic, bytes(50)), clients.version)
    for at in range(6):
        await peer.send(packet[at : at + 1])
        await asyncio.sleep(0.01)
        await clients.pass_time(3)
    await peer.expect_disconnect(0x8D)


@tcp
async def test_a_reader_that_never_reads_is_closed_in_time_and_bounded_in_memory(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_outbox_bytes": 1_000_000, "slow_reader_timeout": 30.0})
    host, port, *_ = clients.node.address("tcp")
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect((host, port))
    stuck.setblocking(False)
    version = clients.version
    stuck.send(encode(Connect(version, "stuck"), version) + encode(Subscribe(1, [TopicFilter("t", 0)]), version))
    await asyncio.sleep(0.05)
    publisher, healthy = await clients.connect(), await clients.connect()
    await healthy.subscribe("t")
    payload = bytes(50_000)
    for _ in range(300):
        await publisher.send(Publish("t", payload))
        await healthy.expect_publish("t")
    dropped = clients.server.metrics.snapshot()["delivery.dropped.qos0_msg"]
    assert dropped + clients.server.metrics.snapshot()["delivery.dropped.queue_full"] > 0
    await clients.pass_time(31)
    await clients.pass_time(31)
    await asyncio.sleep(0)
    assert "stuck" not in clients.server.context.channels
    await healthy.nothing()
    stuck.close()


@tcp
async def test_a_subscriber_of_qos_1_that_never_reads(clients_of: Start) -> None:
    """Its queue is bounded, others go on."""
    clients = await clients_of(zone={"max_queued_messages": 50, "max_inflight": 10})
    stuck, healthy, publisher = [await clients.connect() for _ in range(3)]
    for peer in (stuck, healthy):
        await peer.subscribe("t", qos=1)
    for number in range(200):
        await publisher.publish("t", b"%d" % number, 1)
        await healthy.expect_publish("t", b"%d" % number)
    assert clients.server.metrics.snapshot()["delivery.dropped.queue_full"] == 200 - 60
    assert [int(each) for each in await payloads(stuck)] == [*range(10), *range(150, 200)]


# --- large -----------------------------------------------------------------------------------------------------------


async def test_a_connect_larger_than_allowed(clients: Clients) -> None:
    """256 KiB, decided from the fixed header; no return code fits, so there is none [3.1.1 MQTT-3.2.2-6]."""
    peer = await clients.open()
    await peer.send(b"\x10\xff\xff\xff\x7f\x00\x04MQTT")
    await peer.expect_closed()


async def test_100_megabytes_announced_and_trickled(clients: Clients) -> None:
    """Refused where the limit is lower; nothing is allocated for what was only announced."""
    peer = await clients.connect()
    await peer.send(b"\x30\x80\xc2\xd7\x2f")  # 100,000,000 bytes
    await peer.expect_disconnect(0x95)


@tcp
async def test_100_megabytes_announced_where_allowed_take_no_memory(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_packet_size": 268_435_455})
    peer = await clients.connect()
    other = await clients.connect()
    tracemalloc.start()
    await peer.send(b"\x30\x80\xc2\xd7\x2f")
    for _ in range(20):
        await peer.send(bytes(10))
        await asyncio.sleep(0)
    await other.nothing()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000


async def test_a_remaining_length_that_never_ends(clients: Clients) -> None:
    """[MQTT-1.5.5-1]"""
    peer = await clients.connect()
    await peer.send(b"\x30\xff\xff\xff\xff\x7f")
    await peer.expect_disconnect(0x81)


# --- bombs -----------------------------------------------------------------------------------------------------------


@v5
async def test_a_bomb_of_properties(clients: Clients) -> None:
    """[MQTT-2.2.2-1]"""
    peer, other = await clients.connect(), await clients.connect()
    pairs = [(f"k{number}", "v") for number in range(50_000)]
    await peer.send(Publish(clients.topic, b"x", 1, packet_id=1, properties={c.USER_PROPERTY: pairs}))
    await peer.receive()
    await other.nothing()


@v5
async def test_a_bomb_of_aliases(clients: Clients) -> None:
    peer, other = await clients.connect(), await clients.connect()
    most = peer.connack.properties[c.TOPIC_ALIAS_MAXIMUM]
    for start in range(0, 5000, 500):
        await peer.send(
            *(
                Publish(f"{clients.topic}/{alias}", b"", properties={c.TOPIC_ALIAS: alias + 1})
                for alias in range(start, min(start + 500, most))
            )
        )
    await peer.ping()
    await other.nothing()


async def test_a_bomb_of_subscriptions(clients: Clients) -> None:
    peer, other = await clients.connect(), await clients.connect()
    await peer.subscribe(*(f"{clients.topic}/{number}/+/{number}/#" for number in range(4000)))
    await other.publish(f"{clients.topic}/7/x/7/y", b"x", 1)
    await peer.expect_publish(f"{clients.topic}/7/x/7/y")
    before = len(clients.server.broker.sessions)
    await peer.disconnect()
    await other.nothing()
    assert len(clients.server.broker.sessions) == before - 1


async def test_overlapping_wildcards_of_every_shape(clients: Clients) -> None:
    """2**10 filters match one topic: one copy, and quickly."""
    peer, publisher = await clients.connect(), await clients.connect()
    levels = 10
    filters = []
    for bits in range(2**levels):
        parts = ["+" if bits >> level & 1 else "a" for level in range(levels)]
        filters.append("/".join([clients.topic, *parts]))
    await peer.subscribe(*filters)
    began = time.process_time()
    for _ in range(20):
        await publisher.publish("/".join([clients.topic, *["a"] * levels]), b"x")
    assert len(await payloads(peer)) == 20
    assert time.process_time() - began < 2


async def test_a_will_storm(clients: Clients) -> None:
    """A hundred die at once, all are heard and nobody stalls."""
    watcher, other = await clients.connect(), await clients.connect()
    await watcher.subscribe(f"{clients.topic}/#", qos=1)
    dying = [await clients.connect(will=Will(f"{clients.topic}/{n}", b"dead", 1)) for n in range(100)]
    for peer in dying:
        peer.abort()
    await other.nothing()
    seen: set[str] = set()
    while len(seen) < 100:
        seen.add((await watcher.expect_publish(payload=b"dead")).topic)
    await watcher.nothing()


async def test_a_storm_of_pings_and_empty_subscribes(clients: Clients) -> None:
    peer, other = await clients.connect(), await clients.connect()
    await peer.send(b"\xc0\x00" * 5000)
    await other.nothing()
    for _ in range(5000):
        await peer.receive()


# --- deceitful -------------------------------------------------------------------------------------------------------


@tcp
async def test_bad_characters_do_not_reach_the_log(clients: Clients) -> None:
    """Neither line breaks nor escape sequences, in no field of any line."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines())
    logger = logging.getLogger("taipan.broker")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        bad = "x\r\n2026-01-01 INFO client_connected client_id=forged\x1b[31m\u2028\x85"
        peer = await clients.connect(bad, username=bad)
        await peer.send(Subscribe(1, [TopicFilter("a/#/" + bad)]))
        await peer.receive()
        again = await clients.connect(username=bad)
        await again.publish("$SYS/" + bad, b"x", 1, expect=None)
        await again.disconnect()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    text = stream.getvalue()
    assert "forged" in text
    assert "\x1b" not in text and "\r" not in text and "\u2028" not in text and "\x85" not in text
    assert not [line for line in text.splitlines() if line.startswith("2026-01-01 INFO client_connected")]


@tcp
async def test_random_bytes(clients: Clients) -> None:
    """Nobody else notices, and nothing unexpected is logged (the node's fixture looks)."""
    rng = random.Random(5)
    other = await clients.connect()
    for _ in range(150):
        peer = await clients.open()
        start = b"" if rng.random() < 0.3 else encode(Connect(clients.version, "random"), clients.version)
        await peer.send(start + rng.randbytes(rng.randrange(1, 200)))
        peer.abort()
    await other.nothing()


@tcp
async def test_mutated_packets(clients: Clients) -> None:
    rng = random.Random(6)
    other = await clients.connect()
    version = clients.version
    originals = [
        encode(Connect(version, "mutant", will=Will("w", b"x", 1), username="u", password=b"p"), version),
        encode(Publish("a/b", b"payload", 2, packet_id=1), version),
        encode(Subscribe(1, [TopicFilter("a/#", 1), TopicFilter("$share/g/x", 1)]), version),
        frame(0xA2, b"\x00\x01" + (b"\x00" if version == 5 else b"") + string("a/#")),
    ]
    for _ in range(300):
        original = bytearray(rng.choice(originals))
        for _ in range(rng.randrange(1, 4)):
            original[rng.randrange(len(original))] = rng.randrange(256)
        peer = await clients.open()
        start = b"" if original[0] >> 4 == 1 else encode(Connect(version, "mutant"), version)
        await peer.send(start + bytes(original))
        peer.abort()
    await other.nothing()


async def test_a_client_that_vanishes_in_the_middle_of_everything(clients: Clients) -> None:
    other = await clients.connect()
    for cut in range(1, 60, 3):
        peer = await clients.open()
        stream = encode(Connect(clients.version, clients.name()), clients.version)
        stream += encode(Publish(clients.topic, bytes(20), 2, packet_id=1), clients.version)
        await peer.send(stream[:cut])
        peer.abort()
    await other.nothing()
