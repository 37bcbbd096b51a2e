"""MqttClient against another side that says, takes and refuses what a test wants, down to the bytes."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Ack, Connack, Connect, Disconnect, Pingreq, Suback, Subscribe
from taipan.ruleengine.mqtt_client.client import MqttClient
from taipan.ruleengine.mqtt_client.connection import MAX_PACKET_SIZE, RECEIVE_MAXIMUM, BrokerUnreachable
from taipan.ruleengine.mqtt_client.stream import Address
from tests.ruleengine.mqtt_client.other_side import Kept, Visit, client_of, message, other_side, running
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

every_version = pytest.mark.parametrize("version", [3, 4, 5])
with_sessions = pytest.mark.parametrize("version", [4, 5])


async def stay(visit: Visit) -> None:
    """Accept, and let the client be."""
    await visit.accept()
    await visit.gone()


async def acknowledge(visit: Visit, packet: Message, code: int = 0) -> None:
    """The whole handshake of one PUBLISH."""
    if packet.qos == 1:
        await visit.send(Ack(c.PUBACK, packet.packet_id, code))
    elif packet.qos == 2:
        await visit.send(Ack(c.PUBREC, packet.packet_id, code))
        if code < 0x80:
            assert await visit.ack() == (c.PUBREL, packet.packet_id)
            await visit.send(Ack(c.PUBCOMP, packet.packet_id))


async def connected(client: MqttClient) -> None:
    await until(lambda: client.connected)


def publishing(client: MqttClient, *messages: Message) -> list[asyncio.Task[int]]:
    """Each under a key that the task is asked for, so that it can be tried again under it."""
    return [asyncio.ensure_future(client.publish(each, each)) for each in messages]


# --- out


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_counts_as_there_when_the_other_side_has_it(version: int, qos: int) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1]"""
    held = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.accept()
        packet = await visit.expect(Message)
        assert (packet.topic, packet.payload, packet.qos, packet.retain, packet.dup) == ("t", b"x", qos, True, False)
        await held.wait()
        await acknowledge(visit, packet)
        await visit.gone()

    async with other_side(script) as there, running(client_of(there.port, version)) as client:
        await connected(client)
        (task,) = publishing(client, message(b"x", qos, True))
        await until(lambda: there.visits and (qos == 0) == task.done())
        held.set()
        assert await task == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("code", [rc.NOT_AUTHORIZED, rc.QUOTA_EXCEEDED, rc.NO_MATCHING_SUBSCRIBERS])
async def test_the_other_sides_reason_code_is_the_answer(qos: int, code: int) -> None:
    """[MQTT-4.3.3-4] no PUBREL follows a PUBREC that says no."""

    async def script(visit: Visit) -> None:
        await visit.accept()
        await acknowledge(visit, await visit.expect(Message), code)
        await acknowledge(visit, await visit.expect(Message))
        await visit.gone()

    async with other_side(script) as there, running(client_of(there.port, 5)) as client:
        await connected(client)
        assert await client.publish("k", message(b"x", qos)) == (0 if qos == 2 and code < 0x80 else code)
        assert await client.publish("l", message(b"y", qos)) == 0


async def test_a_receive_maximum_of_one_is_kept_to_and_the_order_too() -> None:
    """[MQTT-3.3.4-7] [MQTT-4.9.0-2]"""
    seen = []

    async def script(visit: Visit) -> None:
        await visit.accept(properties={c.RECEIVE_MAXIMUM: 1})
        for _ in range(20):
            packet = await visit.expect(Message)
            seen.append(packet.payload)
            assert visit.buffered == []  # the client has all twenty, and writes what it may in one piece
            await acknowledge(visit, packet)
        await visit.gone()

    async with other_side(script) as there, running(client_of(there.port, 5)) as client:
        await connected(client)
        messages = [message(b"%d" % number) for number in range(20)]
        assert await asyncio.gather(*publishing(client, *messages)) == [0] * 20
        assert seen == [each.payload for each in messages]


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_is_larger_than_the_other_side_takes_is_refused_here_and_holds_up_nothing(qos: int) -> None:
    """[MQTT-3.2.2-15]"""

    async def script(visit: Visit) -> None:
        await visit.accept(properties={c.MAXIMUM_PACKET_SIZE: 100})
        packet = await visit.expect(Message)
        assert packet.payload == b"small"
        await acknowledge(visit, packet)
        await visit.gone()

    async with other_side(script) as there, running(client_of(there.port, 5)) as client:
        await connected(client)
        tasks = publishing(client, message(b"x" * 100, qos), message(b"small", qos))
        assert await asyncio.gather(*tasks) == [rc.PACKET_TOO_LARGE, 0]


