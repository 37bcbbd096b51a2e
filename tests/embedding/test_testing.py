"""taipan.testing.Broker and the pytest plugin: with paho-mqtt in threads, aiomqtt, gmqtt and unittest."""

import asyncio
import queue
import threading
import unittest
from collections import deque
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.packets import Ack, Pingreq, Pingresp
from taipan.faults import NO_PACKET, REFUSALS
from taipan.testing import Broker, Misuse, MqttTestCase
from tests.support.peer import Address, Closed, Peer
from tests.support.wire import Publish

pytest_plugins = ["pytester"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


async def connected(broker: Broker, client_id: str = "ann", version: int = 5, **connect: Any) -> Peer:
    peer = Peer(Address(broker.host, broker.port), version)
    await peer.connect(client_id, **connect)
    return peer


# -------------------------------------------------------------------- messages


@pytest.mark.asyncio
async def test_expect(broker: Broker) -> None:
    peer = await connected(broker)
    expected = broker.expect("a/#", count=3, timeout=20)
    waiting = asyncio.ensure_future(expected._wait())
    for topic in ("a/1", "b", "a/2", "a/3", "a/4"):
        await peer.publish(topic, topic.encode())
    assert [message.topic for message in await waiting] == ["a/1", "a/2", "a/3"]
    assert [message.topic for message in broker.messages] == ["a/1", "b", "a/2", "a/3", "a/4"]
    assert [message.payload for message in broker.expect("a/#").result()] == [b"a/4"]
    with pytest.raises(
        AssertionError, match=r"expected 1 message for 'a/#' within 0\.01 s, got 0 \(topics seen: a/1, "
    ):
        await broker.expect("a/#", timeout=0.01)
    with pytest.raises(AssertionError, match=r"expected 2 messages for 'b' within 0\.01 s, got 1 \(Message\('b', "):
        broker.expect("b", 2, 0.01).result()
    await peer.close()


def test_expect_in_a_thread(broker: Broker) -> None:
    got: queue.Queue[object] = queue.Queue()
    waiting = threading.Thread(target=lambda: got.put(broker.expect("a", 2, 20).result()))
    waiting.start()
    broker.publish("a", "1")
    broker.publish("a", "2")
    waiting.join()
    assert [message.payload for message in got.get()] == [b"1", b"2"]  # type: ignore[attr-defined]


def test_misuse_is_a_sentence(broker: Broker) -> None:
    for use, told in (
        (lambda: broker.expect("a/#/b"), "expect: 'a/#/b' is not a Topic Filter"),
        (lambda: broker.expect("a", count=0), "expect: count: expected a number of at least 1, got 0"),
        (lambda: broker.expect("a", timeout=-1), "expect: timeout: expected a number of seconds, got -1"),
        (lambda: broker.drop("bob"), "drop: no client 'bob' is connected (connected clients: none)"),
        (lambda: broker.malformed("bob"), "malformed: no client 'bob' is connected"),
        (lambda: broker.refuse("not_authorised"), "refuse: no reason 'not_authorised'; did you mean 'not_authorized'?"),
        (lambda: broker.refuse("xyz"), "refuse: no reason 'xyz'; one of unspecified_error"),
        (lambda: broker.refuse(times=0), "refuse: expected a number of at least 1, got 0"),
        (lambda: broker.delay_acks(-1), "delay_acks: expected a number of seconds, got -1"),
        (lambda: broker.lose_next(0), "lose_next: expected a number of at least 1, got 0"),
        (lambda: broker.duplicate_next(True), "duplicate_next: expected a number of at least 1, got True"),
        (lambda: broker.publish("a/+"), "publish: 'a/+' is not a Topic Name"),
        (lambda: Broker(atuh={}), "mqtt has no keyword 'atuh'; did you mean 'auth'?"),
        (lambda: Broker(auth=["ann"]), "auth: expected a dictionary"),  # type: ignore[arg-type]
        (lambda: Broker(durability="disc"), "mqtt: configuration: durability.level"),
        (lambda: Broker(listeners=[f"tcp://127.0.0.1:{broker.port}"]).start(), "mqtt: the node cannot start: "),
    ):
        with pytest.raises(Misuse) as raised:
            use()
        assert str(raised.value).startswith(told)
    other = Broker().start()
    other.expect("a")
    with pytest.raises(Misuse, match=r"expect\('a'\) was neither awaited nor asked for its result\(\)"):
        other.stop()
    for use in (lambda: other.drop("a"), lambda: other.restart()):
        with pytest.raises(Misuse, match="the broker does not run"):
            use()


# ---------------------------------------------------------------------- faults


@pytest.mark.asyncio
async def test_drop_and_malformed(broker: Broker) -> None:
    ann, bob = await connected(broker), await connected(broker, "bob")
    assert broker.clients == ["ann", "bob"]
    broker.drop("ann")
    with pytest.raises(Closed):
        await ann.receive()
    broker.malformed("bob")
    assert await bob.stream.read() == NO_PACKET
    with pytest.raises(Misuse, match=r"drop: no client 'ann' is connected \(connected clients: 'bob'\)"):
        broker.drop("ann")
    await ann.close()
    await bob.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [3, 4, 5])
