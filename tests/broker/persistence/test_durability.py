"""Durability: nothing is said before what it says is on the disk, in the order that MQTT wants; nothing else waits."""

import asyncio

import pytest

from taipan.broker.channel.dispatcher import PUBLISHES_PER_ITERATION
from taipan.broker.core.memory import Memory
from taipan.broker.loop.budget import DELIVERIES_PER_ITERATION
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import (
    Ack,
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)
from taipan.broker.persistence.log import records
from taipan.broker.session.memory_account import REFUSING
from taipan.broker.store.compaction import live_bytes
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_node import FakeClient
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio
versions = pytest.mark.parametrize("version", [4, 5])


async def subscribed(node: DurableFakeNode, client_id: str = "r", qos: int = 2, version: int = 5) -> FakeClient:
    """A durable session with the subscription ``t/#``."""
    reader = await node.connect_durable(client_id, version)
    reader.send(Subscribe(1, [TopicFilter("t/#", qos)]))
    node.store()
    assert reader.received() == [Suback(1, [qos])]
    return reader


def acks(client: FakeClient) -> list[tuple[int, int]]:
    packets = client.received()
    assert all(isinstance(each, Ack) for each in packets), packets
    return [(each.type, each.packet_id) for each in packets]  # type: ignore[union-attr]


# --- clean sessions -------------------------------------------------------------------------------------------------


async def test_sessions_that_end_with_their_connection_write_no_record() -> None:
    node = DurableFakeNode()
    for version in (3, 4, 5):
        reader = node.connect(f"r{version}", version=version)
        reader.subscribe("t", qos=2)
        writer = node.connect(f"w{version}", version=version)
        for qos in (0, 1, 2):
            writer.publish("t", b"x", qos, 5)
        writer.send(Ack(c.PUBREL, 5))
        assert [kind for kind, _ in acks(writer)] == [c.PUBACK, c.PUBREC, c.PUBCOMP]
        packets = reader.received()
        reader.send(*(Ack(c.PUBACK if each.qos == 1 else c.PUBREC, each.packet_id) for each in packets if each.qos))  # type: ignore[union-attr]
        reader.send(*(Ack(c.PUBCOMP, each.packet_id) for each in reader.received() if isinstance(each, Ack)))
        reader.send(Unsubscribe(9, ["t"]))
        assert isinstance(reader.received()[-1], Unsuback)
        reader.vanish()
        writer.send(Disconnect(0))
    node.store()
    assert node.journal.batches == [] and node.durability.commit.written == 0 and node.durability.commit.pending == 0


async def test_qos_0_from_a_durable_session_to_a_durable_one_writes_no_record() -> None:
    node = DurableFakeNode()
    reader = await subscribed(node)
    writer = await node.connect_durable("w")
    before = node.durability.commit.written
    writer.publish("t/1", b"x")
    assert [each.payload for each in reader.messages()] == [b"x"]
    assert node.durability.commit.written == before


# --- publishers -----------------------------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize("qos, kind", [(1, c.PUBACK), (2, c.PUBREC)])
async def test_an_acknowledgement_waits_for_the_disk(version: int, qos: int, kind: int) -> None:
    node = DurableFakeNode()
    await subscribed(node)
    writer = node.connect("w", version=version)
    writer.publish("t/1", b"x", qos, 7)
    assert acks(writer) == []
    writer.send(Pingreq())
    assert writer.received() == [Pingresp()]  # needs no disk
    node.store()
    assert acks(writer) == [(kind, 7)]


