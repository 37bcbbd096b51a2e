"""What the Eclipse Paho interoperability suites check of a broker, told again in our own words.

The node runs with ``config/examples/paho-interop.toml``. Where those suites are stricter than the standard the
docstring says so.
"""

import asyncio
import itertools
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Connect, Pingreq, Pingresp, TopicFilter, Will
from tests.support.node import external_node, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer
from tests.support.wire import Publish

from .conftest import RunningNode

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(30)]

PROFILE = Path(__file__).parents[2] / "config" / "examples" / "paho-interop.toml"
V3 = pytest.mark.parametrize("version", [4])
V5 = pytest.mark.parametrize("version", [5])
_numbers = itertools.count(1)

Open = Callable[..., Awaitable[Peer]]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The first listener of a node process with the profile, or the broker that the environment names."""
    external = external_node()
    if external is not None:
        yield external.address("tcp")
        return
    arguments = ["--set", f"node.data_dir={tmp_path_factory.mktemp('paho')}"]
    ports = []
    for number, _ in enumerate(tomllib.loads(PROFILE.read_text())["listeners"]):
        ports.append(free_port())
        arguments += ["--set", f"listeners.{number}.bind=127.0.0.1:{ports[-1]}"]
    node = RunningNode(PROFILE, *arguments)
    yield Address("127.0.0.1", ports[0])
    assert node.stop() == 0


@pytest.fixture(params=[4, 5], ids=["v4", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def topic() -> str:
    """The root of topics that no other test uses."""
    return f"paho{next(_numbers)}"


@pytest_asyncio.fixture
async def connect(where: Address, version: int, topic: str) -> AsyncIterator[Open]:
    """Connects a peer under a name that is unique to the test; ``persistent`` keeps its session."""
    peers: list[Peer] = []

    async def make(name: str = "a", clean: bool = True, persistent: bool = False, **options: Any) -> Peer:
        peer = Peer(where, version)
        peers.append(peer)
        if persistent:
            clean = False
            if version == 5:
                options["properties"] = {c.SESSION_EXPIRY_INTERVAL: 300, **options.get("properties", {})}
        await peer.connect(f"{topic}{name}" if name else "", clean, **options)
        return peer

    yield make
    for peer in peers:
        peer.abort()


async def collect(peer: Peer, count: int) -> list[Publish]:
    return [await peer.expect_publish() for _ in range(count)]


# --- both suites -----------------------------------------------------------------------------------------------------


async def test_basic(connect: Open, topic: str) -> None:
    """Each QoS to oneself, then clean goodbye; a second CONNECT on one connection ends it [MQTT-3.1.0-2]."""
    peer = await connect()
    await peer.subscribe(f"{topic}/A", qos=2)
    for qos in range(3):
        await peer.publish(f"{topic}/A", b"qos %d" % qos, qos)
        await peer.expect_publish(f"{topic}/A", b"qos %d" % qos, qos)
    await peer.disconnect()
    again = await connect()
    await again.send(Connect(again.version, f"{topic}a"))
    await again.expect_disconnect(0x82)


async def test_retained_messages(connect: Open, topic: str) -> None:
    """Three QoS retained and found by a wildcard, then cleared and not found [MQTT-3.3.1-5] [MQTT-3.3.1-6]."""
    peer = await connect()
    for qos, name in enumerate(("fromb/qos 0", "fromb/qos 1", "fromb/qos2")):
        properties = {c.USER_PROPERTY: [("a", "2"), ("c", "3")]} if peer.version == 5 else None
        await peer.publish(f"{topic}/{name}", b"qos %d" % qos, qos, True, properties=properties)
    await peer.subscribe(f"{topic}/+/+", qos=2)
    found = sorted(await collect(peer, 3), key=lambda each: each.qos)
    assert [each.payload for each in found] == [b"qos 0", b"qos 1", b"qos 2"]
    assert all(each.retain for each in found)
    if peer.version == 5:
        assert all(each.properties[c.USER_PROPERTY] == [("a", "2"), ("c", "3")] for each in found)
    await peer.disconnect()
    cleaner = await connect("cleaner")
    for qos, name in enumerate(("fromb/qos 0", "fromb/qos 1", "fromb/qos2")):
        await cleaner.publish(f"{topic}/{name}", b"", qos, True)
    await cleaner.subscribe(f"{topic}/+/+", qos=2)
    await cleaner.nothing()


async def test_offline_message_queueing(connect: Open, topic: str) -> None:
    """QoS 1 and 2 wait for a session that is away; QoS 0 may [MQTT-4.1.0-1]."""
    peer = await connect(persistent=True)
    await peer.subscribe(f"{topic}/+", qos=2)
    await peer.disconnect()
    other = await connect("b")
    for qos in range(3):
        await other.publish(f"{topic}/q{qos}", b"qos %d" % qos, qos)
    await other.disconnect()
    peer = await connect(persistent=True)
    assert peer.connack.session_present
    seen = [(await peer.expect_publish()).payload for _ in range(2)]
    if seen[0] == b"qos 0":
        seen = [seen[1], (await peer.expect_publish()).payload]
    assert seen == [b"qos 1", b"qos 2"]
    await peer.nothing()


async def test_will_message(connect: Open, topic: str) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-10]"""
    properties = {c.USER_PROPERTY: [("a", "2"), ("c", "3")]}
    watcher = await connect("b")
    await watcher.subscribe(f"{topic}/C", qos=2)
    will = Will(f"{topic}/C", b"client not disconnected", 1, False, properties if watcher.version == 5 else {})
    dying = await connect(will=will, keep_alive=2)
    await dying.drop()
    message = await watcher.expect_publish(f"{topic}/C", b"client not disconnected", 1)
    if watcher.version == 5:
        assert message.properties == properties