async def test_refuse(broker: Broker, version: int) -> None:
    broker.refuse("not_authorized", times=1)
    code = REFUSALS["not_authorized"] if version == 5 else reason_codes.V3_NOT_AUTHORIZED
    await (await connected(broker, version=version, expect=code)).close()
    await (await connected(broker, version=version)).close()
    broker.refuse()
    code = REFUSALS["server_unavailable"] if version == 5 else reason_codes.V3_SERVER_UNAVAILABLE
    for _ in range(2):
        await (await connected(broker, version=version, expect=code)).close()
    broker.accept()
    await (await connected(broker, version=version)).close()
    assert len(REFUSALS) == 21


@pytest.mark.asyncio
async def test_delay_acks(broker: Broker) -> None:
    peer = await connected(broker)
    broker.delay_acks(0.05)
    began = asyncio.get_running_loop().time()
    await peer.send(Publish("a", b"", 1, packet_id=7), Pingreq())
    await peer.expect(Pingresp)  # which came later, and is not delayed
    await peer.expect_ack(c.PUBACK, 7, None)
    assert asyncio.get_running_loop().time() - began >= 0.04
    broker.delay_acks(0)
    await peer.send(Publish("a", b"", 1, packet_id=8), Pingreq())
    await peer.expect_ack(c.PUBACK, 8, None)
    await peer.close()


@pytest.mark.asyncio
async def test_lose_and_duplicate(broker: Broker) -> None:
    peer, sender = await connected(broker), await connected(broker, "bob")
    await peer.subscribe("a", qos=1)
    broker.lose_next(2)
    for number in range(3):
        await sender.send(Publish("a", b"%d" % number, 1, packet_id=number + 1))
    await sender.expect_ack(c.PUBACK, 3)
    await peer.expect_publish("a", b"2")
    broker.lose_next(to_clients=True)
    broker.publish("a", "lost", qos=1)
    broker.duplicate_next()
    broker.publish("a", "twice", qos=1)
    first = await peer.expect_publish("a", b"twice")
    again = await peer.expect_publish("a", b"twice", acknowledge=False)
    assert (first.dup, again.dup) == (False, True) and first.packet_id == again.packet_id
    broker.duplicate_next(2)
    broker.clear_faults()
    broker.publish("a", "once", qos=0)
    await peer.expect_publish("a", b"once")
    await peer.nothing()
    assert [message.payload for message in broker.messages] == [b"2", b"lost", b"twice", b"once"]
    await peer.close()
    await sender.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("keep", [True, False])
async def test_restart(broker: Broker, keep: bool) -> None:
    port, properties = broker.port, {c.SESSION_EXPIRY_INTERVAL: 100}
    peer = await connected(broker, clean_start=False, properties=properties)
    await peer.subscribe("a", qos=1)
    broker.publish("r", "kept", retain=True)
    broker.restart(keep_state=keep)
    with pytest.raises(Closed):
        await peer.receive()
    assert broker.port == port
    broker.publish("a", "queued", qos=1)
    again = await connected(broker, clean_start=False, properties=properties, session_present=keep)
    if keep:
        await again.expect_publish("a", b"queued")
    await again.subscribe("r")
    if keep:
        await again.expect_publish("r", b"kept")
    await again.nothing()
    assert [message.topic for message in broker.messages] == ["r", "a"]
    broker.drop("ann")
    await peer.close()
    await again.close()