async def test_acknowledgements_keep_their_order() -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3]: what needs no disk comes after what does, where MQTT wants an order."""
    node = DurableFakeNode()
    await subscribed(node)
    node.connect("clean").subscribe("c", qos=1)
    writer = node.connect("w")
    writer.publish("t/1", b"x", 1, 1)
    writer.publish("c", b"x", 1, 2)
    writer.publish("t/2", b"x", 1, 3)
    assert acks(writer) == []
    node.store()
    assert acks(writer) == [(c.PUBACK, 1), (c.PUBACK, 2), (c.PUBACK, 3)]


async def test_those_of_one_batch_go_out_and_those_of_the_next_wait() -> None:
    node = DurableFakeNode()
    await subscribed(node)
    writer = node.connect("w")
    writer.publish("t/1", b"x", 1, 1)
    writer.publish("t/2", b"x", 1, 2)  # the first is being written
    writer.publish("t/3", b"x", 1, 3)
    assert node.journal.write()
    assert acks(writer) == [(c.PUBACK, 1)]
    assert node.journal.write()
    assert acks(writer) == [(c.PUBACK, 2), (c.PUBACK, 3)]
    assert [len(batch) for batch in node.journal.batches[-2:]] == [1, 2]


async def test_a_message_acknowledged_by_all_before_the_cut_needs_no_disk() -> None:
    node = DurableFakeNode()
    readers = [await subscribed(node, name, 1) for name in "ab"]
    writer = node.connect("w")
    writer.publish("t/0", b"x", 1, 1)  # the disk is busy with this one
    writer.publish("t/1", b"y", 1, 2)
    for reader in readers:
        got = reader.messages()
        assert [each.payload for each in got] == [b"x", b"y"]
        reader.puback(got[1].packet_id)
    before = len(node.written)
    assert node.journal.write()
    assert acks(writer) == [(c.PUBACK, 1), (c.PUBACK, 2)]
    node.store()
    assert [type(each) for each in node.written[before:]] == [records.MessageStored]
    assert len(node.durability.sessions.messages) == 1


async def test_one_that_has_not_acknowledged_is_enough_to_write_it() -> None:
    node = DurableFakeNode()
    readers = [await subscribed(node, name, 1) for name in "ab"]
    writer = node.connect("w")
    writer.publish("t/0", b"x", 1, 1)
    writer.publish("t/1", b"y", 1, 2)
    readers[0].puback(*(each.packet_id for each in readers[0].messages()))
    node.store()
    last = [each for each in node.written if isinstance(each, records.MessageStored)][-1]
    assert [holder[0] for holder in last.holders] == [readers[1].session.number]


async def test_a_qos_2_duplicate_waits_as_the_first_does() -> None:
    """[MQTT-4.3.3-10]"""
    node = DurableFakeNode()
    reader = await subscribed(node)
    writer = await node.connect_durable("w")
    writer.publish("t/1", b"x", 2, 5)
    writer.publish("t/1", b"x", 2, 5, dup=True)
    assert acks(writer) == []
    node.store()
    assert acks(writer) == [(c.PUBREC, 5), (c.PUBREC, 5)]
    assert [each.payload for each in reader.messages()] == [b"x"]


async def test_a_duplicate_of_an_identifier_on_disk_is_answered_at_once() -> None:
    node = DurableFakeNode()
    await subscribed(node)
    writer = await node.connect_durable("w")
    writer.publish("t/1", b"x", 2, 5)
    node.store()
    assert acks(writer) == [(c.PUBREC, 5)]
    writer.publish("t/1", b"x", 2, 5, dup=True)
    assert acks(writer) == [(c.PUBREC, 5)]


async def test_pubcomp_waits_until_the_identifier_is_free_on_disk() -> None:
    node = DurableFakeNode()
    writer = await node.connect_durable("w")
    writer.publish("nobody", b"x", 2, 5)
    node.store()
    assert acks(writer) == [(c.PUBREC, 5)]
    writer.send(Ack(c.PUBREL, 5))
    assert acks(writer) == []
    writer.send(Ack(c.PUBREL, 5))  # again, before the first is on disk
    assert acks(writer) == []
    node.store()
    assert acks(writer) == [(c.PUBCOMP, 5), (c.PUBCOMP, 5)]


# --- subscribers ----------------------------------------------------------------------------------------------------


async def test_a_qos_1_publish_waits_for_nothing() -> None:
    node = DurableFakeNode()
    reader = await subscribed(node, qos=1)
    node.publish("t/1", b"x", 1)
    assert [each.payload for each in reader.messages()] == [b"x"]


async def test_a_qos_2_publish_and_its_pubrel_wait_for_the_disk() -> None:
    """A crash must not give the identifier to another message, nor the message a second one."""
    node = DurableFakeNode()
    reader = await subscribed(node)
    node.publish("t/1", b"x", 2)
    assert reader.received() == []
    node.store()
    (publish,) = reader.messages()
    reader.pubrec(publish.packet_id)
    assert reader.received() == []
    node.store()
    assert acks(reader) == [(c.PUBREL, publish.packet_id)]
    reader.pubcomp(publish.packet_id)
    node.store()
    assert reader.session.inflight == {} and node.durability.sessions.messages == {}


async def test_qos_2_that_an_answer_lets_out_is_not_forgotten() -> None:
    """With a window of one the next PUBLISH is caused by the release of what was held, and is held itself."""
    node = DurableFakeNode({"max_inflight": 1})
    reader = await subscribed(node)
    for number in range(5):
        node.publish("t/1", b"%d" % number, 2)
    got: list[bytes] = []
    for _ in range(40):
        node.store()
        for packet in reader.received():
            if isinstance(packet, Publish):
                got.append(packet.payload)
                reader.pubrec(packet.packet_id)
            else:
                assert isinstance(packet, Ack)
                reader.pubcomp(packet.packet_id)
    assert got == [b"0", b"1", b"2", b"3", b"4"]


async def test_suback_and_unsuback_wait_and_retained_messages_follow() -> None:
    node = DurableFakeNode()
    node.publish("t/r", b"kept", 1, retain=True)
    node.store()
    reader = await node.connect_durable("r")
    reader.send(Subscribe(1, [TopicFilter("t/#", 1)]))
    assert reader.received() == []
    node.store()
    suback, publish = reader.received()
    assert suback == Suback(1, [1]) and isinstance(publish, Publish) and publish.payload == b"kept"
    reader.send(Unsubscribe(2, ["t/#"]))
    assert reader.received() == []
    node.store()
    assert isinstance(reader.received()[0], Unsuback)
    assert node.crash().broker.router.subscription_count == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_retained_messages_on_their_way_are_owed_after_a_crash(qos: int) -> None:
    """Some of them are in flight and one waits for the window: a kill in the middle loses none of these."""
    node = DurableFakeNode({"max_inflight": 3})
    for number in range(8):
        node.publish(f"t/{number}", b"%d" % number, qos, retain=True)
    node.store()
    reader = await node.connect_durable("r")
    reader.send(Subscribe(1, [TopicFilter("t/#", qos)]))
    node.store()
    sent = [each for each in reader.received() if isinstance(each, Publish)]
    node.store()
    sent += [each for each in reader.received() if isinstance(each, Publish)]
    assert len(sent) == 3 and reader.session.queued == 1
    after = node.crash()
    again = await after.connect_durable("r")
    seen = [each for each in again.received() if isinstance(each, Publish)]
    assert [(each.payload, each.packet_id, each.dup, each.retain) for each in seen] == [
        (each.payload, each.packet_id, True, True) for each in sent
    ]
    assert again.session.queued == 1


async def test_of_the_changes_of_a_topic_in_a_batch_the_last_is_written_and_all_wait_for_it() -> None:
    node = DurableFakeNode()
    writer = node.connect("w")
    writer.publish("other", b"1", 1, 1, retain=True)  # a batch that is under way
    node.run()
    for number in range(2, 12):
        writer.publish("t", b"%d" % number, 1, number, retain=True)
    node.run()
    assert acks(writer) == []
    assert node.journal.write()
    node.run()
    assert acks(writer) == [(c.PUBACK, 1)]
    node.store()
    assert acks(writer) == [(c.PUBACK, number) for number in range(2, 12)]
    (record,) = node.journal.batches[-1]
    after = node.crash().broker.retained.get("t")
    assert b"11" in record and after is not None and after.payload == b"11"


async def test_a_retained_change_is_acknowledged_when_it_is_on_disk() -> None:
    node = DurableFakeNode()
    writer = node.connect("w")
    writer.publish("t", b"x", 1, 1, retain=True)
    assert acks(writer) == []
    node.store()
    assert acks(writer) == [(c.PUBACK, 1)]
    writer.publish("t", b"", 1, 2, retain=True)
    assert acks(writer) == []
    node.store()
    assert acks(writer) == [(c.PUBACK, 2)]
    assert len(node.crash().broker.retained) == 0


# --- sessions -------------------------------------------------------------------------------------------------------


@versions
async def test_the_connack_of_a_new_session_waits(version: int) -> None:
    node = DurableFakeNode()
    client = node.send_connect("c", version)
    client.send(Pingreq())
    await node.settle()
    assert client.received() == []
    assert node.journal.write()
    await node.settle()
    connack, pong = client.received()
    assert isinstance(connack, Connack) and connack.reason_code == 0 and not connack.session_present
    assert pong == Pingresp()
    assert "c" in node.crash().broker.sessions


async def test_the_connack_of_a_session_on_disk_waits_for_that_its_client_is_back() -> None:
    node = DurableFakeNode()
    first = await node.connect_durable("c", expiry=60)
    first.vanish()
    node.store()
    node.clock.advance(55)
    client = node.send_connect("c", expiry=60)
    await node.settle()
    assert client.received() == []
    node.store()
    await node.settle()
    (connack,) = client.received()
    assert isinstance(connack, Connack) and connack.session_present
    node.clock.advance(10)
    assert "c" in node.crash().broker.sessions  # its earlier absence is over, and would have ended it


@pytest.mark.parametrize("gone", ["taken over", "lost", "lost before it is stored"])
async def test_a_session_that_no_connack_has_told_of_is_not_present(gone: str) -> None:
    """A client that knows of no session must close a connection where one is present [MQTT-3.2.2-4]."""
    node = DurableFakeNode()
    first = node.send_connect("c")
    await node.settle()
    if gone != "taken over":
        first.vanish()
        await node.settle()
    if gone == "lost":
        node.store()
        await node.settle()
    second = node.send_connect("c")
    await node.settle()
    assert second.received() == []
    node.store()
    await node.settle()
    (connack,) = second.received()
    assert isinstance(connack, Connack) and connack.reason_code == 0 and not connack.session_present
    assert "c" in node.crash().broker.sessions
    assert (node.metrics.session_created, node.metrics.session_resumed) == (1, 0)
    second.vanish()
    third = await node.connect_durable("c")
    assert third.connack.session_present and node.metrics.session_resumed == 1


async def test_clean_start_waits_until_the_old_session_is_gone_on_disk() -> None:
    node = DurableFakeNode()
    (await subscribed(node, "c")).vanish()
    node.store()
    client = node.send_connect("c", expiry=0, clean=True)
    await node.settle()
    assert client.received() == []
    node.store()
    await node.settle()
    assert isinstance(client.received()[0], Connack)
    assert "c" not in node.crash().broker.sessions


@pytest.mark.parametrize("how", ["taken over", "ended by its client", "ended for a CONNECT that went"])
async def test_clean_start_waits_for_the_end_of_a_session_whoever_ended_it(how: str) -> None:
    node = DurableFakeNode()
    old = await node.connect_durable("c", expiry=60)
    node.store()
    if how == "ended by its client":
        old.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0}))
    elif how == "ended for a CONNECT that went":
        old.vanish()
        node.store()
        node.send_connect("c", expiry=0, clean=True).vanish()
    client = node.send_connect("c", expiry=0, clean=True)
    await node.settle()
    assert client.received() == []
    node.store()
    await node.settle()
    (connack,) = client.received()
    assert isinstance(connack, Connack) and not connack.session_present
    assert "c" not in node.crash().broker.sessions


class Waiter:
    """A ``CommitWaiter`` that notes what it is told."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, upto: int) -> bool:
        self.released.append(upto)
        return False

    def abort(self) -> None:
        pass