async def test_qos_and_retain_are_no_more_than_the_other_side_takes() -> None:
    """[MQTT-3.2.2-11] [MQTT-3.2.2-14]"""

    async def script(visit: Visit) -> None:
        await visit.accept(properties={c.MAXIMUM_QOS: 1, c.RETAIN_AVAILABLE: 0})
        packet = await visit.expect(Message)
        assert packet.qos == 1 and not packet.retain
        await acknowledge(visit, packet)
        await visit.gone()

    async with other_side(script) as there, running(client_of(there.port, 5)) as client:
        await connected(client)
        assert await client.publish("k", message(b"x", 2, True)) == 0


@with_sessions
async def test_what_was_in_flight_is_sent_again_as_it_was(version: int) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] in order, with DUP and its Packet Identifier; after PUBREC only PUBREL."""
    first: list[Message] = []

    async def breaks(visit: Visit) -> None:
        await visit.accept()
        first.extend([await visit.expect(Message) for _ in range(3)])
        await visit.send(Ack(c.PUBREC, first[1].packet_id))
        assert await visit.ack() == (c.PUBREL, first[1].packet_id)

    async def goes_on(visit: Visit) -> None:
        connect = await visit.accept(present=True)
        assert not connect.clean_start
        again = await visit.expect(Message)
        assert (again.payload, again.packet_id, again.dup) == (b"1", first[0].packet_id, True)
        assert await visit.ack() == (c.PUBREL, first[1].packet_id)
        again = await visit.expect(Message)
        assert (again.payload, again.packet_id, again.dup) == (b"3", first[2].packet_id, True)
        fresh = await visit.expect(Message)
        assert (fresh.payload, fresh.dup) == (b"4", False)
        kinds = {first[0].packet_id: c.PUBACK, first[1].packet_id: c.PUBCOMP, first[2].packet_id: c.PUBACK}
        for number, kind in {**kinds, fresh.packet_id: c.PUBACK}.items():
            await visit.send(Ack(kind, number))
        await visit.gone()

    async with other_side(breaks, goes_on) as there, running(client_of(there.port, version)) as client:
        await connected(client)
        messages = [message(b"1", 1), message(b"2", 2), message(b"3", 1)]
        failed = await asyncio.gather(*publishing(client, *messages), return_exceptions=True)
        assert all(isinstance(each, BrokerUnreachable) for each in failed)
        await until(lambda: len(there.visits) == 2 and client.connected)
        assert await asyncio.gather(*publishing(client, *messages, message(b"4"))) == [0] * 4


@with_sessions
async def test_an_answer_that_comes_before_anybody_asks_again_is_kept_for_who_asks(version: int) -> None:
    answered = asyncio.Event()

    async def breaks(visit: Visit) -> None:
        await visit.accept()
        await visit.expect(Message)

    async def goes_on(visit: Visit) -> None:
        await visit.accept(present=True)
        await acknowledge(visit, await visit.expect(Message))
        answered.set()
        await acknowledge(visit, await visit.expect(Message))
        await visit.gone()

    async with other_side(breaks, goes_on) as there, running(client_of(there.port, version)) as client:
        await connected(client)
        one = message(b"x")
        with pytest.raises(BrokerUnreachable):
            await client.publish(one, one)
        await answered.wait()
        two = message(b"y", 1)
        assert await client.publish(two, two) == 0  # so the first one has been answered
        assert await client.publish(one, message(b"x")) == 0


@every_version
async def test_a_session_that_is_gone_gets_new_messages(version: int) -> None:
    """[MQTT-3.2.2-5]"""

    async def breaks(visit: Visit) -> None:
        await visit.accept()
        await visit.expect(Message)

    async def goes_on(visit: Visit) -> None:
        await visit.accept(present=False)
        packet = await visit.expect(Message)
        assert packet.payload == b"x" and not packet.dup
        await acknowledge(visit, packet)
        await visit.gone()

    async with other_side(breaks, goes_on) as there, running(client_of(there.port, version)) as client:
        await connected(client)
        one = message(b"x", 2)
        with pytest.raises(BrokerUnreachable):
            await client.publish(one, one)
        await until(lambda: len(there.visits) == 2 and client.connected)
        assert await client.publish(one, message(b"x", 2)) == 0


async def test_a_session_of_5_0_is_begun_anew_by_each_process_and_ended_by_a_stop() -> None:
    connects: list[Connect] = []

    async def script(visit: Visit) -> None:
        connects.append(await visit.accept(present=len(connects) > 0))
        if len(connects) > 1:
            goodbye = await visit.expect(Disconnect)
            assert goodbye.properties == {c.SESSION_EXPIRY_INTERVAL: 0}

    async with other_side(script) as there:
        async with running(client_of(there.port, 5)) as client:
            await until(lambda: len(connects) == 2 and client.connected)
        await until(lambda: there.done == 2)
    assert [each.clean_start for each in connects] == [True, False]
    assert all(each.properties[c.SESSION_EXPIRY_INTERVAL] > 0 for each in connects)


async def test_a_session_of_3_1_1_that_another_process_left_is_ended_first_and_ours_at_the_stop() -> None:
    """Its Packet Identifiers would stand for other messages, and a new one would count as known there."""
    connects: list[bool] = []

    async def script(visit: Visit) -> None:
        present = len(connects) == 0
        connects.append((await visit.accept(present=present)).clean_start)
        await visit.expect(Disconnect)

    async with other_side(script) as there:
        async with running(client_of(there.port, 4)) as client:
            await connected(client)
            assert connects == [False, True, False]
        assert connects == [False, True, False, True]


async def test_without_an_acknowledgement_the_connection_is_made_anew() -> None:
    """[MQTT-4.4.0-1] and nothing is sent twice on one."""

    async def silent(visit: Visit) -> None:
        await visit.accept()
        await visit.expect(Message)
        await visit.gone()

    async with other_side(silent) as there, running(client_of(there.port, 4, answer_timeout=0.05)) as client:
        await connected(client)
        with pytest.raises(BrokerUnreachable, match=r"no acknowledgement within 0\.05 seconds"):
            await client.publish("k", message(b"x"))
        await until(lambda: len(there.visits) == 2)


async def test_a_side_that_reads_nothing_is_left_and_holds_little_memory() -> None:
    async def deaf(visit: Visit) -> None:
        await visit.accept()
        await asyncio.sleep(60)

    async with other_side(deaf) as there, running(client_of(there.port, 4, answer_timeout=0.3)) as client:
        await connected(client)
        tasks = publishing(client, *(message(b"x" * 1_000_000, 0) for _ in range(64)))
        connection = client._connection
        assert connection is not None
        assert connection._unsent_octets < 3_000_000
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [each for each in results if isinstance(each, BrokerUnreachable)]
        assert failed and "read nothing" in str(failed[0])


async def test_wrong_acknowledgements_end_the_connection_and_unknown_ones_do_not() -> None:
    async def script(visit: Visit) -> None:
        await visit.accept()
        packet = await visit.expect(Message)
        await visit.send(Ack(c.PUBACK, 999), Ack(c.PUBCOMP, 998), Ack(c.PUBREC, 997))
        assert await visit.read() == Ack(c.PUBREL, 997, rc.PACKET_IDENTIFIER_NOT_FOUND)
        await visit.send(Ack(c.PUBREC, packet.packet_id))
        goodbye = await visit.expect(Disconnect)
        assert goodbye.reason_code == rc.PROTOCOL_ERROR
        await visit.gone()

    async with other_side(script, stay) as there, running(client_of(there.port, 5)) as client:
        await connected(client)
        with pytest.raises(BrokerUnreachable, match="does not acknowledge QoS 1"):
            await client.publish("k", message(b"x"))


# --- in


@every_version
async def test_ten_thousand_messages_while_nothing_can_be_stored_are_not_read(version: int) -> None:
    """[MQTT-4.3.2-4] [MQTT-4.6.0-2] Acknowledged only when stored, and in order."""
    acks: list[int] = []
    written = 0
    payload = b"x" * 1000

    async def script(visit: Visit) -> None:
        nonlocal written
        await visit.accept()
        await visit.subscribed()

        async def write() -> None:
            nonlocal written
            for number in range(1, 10_001):
                await visit.send(Message("in/x", payload, 1, packet_id=number))
                written += 1

        writing = asyncio.ensure_future(write())
        while len(acks) < 10_000:
            acks.append((await visit.ack())[1])
        await writing
        await visit.gone()

    kept = Kept()
    kept.store.clear()
    async with other_side(script) as there, running(client_of(there.port, version, kept)) as client:
        await connected(client)
        await until(lambda: len(kept.messages) >= RECEIVE_MAXIMUM)
        before = -1
        while before != written:  # until the sockets are full
            before = written
            await asyncio.sleep(0.1)
        assert len(kept.messages) == RECEIVE_MAXIMUM and written < 10_000 and acks == []
        kept.store.set()
        await until(lambda: len(acks) == 10_000)
        assert acks == list(range(1, 10_001)) and len(kept.messages) == 10_000


async def test_nothing_is_read_while_there_is_no_room_and_that_is_no_silence_of_the_other_side() -> None:
    async def script(visit: Visit) -> None:
        await visit.accept()
        await visit.subscribed()
        await full.wait()
        for number in range(1000):
            await visit.send(Message("in/x", b"%d" % number + b"x" * 1000, 0))
        while isinstance(await visit.read(), Pingreq):
            pass  # answered by nothing: while the client does not read it cannot know

    kept = Kept()
    full = asyncio.Event()
    async with other_side(script) as there, running(client_of(there.port, 4, kept, keep_alive=1)) as client:
        await connected(client)
        kept.room.clear()
        full.set()
        await asyncio.sleep(2.5)
        assert client.connected and len(kept.messages) < 1000
        kept.room.set()
        await until(lambda: len(kept.messages) == 1000)
        # Now it reads, and hears nothing.
        await until(lambda: len(there.visits) == 2)


async def test_a_flood_of_tiny_messages_leaves_turns_to_others() -> None:
    async def script(visit: Visit) -> None:
        await visit.accept()
        await visit.subscribed()
        visit.writer.write(b"\x30\x03\x00\x01a" * 50_000)
        await visit.gone()

    kept = Kept()
    async with other_side(script) as there, running(client_of(there.port, 4, kept)) as client:
        await connected(client)
        most = 0
        while len(kept.messages) < 50_000:
            before = len(kept.messages)
            await asyncio.sleep(0)
            most = max(most, len(kept.messages) - before)
        assert 0 < most <= 200


@with_sessions
async def test_qos_2_is_taken_once_also_over_a_lost_connection(version: int) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-11]"""
    kept = Kept()

    async def breaks(visit: Visit) -> None:
        await visit.accept()
        await visit.subscribed()
        await visit.send(Message("in/1", b"1", 2, packet_id=1))
        assert await visit.ack() == (c.PUBREC, 1)
        kept.store.clear()
        await visit.send(Message("in/2", b"2", 2, packet_id=2))
        await until(lambda: len(kept.messages) == 2)

    async def goes_on(visit: Visit) -> None:
        await visit.accept(present=True)
        await visit.subscribed()
        kept.store.set()
        for number in (1, 2):
            await visit.send(Message(f"in/{number}", b"%d" % number, 2, packet_id=number, dup=True))
            assert await visit.ack() == (c.PUBREC, number)
            await visit.send(Ack(c.PUBREL, number))
            assert await visit.ack() == (c.PUBCOMP, number)
        await visit.send(Ack(c.PUBREL, 1))
        found = await visit.read()
        if version == 5:
            assert found == Ack(c.PUBCOMP, 1, rc.PACKET_IDENTIFIER_NOT_FOUND)
        await visit.send(Message("in/1", b"3", 2, packet_id=1))
        assert await visit.ack() == (c.PUBREC, 1)
        await visit.gone()

    async with other_side(breaks, goes_on) as there, running(client_of(there.port, version, kept)):
        await until(lambda: len(kept.messages) == 3)
        assert kept.payloads == [b"1", b"2", b"3"]