@pytest.mark.asyncio
async def test_faults_of_websocket_clients() -> None:
    with Broker(listeners=["ws://127.0.0.1:0/in"]) as broker:
        for keep in (True, False):
            peer = Peer(Address(broker.host, broker.port, "ws", "/in"), 5)
            await peer.connect("ann")
            broker.lose_next()
            await peer.send(Publish("a", b"1"), Publish("a", b"2", 1, packet_id=1))
            assert (await peer.expect(Ack)).packet_id == 1
            broker.restart(keep)
            await peer.close()
        assert [message.payload for message in broker.messages] == [b"2", b"2"]


# --------------------------------------------------------------- other clients


def test_paho_in_threads(broker: Broker) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "ann")
    again = threading.Event()
    connections: list[object] = []

    def on_connect(*facts: Any) -> None:
        client.subscribe("in/#", qos=1)
        connections.append(facts)
        if len(connections) == 2:
            again.set()

    client.on_connect = on_connect
    client.on_message = lambda client, _, message: client.publish("out", message.payload, qos=1)
    client.reconnect_delay_set(min_delay=1, max_delay=1)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        client.publish("up", "1", qos=1).wait_for_publish(20)
        broker.expect("up", timeout=20).result()
        broker.drop("ann")
        assert again.wait(20)
        broker.publish("in/1", "hello", qos=1, retain=True)
        assert broker.expect("out", timeout=20).result()[0].payload == b"hello"
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.asyncio
async def test_aiomqtt(broker: Broker) -> None:
    async with aiomqtt.Client(broker.host, broker.port, identifier="ann") as client:
        await client.subscribe("a")
        broker.publish("a", "1")
        assert (await anext(client.messages)).payload == b"1"
        await client.publish("b", b"2", qos=2)
        assert (await broker.expect("b", timeout=20))[0].payload == b"2"
        broker.drop("ann")
        with pytest.raises(aiomqtt.MqttError):
            await anext(client.messages)


@pytest.mark.asyncio
async def test_gmqtt(broker: Broker) -> None:
    import gmqtt

    client = gmqtt.Client("ann")
    got: asyncio.Queue[bytes] = asyncio.Queue()
    client.on_message = lambda client, topic, payload, qos, properties: got.put_nowait(payload) or 0
    await client.connect(broker.host, broker.port, version=5)
    client.subscribe("a", qos=1)
    broker.publish("a", "1", qos=1, retain=True)
    assert await got.get() == b"1"
    client.publish("b", b"2", qos=1)
    assert (await broker.expect("b", timeout=20))[0].payload == b"2"
    await client.disconnect()


@pytest.mark.asyncio
async def test_auth() -> None:
    with Broker(auth={"ann": "secret"}) as broker:
        await (await connected(broker, username="ann", password=b"secret")).close()
        for username, password in (("ann", b"wrong"), ("bob", b"secret"), (None, None)):
            peer = await connected(broker, username=username, password=password, expect=None)
            assert peer.connack is not None and peer.connack.reason_code >= 0x80
            await peer.close()


class UnittestTest(MqttTestCase):
    mqtt = {"auth": {"ann": "secret"}}

    def test_it(self) -> None:
        self.broker.publish("a", "1")
        assert self.broker.expect("a").result()[0].payload == b"1"


def test_unittest() -> None:
    result = unittest.defaultTestLoader.loadTestsFromTestCase(UnittestTest).run(unittest.TestResult())
    assert result is not None and result.testsRun == 1 and result.wasSuccessful(), result.errors + result.failures