async def test_who_begins_to_wait_for_an_empty_batch_waits_for_no_other_write() -> None:
    """An answer that took seconds may promise what was written long ago."""
    node = DurableFakeNode()
    node.store()
    commit = node.durability.commit
    waiter = Waiter()
    commit.add_waiter(waiter)
    node.run()
    assert waiter.released == [commit.batch]
    stored = asyncio.ensure_future(commit.wait_until_durable(commit.batch))
    await node.settle()
    assert stored.done() and stored.result()


async def test_what_is_caused_while_an_empty_batch_is_released_waits_for_the_disk() -> None:
    node = DurableFakeNode()
    taker = await subscribed(node, "taker")
    victim = await node.connect_durable("victim")
    victim.send(Subscribe(1, [TopicFilter("v/#", 2)]))
    for number in range(500):
        node.publish(f"ret/{number}", b"r", 0, True)
    node.store()
    victim.received()
    caused: list[int] = []

    def cause(client: object, message: Message) -> None:
        if message.topic.startswith("ret/") and node.journal.idle and not caused:
            caused.append(node.journal.batch)
            node.publish("v/1", b"caused", 2)

    node.hooks.message_delivered.add(cause)
    writer = node.connect("w")
    writer.publish("t/0", b"x", 1, 1)
    writer.publish("t/1", b"y", 1, 2)
    victim.publish("t/2", b"z", 1, 3)
    taker.puback(*[each.packet_id for each in taker.messages()][1:])  # the open batch has nothing to say any more
    writer.feed(Subscribe(9, [TopicFilter("ret/#", 0)]))
    assert node.journal.write()
    node.run()
    assert not [each for each in victim.received() if isinstance(each, Publish)]
    node.store()
    assert [each.payload for each in victim.received() if isinstance(each, Publish)] == [b"caused"]


