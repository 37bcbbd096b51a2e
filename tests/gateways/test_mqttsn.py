"""MQTT-SN clients over UDP: their messages, sessions, Wills and sleep, beside MQTT clients on the same node."""

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.access.banned import CLIENT_ID, Ban
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.gateway import GatewayLoadError, kind_of
from taipan.broker.gateways.mqttsn import codec as sn
from taipan.broker.gateways.mqttsn import topics
from taipan.broker.gateways.mqttsn.gateway import GATEWAY
from tests.gateways.sn_client import SnClient
from tests.support.api import ManagedNode, managed_node
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio]

HASH = str(ScryptHash.create(b"secret", 1 << 10))
TOPICS = {"1": "/predefined/topic/name/hello", "2": "/predefined/topic/name/nice"}


class Clients:
    def __init__(self) -> None:
        self._all: list[SnClient] = []

    async def open(self, node: ManagedNode, answers: bool = True, prefix: bytes = b"") -> SnClient:
        client = await SnClient.open(listener_of(node).bind, answers, prefix)
        self._all.append(client)
        return client

    async def connected(self, node: ManagedNode, client_id: str, **options: Any) -> SnClient:
        client = await self.open(node)
        await client.connect(client_id, **options)
        return client

    async def close(self) -> None:
        for client in self._all:
            client.close()
        await asyncio.sleep(0)


def listener_of(node: ManagedNode) -> Any:
    [listener] = [each for each in node.server.listeners if each.type == "mqttsn"]
    return listener


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.close()


def start(gateway: dict[str, object] | None = None, **settings: Any) -> Any:
    assert kind_of("mqttsn") is not None
    own = settings.pop("listener", {})
    table = {"predefined_topics": TOPICS, **(gateway or {})}
    listeners = [{"type": "tcp"}, {"type": "mqttsn", "name": "sn", "gateway": table, **own}]
    return managed_node(listeners=listeners, **settings)


async def test_messages_in_both_directions(clients: Clients) -> None:
    async with start() as node:
        device, peer = await clients.connected(node, "dev1"), await node.client("m")
        await peer.subscribe("plant/#", qos=2)
        topic_id = await device.register("plant/temperature")
        for qos in (0, 1, 2):
            await device.publish(topic_id, b"21", qos)
            await peer.expect_publish("plant/temperature", b"21", qos)
        for qos, topic in enumerate(("valve", "plant/+/set", "alarm/#")):
            await device.subscribe(topic, qos)
        await peer.publish("valve", b"open", 0)
        assert await device.message() == ("valve", b"open", 0)
        await peer.publish("plant/9/set", b"5", 2)
        assert await device.message() == ("plant/9/set", b"5", 1)
        await peer.publish("alarm/9", b"6", 2)
        assert await device.message() == ("alarm/9", b"6", 2)
        assert device.registered[1:] == ["plant/9/set", "alarm/9"]
        assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)
        [row] = (await node.api.get("/clients/dev1")).data
        assert (row["proto_name"], row["proto_ver"], row["port"]) == ("MQTT-SN", 1, device.port)
        assert row["ip_address"] == "127.0.0.1" and row["keepalive"] == 60 and row["clean_start"] is True
        assert await device.ask(sn.SnDisconnect()) == sn.SnDisconnect()
        await until(lambda: listener_of(node).current_connections == 0)
        assert listener_of(node).refused == {}