async def test_zero_length_client_identifier(connect: Open, where: Address, version: int) -> None:
    """3.1.1 refuses one that wants a lasting session with 0x02; 5.0 assigns one [MQTT-3.1.3-6] [3.1.1 MQTT-3.1.3-8]."""
    if version == 4:
        refused = Peer(where, 4)
        await refused.connect("", False, expect=2)
        await refused.close()
        await (await connect("")).nothing()
        return
    first, second = await connect(""), await connect("", clean=False)
    names = {peer.connack.properties[c.ASSIGNED_CLIENT_IDENTIFIER] for peer in (first, second)}
    assert len(names) == 2 and "" not in names


async def test_overlapping_subscriptions(connect: Open, topic: str) -> None:
    """Filters with QoS 2 and 1 match: the suite wants the higher one in the first copy [MQTT-3.3.4-2]."""
    peer = await connect()
    await peer.subscribe(TopicFilter(f"{topic}/#", 2), TopicFilter(f"{topic}/+", 1))
    await peer.publish(f"{topic}/C", b"overlapping", 2)
    await peer.expect_publish(f"{topic}/C", b"overlapping", 2)
    await peer.nothing()


async def test_keep_alive(connect: Open, topic: str) -> None:
    """Silence ends the connection in time and its will goes out [MQTT-3.1.2-22]."""
    watcher = await connect("watcher", keep_alive=0)
    await watcher.subscribe(f"{topic}/C", qos=2)
    await connect("silent", keep_alive=1, will=Will(f"{topic}/C", b"keepalive expiry", 1))
    await asyncio.wait_for(watcher.expect_publish(f"{topic}/C", b"keepalive expiry"), patience(40))


async def test_redelivery_on_reconnect(connect: Open, topic: str) -> None:
    """What was not acknowledged comes again, and nothing more than was sent [MQTT-4.4.0-1]."""
    peer = await connect("b", persistent=True)
    await peer.subscribe(f"{topic}/#", qos=2)
    publisher = await connect()
    for qos in (1, 2):
        await publisher.publish(f"{topic}/q{qos}", b"qos %d" % qos, qos)
    sent = [await peer.expect_publish(acknowledge=False) for _ in range(2)]
    await peer.drop()
    back = await connect("b", persistent=True)
    again = [await back.expect_publish(dup=True) for _ in range(2)]
    assert [each.packet_id for each in again] == [each.packet_id for each in sent]
    assert [each.payload for each in again] == [b"qos 1", b"qos 2"]
    await back.nothing()


async def test_subscribe_failure(connect: Open) -> None:
    """The suites want 0x80 in both versions."""
    peer = await connect()
    await peer.subscribe("test/nosubscribe", qos=2, expect=[0x80])
    await peer.nothing()


