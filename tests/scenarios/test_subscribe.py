"""SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK: Reason Codes, options, identifiers, overlapping filters."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter, Unsuback, Unsubscribe
from tests.support.clients import Clients, v3_to_v5, v4, v5
from tests.support.wire import Publish, frame, string

from .until_quiet import payloads, until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")


# --- SUBSCRIBE and SUBACK --------------------------------------------------------------------------------------------


@v3_to_v5
async def test_one_suback_with_a_code_for_each_filter_in_order(clients: Clients) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1] [3.1.1 MQTT-3.8.4-1]
    [3.1.1 MQTT-3.8.4-2] [3.1.1 MQTT-3.8.4-4] [3.1.1 MQTT-3.8.4-5] [3.1.1 MQTT-3.9.3-1]"""
    peer = await clients.connect()
    filters = [TopicFilter(f"{clients.topic}/{number}", qos) for number, qos in enumerate((2, 0, 1, 1, 0, 2))]
    await peer.subscribe(*filters)
    for number, entry in enumerate(filters):
        await peer.publish(f"{clients.topic}/{number}", b"x", 2)
        await peer.expect_publish(f"{clients.topic}/{number}", b"x", entry.qos)
    await peer.nothing()


@pytest.mark.parametrize("published", [0, 1, 2])
async def test_delivery_has_the_lower_of_published_and_granted_qos(clients: Clients, published: int) -> None:
    """[MQTT-3.8.4-7] [MQTT-3.8.4-8] [3.1.1 MQTT-3.8.4-6]"""
    peer = await clients.connect()
    for granted in range(3):
        await peer.subscribe(f"{clients.topic}/{granted}", qos=granted)
        await peer.publish(f"{clients.topic}/{granted}", b"x", published)
        await peer.expect_publish(qos=min(granted, published), dup=False, retain=False)


async def test_subscribing_again_replaces_the_subscription(clients: Clients) -> None:
    """QoS and options change, and nothing comes twice [MQTT-3.8.4-3] [3.1.1 MQTT-3.8.4-3]."""
    peer = await clients.connect()
    topic = f"{clients.topic}/x"
    await peer.subscribe(topic, qos=0)
    await peer.subscribe(topic, qos=2)
    await peer.publish(topic, b"one", 2)
    await peer.expect_publish(topic, b"one", 2)
    await peer.nothing()
    await peer.unsubscribe(topic)
    await peer.publish(topic, b"two", 2)
    await peer.nothing()


@v3_to_v5
async def test_subscribing_again_brings_the_retained_message_again(clients: Clients) -> None:
    """[MQTT-3.8.4-4] [3.1.1 MQTT-3.8.4-3]"""
    peer = await clients.connect()
    topic = f"{clients.topic}/x"
    await peer.publish(topic, b"kept", 1, True)
    for _ in range(2):
        await peer.subscribe(topic, qos=1)
        await peer.expect_publish(topic, b"kept", 1, retain=True)
    await peer.publish(topic, b"", 1, True)


@v3_to_v5
@pytest.mark.parametrize("qos", [(0, 1), (1, 0), (2, 2), (1, 2, 0)])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_filter_twice_in_one_packet_sends_retained_messages_twice(
    clients: Clients, qos: tuple[int, ...], durable: bool
) -> None:
    """As so many packets would: each at its own QoS, and the last one stays
    [MQTT-3.8.4-4] [MQTT-3.8.4-5] [3.1.1 MQTT-3.8.4-3] [3.1.1 MQTT-3.8.4-4]."""
    peer = await (clients.persistent(clients.name()) if durable else clients.connect())
    topic = f"{clients.topic}/x"
    await peer.publish(topic, b"kept", 2, True)
    await peer.subscribe(*[TopicFilter(topic, each) for each in qos])
    for each in qos:
        await peer.expect_publish(topic, b"kept", each, retain=True)
    await peer.publish(topic, b"live", 2)
    await peer.expect_publish(topic, b"live", qos[-1], retain=False)
    await peer.nothing()
    await peer.publish(topic, b"", 1, True)