async def test_the_memory_of_an_idle_client() -> None:
    """At most 2.5 KiB, beside its entry in the last events of clients, which are limited in number."""
    count, event = 200, 250
    async with start() as node:
        listener, loop, socks = listener_of(node), asyncio.get_running_loop(), []

        async def connected(client_id: str) -> None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            socks.append(sock)
            sock.setblocking(False)
            sock.connect(listener.bind)
            sock.send(sn.encode(sn.SnConnect(client_id, True, False, 0)))
            assert await asyncio.wait_for(loop.sock_recv(sock, 100), patience(5)) == sn.encode(
                sn.SnConnack(sn.ACCEPTED)
            )

        try:
            for number in range(50):
                await connected(f"warm{number:05}")
            gc.collect()
            tracemalloc.start()
            for number in range(count):
                await connected(f"idle{number:05}")
            gc.collect()
            taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/broker/*")])
        finally:
            tracemalloc.stop()
            for each in socks:
                each.close()
        assert sum(each.size for each in taken.traces) / count < 2560 + event


async def test_topics_of_each_kind(clients: Clients) -> None:
    """Predefined, short and registered ones, as a publisher and as a subscriber."""
    async with start() as node:
        device, peer = await clients.connected(node, "dev1"), await node.client("m")
        await peer.subscribe("#", qos=1)
        await device.publish(1, b"a", 1, sn.PREDEFINED)
        await peer.expect_publish(TOPICS["1"], b"a", 1)
        await device.publish(2, b"b", 0)  # a normal id that was not registered: clients of Paho mean this
        await peer.expect_publish(TOPICS["2"], b"b", 0)
        await device.publish(int.from_bytes(b"ab"), b"c", 1, sn.SHORT)
        await peer.expect_publish("ab", b"c", 1)
        await device.subscribe(1, 1, sn.PREDEFINED)
        await device.subscribe(int.from_bytes(b"xy"), 1, sn.SHORT)
        await peer.publish(TOPICS["1"], b"d", 1)
        await peer.expect_publish(TOPICS["1"], b"d", 1)
        assert await device.message() == ("1", b"d", 1)
        await peer.publish("xy", b"e", 1)
        assert await device.message() == ("xy", b"e", 1)
        for topic_id, id_type, code in (
            (7, sn.PREDEFINED, sn.INVALID_TOPIC_ID),
            (99, sn.NORMAL, sn.INVALID_TOPIC_ID),
            (int.from_bytes(b"a#"), sn.SHORT, sn.INVALID_TOPIC_ID),
        ):
            heard = await device.ask(sn.SnPublish(topic_id, id_type, b"", 1, msg_id=9))
            assert heard == sn.SnPuback(topic_id, 9, code)
        for topic, id_type in (("a/#/b", sn.NORMAL), (77, sn.PREDEFINED)):
            heard = await device.ask(sn.SnSubscribe(5, topic, id_type))
            assert heard == sn.SnSuback(0, 0, 5, sn.INVALID_TOPIC_ID)
        heard = await device.ask(sn.SnRegister(0, 6, "a/+"))
        assert heard == sn.SnRegack(0, 6, sn.NOT_SUPPORTED)
        for topic, id_type in ((1, sn.PREDEFINED), (int.from_bytes(b"xy"), sn.SHORT), ("none", sn.NORMAL)):
            heard = await device.ask(sn.SnSubscribe(8, topic, id_type, remove=True))
            assert heard == sn.SnReply(sn.UNSUBACK, 8)
        assert list((await node.api.get("/subscriptions/dev1")).data) == []


async def test_a_topic_that_the_client_does_not_know_is_registered_again(clients: Clients) -> None:
    async with start() as node:
        device, peer = await clients.connected(node, "dev1"), await node.client("m")
        await device.subscribe("a/#", 1)
        await peer.publish("a/b", b"1", 1)
        assert await device.message() == ("a/b", b"1", 1)
        device.answers = False
        await peer.publish("a/b", b"2", 1)
        heard = await device.hear()
        assert isinstance(heard, sn.SnPublish)
        device.say(sn.SnPuback(heard.topic_id, heard.msg_id, sn.INVALID_TOPIC_ID))
        register = await device.hear()
        assert isinstance(register, sn.SnRegister) and register.topic == "a/b"
        assert register.topic_id != heard.topic_id
        device.say(sn.SnRegack(register.topic_id, register.msg_id, sn.ACCEPTED))
        again = await device.hear()
        assert again == sn.SnPublish(register.topic_id, sn.NORMAL, b"2", 1, False, True, heard.msg_id)
        device.say(sn.SnPuback(register.topic_id, heard.msg_id, sn.ACCEPTED))
        await until(lambda: not node.server.broker.sessions.get("dev1").inflight)
        # One that the client refuses is done.
        await peer.publish("a/c", b"3", 1)
        register = await device.hear()
        assert isinstance(register, sn.SnRegister)
        device.say(sn.SnRegack(register.topic_id, register.msg_id, sn.NOT_SUPPORTED))
        await until(lambda: listener_of(node).refused.get("topic_refused") == 1)
        await until(lambda: not node.server.broker.sessions.get("dev1").inflight)


async def test_users_rules_bans_kicks_and_takeover(clients: Clients) -> None:
    users = [{"username": "sn", "password_hash": HASH}]
    rules = [{"allow": False, "topics": ["no/#"], "username": "sn"}]
    access, zone = {"users": users, "rules": rules}, {"allow_anonymous": False}
    async with start(access=access, zone=zone) as node:
        device = await clients.open(node)
        assert await device.ask(sn.SnConnect("a")) == sn.SnConnack(sn.CONGESTION)
    async with start({"username": "sn", "password": "secret"}, access=access, zone=zone) as node:
        device = await clients.connected(node, "a")
        [row] = (await node.api.get("/clients/a")).data
        assert row["username"] == "sn"
        topic_id = await device.register("no/way")
        for qos, msg_id in ((1, 3), (2, 4)):
            heard = await device.ask(sn.SnPublish(topic_id, sn.NORMAL, b"", qos, msg_id=msg_id))
            assert heard == sn.SnPuback(topic_id, msg_id, sn.NOT_SUPPORTED)
        heard = await device.ask(sn.SnSubscribe(6, "no/#"))
        assert heard == sn.SnSuback(0, 0, 6, sn.NOT_SUPPORTED)
        second = await clients.connected(node, "a")
        await device.expect(sn.SnDisconnect())
        assert (await node.api.delete("/clients/a")).code == 0
        await second.expect(sn.SnDisconnect())
        node.server.banned.put(Ban(CLIENT_ID, "a", "tester", "", 0, 2**40))
        assert await second.ask(sn.SnConnect("a")) == sn.SnConnack(sn.CONGESTION)


async def will(device: SnClient, client_id: str, topic: str, payload: bytes, duration: int = 10) -> None:
    assert await device.ask(sn.SnConnect(client_id, True, True, duration)) == sn.SnSimple(sn.WILLTOPICREQ)
    assert await device.ask(sn.SnWillTopic(topic, 1)) == sn.SnSimple(sn.WILLMSGREQ)
    assert await device.ask(sn.SnWillMsg(payload)) == sn.SnConnack(sn.ACCEPTED)


async def test_wills_and_their_updates(clients: Clients) -> None:
    async with start() as node:
        peer = await node.client("m")
        await peer.subscribe("will/#", qos=2)
        await node.stand_still()
        device = await clients.open(node)
        await will(device, "a", "will/a", b"gone")
        await node.pass_time(20)
        await peer.expect_publish("will/a", b"gone", 1)
        await device.expect(sn.SnDisconnect())
        await will(device, "a", "will/a", b"gone")
        topic = sn.SnWillTopic("will/b", 2, update=True)
        assert await device.ask(topic) == sn.SnWillResponse(sn.WILLTOPICRESP, sn.ACCEPTED)
        message = sn.SnWillMsg(b"away", update=True)
        assert await device.ask(message) == sn.SnWillResponse(sn.WILLMSGRESP, sn.ACCEPTED)
        await node.pass_time(20)
        await peer.expect_publish("will/b", b"away", 2)
        await device.expect(sn.SnDisconnect())
        await will(device, "a", "will/a", b"gone")
        deleted = sn.SnWillTopic("", update=True)
        assert await device.ask(deleted) == sn.SnWillResponse(sn.WILLTOPICRESP, sn.ACCEPTED)
        assert await device.ask(message) == sn.SnWillResponse(sn.WILLMSGRESP, sn.NOT_SUPPORTED)
        invalid = sn.SnWillTopic("a/#", update=True)
        assert await device.ask(invalid) == sn.SnWillResponse(sn.WILLTOPICRESP, sn.INVALID_TOPIC_ID)
        await node.pass_time(20)
        await device.expect(sn.SnDisconnect())
        # A normal end has no Will, and an empty WILLTOPIC means none.
        await will(device, "a", "will/a", b"gone")
        assert await device.ask(sn.SnDisconnect()) == sn.SnDisconnect()
        await until(lambda: "a" not in node.server.broker.sessions)
        assert await device.ask(sn.SnConnect("a", True, True, 10)) == sn.SnSimple(sn.WILLTOPICREQ)
        assert await device.ask(sn.SnWillTopic("")) == sn.SnConnack(sn.ACCEPTED)
        await peer.ping()


async def test_a_sleeping_client(clients: Clients) -> None:
    """It is connected, takes nothing, and is given everything before PINGRESP when it asks."""
    async with start() as node:
        peer = await node.client("m")
        await node.stand_still()
        device = await clients.connected(node, "a", clean=False, duration=10)
        await device.subscribe("t/#", 2)
        await peer.publish("t/0", b"0", 0)  # proves the address
        assert await device.message() == ("t/0", b"0", 0)
        for _ in range(2):  # the second one is a repetition
            assert await device.ask(sn.SnDisconnect(100)) == sn.SnDisconnect()
        for number in range(6):
            await peer.publish(f"t/{number % 2}", b"%d" % number, number % 3)
        await peer.ping()
        await node.pass_time(120)
        assert device.inbox.empty()
        [row] = (await node.api.get("/clients/a")).data
        assert row["connected"] is True and row["mqueue_len"] == 5
        device.say(sn.SnPingreq())
        device.say(sn.SnPingreq("another"))
        device.say(sn.SnPingreq("a"))
        heard = [await device.message() for _ in range(6)]
        assert sorted(int(payload) for _, payload, _ in heard) == list(range(6))
        assert all(int(payload) % 3 == qos for _, payload, qos in heard)
        await device.expect(sn.SnSimple(sn.PINGRESP))
        await peer.publish("t/0", b"late", 1)
        await peer.ping()
        assert device.inbox.empty()
        await node.pass_time(140)
        # CONNECT ends the sleep: the same session, without a new Will procedure.
        assert await device.ask(sn.SnConnect("a", False, False, 10)) == sn.SnConnack(sn.ACCEPTED)
        assert await device.message() == ("t/0", b"late", 1)
        assert node.server.metrics.snapshot()["client.connected"] == 2
        assert await device.ask(sn.SnDisconnect(10)) == sn.SnDisconnect()
        await node.pass_time(16)
        await until(lambda: listener_of(node).current_connections == 0)
        assert await device.ask(sn.SnPingreq("a")) == sn.SnDisconnect()


async def test_a_client_that_does_not_answer(clients: Clients) -> None:
    """A message is repeated with DUP; then the client is lost, and its Will is published."""
    async with start({"retry_interval": 5, "max_retries": 2}) as node:
        peer = await node.client("m")
        await peer.subscribe("will/a", qos=1)
        await node.stand_still()
        device = await clients.open(node)
        await will(device, "a", "will/a", b"gone", 100)
        topic_id = await device.subscribe("t", 1)
        await peer.publish("t", b"0", 1)
        assert await device.message() == ("t", b"0", 1)
        device.answers = False
        await peer.publish("t", b"1", 1)
        first = await device.hear()
        assert isinstance(first, sn.SnPublish) and not first.dup and first.topic_id == topic_id
        for _ in range(2):
            await node.pass_time(5.2)
            assert await device.hear() == sn.SnPublish(topic_id, sn.NORMAL, b"1", 1, False, True, first.msg_id)
        await node.pass_time(5.2)
        await device.expect(sn.SnDisconnect())
        await peer.expect_publish("will/a", b"gone", 1)
        assert listener_of(node).refused == {"no_answer": 1}


async def test_repeated_and_unexpected_datagrams(clients: Clients) -> None:
    async with start() as node:
        peer = await node.client("m")
        await peer.subscribe("ab", qos=2)
        device = await clients.open(node)
        for packet in (sn.SnPingreq(), sn.SnPublish(1, sn.PREDEFINED, b"", 1, msg_id=1), sn.SnSubscribe(1, "a")):
            assert await device.ask(packet) == sn.SnDisconnect()  # it has no connection
        device.say(sn.SnPingreq())
        await until(lambda: listener_of(node).refused.get("unexpected_datagram") == 4)
        connect = sn.SnConnect("a", True, False, 10)
        for _ in range(2):
            assert await device.ask(connect) == sn.SnConnack(sn.ACCEPTED)
        assert node.server.metrics.snapshot()["client.connected"] == 2
        # QoS 2: each message once, whenever its repetitions come.
        publish = sn.SnPublish(int.from_bytes(b"ab"), sn.SHORT, b"1", 2, msg_id=5)
        for _ in range(2):
            assert await device.ask(publish) == sn.SnReply(sn.PUBREC, 5)
            publish.dup = True
        for _ in range(2):
            assert await device.ask(sn.SnReply(sn.PUBREL, 5)) == sn.SnReply(sn.PUBCOMP, 5)
        assert await device.ask(publish) == sn.SnReply(sn.PUBREC, 5)
        assert await device.ask(sn.SnReply(sn.PUBREL, 5)) == sn.SnReply(sn.PUBCOMP, 5)
        await peer.expect_publish("ab", b"1", 2)
        await device.publish(publish.topic_id, b"2", 2, sn.SHORT)
        await peer.expect_publish("ab", b"2", 2)
        # A CONNECT with another content begins again: the address has another conversation.
        assert await device.ask(sn.SnConnect("b", True, False, 10)) == sn.SnConnack(sn.ACCEPTED)
        await until(lambda: "a" not in node.server.broker.sessions)
        assert [each["clientid"] for each in (await node.api.get("/clients", proto_name="MQTT-SN")).data] == ["b"]
        for data in (b"\x02", b"\x05\x18", b"\x02\x03", b"\x00\x00", b"\x01\x00\x03\x18", b"\x03\x13\x00"):
            device.send(data)
        await until(lambda: listener_of(node).refused.get("malformed_datagram") == 6)
        assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)


async def test_a_connect_that_is_not_accepted(clients: Clients) -> None:
    """Another protocol, no ClientId, and a Will that breaks the rules of topics."""
    async with start() as node:
        device = await clients.open(node)
        for packet in (sn.SnConnect("a", protocol_id=2), sn.SnConnect("")):
            assert await device.ask(packet) == sn.SnConnack(sn.NOT_SUPPORTED)
        assert await device.ask(sn.SnConnect("a", will=True)) == sn.SnSimple(sn.WILLTOPICREQ)
        device.say(sn.SnWillTopic("a/#"))
        await until(lambda: listener_of(node).refused == {"malformed_datagram": 3})
        assert await device.ask(sn.SnConnect("a", will=True)) == sn.SnSimple(sn.WILLTOPICREQ)
        assert await device.ask(sn.SnDisconnect()) == sn.SnDisconnect()
        await device.connect("a")


async def test_publish_without_a_connection(clients: Clients) -> None:
    """QoS -1: only where it is on, within the access rules, and nothing is answered."""
    short = int.from_bytes(b"ab")
    async with start() as node:
        device = await clients.open(node)
        device.say(sn.SnPublish(short, sn.SHORT, b"1", -1))
        await until(lambda: listener_of(node).refused == {"qos3_off": 1})
    rules = [{"allow": False, "action": "publish", "topics": ["no"]}]
    async with start({"enable_qos3": True}, access={"rules": rules}) as node:
        peer = await node.client("m")
        await peer.subscribe("#")
        await node.stand_still()
        device = await clients.open(node)
        device.say(sn.SnPublish(int.from_bytes(b"no"), sn.SHORT, b"1", -1))
        device.say(sn.SnPublish(1, sn.NORMAL, b"1", -1))
        device.say(sn.SnPublish(short, sn.SHORT, b"2", -1))
        device.say(sn.SnPublish(1, sn.PREDEFINED, b"3", -1))
        await peer.expect_publish("ab", b"2", 0)
        await peer.expect_publish(TOPICS["1"], b"3", 0)
        assert listener_of(node).refused == {"unexpected_datagram": 1}
        await node.pass_time(20)
        device.say(sn.SnPublish(short, sn.SHORT, b"4", -1))
        await peer.expect_publish("ab", b"4", 0)
        await node.pass_time(20)
        assert listener_of(node).current_connections == 1
        await node.pass_time(20)
        await until(lambda: listener_of(node).current_connections == 0)
        assert device.inbox.empty()
        # The same address may connect.
        device.say(sn.SnPublish(short, sn.SHORT, b"5", -1))
        await peer.expect_publish("ab", b"5", 0)
        await device.connect("a")
        device.say(sn.SnPublish(short, sn.SHORT, b"6", -1))
        await peer.expect_publish("ab", b"6", 0)


async def test_forwarders(clients: Clients) -> None:
    """Two wireless nodes behind one address are two clients, and an answer carries the header of its node."""
    async with start() as node:
        device, other = await clients.open(node), await clients.open(node, prefix=b"\x05\xfe\x00ab")
        peer = await node.client("m")
        await device.connect("plain")
        await other.connect("behind")
        for client in (device, other):
            await client.subscribe("t/#", 1)
        await peer.publish("t/1", b"x", 1)
        for client in (device, other):
            assert await client.message() == ("t/1", b"x", 1)
        other.transport.sendto(b"\x06\xfe\x00abc" + sn.encode(sn.SnConnect("third")))
        await until(lambda: listener_of(node).current_connections == 3)
        for data in (b"\x03\xfe\x00", b"\x09\xfe\x00a", b"\x04\xfe\x00a\x04\xfe\x00b\x02\x16"):
            device.send(data)
        await until(lambda: listener_of(node).refused.get("malformed_datagram") == 3)


async def test_discovery(clients: Clients) -> None:
    async with start({"gateway_id": 7}) as node:
        device = await clients.open(node)
        assert await device.ask(sn.SnSearchGw(1)) == sn.SnGwInfo(7)
        await device.connect("a")
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        heard.bind(("127.255.255.255", 0))
        heard.setblocking(False)
        port = heard.getsockname()[1]
        table = {"gateway_id": 7, "advertise_duration": 900, "advertise_address": "127.255.255.255"}
        async with start(table, listener={"bind": f"127.0.0.1:{port}"}) as node:
            data, address = await asyncio.wait_for(loop.sock_recvfrom(heard, 100), patience(5))
            assert sn.decode(data) == sn.SnAdvertise(7, 900) and address == ("127.0.0.1", port)
            assert listener_of(node).refused == {}


async def test_an_address_that_is_not_proved(clients: Clients) -> None:
    """Whoever connects from a forged address and subscribes to everything gets it nothing but attempts to prove it."""
    async with start({"retry_interval": 1, "max_retries": 3}) as node:
        peer = await node.client("m")
        for number in range(20):
            await peer.publish(f"big/{number}", b"x" * 1000, 1, retain=True)
        await node.stand_still()
        device = await clients.open(node, answers=False)
        connect, subscribe = sn.SnConnect("a", False, False, 100), sn.SnSubscribe(1, "big/#", qos=1)
        assert await device.ask(connect) == sn.SnConnack(sn.ACCEPTED)
        assert await device.ask(subscribe) == sn.SnSuback(1, 0, 1, sn.ACCEPTED)
        sent = len(sn.encode(connect)) + len(sn.encode(subscribe))
        got = 3 + 8
        registers = []
        for _ in range(4):
            heard = await device.hear()
            assert isinstance(heard, sn.SnRegister)
            registers.append(heard)
            got += len(sn.encode(heard))
            topic_id, msg_id = heard.topic_id, heard.msg_id
            wrong = (topic_id, msg_id ^ 1) if len(registers) % 2 else (topic_id ^ 1, msg_id)
            device.say(sn.SnRegack(*wrong, sn.ACCEPTED))  # a guess
            sent += 7
        assert len({each.msg_id for each in registers}) == 4 and got <= sent + 64
        # The topic id is another number that has to be guessed: it begins anywhere.
        given = {topics.Topics({}).register("t") for _ in range(1000)}
        # Some clients read it as a signed number.
        assert len(given) > 500 and min(given) > 0 and max(given) < 0x8000
        heard = await device.hear()
        assert isinstance(heard, sn.SnRegister)
        device.say(sn.SnRegack(heard.topic_id, heard.msg_id, sn.ACCEPTED))
        while not isinstance(heard, sn.SnPublish):
            heard = await device.hear()
        assert len(heard.payload) == 1000


async def test_limits_of_a_client(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", 3)
    async with start({"max_waiting_bytes": 500}) as node:
        device, peer = await clients.connected(node, "a"), await node.client("m")
        for number in range(3):
            await device.register(f"own/{number}")
        assert await device.ask(sn.SnRegister(0, 9, "own/9")) == sn.SnRegack(0, 9, sn.CONGESTION)
        assert await device.ask(sn.SnSubscribe(9, "own/9")) == sn.SnSuback(0, 0, 9, sn.CONGESTION)
        await device.subscribe("all/#")
        for number in (0, 1, 2, 3, 0):  # the node's own registrations give way to others
            await peer.publish(f"all/{number}", b"x")
            assert await device.message() == (f"all/{number}", b"x", 0)
        assert device.registered[1:] == ["all/1", "all/2", "all/3", "all/0"]
        device.answers = False
        for _ in range(5):
            await peer.publish("all/new", b"x" * 100)
        await until(lambda: listener_of(node).refused == {"waiting_for_client": 3})


async def test_ipv6(clients: Clients) -> None:
    async with start(listener={"bind": "[::1]:0"}) as node:
        device = await clients.connected(node, "a")
        await device.publish(await device.register("t"), b"x", 1)
        [row] = (await node.api.get("/clients/a")).data
        assert (row["ip_address"], row["port"]) == ("::1", device.port)


async def test_the_record_of_the_listener_and_its_rows(clients: Clients) -> None:
    """Rules, traces and the API show what they show of every client."""
    async with start() as node:
        rows = {each["identifier"]: each for each in (await node.api.get(f"/nodes/{node.name}/listeners")).data}
        assert rows["mqttsn:udp:sn"]["protocol"] == "mqttsn:udp"
        body = {"rawsql": 'SELECT * FROM "t"', "actions": [{"name": "inspect", "params": {}}]}
        rule = (await node.api.post("/rules", body)).data["id"]
        device = await clients.connected(node, "a", clean=False)
        await device.publish(await device.register("t"), b"x", 1)
        metrics = (await node.api.get(f"/rules/{rule}")).data["metrics"]
        assert metrics[0]["matched"] == 1
        assert len((await node.api.get("/clients", proto_name="MQTT-SN", proto_ver="1")).data) == 1
        assert await device.ask(sn.SnDisconnect()) == sn.SnDisconnect()
        await until(lambda: not node.server.broker.sessions.get("a").connected)
        [row] = (await node.api.get("/clients/a")).data
        assert row["connected"] is False and row["expiry_interval"] == 7200


@pytest.mark.parametrize(
    "table, told",
    [
        ({"predefined_topics": {"0": "a"}}, "predefined_topics: '0' is not a topic id from 1 to 65534"),
        ({"predefined_topics": {str(n): f"t/{n}" for n in range(1, 16_386)}}, "predefined_topics: more than 16384"),
        ({"predefined_topics": {"1": "a/#"}}, "predefined_topics: 'a/#' is not a topic name"),
        ({"predefined_topics": {"1": "a", "2": "a"}}, "predefined_topics: a topic has two ids"),
        ({"password": "x"}, "password: needs a username"),
        ({"gateway_id": 256}, "gateway_id"),
        ({"port": 1884}, "port"),
    ],
)
async def test_settings_that_cannot_be(table: dict[str, object], told: str) -> None:
    with pytest.raises(GatewayLoadError, match=told):
        GATEWAY.settings_from(table)


async def test_a_predefined_id_is_not_given_to_another_topic(clients: Clients) -> None:
    """A client of Paho sends a predefined id as a normal one: it would mean two topics."""
    predefined = {str(n): f"predefined/{n}" for n in range(1, 16_385)}
    async with start({"predefined_topics": predefined}) as node:
        peer = await node.client("m")
        await peer.subscribe("predefined/#", "own/#", qos=1)
        for number in range(8):  # the first id of each client is random
            device = await clients.connected(node, f"device-{number}")
            given = [await device.register(f"own/{number}/{topic}") for topic in range(5)]
            assert min(given) > 16_384
            await device.publish(given[0], b"x", 1)
            await peer.expect_publish(f"own/{number}/0", b"x", 1)
            await device.publish(77, b"y", 1)
            await peer.expect_publish("predefined/77", b"y", 1)