@every_version
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_cannot_be_stored_is_not_acknowledged_and_comes_again(version: int, qos: int) -> None:
    kept = Kept()
    kept.trouble = True

    async def breaks(visit: Visit) -> None:
        await visit.accept()
        await visit.subscribed()
        await visit.send(Message("in/1", b"1", qos, packet_id=1))
        await visit.gone()

    async def goes_on(visit: Visit) -> None:
        kept.trouble = False
        await visit.accept(present=True)
        await visit.subscribed()
        await visit.send(Message("in/1", b"1", qos, packet_id=1, dup=True))
        assert await visit.ack() == (c.PUBACK if qos == 1 else c.PUBREC, 1)
        await visit.gone()

    async with other_side(breaks, goes_on) as there, running(client_of(there.port, version, kept)) as client:
        await until(lambda: len(there.visits) == 2 and len(kept.messages) == 2)
        await connected(client)


async def test_a_session_of_a_subscriber_stays_there_when_it_stops() -> None:
    connects: list[Connect] = []

    async def script(visit: Visit) -> None:
        connects.append(await visit.accept())
        await visit.subscribed()
        assert (await visit.expect(Disconnect)).properties == {}

    async with other_side(script) as there, running(client_of(there.port, 5, Kept())) as client:
        await connected(client)
    (connect,) = connects
    assert not connect.clean_start
    assert connect.properties == {
        c.SESSION_EXPIRY_INTERVAL: c.NEVER_EXPIRES,
        c.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM,
        c.MAXIMUM_PACKET_SIZE: MAX_PACKET_SIZE,
    }