async def test_dollar_topics(connect: Open, topic: str) -> None:
    """Wildcards at the front do not match names that start with $ [MQTT-4.7.2-1]."""
    peer = await connect()
    await peer.subscribe(f"+/{topic}", qos=2)
    await peer.publish(f"${topic}/{topic}", b"unseen", 1)
    await peer.publish(f"{topic}/{topic}", b"seen", 1)
    await peer.expect_publish(f"{topic}/{topic}", b"seen", 1)
    await peer.nothing()


async def test_unsubscribe(connect: Open, topic: str) -> None:
    """[MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-6]"""
    peer = await connect()
    for name in "ABC":
        await peer.subscribe(f"{topic}/{name}", qos=2)
    await peer.unsubscribe(f"{topic}/A")
    other = await connect("b")
    for name in "ABC":
        await other.publish(f"{topic}/{name}", name.encode(), 1)
    assert [each.payload for each in await collect(peer, 2)] == [b"B", b"C"]
    await peer.nothing()


async def test_topic_semantics(connect: Open, topic: str) -> None:
    """``+`` takes a whole level, empty ones too [MQTT-4.7.1-2]."""
    peer = await connect()
    await peer.subscribe(f"{topic}/+/z")
    await peer.publish(f"{topic}//z", b"empty level")
    await peer.publish(f"{topic}/a/b/z", b"too deep")
    await peer.expect_publish(f"{topic}//z", b"empty level")
    await peer.nothing()


# --- 5.0 only --------------------------------------------------------------------------------------------------------


@V5
async def test_session_expiry(connect: Open, topic: str) -> None:
    """Nothing kept for 0 or none; kept for its time, no longer; DISCONNECT changes it [MQTT-3.1.2-23]."""
    peer = await connect(clean=True, properties={c.SESSION_EXPIRY_INTERVAL: 0})
    await peer.subscribe(topic)
    await peer.disconnect()
    peer = await connect(clean=False, properties={c.SESSION_EXPIRY_INTERVAL: 5}, session_present=False)
    await peer.subscribe(topic)
    await peer.disconnect()
    peer = await connect(clean=False, properties={c.SESSION_EXPIRY_INTERVAL: 1}, session_present=True)
    await peer.disconnect()
    await asyncio.sleep(2.2)
    peer = await connect(clean=False, properties={c.SESSION_EXPIRY_INTERVAL: 1}, session_present=False)
    await peer.disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 5})
    await asyncio.sleep(1.5)
    peer = await connect(clean=False, properties={c.SESSION_EXPIRY_INTERVAL: 5}, session_present=True)
    await peer.disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0})
    await connect(clean=False, session_present=False)


@V5
async def test_shared_subscriptions(connect: Open, topic: str) -> None:
    """Every message to one member, and no member goes empty (the suite sends ten) [MQTT-4.8.2-4]."""
    members = [await connect(name) for name in "ab"]
    for member in members:
        await member.subscribe(f"$share/sharename/{topic}/x", f"{topic}/plain", qos=1)
    publisher = await connect("c")
    await publisher.publish(f"{topic}/plain", b"all", 1)
    for member in members:
        await member.expect_publish(f"{topic}/plain", b"all")
    for number in range(40):
        await publisher.publish(f"{topic}/x", b"%d" % number)
    got: list[list[int]] = []
    for member in members:
        await member.send(Pingreq())
        mine: list[int] = []
        while not isinstance(packet := await member.receive(), Pingresp):
            assert isinstance(packet, Publish)
            mine.append(int(packet.payload))
        got.append(mine)
    assert sorted(got[0] + got[1]) == list(range(40))
    assert all(got)


@V5
@pytest.mark.parametrize(
    ("delay", "expiry", "early"), [(2, 600, 1.0), (600, 0, 0), (600, 1, 0.5)], ids=["delay", "none", "end"]
)
async def test_will_delay(connect: Open, topic: str, delay: int, expiry: int, early: float) -> None:
    """The will waits for its delay or the end of the session, whichever is first [MQTT-3.1.2-8] [MQTT-3.1.3-9]."""
    watcher = await connect("watcher")
    await watcher.subscribe(f"{topic}/will", qos=1)
    will = Will(f"{topic}/will", b"late", 1, False, {c.WILL_DELAY_INTERVAL: delay})
    dying = await connect(clean=True, will=will, properties={c.SESSION_EXPIRY_INTERVAL: expiry})
    began = asyncio.get_running_loop().time()
    await dying.drop()
    await watcher.expect_publish(f"{topic}/will", b"late")
    assert asyncio.get_running_loop().time() - began >= early


