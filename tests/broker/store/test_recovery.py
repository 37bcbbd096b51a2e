"""Restore: what the records say is what was true. Also over down time, and after a compaction."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.channel.channel import CONNECTED
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.packets import Ack, Disconnect, Subscribe, TopicFilter, Will
from taipan.broker.persistence.log import records
from taipan.broker.session import inbound_qos2
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.outbound_acks import puback, pubcomp, pubrec
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from taipan.broker.store.compaction import live_records, write_again
from taipan.broker.store.recovery import RecoveredState, read_batches, recover_in_steps
from tests.support.auth_service import auth_service
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_node import FakeClient
from tests.support.one_by_one import OneByOne
from tests.support.patience import patience
from tests.support.peer import TIMEOUT
from tests.support.wire import Publish

NEVER = c.NEVER_EXPIRES


async def subscribed(node: DurableFakeNode, client_id: str = "r", qos: int = 2, expiry: int = NEVER) -> FakeClient:
    reader = await node.connect_durable(client_id, expiry=expiry)
    reader.send(Subscribe(1, [TopicFilter("t/#", qos)]))
    node.store()
    reader.received()
    return reader


def outcome(node: DurableFakeNode) -> dict[str, object]:
    """Everything of a node that outlives it."""

    def told(delivery: Delivery) -> tuple[object, ...]:
        message = delivery.message
        return (message.id, message.topic, message.payload, delivery.qos, delivery.retain, delivery.identifiers,
                delivery.group)  # fmt: skip

    sessions = {}
    for session in node.broker.sessions:
        if not session.durable:
            continue
        sessions[session.client_id] = (
            session.number,
            session.expiry_interval,
            session.created_at,
            {
                (s.filter, s.topic_filter, s.group, s.qos, s.no_local, s.retain_as_published, s.identifiers)
                for s in session.subscriptions.values()
            },
            {pid: None if each is None else told(each) for pid, each in session.inflight.items()},
            [told(each) for each in session.queue or () if each.qos and not each.group],
            # What another member left takes its old place after a restart.
            sorted(told(each) for each in session.queue or () if each.qos and each.group),
            dict(session.awaiting_rel or {}),
        )
    retained = {}
    for topic in node.broker.retained.topics():
        message = node.broker.retained.get(topic)
        assert message is not None
        retained[topic] = (message.payload, message.qos, message.id)
    return {
        "sessions": sessions,
        "retained": retained,
        "wills": sorted(node.durability.node.wills),
        "delayed": sorted(node.durability.node.delayed),
    }


# --- random operations ----------------------------------------------------------------------------------------------


class Sink(OneByOne):
    """A client that takes everything as long as it is writable."""

    def __init__(self) -> None:
        self.writable = True

    def send_publish0(self, message: Message) -> None:
        pass

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        return True

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        return True

    def send_pubrel(self, packet_id: int) -> None:
        pass


class Operations:
    """A node that is driven below its channels."""

    def __init__(self) -> None:
        self.node = DurableFakeNode({"max_queued_messages": 3, "max_inflight": 2})
        self.broker = self.node.broker
        self.count = 0

    def session(self, name: str) -> Session | None:
        return self.broker.sessions.get(name)

    def open(self, name: str, clean: bool, expiry: int) -> None:
        session = self.session(name)
        if session is not None and session.connected:
            return
        node = self.node
        client = ClientInfo("n", node.zone, client_id=name, username="u-" + name)
        session, _ = self.broker.life.open_session(client, clean, expiry, node.facts.limits, node.clock.time)
        sink = Sink()
        session.attach(sink, 2, node.facts.limits, node.clock.time, packets=sink)
        session.advance(node.clock.time)

    def leave(self, name: str, will: bool) -> None:
        session = self.session(name)
        if session is not None and session.connected:
            message = Message("t/will", b"gone", 1, False, {}, session.client, self.node.clock.time) if will else None
            if message is not None and session.durable:
                session.will_number = self.node.durability.node.will_stored(message, 100)
            self.broker.life.leave(session, message, 100, self.node.clock.time, "normal")

    def end(self, name: str) -> None:
        session = self.session(name)
        if session is not None:
            self.broker.life.end_session(session, "kicked", self.node.clock.time)

    def subscribe(self, name: str, filter: str, qos: int, no_local: bool) -> None:
        session = self.session(name)
        if session is not None:
            group = "g" if filter.startswith("$share/") else None
            topic_filter = filter.removeprefix("$share/g/")
            plain = no_local and group is None
            identifiers = (5,) if qos == 1 else ()
            self.broker.subscribe(
                session, Subscription(session, filter, qos, plain, qos == 2, 2, identifiers, group, topic_filter)
            )

    def unsubscribe(self, name: str, filter: str) -> None:
        session = self.session(name)
        if session is not None:
            self.broker.unsubscribe(session, filter)

    def publish(self, topic: str, qos: int, retain: bool, payload: bytes) -> None:
        message = Message(topic, payload, qos, retain, timestamp=self.node.clock.time)
        self.count += 1
        message.id = str(self.count)
        self.broker.publish(message)

    def acknowledge(self, name: str, what: int) -> None:
        session = self.session(name)
        if session is None or not session.inflight or not session.connected:
            return
        packet_id = list(session.inflight)[what % len(session.inflight)]
        delivery = session.inflight[packet_id]
        if delivery is None:
            pubcomp(session, packet_id)
        elif delivery.qos == 1:
            puback(session, packet_id)
        else:
            pubrec(session, packet_id, failed=what > 5)
        session.advance(self.node.clock.time)

    def receive_qos2(self, name: str, packet_id: int) -> None:
        session = self.session(name)
        if session is not None:
            inbound_qos2.receive(session, packet_id, self.node.clock.time)

    def release(self, name: str, packet_id: int) -> None:
        session = self.session(name)
        if session is not None:
            inbound_qos2.release(session, packet_id)

    def delay(self, seconds: int) -> None:
        self.node.server.delayed.accept(
            Message(f"$delayed/{seconds}/t/1", b"later", 1, timestamp=self.node.clock.time), self.node.clock.time
        )

    def pass_time(self, seconds: int) -> None:
        self.node.pass_time(seconds)

    def turn(self) -> None:
        self.node.run()

    def write(self) -> None:
        self.node.journal.write()

    def compact(self) -> None:
        node = self.node
        first = node.journal.batch
        for record in live_records(node.durability, self.broker, first):
            write_again(node.durability, record)
        node.store()
        node.journal.batches[: first - 1] = [[] for _ in range(first - 1)]


NAMES = st.sampled_from("abc")
FILTERS = st.sampled_from(["t/#", "t/1", "+/2", "$share/g/t/#"])
TOPICS = st.sampled_from(["t/1", "t/2", "x/2"])
QOS = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("open"), NAMES, st.booleans(), st.sampled_from([0, 50, NEVER])),
    st.tuples(st.just("open"), NAMES, st.just(False), st.just(NEVER)),
    st.tuples(st.just("leave"), NAMES, st.booleans()),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("subscribe"), NAMES, FILTERS, QOS, st.booleans()),
    st.tuples(st.just("subscribe"), NAMES, FILTERS, QOS, st.just(False)),
    st.tuples(st.just("unsubscribe"), NAMES, FILTERS),
    st.tuples(st.just("publish"), TOPICS, QOS, st.booleans(), st.binary(max_size=3)),
    st.tuples(st.just("publish"), TOPICS, st.integers(1, 2), st.just(False), st.just(b"m")),
    st.tuples(st.just("acknowledge"), NAMES, st.integers(0, 6)),
    st.tuples(st.just("acknowledge"), NAMES, st.integers(0, 6)),
    st.tuples(st.just("receive_qos2"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("release"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("delay"), st.integers(1, 90)),
    st.tuples(st.just("pass_time"), st.integers(1, 60)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("write")),
    st.tuples(st.just("compact")),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATIONS, max_size=60))
def test_what_is_restored_is_what_was_true(operations: list[tuple[object, ...]]) -> None:
    run = Operations()
    for name, *arguments in operations:
        getattr(run, str(name))(*arguments)
    for name in "abc":
        session = run.session(name)
        if session is not None and session.expiry_interval == 0:
            run.leave(name, False)  # a crash ends it, as the end of its connection does
    node = run.node
    node.store()
    assert node.durability.commit.pending == 0
    before = outcome(node)
    restored = node.crash()
    assert outcome(restored) == before
    restored.store()
    assert outcome(restored.crash()) == before  # what a restart writes changes nothing


# --- what clients see -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_was_in_flight_goes_out_again_with_dup_and_its_identifier() -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1]"""
    node = DurableFakeNode()
    reader = await subscribed(node)
    node.publish("t/1", b"1", 1)
    node.publish("t/2", b"2", 2)
    node.store()
    sent = {each.payload: each.packet_id for each in reader.messages()}
    reader.pubrec(sent[b"2"])
    node.store()
    node.publish("t/3", b"3", 1)
    node.store()
    sent |= {each.payload: each.packet_id for each in reader.received() if isinstance(each, Publish)}
    again = await node.crash().connect_durable("r")
    assert again.connack.session_present
    packets = again.received()
    assert [(each.payload, each.packet_id, each.dup) for each in packets if isinstance(each, Publish)] == [
        (b"1", sent[b"1"], True),
        (b"3", sent[b"3"], True),
    ]
    assert [each for each in packets if isinstance(each, Ack)] == [Ack(c.PUBREL, sent[b"2"])]