async def test_a_fault_in_releasing_one_client_s_answers_costs_the_others_nothing() -> None:
    node = DurableFakeNode()
    await subscribed(node)
    first, second = await node.connect_durable("a"), await node.connect_durable("b")
    first.publish("t", b"1", 1, 1)
    second.publish("t", b"2", 1, 1)

    class Faulty:
        """A link that fails when it is told that nothing waits any more."""

        aborted = False

        def stored(self) -> None:
            raise OSError("no such wire")

        def abort(self) -> None:
            self.aborted = True

    first.channel.writer.target = faulty = Faulty()
    node.durability.commit._release(node.journal.batch - 1)
    assert faulty.aborted
    node.store()
    assert acks(second) == [(c.PUBACK, 1)]


# --- trouble --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos, kind", [(1, c.PUBACK), (2, c.PUBREC)])
async def test_5_0_is_refused_what_needs_the_disk_and_nothing_of_it_is_kept(qos: int, kind: int) -> None:
    node = DurableFakeNode()
    reader = await subscribed(node)
    writer = await node.connect_durable("w")
    node.trouble()
    before = node.durability.commit.written
    for packet_id in (7, 7, 8):
        writer.publish("t/1", b"x", qos, packet_id)
    got = writer.received()
    assert [(each.type, each.packet_id, each.reason_code) for each in got] == [  # type: ignore[union-attr]
        (kind, 7, rc.QUOTA_EXCEEDED),
        (kind, 7, rc.QUOTA_EXCEEDED),
        (kind, 8, rc.QUOTA_EXCEEDED),
    ]
    assert reader.received() == [] and node.durability.commit.written == before
    assert writer.session.awaiting_rel is None
    node.trouble(None)
    writer.publish("t/1", b"again", qos, 7)
    node.store()
    assert acks(writer) == [(kind, 7)]
    assert [each.payload for each in reader.messages()] == [b"again"]