@V5
async def test_server_keep_alive(connect: Open) -> None:
    """The suite connects with 120 and wants exactly 60 back [MQTT-3.2.2-21]."""
    peer = await connect(keep_alive=120)
    assert peer.connack.properties[c.SERVER_KEEP_ALIVE] == 60


@V3
async def test_keep_alive_of_3_1_1_is_its_own(connect: Open) -> None:
    """The 3.1.1 suite connects with 0 throughout: that must not be shortened unsaid."""
    peer = await connect(keep_alive=0)
    await peer.nothing()


@V5
async def test_flow_control_of_the_server(connect: Open, topic: str) -> None:
    """One QoS 2 message more than the announced maximum ends the connection with 0x93 [MQTT-3.3.4-7] [MQTT-3.3.4-8]."""
    peer = await connect()
    announced = peer.connack.properties[c.RECEIVE_MAXIMUM]
    assert 10 <= announced <= 100
    for packet_id in range(1, announced + 2):
        await peer.send(Publish(f"{topic}/x", b"", 2, packet_id=packet_id))
    for packet_id in range(1, announced + 1):
        await peer.expect_ack(c.PUBREC, packet_id, None)
    await peer.expect_disconnect(0x93)


@V5
async def test_flow_control_of_the_client(connect: Open, topic: str) -> None:
    """With Receive Maximum 2 the third comes only after an acknowledgement [MQTT-3.3.4-9] [MQTT-4.9.0-2]."""
    peer = await connect(properties={c.RECEIVE_MAXIMUM: 2})
    await peer.subscribe(f"{topic}/x", qos=2)
    publisher = await connect("b")
    for number in range(1, 4):
        await publisher.publish(f"{topic}/x", b"%d" % number, 2 if number == 2 else 1)
    first = await peer.expect_publish(payload=b"1", acknowledge=False)
    second = await peer.expect_publish(payload=b"2", acknowledge=False)
    await peer.nothing()
    await peer.puback(first.packet_id)
    third = await peer.expect_publish(payload=b"3", acknowledge=False)
    await peer.puback(third.packet_id)
    await peer.pubrec(second.packet_id)
    await peer.expect_ack(c.PUBREL, second.packet_id)
    await peer.pubcomp(second.packet_id)
    await peer.nothing()


@V5
async def test_request_response(connect: Open, topic: str) -> None:
    """[MQTT-3.3.2-15] [MQTT-3.3.2-16]"""
    asking, answering = await connect(), await connect("b")
    await asking.subscribe(f"{topic}/answers")
    await answering.subscribe(f"{topic}/questions")
    properties = {c.RESPONSE_TOPIC: f"{topic}/answers", c.CORRELATION_DATA: b"334"}
    await asking.publish(f"{topic}/questions", b"?", 1, properties=properties)
    question = await answering.expect_publish(payload=b"?")
    assert question.properties == properties
    await answering.publish(
        question.properties[c.RESPONSE_TOPIC],
        b"!",
        1,
        properties={c.CORRELATION_DATA: question.properties[c.CORRELATION_DATA]},
    )
    answer = await asking.expect_publish(payload=b"!")
    assert answer.properties == {c.CORRELATION_DATA: b"334"}


@V5
async def test_client_topic_alias(connect: Open, topic: str) -> None:
    """[MQTT-3.3.2-12] [MQTT-3.3.2-7] [MQTT-3.3.2-8]"""
    peer = await connect(persistent=True)
    assert peer.connack.properties[c.TOPIC_ALIAS_MAXIMUM] > 0
    await peer.subscribe(f"{topic}/x", qos=2)
    await peer.publish(f"{topic}/x", b"first", 1, properties={c.TOPIC_ALIAS: 1})
    await peer.publish("", b"second", 1, properties={c.TOPIC_ALIAS: 1})
    assert [each.topic for each in await collect(peer, 2)] == [f"{topic}/x"] * 2
    await peer.disconnect()
    peer = await connect(persistent=True)
    await peer.send(Publish("", b"third", 1, packet_id=9, properties={c.TOPIC_ALIAS: 1}))
    await peer.expect_disconnect(0x94, 0x82)