@pytest.mark.asyncio
async def test_identifiers_in_use_are_not_given_away_after_a_restart() -> None:
    """[MQTT-2.2.1-4]"""
    node = DurableFakeNode()
    reader = await subscribed(node)
    node.publish("t/1", b"1", 2)
    node.store()
    (first,) = reader.messages()
    reader.pubrec(first.packet_id)
    node.store()
    after = node.crash()
    again = await after.connect_durable("r")
    again.received()
    after.publish("t/1", b"2", 2)
    after.store()
    (second,) = again.messages()
    assert second.packet_id != first.packet_id


@pytest.mark.asyncio
async def test_a_qos_2_duplicate_after_a_restart_is_published_once() -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-9]"""
    node = DurableFakeNode()
    await subscribed(node)
    writer = await node.connect_durable("w")
    writer.publish("t/1", b"x", 2, 5)
    node.store()
    after = node.crash()
    writer = await after.connect_durable("w")
    writer.publish("t/1", b"x", 2, 5, dup=True)
    after.store()
    assert writer.received() == [Ack(c.PUBREC, 5)]
    session = after.broker.sessions.get("r")
    assert session is not None and session.queued + len(session.inflight) == 1


@pytest.mark.asyncio
async def test_expiry_goes_on_over_down_time() -> None:
    node = DurableFakeNode()
    (await subscribed(node, "short", expiry=100)).vanish()
    (await subscribed(node, "long", expiry=1000)).vanish()
    node.store()
    after = node.crash(seconds=150)
    assert "short" not in after.broker.sessions and "long" in after.broker.sessions
    after.pass_time(849)
    assert "long" in after.broker.sessions
    after.pass_time(2)
    assert "long" not in after.broker.sessions
    after.store()
    assert len(after.crash().broker.sessions) == 0


@pytest.mark.asyncio
async def test_the_expiry_of_one_that_was_connected_begins_at_the_restart_and_only_once() -> None:
    node = DurableFakeNode()
    await subscribed(node, "c", expiry=100)
    first = node.crash(seconds=500)
    assert "c" in first.broker.sessions  # nobody knows when its connection ended
    first.store()
    second = first.crash(seconds=60)
    assert "c" in second.broker.sessions
    second.store()
    assert "c" not in second.crash(seconds=60).broker.sessions


@pytest.mark.asyncio
async def test_an_expiry_that_had_begun_is_over_once_the_client_is_back() -> None:
    """Whoever was away, came back, stayed for longer than its expiry and was there when the node died is not late."""
    node = DurableFakeNode()
    (await subscribed(node, expiry=100)).vanish()
    node.store()
    node.pass_time(50)
    await node.connect_durable("r", expiry=100)
    node.pass_time(200)
    node = node.crash(10)
    assert node.broker.sessions.get("r") is not None
    node.pass_time(90)
    assert node.broker.sessions.get("r") is not None
    node.pass_time(20)
    assert node.broker.sessions.get("r") is None


@pytest.mark.asyncio
async def test_message_expiry_goes_on_over_down_time() -> None:
    node = DurableFakeNode()
    (await subscribed(node)).vanish()
    node.publish("t/1", b"short", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 10})
    node.publish("t/1", b"long", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 100})
    node.store()
    after = node.crash(seconds=50)
    reader = await after.connect_durable("r")
    (message,) = reader.messages()
    assert message.payload == b"long" and message.properties == {c.MESSAGE_EXPIRY_INTERVAL: 50}


def will(delay: int) -> Will:
    return Will("t/will", b"gone", 1, False, {c.WILL_DELAY_INTERVAL: delay} if delay else {})


@pytest.mark.asyncio
async def test_the_will_of_one_that_was_connected_when_the_node_died_goes_out() -> None:
    node = DurableFakeNode()
    await subscribed(node)
    await node.connect_durable("w", expiry=1000, will=will(0))
    after = node.crash()
    session = after.broker.sessions.get("r")
    assert session is not None and [each.message.payload for each in session.queue or ()] == [b"gone"]
    after.store()
    assert after.durability.node.wills == {} and after.crash().durability.node.wills == {}


@pytest.mark.asyncio
async def test_a_will_that_nobody_may_publish_is_none_after_a_crash_either(caplog: pytest.LogCaptureFixture) -> None:
    rules = [{"allow": False, "action": "publish", "topics": ["t/secret"]}]
    node = DurableFakeNode(access={"rules": rules})
    await subscribed(node)
    for topic in ("$SYS/x", "$delayed/0/$SYS/y", "$delayed/0/t/secret", "t/secret", "$delayed/0/t/fine"):
        await node.connect_durable(topic.replace("/", "-"), expiry=1000, will=Will(topic, b"gone", 1, True))
    after = node.crash()
    after.pass_time(1)
    session = after.broker.sessions.get("r")
    assert session is not None and [each.message.topic for each in session.queue or ()] == ["t/fine"]
    assert [topic for topic in ("$SYS/x", "$SYS/y") if after.broker.retained.get(topic)] == []
    assert after.metrics.refusals.snapshot() == {"will_not_authorized": 4}
    assert after.metrics.packets_publish_auth_error == 4
    assert "will_refused client_id=$SYS-x topic=$SYS/x reason=not_authorized setting=- count=1" in caplog.text
    assert "will_refused client_id=t-secret topic=t/secret reason=not_authorized setting=access.rules.0" in caplog.text


@pytest.mark.asyncio
async def test_a_will_that_a_service_denied_is_none_after_a_crash_either(caplog: pytest.LogCaptureFixture) -> None:
    """It was asked at CONNECT; at the start there is no time to ask."""
    async with auth_service() as service:
        service.replies["/acl"] = lambda question: 403 if question["topic"] == "t/secret" else 200
        node = DurableFakeNode(access={"http": {"acl_url": service.url("/acl")}})
        for topic in ("t/secret", "t/fine"):
            client = node.send_connect(topic.replace("/", "-"), will=Will(topic, b"gone", 1, True))
            async with asyncio.timeout(patience(TIMEOUT)):
                while client.channel.state != CONNECTED:
                    await asyncio.sleep(0.001)
        node.store()
        await node.server.access.stop()
    after = node.crash()
    assert [topic for topic in ("t/secret", "t/fine") if after.broker.retained.get(topic)] == ["t/fine"]
    assert after.metrics.refusals.snapshot() == {"will_not_authorized": 1}
    refused = "will_refused client_id=t-secret topic=t/secret reason=not_authorized setting=access.http.acl_url count=1"
    assert refused in caplog.text
    after.store()
    assert after.durability.node.wills == {}


@pytest.mark.asyncio
async def test_a_will_that_cannot_be_delayed_after_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    node = DurableFakeNode()
    await node.connect_durable("c", expiry=1000, will=Will("$delayed/60/t", b"gone", 1))
    zone, config = node._given
    full = {"max_seconds": 30}
    after = DurableFakeNode(zone, node.journal.batches, node.clock.time, **config, delayed=full)
    assert after.server.delayed.count == 0
    assert after.metrics.refusals.snapshot() == {"delayed_too_far": 1, "will_quota_exceeded": 1}
    assert "will_refused client_id=c topic=$delayed/60/t reason=quota_exceeded" in caplog.text
    assert "setting=delayed.max_seconds" in caplog.text


@pytest.mark.asyncio
async def test_a_will_that_waits_goes_on_waiting_and_a_client_that_is_back_stops_it() -> None:
    """[MQTT-3.1.3-9]"""
    node = DurableFakeNode()
    await subscribed(node)
    for name in "ab":
        (await node.connect_durable(name, expiry=1000, will=will(60))).vanish()
    node.store()
    after = node.crash(seconds=30)
    session = after.broker.sessions.get("r")
    assert session is not None and not session.queued
    await after.connect_durable("b", expiry=1000)
    after.store()
    last = after.crash(seconds=29)
    session = last.broker.sessions.get("r")
    assert session is not None and not session.queued
    last.pass_time(2)
    assert [each.message.payload for each in session.queue or ()] == [b"gone"]
    assert last.durability.node.wills == {}


@pytest.mark.asyncio
async def test_a_normal_disconnect_takes_the_will_away() -> None:
    """[MQTT-3.1.2-10]"""
    node = DurableFakeNode()
    await subscribed(node)
    client = await node.connect_durable("w", expiry=1000, will=will(0))
    client.send(Disconnect(0))
    node.store()
    after = node.crash()
    session = after.broker.sessions.get("r")
    assert session is not None and not session.queued and after.durability.node.wills == {}


@pytest.mark.asyncio
async def test_delayed_messages_go_out_when_they_are_due() -> None:
    node = DurableFakeNode(delayed={"enabled": True})
    await subscribed(node)
    writer = node.connect("w")
    writer.publish("$delayed/60/t/1", b"later", 1, 1)
    writer.publish("$delayed/10/t/1", b"soon", 1, 2)
    assert writer.received() == []
    node.store()
    assert [each.packet_id for each in writer.received()] == [1, 2]  # type: ignore[union-attr]
    after = node.crash(seconds=30)
    after.pass_time(0)
    session = after.broker.sessions.get("r")
    assert session is not None and [each.message.payload for each in session.queue or ()] == [b"soon"]
    after.pass_time(31)
    assert [each.message.payload for each in session.queue or ()] == [b"soon", b"later"]
    after.store()
    assert after.crash().server.delayed.count == 0


@pytest.mark.asyncio
async def test_retained_messages_come_back_with_all_they_had() -> None:
    node = DurableFakeNode()
    writer = node.connect("w")
    writer.publish("a", b"1", 1, 1, retain=True, properties={c.USER_PROPERTY: [("k", "v")]})
    writer.publish("b", b"2", 0, retain=True)
    writer.publish("c", b"3", 0, retain=True)
    writer.publish("c", b"", 0, retain=True)
    node.store()
    after = node.crash()
    reader = after.connect("r")
    reader.send(Subscribe(1, [TopicFilter("#", 2)]))
    got = {each.topic: each for each in reader.received() if isinstance(each, Publish)}
    assert sorted(got) == ["a", "b"]
    assert got["a"].payload == b"1" and got["a"].retain and got["a"].properties == {c.USER_PROPERTY: [("k", "v")]}


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [4, 5])
async def test_what_has_expired_since_it_was_stored_is_told(version: int, caplog: pytest.LogCaptureFixture) -> None:
    """With how long ago the latest date in the store is; what still waits is not counted."""
    node = DurableFakeNode({"session_expiry_interval": 100_000})
    absent = await node.connect_durable("absent", version)
    absent.send(Subscribe(1, [TopicFilter("t/#", 1)]))
    absent.vanish()
    (await subscribed(node, "short", expiry=3600)).vanish()
    writer = node.connect("w", version=5)
    for number in range(3):
        writer.publish("t/1", b"x", 1, number + 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 300})
    writer.publish("t/1", b"stays", 1, 4)
    writer.publish("r/1", b"x", 1, 5, retain=True, properties={c.MESSAGE_EXPIRY_INTERVAL: 300})
    writer.publish("r/2", b"stays", 1, 6, retain=True)
    node.store()
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(node.clock.time))
    node.crash(200)
    assert "expired_at_start" not in caplog.text
    after = node.crash(86_400)
    assert (
        f"expired_at_start messages=6 retained=1 sessions=1 queued=4 last_date={at} seconds_since=86400 clock_set_by=0"
        in caplog.text
    )
    session = after.broker.sessions.get("absent")
    assert session is not None and after.broker.sessions.get("short") is None


@pytest.mark.asyncio
async def test_what_could_not_be_retained_stays_cleared() -> None:
    """A 3.1.1 client was acknowledged, so what it replaced must not come back."""
    node = DurableFakeNode(retained={"max_payload_size": 3})
    writer = node.connect("w", version=4)
    writer.publish("a", b"old", 1, 1, retain=True)
    writer.publish("a", b"larger", 1, 2, retain=True)
    node.store()
    assert node.crash().broker.retained.get("a") is None


@pytest.mark.asyncio
async def test_a_queue_bound_that_has_shrunk_holds_at_once() -> None:
    node = DurableFakeNode({"max_queued_messages": 100})
    (await subscribed(node)).vanish()
    for number in range(10):
        node.publish("t/1", b"%d" % number, 1)
    node.store()
    after = DurableFakeNode({"max_queued_messages": 4}, node.journal.batches)
    session = after.broker.sessions.get("r")
    assert session is not None and [each.message.payload for each in session.queue or ()] == [b"6", b"7", b"8", b"9"]
    assert len(after.durability.sessions.messages) == 4


# --- records --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_counted_and_left_out() -> None:
    good = records.encode(records.RetainedCleared("t"))
    state = read_batches([(1, [b"", b"\x92\xcc\xff\x01", good, b"\xc1"])])
    assert (state.count, state.unreadable) == (4, 3)


def test_what_speaks_of_things_that_are_gone_changes_nothing() -> None:
    state = RecoveredState()
    for record in (
        records.DeliveryAdded(9, (1, "", 1, False, (), 0)),
        records.DeliveriesSent(1, [(9, "", 3)]),
        records.DeliveriesDone(1, [(9, "")]),
        records.Completed(1, 3),
        records.Freed(1, 3),
        records.SubscriptionRemoved(1, "t"),
        records.SessionEnded(1),
        records.WillGone(4),
        records.DelayedGone(4),
        records.RetainedCleared("t"),
    ):
        state.read(records.encode(record))
    assert state.unreadable == 0
    for table in (state.sessions, state.retained, state.wills, state.delayed):
        assert not table


@pytest.mark.asyncio
async def test_a_session_number_is_not_used_again_when_only_its_end_is_left() -> None:
    """Compaction may have dropped what began it, while what mentions it is still in the log."""
    node = DurableFakeNode(batches=[[records.encode(records.SessionEnded(5))]])
    await node.connect_durable("c")
    (session,) = node.broker.sessions
    assert session.number == 6


@pytest.mark.asyncio
async def test_a_resumption_sends_nothing_of_qos_2_that_is_not_on_disk() -> None:
    """Else a crash makes a second message of what the client has completed."""
    node = DurableFakeNode()
    reader = await subscribed(node)
    node.publish("t/1", b"x", 2)
    node.run()
    assert reader.received() == []  # the Packet Identifier is not on disk
    reader.vanish()
    again = node.send_connect("r")
    node.run()
    await node.settle()
    assert not [each for each in again.received() if isinstance(each, Publish)]
    node.store()
    await node.settle()
    node.store()
    assert [each.payload for each in again.received() if isinstance(each, Publish)] == [b"x"]


@pytest.mark.asyncio
async def test_what_is_held_back_dies_with_its_connection() -> None:
    """After the last packet nothing follows, when the disk is ready or later."""
    node = DurableFakeNode()
    await subscribed(node)
    writer = await node.connect_durable("w")
    writer.publish("t/1", b"x", 1, 1)
    assert writer.received() == []
    taker = node.send_connect("w")  # takes the session over; the first connection gets its DISCONNECT
    node.run()
    assert [type(each) for each in writer.received()] == [Disconnect]
    node.store()
    await node.settle()
    assert writer.received() == []
    assert taker.received()


@pytest.mark.asyncio
async def test_many_sessions_are_restored_in_steps() -> None:
    """Also their expiry: a node that restores those of another one serves its own clients meanwhile."""
    before = DurableFakeNode()
    for number in range(450):
        await subscribed(before, f"c{number}", expiry=100)
    after = DurableFakeNode()
    state = read_batches(enumerate(before.journal.batches, 1))
    steps = recover_in_steps(
        state,
        after.broker,
        after.durability,
        lambda _: (after.zone, after.facts.limits),
        after.server.delayed.recover,
        after.server.refusal_of_will,
    )
    assert sum(1 for _ in steps) == 2 * 450 // 200
    assert len(after.broker.sessions) == 450