@pytest.mark.parametrize("qos, kind", [(1, c.PUBACK), (2, c.PUBREC)])
async def test_messages_of_3_x_wait(qos: int, kind: int) -> None:
    node = DurableFakeNode()
    reader = await subscribed(node)
    writer = await node.connect_durable("w", 4)
    node.trouble()
    writer.publish("t/1", b"1", qos, 7)
    writer.publish("t/1", b"2", qos, 8)
    writer.send(Pingreq())
    await node.settle()
    assert writer.received() == [Pingresp()] and reader.received() == []
    writer.feed(*MUCH)
    assert not writer.transport.reading
    node.trouble(None)
    await node.settle()
    node.store()
    await node.settle()
    node.store()
    assert [(each.type, each.packet_id) for each in writer.received() if isinstance(each, Ack)] == [
        (kind, 7),
        (kind, 8),
    ]
    assert [each.payload for each in reader.messages()] == [b"1", b"2"]
    assert writer.transport.reading
    assert node.metrics.messages_qos0_received == len(MUCH)


async def test_a_3_x_publisher_that_goes_meanwhile_has_published_nothing() -> None:
    node = DurableFakeNode()
    reader = await subscribed(node)
    writer = node.connect("w", version=4)
    node.trouble()
    writer.publish("t/1", b"1", 1, 7)
    await node.settle()
    writer.vanish()
    node.trouble(None)
    await node.settle()
    node.store()
    assert reader.received() == []