# --- how it ends


async def ended(script: Any, version: int = 5, receiver: Kept | None = None, **options: Any) -> str:
    """Why the first connection ended, or did not come about."""
    client = client_of(0, version, receiver, **options)
    async with other_side(script) as there:
        client._options = client._options._replace(address=client._options.address._replace(port=there.port))
        reasons: list[str] = []
        client._on_change = lambda: reasons.append(client.reason)
        async with running(client):
            await until(lambda: any(reasons))
    return next(filter(None, reasons))


@pytest.mark.parametrize(
    "octets, code, said",
    [
        (b"\x36\x05\x00\x01tx\x00", rc.MALFORMED_PACKET, "QoS 3"),
        (b"\x00\x00", rc.PROTOCOL_ERROR, "reserved packet type 0"),
        (b"\x10\x00", rc.PROTOCOL_ERROR, "only a client sends"),
        (b"\x32\xff\xff\xff\x7f", rc.PACKET_TOO_LARGE, f"{MAX_PACKET_SIZE} allowed"),
        (b"\x30\xff\xff\xff\xff\x01", rc.MALFORMED_PACKET, "Remaining Length"),
        (b"\x20\x03\x00\x00\x00", rc.PROTOCOL_ERROR, "second CONNACK"),
        (b"\x30\x08\x00\x01a\x03\x23\x00\x01x", rc.TOPIC_ALIAS_INVALID, "Topic Alias"),
        (b"\xb0\x04\x00\x01\x00\x00", rc.PROTOCOL_ERROR, "UNSUBACK"),
    ],
)
async def test_bad_bytes_end_the_connection_with_what_is_wrong_with_them(octets: bytes, code: int, said: str) -> None:
    goodbyes: list[int] = []

    async def script(visit: Visit) -> None:
        await visit.accept()
        await visit.subscribed()
        await visit.send(octets)
        goodbyes.append((await visit.expect(Disconnect)).reason_code)
        await visit.gone()

    reason = await ended(script, receiver=Kept())
    assert reason.startswith("bad packet: ") and said in reason
    assert goodbyes[0] == code