@V5
@pytest.mark.parametrize("alias", [0, 65_535])
async def test_client_topic_alias_out_of_range(connect: Open, topic: str, alias: int) -> None:
    """[MQTT-3.3.2-8] [MQTT-3.3.2-9]"""
    peer = await connect()
    if alias > peer.connack.properties[c.TOPIC_ALIAS_MAXIMUM] or alias == 0:
        await peer.send(Publish(f"{topic}/x", b"", 1, packet_id=1, properties={c.TOPIC_ALIAS: alias}))
        await peer.expect_disconnect(0x94)


@V5
async def test_server_topic_alias(connect: Open, topic: str) -> None:
    """With maximum 1: first topic and alias, then alias and an empty topic. The suite requires it [MQTT-3.1.2-26]."""
    peer = await connect(properties={c.TOPIC_ALIAS_MAXIMUM: 1})
    await peer.subscribe(f"{topic}/x", qos=2)
    for qos in range(3):
        await peer.publish(f"{topic}/x", b"%d" % qos, qos)
    first, second, third = await collect(peer, 3)
    assert (first.topic, first.properties) == (f"{topic}/x", {c.TOPIC_ALIAS: 1})
    assert (second.topic, second.properties) == ("", {c.TOPIC_ALIAS: 1})
    assert (third.topic, third.properties) == ("", {c.TOPIC_ALIAS: 1})


@V5
async def test_no_server_topic_alias_unasked(connect: Open, topic: str) -> None:
    """[MQTT-3.1.2-27]"""
    peer = await connect(properties={c.TOPIC_ALIAS_MAXIMUM: 0})
    await peer.subscribe(f"{topic}/x", qos=2)
    for qos in range(3):
        await peer.publish(f"{topic}/x", b"%d" % qos, qos)
        assert (await peer.expect_publish(f"{topic}/x")).properties == {}


@V5
async def test_maximum_packet_size(connect: Open, topic: str) -> None:
    """A larger message is not for this client, and its later ones come [MQTT-3.1.2-24] [MQTT-3.1.2-25]."""
    peer = await connect(properties={c.MAXIMUM_PACKET_SIZE: 64})
    await peer.subscribe(f"{topic}/x", qos=1)
    other = await connect("b")
    await other.publish(f"{topic}/x", bytes(40), 1)
    await other.publish(f"{topic}/x", bytes(64), 1)
    await other.publish(f"{topic}/x", b"small", 1)
    assert [len(each.payload) for each in await collect(peer, 2)] == [40, 5]
    await peer.nothing()