async def test_what_needs_no_disk_goes_on() -> None:
    node = DurableFakeNode()
    durable = await subscribed(node)
    await node.connect_durable("w")
    node.trouble()
    client = node.connect("clean")
    assert client.subscribe("c", qos=2) == [2]
    writer = node.connect("x")
    writer.publish("c", b"1", 1, 1)
    writer.publish("c", b"2", 2, 2)
    writer.publish("t/0", b"0", 0)
    assert acks(writer) == [(c.PUBACK, 1), (c.PUBREC, 2)]
    assert [each.payload for each in client.messages()] == [b"1", b"2"]
    assert [each.payload for each in durable.messages()] == [b"0"]
    durable.send(Pingreq())
    assert durable.received() == [Pingresp()]


async def test_subscriptions_and_sessions_that_need_the_disk_are_refused() -> None:
    node = DurableFakeNode()
    durable = await subscribed(node)
    node.trouble()
    before = node.durability.commit.written
    durable.send(Subscribe(9, [TopicFilter("a", 1), TopicFilter("b", 0)]))
    assert durable.received() == [Suback(9, [rc.QUOTA_EXCEEDED] * 2)]
    (connack,) = node.send_connect("new").received()
    assert isinstance(connack, Connack) and connack.reason_code == rc.QUOTA_EXCEEDED
    (connack,) = node.send_connect("new3", 4).received()
    assert isinstance(connack, Connack) and connack.reason_code == 3
    (connack,) = node.send_connect("r", expiry=0, clean=True).received()
    assert isinstance(connack, Connack) and connack.reason_code == rc.QUOTA_EXCEEDED
    assert node.durability.commit.written == before and "new" not in node.broker.sessions
    assert durable.session.connected  # nobody took it over
    durable.vanish()
    (connack,) = node.send_connect("r").received()  # a session that is there goes on
    assert isinstance(connack, Connack) and connack.reason_code == 0 and connack.session_present


async def test_a_session_that_is_there_goes_on_when_trouble_begins_while_it_waits() -> None:
    node = DurableFakeNode()
    (await subscribed(node, "c")).vanish()
    node.store()
    client = node.send_connect("c")
    await node.settle()
    assert client.received() == []
    node.trouble()
    await node.settle()
    (connack,) = client.received()
    assert isinstance(connack, Connack) and connack.reason_code == 0 and connack.session_present


async def test_so_does_one_on_disk_that_no_connack_has_told_of() -> None:
    node = DurableFakeNode()
    node.send_connect("c").vanish()
    node.store()
    await node.settle()
    client = node.send_connect("c")
    await node.settle()
    assert client.received() == []
    node.trouble()
    await node.settle()
    (connack,) = client.received()
    assert isinstance(connack, Connack) and connack.reason_code == 0 and not connack.session_present


async def test_two_connects_that_wait_when_trouble_begins_leave_nothing() -> None:
    node = DurableFakeNode()
    node.send_connect("c")
    await node.settle()
    node.send_connect("c")
    await node.settle()
    node.trouble()
    await node.settle()
    assert "c" not in node.broker.sessions


async def test_what_comes_and_goes_in_trouble_takes_no_room() -> None:
    node = DurableFakeNode()
    node.trouble()
    writer = node.connect("w")
    for number in range(100):
        node.connect("x", will=Will("w", b"x" * 1000, 0)).send(Disconnect(0))
        writer.publish(f"a/{number}", b"x", 0, retain=True)
        writer.publish(f"a/{number}", b"", 0, retain=True)
    assert node.durability.commit.pending <= 2  # the first Will is on its way, so its end must be told
    writer.publish("a", b"x", 0, retain=True)
    node.trouble(None)
    node.store()
    writer.publish("a", b"", 0, retain=True)
    node.store()
    assert len(node.crash().broker.retained) == 0