async def test_nothing_is_taken_before_the_connack_and_nothing_that_was_not_asked_for() -> None:
    async def early(visit: Visit) -> None:
        await visit.expect(Connect)
        await visit.send(Message("in/x", b"x"))
        await visit.expect(Disconnect)

    async def unasked(visit: Visit) -> None:
        await visit.accept()
        await visit.send(Message("in/x", b"x"))
        await visit.expect(Disconnect)

    assert "no CONNACK" in await ended(early)
    assert "without a subscription" in await ended(unasked)


async def test_what_the_other_side_says_when_it_disconnects_is_the_reason() -> None:
    async def script(visit: Visit) -> None:
        await visit.accept()
        await visit.send(Disconnect(rc.SERVER_MOVED, {c.REASON_STRING: "go\x1bthere", c.SERVER_REFERENCE: "b:1883"}))

    async def closes(visit: Visit) -> None:
        await visit.accept()

    assert await ended(script) == r"DISCONNECT: server_moved go\x1bthere b:1883"
    assert await ended(closes) == "the other side closed the connection"


@pytest.mark.parametrize(
    "version, code, said",
    [
        (3, 1, "CONNACK: unacceptable protocol version"),
        (3, 2, "CONNACK: identifier rejected"),
        (4, 3, "CONNACK: server unavailable"),
        (4, 4, "CONNACK: bad username or password"),
        (4, 5, "CONNACK: not authorized"),
        (5, rc.BAD_USER_NAME_OR_PASSWORD, "CONNACK: bad_username_or_password"),
        (5, rc.SERVER_BUSY, "CONNACK: server_busy"),
        (5, rc.BANNED, "CONNACK: banned"),
    ],
)
async def test_a_refused_connection_says_why(version: int, code: int, said: str) -> None:
    async def script(visit: Visit) -> None:
        await visit.expect(Connect)
        await visit.send(b"\x20\x02\x00" + bytes([code]) if version < 5 else Connack(code))

    assert await ended(script, version) == said