@v3_to_v5
async def test_what_stands_between_two_of_the_same_filter_comes_too(clients: Clients) -> None:
    """[MQTT-3.8.4-5] [3.1.1 MQTT-3.8.4-4]; a shared subscription has no retained messages."""
    peer = await clients.connect()
    topics = [f"{clients.topic}/a", f"{clients.topic}/b"]
    for topic in topics:
        await peer.publish(topic, topic.encode(), 1, True)
    wild = f"{clients.topic}/+"
    shared = f"$share/g/{wild}"
    await peer.subscribe(*[TopicFilter(each, 1) for each in (wild, topics[0], shared, wild, topics[0], shared)])
    seen = sorted([(await peer.expect_publish(retain=True)).topic for _ in range(6)])
    assert seen == [topics[0]] * 4 + [topics[1]] * 2
    await peer.nothing()
    for topic in topics:
        await peer.publish(topic, b"", 1, True)


@v5
async def test_retain_handling_and_identifiers_of_a_filter_that_comes_twice(clients: Clients) -> None:
    """Each entry is judged by what the one before it left [MQTT-3.3.1-9..11] [MQTT-3.3.4-3] [MQTT-3.8.4-5]."""
    peer = await clients.connect()
    topic = f"{clients.topic}/x"
    await peer.publish(topic, b"kept", 1, True)
    for handling, times in {
        (0, 0): 2,
        (0, 1): 1,
        (1, 0): 2,
        (1, 1): 1,
        (2, 0): 1,
        (2, 1): 0,
        (0, 2): 1,
        (1, 2): 1,
    }.items():
        entries = [TopicFilter(topic, 1, retain_handling=each) for each in handling]
        await peer.subscribe(*entries, identifier=7)
        for _ in range(times):
            got = await peer.expect_publish(topic, b"kept", 1, retain=True)
            assert got.properties[c.SUBSCRIPTION_IDENTIFIER] == [7]
        await peer.nothing()
        await peer.unsubscribe(topic)
    await peer.publish(topic, b"", 1, True)


async def test_replacing_loses_and_doubles_nothing(clients: Clients) -> None:
    """Messages published all the while come once each [MQTT-3.8.4-4] [3.1.1 MQTT-3.8.4-3]."""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for number in range(60):
        await publisher.send(Publish(clients.topic, b"%d" % number, 1, packet_id=number + 1))
        if number % 3 == 0:
            await peer.send(Subscribe(1000 + number, [TopicFilter(clients.topic, 1 + number % 2)]))
    await publisher.ping()
    seen, subscribed = [], 0
    while subscribed < 20:
        packet = await peer.receive()
        if isinstance(packet, Publish):
            seen.append(int(packet.payload))
            await peer.puback(packet.packet_id)
        subscribed += isinstance(packet, Suback)
    seen += [int(each) for each in await payloads(peer)]
    assert seen == list(range(60))


@pytest.mark.parametrize("kind", [0x80, 0x81, 0x83, 0x86, 0x8A, 0xA0, 0xA1, 0xA3, 0xAA])
async def test_header_flags_must_be_0010(clients: Clients, kind: int) -> None:
    """[MQTT-3.8.1-1] [MQTT-3.10.1-1] [3.1.1 MQTT-3.8.1-1] [3.1.1 MQTT-3.10.1-1]"""
    peer = await clients.connect()
    entry = string("a") + (b"\x00" if kind < 0xA0 else b"")
    await peer.send(frame(kind, b"\x00\x01" + (b"\x00" if clients.version == 5 else b"") + entry))
    await peer.expect_disconnect(0x81)


@pytest.mark.parametrize("kind", [0x82, 0xA2])
async def test_no_filter_is_an_error(clients: Clients, kind: int) -> None:
    """[MQTT-3.8.3-2] [MQTT-3.10.3-2] [3.1.1 MQTT-3.8.3-3] [3.1.1 MQTT-3.10.3-2]"""
    peer = await clients.connect()
    await peer.send(frame(kind, b"\x00\x01" + (b"\x00" if clients.version == 5 else b"")))
    await peer.expect_disconnect(0x81, 0x82)


@pytest.mark.parametrize("kind", [0x82, 0xA2])
async def test_packet_identifier_0_is_an_error(clients: Clients, kind: int) -> None:
    """[MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1]"""
    peer = await clients.connect()
    entry = string("a") + (b"\x00" if kind == 0x82 else b"")
    await peer.send(frame(kind, b"\x00\x00" + (b"\x00" if clients.version == 5 else b"") + entry))
    await peer.expect_disconnect(0x82)


