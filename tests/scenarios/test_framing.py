"""The byte stream: packets cut and joined anywhere, lengths, strings; and what random bytes do to others (nothing)."""

import random

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Suback, Subscribe, TopicFilter, Unsubscribe
from tests.support.clients import Clients, StartClients, tcp, v4, v5
from tests.support.peer import Closed, Peer
from tests.support.wire import Publish, WireError, encode, frame, string

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_byte_by_byte(clients: Clients) -> None:
    """A whole conversation, one byte a write (a frame each over WebSocket) [MQTT-6.0.0-2]
    [3.1.1 MQTT-6.0.0-2]."""
    peer = await clients.open()
    topic = f"{clients.topic}/a"
    for packet in (
        Connect(clients.version, clients.name()),
        Subscribe(1, [TopicFilter(topic, 1)]),
        Publish(topic, b"x" * 150, 1, packet_id=2),
    ):
        for byte in encode(packet, clients.version):
            await peer.send(bytes([byte]))
    await peer.expect(Connack, reason_code=0)
    await peer.expect(Suback, packet_id=1)
    await peer.answer(Publish, payload=b"x" * 150)
    await peer.expect_ack(c.PUBACK, 2)


async def test_many_packets_in_one_write(clients: Clients) -> None:
    """Answered in order, none lost."""
    peer, watcher = await clients.connect(), await clients.connect()
    await watcher.subscribe(clients.topic, qos=0)
    await peer.send(*(Publish(clients.topic, b"%d" % n, 1, packet_id=n) for n in range(1, 51)), Pingreq())
    for number in range(1, 51):
        await peer.expect_ack(c.PUBACK, number)
    await peer.expect(Pingresp)
    for number in range(1, 51):
        await watcher.expect_publish(clients.topic, b"%d" % number)