async def test_subscriptions_that_are_refused_are_named() -> None:
    async def refuses(visit: Visit) -> None:
        await visit.accept()
        subscribe = await visit.expect(Subscribe)
        await visit.send(Suback(subscribe.packet_id, [rc.NOT_AUTHORIZED]))
        await visit.gone()

    async def miscounts(visit: Visit) -> None:
        await visit.accept()
        subscribe = await visit.expect(Subscribe)
        await visit.send(Suback(subscribe.packet_id, [0, 0]))
        await visit.gone()

    async def small(visit: Visit) -> None:
        await visit.accept(properties={c.MAXIMUM_PACKET_SIZE: 10})
        await visit.gone()

    async def never(visit: Visit) -> None:
        await visit.accept()
        await visit.expect(Subscribe)
        await visit.gone()

    assert await ended(refuses, receiver=Kept()) == "SUBACK: refused in/# (not_authorized)"
    assert await ended(miscounts, receiver=Kept()) == "SUBACK: not the answer to this SUBSCRIBE"
    assert "other side accepts 10" in await ended(small, receiver=Kept())
    assert await ended(never, receiver=Kept(), connect_timeout=0.1) == "no answer in time"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("path", ["", "/mqtt"])
async def test_a_side_that_hangs_in_the_handshake_is_left(path: str, tls: bool) -> None:
    async def silent(visit: Visit) -> None:
        while await visit.reader.read(1000):
            pass

    context = ssl.create_default_context() if tls else None
    assert await ended(silent, connect_timeout=0.1, path=path, tls=context) == "no answer in time"