async def test_a_connect_that_waits_when_trouble_begins_is_refused_and_leaves_nothing() -> None:
    node = DurableFakeNode()
    client = node.send_connect("c")
    old = node.send_connect("d", 4)
    assert client.received() == [] and old.received() == []
    node.trouble()
    await node.settle()
    (connack,) = client.received()
    assert isinstance(connack, Connack) and connack.reason_code == rc.QUOTA_EXCEEDED
    (connack,) = old.received()
    assert isinstance(connack, Connack) and connack.reason_code == 3
    assert len(node.broker.sessions) == 0
    assert node.metrics.client_connected == node.metrics.client_disconnected == 0
    node.trouble(None)
    node.store()
    assert len(node.crash().broker.sessions) == 0


async def test_what_was_held_when_trouble_began_goes_out_at_its_end() -> None:
    node = DurableFakeNode()
    reader = await subscribed(node, qos=1)
    writer = node.connect("w")
    writer.publish("t/1", b"1", 1, 1)
    node.trouble()
    writer.publish("t/2", b"2", 1, 2)
    assert writer.received() == []  # refused, but in order [MQTT-4.6.0-2]
    node.trouble(None)
    node.store()
    got = writer.received()
    assert [(each.packet_id, each.reason_code) for each in got] == [(1, 0), (2, rc.QUOTA_EXCEEDED)]  # type: ignore[union-attr]
    assert [each.payload for each in reader.messages()] == [b"1"]


async def test_in_trouble_what_waits_stays_bounded() -> None:
    """Retained QoS 0 and clients coming and going are true once each, however often they happen."""
    node = DurableFakeNode()
    client = await node.connect_durable("c")
    node.trouble()
    for number in range(50):
        node.publish("r", b"%d" % number, 0, retain=True)
        client.vanish()
        client = node.send_connect("c")
        assert isinstance(client.received()[0], Connack)
    assert node.durability.commit.pending < 10
    node.trouble(None)
    node.store()
    after = node.crash()
    message = after.broker.retained.get("r")
    assert message is not None and message.payload == b"49"


MUCH = [Publish("nobody/wants", bytes(1000))] * 70
"""More than may wait of one client."""


async def test_while_too_much_waits_publishers_are_not_read_from() -> None:
    """Beyond what may wait here; what is no message does not wait."""
    node = DurableFakeNode()
    await subscribed(node)
    node.journal.max_pending = 5_000
    writer = node.connect("w")
    for number in range(1, 4):
        writer.publish("t/1", bytes(3000), 1, number)
    assert node.broker.budget.congested
    writer.send(Publish("t/1", b"", 1, packet_id=4), Pingreq())
    assert writer.received() == [Pingresp()]
    other = node.connect("o")
    writer.feed(*MUCH, Pingreq())
    assert writer.received() == [Pingresp()]
    assert not writer.transport.reading
    other.send(Pingreq())
    assert other.received() == [Pingresp()]
    node.store()
    node.run()
    assert [writer.transport.reading, node.broker.budget.congested] == [True, False]
    node.store()
    assert acks(writer) == [(c.PUBACK, number) for number in (1, 2, 3, 4)]


async def test_too_much_is_seen_at_once_and_in_a_turn_that_nothing_else_asks_for() -> None:
    """Retained messages that nobody subscribes to, while the disk is busy: no output ends the turn."""
    node = DurableFakeNode()
    node.journal.max_pending = 5_000
    node.publish("first", b"x", 1, retain=True)
    node.run()  # the disk is busy from now on
    writer = node.connect("w", version=4)
    for number in range(1, 4):
        writer.publish(f"r/{number}", bytes(3000), 1, number, retain=True)
    assert node.broker.budget.congested and node.durability.commit.pending_bytes < 10_000
    writer.publish("r/4", b"", 1, 4, retain=True)
    writer.feed(*MUCH)
    assert not writer.transport.reading
    while not writer.transport.reading:
        assert node.journal.write()
        node.run()
    node.store()
    assert not node.broker.budget.congested
    assert acks(writer) == [(c.PUBACK, number) for number in (1, 2, 3, 4)]