async def test_cut_at_every_place(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.subscribe(clients.topic)
    data = encode(Publish(clients.topic, b"payload"), clients.version) + b"\xc0\x00"
    for cut in range(1, len(data)):
        await peer.send(data[:cut])
        await peer.send(data[cut:])
        await peer.expect_publish(clients.topic, b"payload")
        await peer.expect(Pingresp)


@pytest.mark.parametrize("data", [b"\x30\xff\xff\xff\xff\x7f", b"\xc0\x80\x80\x80\x80\x01", b"\x30\xff\xff\xff\xff"])
async def test_remaining_length_of_five_bytes(clients: Clients, data: bytes) -> None:
    """Malformed at once [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1]."""
    peer = await clients.connect()
    await peer.send(data)
    await peer.expect_disconnect(0x81, 0x95)


@v4
async def test_remaining_length_need_not_be_minimal_in_311(clients: Clients) -> None:
    """A PINGREQ with a length of two bytes."""
    peer = await clients.connect()
    await peer.send(b"\xc0\x80\x00")
    await peer.expect(Pingresp)


@tcp
async def test_announced_and_never_sent(clients: Clients) -> None:
    """A megabyte announced and trickled: harms nobody, and the end of the connection is its end."""
    bystander, peer = await clients.connect(), await clients.connect()
    await peer.send(b"\x30\x80\x80\x40" + string(clients.topic))
    for _ in range(10):
        await peer.send(b"x")
        await bystander.nothing()
    await peer.drop()
    await bystander.nothing()


@pytest.mark.parametrize(
    "text",
    [
        b"\xed\xa0\x80", b"\xed\xbf\xbf", b"a\x00b", b"\xc0\x80", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80", b"\x80", b"a\xff",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["publish", "subscribe", "unsubscribe"])
async def test_strings_that_are_not_utf8(clients: Clients, place: str, text: bytes) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.8.3-1] [MQTT-3.10.3-1] [MQTT-3.3.2-1] [3.1.1 MQTT-1.5.3-1]
    [3.1.1 MQTT-1.5.3-2] [3.1.1 MQTT-3.8.3-1] [3.1.1 MQTT-3.10.3-1]"""
    peer = await clients.connect()
    field = len(text).to_bytes(2, "big") + text
    none = b"\x00" if clients.version == 5 else b""
    await peer.send(
        {
            "publish": lambda: frame(0x30, field + none + b"x"),
            "subscribe": lambda: frame(0x82, b"\x00\x01" + none + field + b"\x00"),
            "unsubscribe": lambda: frame(0xA2, b"\x00\x01" + none + field),
        }[place]()
    )
    await peer.expect_disconnect(0x81, 0x82, 0x8F, 0x90)


async def test_strings_that_are_utf8(clients: Clients) -> None:
    """BOM stays, planes above the first are fine, control characters and non-characters pass by default
    [MQTT-1.5.4-3] [3.1.1 MQTT-1.5.3-3]."""
    peer = await clients.connect()
    for text in ("\ufeff", "\U0001f40d", "\U0010fffd", "\u0001", "\u007f\u0085", "\uffff", "\ud7ff", "\ue000"):
        topic = f"{clients.topic}/{text}"
        await peer.subscribe(topic)
        await peer.publish(topic, b"x")
        await peer.expect_publish(topic, b"x")


@tcp
async def test_strict_strings(clients_of: StartClients) -> None:
    """Where a setting asks for it, control characters and non-characters are malformed."""
    clients = await clients_of(zone={"strict_strings": True})
    for text in ("\u0001", "\u007f", "\u0085", "\uffff", "\ufdd0", "\U0001ffff"):
        for packet in (
            Publish(f"a/{text}"),
            Subscribe(1, [TopicFilter(f"a/{text}")]),
            Unsubscribe(1, [f"a/{text}"]),
        ):
            peer = await clients.connect()
            await peer.send(packet)
            await peer.expect_disconnect(0x81, 0x82, 0x8F, 0x90)


@v5
async def test_user_property_may_be_empty(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.subscribe(clients.topic)
    properties = {c.USER_PROPERTY: [("", ""), ("", "")], c.CORRELATION_DATA: b"", c.CONTENT_TYPE: ""}
    await peer.publish(clients.topic, b"", properties=properties)
    got = await peer.expect_publish(clients.topic, b"")
    assert got.properties == properties


async def _until_the_end(peer: Peer) -> None:
    """Reads until the broker closes or falls silent; only well-formed packets may come."""
    try:
        while True:
            await peer.receive(0.05)
    except (Closed, TimeoutError):
        pass


@tcp
@pytest.mark.parametrize("seed", range(5))
async def test_random_bytes(clients: Clients, seed: int) -> None:
    """Before and after CONNECT; nobody else notices anything."""
    rng = random.Random(seed)
    bystander = await clients.connect()
    for connected in (False, True):
        for _ in range(10):
            peer = await (clients.connect() if connected else clients.open())
            await peer.send(rng.randbytes(rng.randrange(1, 300)))
            peer.abort()
    await bystander.nothing()


@tcp
@pytest.mark.parametrize("seed", range(5))
async def test_mutated_packets(clients: Clients, seed: int) -> None:
    """One byte of a good conversation changed: refused or taken, and what comes back is well formed."""
    rng = random.Random(seed)
    bystander = await clients.connect()
    packets = (
        Publish(clients.topic, b"x", 1, packet_id=1, properties={c.USER_PROPERTY: [("a", "b")]}),
        Subscribe(2, [TopicFilter(f"{clients.topic}/#", 1)]),
        Unsubscribe(3, [f"{clients.topic}/#"]),
    )
    for packet in packets:
        for _ in range(4):
            data = bytearray(encode(packet, clients.version))
            data[rng.randrange(len(data))] = rng.randrange(256)
            peer = await clients.connect()
            await peer.send(bytes(data))
            try:
                await _until_the_end(peer)
            except WireError as error:
                raise AssertionError(f"after {bytes(data)!r}: {error}") from error
            peer.abort()
    await bystander.nothing()