@pytest.mark.parametrize(
    "answer, said",
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
        (b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "302"),
        (b"\x20\x02\x00\x00\r\n\r\n", "WebSocket handshake"),
        (b"", "WebSocket handshake"),
    ],
)
async def test_a_handshake_of_websocket_that_fails_says_why(answer: bytes, said: str) -> None:
    async def script(visit: Visit) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        visit.writer.write(answer)

    assert said in await ended(script, path="/mqtt")


@pytest.mark.parametrize("text", [False, True])
async def test_a_websocket_that_is_closed_or_misused_says_why(text: bool) -> None:
    async def handle(socket: ServerConnection) -> None:
        await socket.recv()
        if text:
            await socket.send("no MQTT")
            await socket.wait_closed()
        else:
            await socket.close(1008, "you are\x1b not wanted")

    async with serve(handle, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        client = client_of(server.sockets[0].getsockname()[1], path="/mqtt")
        said = r"WebSocket: text frame" if text else r"WebSocket closed: 1008 .*you are\\x1b not wanted"
        with pytest.raises(BrokerUnreachable, match=said):
            await client.try_once()


async def test_a_user_and_a_will_to_stay_alive_are_told() -> None:
    told: list[Connect] = []

    async def script(visit: Visit) -> None:
        told.append(await visit.accept())

    await ended(script, 3, username="u", password="p", keep_alive=7, bridge_mode=True)
    connect = told[0]
    assert (connect.version, connect.username, connect.password, connect.keep_alive) == (3, "u", b"p", 7)
    assert connect.is_bridge and connect.client_id == "me" and connect.clean_start
    told.clear()
    await ended(script, 5, password="only")  # 5.0 takes a password without a user name
    assert told[0].username is None and told[0].password == b"only"


async def test_pings_go_out_in_time_and_by_the_keep_alive_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """[MQTT-3.2.2-21] [MQTT-3.1.2-20]"""
    pings = 0
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds > 1:
            pauses.append(seconds)
        await real(seconds)

    async def script(visit: Visit) -> None:
        nonlocal pings
        await visit.accept(properties={c.SERVER_KEEP_ALIVE: 3})
        for _ in range(2):
            await visit.expect(Pingreq)
            pings += 1
            await visit.send(b"\xd0\x00")
        await visit.gone()

    monkeypatch.setattr("taipan.ruleengine.mqtt_client.connection.asyncio.sleep", sleep)
    async with other_side(script) as there, running(client_of(there.port, 5, keep_alive=600)) as client:
        await connected(client)
        await until(lambda: pings == 2)
        assert client.connected and all(2.0 < each < 2.5 for each in pauses[:2]), pauses


async def test_the_pauses_between_attempts_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    async def refuses(visit: Visit) -> None:
        await visit.expect(Connect)
        await visit.send(Connack(rc.SERVER_BUSY))

    async with other_side(refuses) as there:
        client = client_of(there.port, 5, reconnect_interval=10.0)
        monkeypatch.setattr("taipan.ruleengine.mqtt_client.client.asyncio.sleep", sleep)
        async with running(client):
            while len([each for each in pauses if each]) < 7:
                await real(0.002)
    longest = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert all(0.5 * most <= each <= most for each, most in zip(filter(None, pauses), longest, strict=False))


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "a..b"])
async def test_a_name_that_is_none_is_tried_again_and_says_so(host: str) -> None:
    client = client_of(1883)
    client._options = client._options._replace(address=Address(host, 1883))
    with pytest.raises(BrokerUnreachable):
        await client.try_once()
    async with running(client):
        await until(lambda: "not tried" not in client.reason)
        assert client._task is not None and not client._task.done()