# ---------------------------------------------------------------------- plugin


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory with tests of somebody else's, who has installed Taipan."""
    if not any(each.name == "taipan" for each in entry_points(group="pytest11")):
        pytester.plugins.append("taipan.pytest_plugin")
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider --strict-markers\nasyncio_mode = auto\n")
    return pytester


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_fixtures(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import unittest
        import paho.mqtt.publish, pytest

        ports = []

        def test_fresh(mqtt_broker):
            ports.append(mqtt_broker.port)
            paho.mqtt.publish.single("a", "1", qos=1, hostname=mqtt_broker.host, port=mqtt_broker.port)
            assert mqtt_broker.expect("a").result()[0].payload == b"1"

        def test_another(mqtt_broker):
            assert mqtt_broker.messages == []

        @pytest.mark.mqtt(auth={"ann": "secret"}, retained={"max_messages": 1})
        def test_marker(mqtt_broker):
            auth = {"username": "ann", "password": "secret"}
            paho.mqtt.publish.single("a", "1", qos=1, hostname=mqtt_broker.host, port=mqtt_broker.port, auth=auth)
            assert mqtt_broker.node.node.settings.broker.retained.max_messages == 1

        @pytest.mark.mqtt(retained={"max_messages": 2})
        class TestClass:
            def test_of_the_class(self, mqtt_broker):
                assert mqtt_broker.node.node.settings.broker.retained.max_messages == 2

            @pytest.mark.mqtt(retained={"max_messages": 3})
            def test_the_closest_wins(self, mqtt_broker):
                assert mqtt_broker.node.node.settings.broker.retained.max_messages == 3

        def test_session(mqtt_broker_session):
            mqtt_broker_session.publish("kept", "x", retain=True)
            ports.append(mqtt_broker_session)

        def test_session_is_the_same(mqtt_broker_session):
            assert ports[-1] is mqtt_broker_session

        async def test_asyncio(mqtt_broker):
            import aiomqtt
            async with aiomqtt.Client(mqtt_broker.host, mqtt_broker.port) as client:
                await client.publish("a", b"1", qos=1)
                assert (await mqtt_broker.expect("a"))[0].payload == b"1"
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=8)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_misuse_fails_the_test_with_a_sentence(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.mqtt(atuh={})
        def test_keyword(mqtt_broker):
            pass

        @pytest.mark.mqtt({"ann": "secret"})
        def test_positional(mqtt_broker):
            pass

        def test_filter(mqtt_broker):
            mqtt_broker.expect("a#")

        def test_client(mqtt_broker):
            mqtt_broker.drop("ann")

        def test_forgotten(mqtt_broker):
            mqtt_broker.expect("a")
        """
    )
    result = suite.runpytest_subprocess()
    result.assert_outcomes(errors=3, failed=2, passed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*mqtt has no keyword 'atuh'; did you mean 'auth'?*",
            "*@pytest.mark.mqtt accepts keywords only*",
            "*expect: 'a#' is not a Topic Filter*",
            "*drop: no client 'ann' is connected (connected clients: none)*",
            "*expect('a') was neither awaited nor asked for its result()*",
        ]
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_costs_nothing_where_it_is_not_used(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_nothing():
            assert not [name for name in sys.modules if name.startswith(("taipan.broker", "taipan.management"))]
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_capmqtt(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\naddopts = -p no:cacheprovider\nmarkers = capmqtt_decode_utf8\n")
    suite.makepyfile(
        """
        import paho.mqtt.publish, pytest
        from taipan.capmqtt import MqttMessage

        def test_bytes(mosquitto, capmqtt):
            host, port = mosquitto
            paho.mqtt.publish.single("a", "1", qos=1, hostname=host, port=port)
            capmqtt.publish(topic="b", payload=5)
            assert capmqtt.messages == [MqttMessage("a", b"1", None), MqttMessage("b", b"5", None)]

        @pytest.mark.capmqtt_decode_utf8
        def test_text(mqtt_settings, capmqtt):
            assert capmqtt.messages == [] and mqtt_settings.port
            capmqtt.publish("c", "x", qos=1)
            assert capmqtt.records == [("c", "x", None)]
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=2)


@pytest.mark.asyncio
async def test_result_on_an_event_loop_says_why_nothing_comes(mqtt_broker: Broker) -> None:
    with pytest.raises(AssertionError, match="await the expect instead"):
        mqtt_broker.expect("a", timeout=0.01).result()


def test_capmqtt_in_a_session_that_has_forgotten_messages(
    capmqtt: Any, mqtt_broker_session: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker keeps so many messages for all tests of a session: what is captured begins behind those."""
    monkeypatch.setattr(mqtt_broker_session, "_messages", deque(mqtt_broker_session._messages, maxlen=2))
    for payload in "abc":
        capmqtt.publish("t", payload)
    captured = type(capmqtt)(mqtt_broker_session, True)
    captured.publish("t", "d")
    assert [each.payload for each in captured.messages] == ["d"]