@pytest.mark.parametrize(
    "entry",
    [
        b"\x00\x01",
        b"\x00\x01a",
        b"\x00\x05ab\x00",
        b"\x00\x01a\x00\x00",
        b"\x00\x02\xc3\x28\x00",
        b"\x00\x03a\x00b\x00",
    ],
    ids=["no string", "no options", "string too long", "bytes left", "not UTF-8", "U+0000"],
)
async def test_a_broken_entry_ends_the_connection(clients: Clients, entry: bytes) -> None:
    """[MQTT-3.8.3-1] [MQTT-4.7.3-2] [3.1.1 MQTT-3.8.3-1] [3.1.1 MQTT-4.7.3-2]"""
    peer = await clients.connect()
    await peer.send(frame(0x82, b"\x00\x01" + (b"\x00" if clients.version == 5 else b"") + entry))
    await peer.expect_disconnect(0x81, 0x82)


@v5
@pytest.mark.parametrize("options", [0x40, 0x80, 0xC0, 0xFF])
async def test_reserved_option_bits_are_malformed(clients: Clients, options: int) -> None:
    """[MQTT-3.8.3-5]"""
    peer = await clients.connect()
    await peer.send(frame(0x82, b"\x00\x01\x00" + string("a") + bytes([options])))
    await peer.expect_disconnect(0x81, 0x82)


@v4
@pytest.mark.parametrize("options", [0x03, 0x04, 0x10, 0x80, 0xFF])
async def test_reserved_qos_bits_are_malformed(clients: Clients, options: int) -> None:
    """[3.1.1 MQTT-3.8.3-4]"""
    peer = await clients.connect()
    await peer.send(frame(0x82, b"\x00\x01" + string("a") + bytes([options])))
    await peer.expect_closed()


@v5
@pytest.mark.parametrize("block", [b"\x02\x0b\x00", b"\x04\x0b\x01\x0b\x02"], ids=["zero", "twice"])
async def test_subscription_identifier_must_be_one_and_not_0(clients: Clients, block: bytes) -> None:
    """MQTT 5.0 section 3.8.2.1.2."""
    peer = await clients.connect()
    await peer.send(frame(0x82, b"\x00\x01" + block + string("a") + b"\x00"))
    await peer.expect_disconnect(0x82)


@pytest.mark.parametrize("filter", ["a/#/b", "a+", "#a", "a/b#", "+a/b", "a/+b/c", "##", "++"])
async def test_a_filter_that_is_none_is_refused(clients: Clients, filter: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]"""
    peer = await clients.connect()
    await peer.send(Subscribe(1, [TopicFilter(filter)]))
    assert (await peer.answer(Suback)).reason_codes == [0x8F if clients.version == 5 else 0x80]
    await peer.subscribe("a")


async def test_an_empty_filter_is_refused(clients: Clients) -> None:
    """[MQTT-4.7.3-1] [3.1.1 MQTT-4.7.3-1]"""
    peer = await clients.connect()
    await peer.send(Subscribe(1, [TopicFilter("")]))
    await peer.expect_disconnect(0x81, 0x82, 0x8F)


async def test_many_filters_in_one_packet(clients: Clients) -> None:
    """[MQTT-3.8.4-5]"""
    peer = await clients.connect()
    await peer.subscribe(*(f"{clients.topic}/{number}" for number in range(1000)), qos=1)
    await peer.publish(f"{clients.topic}/777", b"x", 1)
    await peer.expect_publish(f"{clients.topic}/777", b"x", 1)
    await peer.unsubscribe(*(f"{clients.topic}/{number}" for number in range(1000)))


async def test_what_follows_very_many_filters_waits_for_all_of_them(clients: Clients) -> None:
    """They are judged in turns; nothing of the client's overtakes."""
    peer = await clients.connect()
    filters = [TopicFilter(f"{clients.topic}/{number}", 0) for number in range(3000)]
    await peer.send(Subscribe(7, filters), Publish(f"{clients.topic}/2999", b"x", 0, False, False, 0, {}))
    suback = await peer.answer(Suback, packet_id=7)
    assert suback.reason_codes == [0] * 3000
    await peer.expect_publish(f"{clients.topic}/2999", b"x", 0)
    await peer.unsubscribe(*(each.filter for each in filters))