@V5
async def test_payload_format(connect: Open, topic: str) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-20]"""
    peer = await connect()
    await peer.subscribe(f"{topic}/x", qos=2)
    for qos in range(3):
        properties = {c.PAYLOAD_FORMAT_INDICATOR: 1, c.CONTENT_TYPE: "My name"}
        await peer.publish(f"{topic}/x", b"%d" % qos, qos, properties=properties)
        assert (await peer.expect_publish(qos=qos)).properties == properties


@V5
async def test_publication_expiry(connect: Open, topic: str) -> None:
    """Expired ones do not come; others tell what is left [MQTT-3.3.2-5] [MQTT-3.3.2-6]."""
    peer = await connect(persistent=True)
    await peer.subscribe(f"{topic}/+", qos=2)
    await peer.disconnect()
    other = await connect("b")
    for qos, expiry in ((1, 1), (2, 1), (1, 6), (2, 6)):
        await other.publish(f"{topic}/{expiry}", b"%d" % expiry, qos, properties={c.MESSAGE_EXPIRY_INTERVAL: expiry})
    await asyncio.sleep(1.5)
    peer = await connect(persistent=True)
    left = await collect(peer, 2)
    assert [(each.payload, each.qos) for each in left] == [(b"6", 1), (b"6", 2)]
    assert all(4 <= each.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 5 for each in left)
    await peer.nothing()


@V5
async def test_no_local(connect: Open, topic: str) -> None:
    """[MQTT-3.8.3-3]"""
    peer, other = await connect(), await connect("b")
    await peer.subscribe(f"{topic}/x", qos=2, no_local=True)
    await other.subscribe(f"{topic}/x", qos=2)
    await peer.publish(f"{topic}/x", b"mine", 1)
    await other.publish(f"{topic}/x", b"yours", 1)
    assert [each.payload for each in await collect(other, 2)] == [b"mine", b"yours"]
    await peer.expect_publish(payload=b"yours")
    await peer.nothing()


@V5
async def test_retain_as_published(connect: Open, topic: str) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    peer = await connect()
    await peer.subscribe(f"{topic}/as", qos=2, retain_as_published=True)
    await peer.subscribe(f"{topic}/not", qos=2)
    for name in ("as", "not"):
        for retain in (True, False):
            await peer.publish(f"{topic}/{name}", b"x", 1, retain)
    assert [each.retain for each in await collect(peer, 4)] == [True, False, False, False]
    for name in ("as", "not"):
        await peer.publish(f"{topic}/{name}", b"", 1, True)


@V5
async def test_retain_handling(connect: Open, topic: str) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    peer = await connect()
    await peer.publish(f"{topic}/x", b"kept", 1, True)
    wanted = {0: [True, True], 1: [True, False], 2: [False, False]}
    for handling, expected in wanted.items():
        for comes in expected:
            await peer.subscribe(f"{topic}/x", qos=2, retain_handling=handling)
            if comes:
                await peer.expect_publish(payload=b"kept", retain=True)
            await peer.nothing()
        await peer.unsubscribe(f"{topic}/x")
    await peer.publish(f"{topic}/x", b"", 1, True)


@V5
async def test_subscription_identifiers(connect: Open, topic: str) -> None:
    """One copy with all identifiers; the suite fails brokers that send several [MQTT-3.3.4-3] [MQTT-3.3.4-4]."""
    peer, other = await connect(), await connect("b")
    await peer.subscribe(f"{topic}/x", qos=2, identifier=456789)
    await other.subscribe(f"{topic}/x", qos=2, identifier=2)
    await other.subscribe(f"{topic}/+", qos=2, identifier=3)
    await peer.publish(f"{topic}/x", b"sub identifier test", 1)
    message = await peer.expect_publish(payload=b"sub identifier test")
    assert message.properties == {c.SUBSCRIPTION_IDENTIFIER: [456789]}
    message = await other.expect_publish(payload=b"sub identifier test")
    assert sorted(message.properties[c.SUBSCRIPTION_IDENTIFIER]) == [2, 3]
    await other.nothing()


@V5
async def test_user_properties(connect: Open, topic: str) -> None:
    """In their order, with repeats [MQTT-3.3.2-17] [MQTT-3.3.2-18]."""
    peer = await connect()
    await peer.subscribe(f"{topic}/x", qos=2)
    pairs = [("a", "2"), ("c", "3"), ("a", "1")]
    for qos in range(3):
        await peer.publish(f"{topic}/x", b"", qos, properties={c.USER_PROPERTY: pairs})
        assert (await peer.expect_publish(qos=qos)).properties == {c.USER_PROPERTY: pairs}


@V5
async def test_assigned_client_identifier_can_come_back(connect: Open, where: Address) -> None:
    """[MQTT-3.2.2-16]"""
    first = await connect("", clean=False, properties={c.SESSION_EXPIRY_INTERVAL: 60})
    name = first.client_id
    assert name
    await first.disconnect()
    again = Peer(where, 5)
    await again.connect(name, False, session_present=True)
    assert c.ASSIGNED_CLIENT_IDENTIFIER not in again.connack.properties
    await again.disconnect()


@V5
async def test_puback_without_reason_is_the_short_form(connect: Open, topic: str) -> None:
    """Reason 0 and no properties: Remaining Length 2 is what the suite compares with."""
    peer = await connect()
    await peer.subscribe(f"{topic}/x")
    await peer.send(Publish(f"{topic}/x", b"", 1, packet_id=7))
    await peer.answer(Ack, type=c.PUBACK, packet_id=7)
    assert peer.raw == b"\x40\x02\x00\x07"