async def test_memory_is_looked_at_while_messages_are_retained() -> None:
    """Within one turn of the loop, not first at the next tick."""
    node = DurableFakeNode()
    node.journal.max_pending = 1_000_000_000
    guard = node.server.guard
    memory = guard._memory = Memory(100_000_000, node.broker.account, resident=lambda: 0)
    memory.source("retained", lambda: node.broker.retained.bytes)
    writer = node.connect("w", version=4)
    for number in range(1, 2001):
        writer.publish(f"r/{number}", bytes(100_000), 0, retain=True)
        if node.broker.account.level:
            break
    assert node.broker.account.level == REFUSING and memory.used < 90_000_000


@pytest.mark.interpreted
@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_with_too_many_unsent_answers_is_not_read_from(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of 5.0 whose Receive Maximum would allow no more: its messages wait, and it is not sent away."""
    monkeypatch.setattr("taipan.broker.transport.connection_reader._MAX_UNSTORED", 10)
    node = DurableFakeNode({"receive_maximum": 5})
    await subscribed(node)
    writer = node.connect("w", version=version)
    for number in range(1, 13):
        writer.publish("t/1", b"", 1, number)
    writer.feed(*MUCH, Pingreq())
    assert writer.received() == [Pingresp()]
    assert not writer.transport.reading
    node.store()
    await node.settle()
    node.store()
    await node.settle()
    assert acks(writer) == [(c.PUBACK, number) for number in range(1, 13)]
    assert writer.transport.reading


async def test_who_leaves_while_answers_wait_gets_none_and_disturbs_nobody() -> None:
    node = DurableFakeNode()
    await subscribed(node)
    writer = node.connect("w")
    other = node.connect("o")
    writer.publish("t/1", b"x", 1, 1)
    other.publish("t/1", b"x", 1, 1)
    writer.vanish()
    node.store()
    assert acks(other) == [(c.PUBACK, 1)]


@pytest.mark.asyncio
async def test_what_waits_counts_as_live_so_that_compaction_does_not_run_for_ever() -> None:
    node = DurableFakeNode()
    before = live_bytes(node.durability, node.broker)
    client = await node.connect_durable("c")
    client.publish("$delayed/1000/t", b"x" * 100_000, 1, 1)
    node.store()
    assert live_bytes(node.durability, node.broker) >= before + 100_400


async def test_what_was_due_while_the_disk_was_busy_is_written_after_that() -> None:
    """Though nothing else is said meanwhile; nobody would ask again."""
    node = DurableFakeNode()
    reader = await subscribed(node)
    writer = node.connect("w")
    writer.publish("t/1", b"x", 1, 1)
    node.store()
    writer.publish("t/1", b"y", 1, 2)  # the disk is busy with this one
    reader.puback(reader.messages()[0].packet_id)
    assert node.durability.commit.delivery_records.due
    assert node.journal.write()
    node.run()
    assert not node.durability.commit.delivery_records
    node.store()
    assert isinstance(node.written[-1], records.DeliveriesDone)


async def test_a_flood_of_qos_0_does_not_keep_a_durable_publisher_waiting() -> None:
    """Counted in turns of the loop, not in milliseconds: three until its message is on its way to the disk, where ten
    publishers with much more than a turn's share came before it; one from there to its PUBACK."""
    node = DurableFakeNode()
    await subscribed(node)
    reader = node.connect("f")
    reader.subscribe("flood")
    floods = [node.connect(f"f{number}") for number in range(10)]
    writer = node.connect("w", version=4)
    for flood in floods:
        flood.feed(*[Publish("flood", b"x")] * 8 * PUBLISHES_PER_ITERATION)
    writer.feed(Publish("t/1", b"x", 1, packet_id=1))
    turns = 0
    while node.journal.idle:
        node.loop.turn()
        turns += 1
    assert turns <= 3
    node.journal.write()
    node.loop.turn()
    assert writer.arrived() == [Ack(c.PUBACK, 1)]
    came = len([each for each in reader.arrived() if isinstance(each, Publish)])
    assert 0 < came <= 4 * DELIVERIES_PER_ITERATION and node.loop.soon  # the flood goes on
    assert came + len(reader.messages()) == 10 * 8 * PUBLISHES_PER_ITERATION