@v5
async def test_reason_codes_are_those_of_their_packets(clients: Clients) -> None:
    """Whatever is asked, SUBACK and UNSUBACK answer from their lists [MQTT-3.9.3-2] [MQTT-3.11.3-2]."""
    peer = await clients.connect()
    strange = ["#", "a/#/b", "$share/g", "$share//x", "$share/g/#", "$queue/", "$SYS/#", "/", "x" * 65_535, "+/" * 200]
    suback_codes = {0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
    unsuback_codes = {0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}
    await peer.send(Subscribe(1, [TopicFilter(filter, 2) for filter in strange]))
    suback = await peer.answer(Suback)
    assert len(suback.reason_codes) == len(strange)
    assert set(suback.reason_codes) <= suback_codes
    await peer.send(Unsubscribe(2, strange))
    unsuback = await peer.answer(Unsuback)
    assert len(unsuback.reason_codes) == len(strange)
    assert set(unsuback.reason_codes) <= unsuback_codes


# --- UNSUBSCRIBE and UNSUBACK ----------------------------------------------------------------------------------------


@v3_to_v5
async def test_unsuback_answers_every_unsubscribe(clients: Clients) -> None:
    """[MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [3.1.1 MQTT-3.10.4-4] [3.1.1 MQTT-3.10.4-5]
    [3.1.1 MQTT-3.10.4-6]"""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/a", f"{clients.topic}/b")
    await peer.unsubscribe(
        f"{clients.topic}/a",
        f"{clients.topic}/nothing",
        f"{clients.topic}/b",
        f"{clients.topic}/a",
        expect=[0, 0x11, 0, 0x11],
    )
    if clients.version < 5:
        assert len(peer.raw) == 4
    await peer.publish(f"{clients.topic}/a", b"x", 1)
    await peer.nothing()


async def test_unsubscribe_compares_to_the_letter(clients: Clients) -> None:
    """[MQTT-3.10.4-1] [3.1.1 MQTT-3.10.4-1]"""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/#")
    await peer.unsubscribe(f"{clients.topic}/+", f"{clients.topic}/a", f"{clients.topic.upper()}/#", expect=[0x11] * 3)
    await peer.publish(f"{clients.topic}/a", b"x", 1)
    await peer.expect_publish(f"{clients.topic}/a")


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_started_delivery_is_finished_after_unsubscribe(clients: Clients, qos: int) -> None:
    """[MQTT-3.10.4-2] [MQTT-3.10.4-3] [3.1.1 MQTT-3.10.4-2] [3.1.1 MQTT-3.10.4-3]"""
    peer = await clients.persistent(clients.name())
    topic = f"{clients.topic}/x"
    await peer.subscribe(topic, qos=qos)
    await peer.publish(topic, b"started", 2)
    started = await peer.expect_publish(acknowledge=False)
    await peer.unsubscribe(topic)
    await peer.publish(topic, b"not started", 2)
    await peer.nothing()
    await peer.drop()
    back = await clients.persistent(peer.client_id, session_present=True)
    again = await back.expect_publish(topic, b"started", qos, dup=True, packet_id=started.packet_id)
    assert again.payload == b"started"
    await back.nothing()


# --- options of 5.0 --------------------------------------------------------------------------------------------------


@v5
async def test_no_local_is_about_the_client_identifier(clients: Clients) -> None:
    """Also for what its earlier connection sent, and for its will [MQTT-3.8.3-3]."""
    name = clients.name()
    peer = await clients.persistent(name)
    topic = f"{clients.topic}/x"
    await peer.subscribe(topic, qos=1, no_local=True)
    await peer.publish(topic, b"mine", 1)
    await peer.nothing()
    other = await clients.connect()
    await other.publish(topic, b"yours", 1, expect=0)
    await peer.expect_publish(topic, b"yours")
    await peer.disconnect()
    back = await clients.persistent(name, session_present=True)
    await back.publish(topic, b"mine again", 1)
    await back.nothing()


@v5
async def test_no_local_on_a_shared_subscription_is_a_protocol_error(clients: Clients) -> None:
    """Said, then closed [MQTT-3.8.3-4] [MQTT-3.14.4-2]."""
    peer = await clients.connect()
    await peer.send(Subscribe(1, [TopicFilter(f"$share/g/{clients.topic}", 1, True)]))
    await peer.expect_disconnect(0x82)


@v5
async def test_no_local_holds_back_only_its_own_filter(clients: Clients) -> None:
    """[MQTT-3.8.3-3]"""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/x", qos=2, no_local=True, identifier=1)
    await peer.subscribe(f"{clients.topic}/+", qos=1, identifier=2)
    await peer.publish(f"{clients.topic}/x", b"mine", 2)
    message = await peer.expect_publish(f"{clients.topic}/x", b"mine", 1)
    assert message.properties == {c.SUBSCRIPTION_IDENTIFIER: [2]}
    await peer.nothing()


@v5
async def test_retain_as_published(clients: Clients) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    topic = f"{clients.topic}/x"
    keeping, clearing = await clients.connect(), await clients.connect()
    await keeping.subscribe(topic, qos=1, retain_as_published=True)
    await clearing.subscribe(topic, qos=1)
    for retain in (True, False):
        await keeping.publish(topic, b"x", 1, retain)
        await keeping.expect_publish(topic, b"x", retain=retain)
        await clearing.expect_publish(topic, b"x", retain=False)
    late = await clients.connect()
    await late.subscribe(topic)
    await late.expect_publish(topic, b"x", retain=True)
    await late.publish(topic, b"", 1, True)


@v5
@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
async def test_retain_handling(clients: Clients, handling: int, first: int, again: int) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    name, topic = clients.name(), f"{clients.topic}/x"
    peer = await clients.persistent(name)
    await peer.publish(topic, b"kept", 1, True)
    for expected in (first, again):
        await peer.subscribe(topic, qos=1, retain_handling=handling)
        assert await payloads(peer) == [b"kept"] * expected
    await peer.disconnect()
    back = await clients.persistent(name, session_present=True)
    await back.subscribe(topic, qos=1, retain_handling=handling)
    assert await payloads(back) == [b"kept"] * again
    await back.unsubscribe(topic)
    await back.subscribe(topic, qos=1, retain_handling=handling)
    assert await payloads(back) == [b"kept"] * first
    await back.publish(topic, b"", 1, True)


async def test_resuming_a_session_brings_no_retained_message(clients: Clients) -> None:
    """[MQTT-3.3.1-9]"""
    name, topic = clients.name(), f"{clients.topic}/x"
    peer = await clients.persistent(name)
    await peer.publish(topic, b"kept", 1, True)
    await peer.subscribe(topic, qos=1)
    await peer.expect_publish(topic, b"kept")
    await peer.disconnect()
    back = await clients.persistent(name, session_present=True)
    await back.nothing()
    await back.publish(topic, b"", 1, True)


# --- identifiers and overlap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(2, 1), (1, 2), (0, 2), (2, 0)])
async def test_overlapping_filters_bring_one_copy_with_the_highest_qos(
    clients: Clients, order: tuple[int, int]
) -> None:
    """[MQTT-3.3.4-2] [3.1.1 MQTT-3.3.5-1]"""
    peer = await clients.connect()
    await peer.subscribe(TopicFilter(f"{clients.topic}/#", order[0]), TopicFilter(f"{clients.topic}/+", order[1]))
    await peer.publish(f"{clients.topic}/x", b"once", 2)
    await peer.expect_publish(f"{clients.topic}/x", b"once", 2)
    await peer.nothing()


@v5
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_all_matching_identifiers_come_with_the_copy(clients: Clients, qos: int) -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/x", qos=2, identifier=1)
    await peer.subscribe(f"{clients.topic}/+", qos=2, identifier=268_435_455)
    await peer.subscribe(f"{clients.topic}/#", qos=2)
    await peer.subscribe(f"{clients.topic}/other", qos=2, identifier=3)
    await peer.publish(f"{clients.topic}/x", b"x", qos)
    message = await peer.expect_publish(f"{clients.topic}/x", b"x", qos)
    assert sorted(message.properties.pop(c.SUBSCRIPTION_IDENTIFIER)) == [1, 268_435_455]
    assert message.properties == {}
    await peer.nothing()


@v5
async def test_identifiers_come_with_retained_and_queued_messages(clients: Clients) -> None:
    """[MQTT-3.3.4-3]"""
    name, topic = clients.name(), f"{clients.topic}/x"
    peer = await clients.persistent(name)
    await peer.publish(topic, b"kept", 1, True)
    await peer.subscribe(topic, qos=1, identifier=42)
    message = await peer.expect_publish(topic, b"kept", retain=True)
    assert message.properties == {c.SUBSCRIPTION_IDENTIFIER: [42]}
    await peer.disconnect()
    other = await clients.connect()
    await other.publish(topic, b"queued", 1)
    back = await clients.persistent(name, session_present=True)
    message = await back.expect_publish(topic, b"queued")
    assert message.properties == {c.SUBSCRIPTION_IDENTIFIER: [42]}
    await other.publish(topic, b"", 1, True)


@v5
async def test_replacing_a_subscription_replaces_or_removes_its_identifier(clients: Clients) -> None:
    """[MQTT-3.8.4-3]"""
    peer = await clients.connect()
    topic = f"{clients.topic}/x"
    for identifier in (1, 2, None):
        await peer.subscribe(topic, identifier=identifier)
        await peer.publish(topic, b"x")
        message = await peer.expect_publish(topic)
        assert message.properties == ({} if identifier is None else {c.SUBSCRIPTION_IDENTIFIER: [identifier]})


@v5
async def test_a_client_must_not_publish_a_subscription_identifier(clients: Clients) -> None:
    """[MQTT-3.3.4-6]"""
    peer = await clients.connect()
    await peer.send(Publish(clients.topic, b"x", properties={c.SUBSCRIPTION_IDENTIFIER: [1]}))
    await peer.expect_disconnect(0x82)


@v5
async def test_connack_says_that_everything_is_available(clients: Clients) -> None:
    """Absent means yes (MQTT 5.0 sections 3.2.2.3.11 to 13)."""
    peer = await clients.connect()
    for identifier in (
        c.WILDCARD_SUBSCRIPTION_AVAILABLE,
        c.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        c.SHARED_SUBSCRIPTION_AVAILABLE,
        c.RETAIN_AVAILABLE,
    ):
        assert peer.connack.properties.get(identifier, 1) == 1
    assert c.MAXIMUM_QOS not in peer.connack.properties


@v4
async def test_delivery_to_3_1_1_carries_no_properties(clients: Clients) -> None:
    """[MQTT-3.3.2-4]"""
    peer, five = await clients.connect(), await clients.connect(version=5)
    await peer.subscribe(clients.topic, qos=1)
    await five.publish(clients.topic, b"x", 1, properties={c.USER_PROPERTY: [("a", "b")], c.CONTENT_TYPE: "t"})
    await peer.expect_publish(clients.topic, b"x", 1)
    assert peer.raw == frame(0x32, string(clients.topic) + b"\x00\x01" + b"x")


async def test_unsubscribing_a_filter_that_is_none_is_refused(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.send(Unsubscribe(1, ["a/#/b", "a/b"]))
    unsuback = await peer.answer(Unsuback)
    if clients.version == 5:
        assert unsuback.reason_codes == [0x8F, 0x11]


@v5
async def test_an_answer_above_the_clients_maximum_packet_size(clients: Clients) -> None:
    """[MQTT-3.1.2-24]: the client is told why, and has no subscription that it was not told of."""
    peer = await clients.persistent(clients.name(), properties={c.MAXIMUM_PACKET_SIZE: 100})
    await peer.send(Subscribe(1, [TopicFilter(clients.topic, 1)] * 200))
    await peer.expect_disconnect(0x95)
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"x", 1, expect=0x10)
    back = await clients.persistent(peer.client_id, session_present=True)
    await back.nothing()


async def test_suback_comes_before_the_retained_messages(clients: Clients) -> None:
    """What public suites expect, though [MQTT-3.8.4-1] leaves it open."""
    publisher = await clients.connect()
    topic = f"{clients.topic}/x"
    await publisher.publish(topic, b"kept", 1, True)
    peer = await clients.connect()
    await peer.send(Subscribe(5, [TopicFilter(topic, 1)]))
    assert type(await peer.receive()).__name__ == "Suback"
    assert [each.payload for each in await until_quiet(peer)] == [b"kept"]
    await publisher.publish(topic, b"", 1, True)
