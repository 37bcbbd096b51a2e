"""CoAP clients over UDP: EMQX's resources, beside MQTT clients on the same node."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.access.banned import CLIENT_ID, Ban
from taipan.broker.access.outside import ALLOW, DENY, OutsideSource, Verdict
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.gateway import GatewayLoadError, kind_of
from taipan.broker.gateways.coap import codec, conversation, observe, pubsub
from taipan.broker.gateways.coap.codec import DELETE, GET, NON, POST, PUT
from taipan.broker.gateways.coap.gateway import CHALLENGE_BYTES, GATEWAY
from taipan.broker.mqtt.constants import CONTENT_TYPE
from taipan.broker.mqtt.message import Message
from taipan.broker.routing.retained import Walk
from taipan.broker.session.client_info import ClientInfo
from tests.gateways.coap_client import CoapClient
from tests.support.api import ManagedNode, managed_node
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio]

HASH = str(ScryptHash.create(b"secret", 1 << 10))

Open = Callable[[ManagedNode], Awaitable[CoapClient]]


def listener_of(node: ManagedNode) -> Any:
    [listener] = [each for each in node.server.listeners if each.type == "coap"]
    return listener


@pytest_asyncio.fixture
async def device() -> AsyncIterator[Open]:
    made: list[CoapClient] = []

    async def opened(node: ManagedNode) -> CoapClient:
        made.append(await CoapClient.open(listener_of(node).bind))
        return made[-1]

    yield opened
    for each in made:
        each.close()
    await asyncio.sleep(0)


def start(gateway: dict[str, object] | None = None, **settings: Any) -> Any:
    assert kind_of("coap") is not None
    own = settings.pop("listener", {})
    listeners = [{"type": "tcp"}, {"type": "coap", "name": "devices", "gateway": gateway or {}, **own}]
    return managed_node(listeners=listeners, **settings)


@pytest.mark.parametrize("version", [4, 5])
async def test_messages_in_both_directions(device: Open, version: int) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m", version=version)
        await peer.subscribe("plant/#", qos=1)
        assert await client.put("mqtt/plant/temperature?c=dev1", b"21.5") == "2.04"
        await peer.expect_publish("plant/temperature", b"21.5", 1)
        assert await client.put("mqtt//plant/x y?c=dev1", b"", kind=NON) == "2.04"
        answer = await client.observe("mqtt/valve/+?c=dev1")
        assert (answer.code, answer.payload) == (codec.CONTENT, b"") and codec.option(answer.options, codec.OBSERVE)
        for number in range(3):
            await peer.publish(f"valve/{number}", b"%d" % number, qos=number)
            heard = await client.notification()
            assert heard.payload == b"%d" % number and heard.type == codec.CON
            assert codec.option(heard.options, codec.CONTENT_FORMAT) == codec.uint_bytes(codec.OCTET_STREAM)
        assert await client.code(GET, "mqtt/valve/+?c=dev1", token=b"o", observe=1) == "2.05"
        await until(lambda: not node.server.broker.sessions.get("dev1").subscriptions)
        await peer.publish("valve/1", b"unwanted")
        assert await client.code(GET, "mqtt/valve/1?c=dev1") == "2.05"
        assert client.notifications.empty()


async def test_requests_that_are_refused(device: Open) -> None:
    async with start() as node:
        client = await device(node)
        assert await client.put("mqtt/t", b"") == "4.00"
        assert await client.put("mqtt/t?c=", b"") == "4.00"
        assert await client.code(POST, "mqtt/t?c=a") == await client.code(DELETE, "mqtt/t") == "4.05"
        assert await client.code(5, "mqtt/t?c=a") == "4.05"
        assert await client.put("mqtt/a/+?c=a", b"") == await client.put("mqtt?c=a", b"") == "4.00"
        assert await client.code(GET, "mqtt/a%23/#b?c=a", observe=0) == "4.00"
        assert await client.code(GET, "other?c=a") == "4.04" == await client.code(GET, "?c=a")
        assert await client.code(POST, ".well-known/core") == "4.05"
        assert await client.code(GET, ".well-known/core", accept=50) == "4.06"
        links = await client.ask(GET, ".well-known/core")
        assert links.payload == b"</mqtt>,</ps>" and (codec.CONTENT_FORMAT, b"\x28") in links.options
        malformed = codec.encode(codec.CON, PUT, 99, b"t", [(codec.URI_PATH, b"\xff")])
        client.send(malformed)
        assert (await client.hear()).code == codec.BAD_OPTION


async def test_users_rules_bans_kicks_and_takeover(device: Open) -> None:
    users = [{"username": "u", "password_hash": HASH}]
    rules = [{"allow": False, "topics": ["secret/#"], "username": "u"}]
    access, zone = {"users": users, "rules": rules}, {"allow_anonymous": False}
    async with start(access=access, zone=zone) as node:
        client = await device(node)
        assert await client.put("mqtt/t?c=a&u=u&p=wrong", b"") == "4.01"
        assert await client.put("mqtt/t?c=a", b"") == "4.01"
        assert await client.put("mqtt/t?c=a&u=u&p=secret", b"") == "2.04"
        assert await client.put("mqtt/secret/t?c=a&u=u&p=secret", b"") == "4.03"
        assert await client.code(GET, "mqtt/secret/t?c=a&u=u&p=secret", observe=0) == "4.03"
        assert await client.put("ps/secret/t?c=a&u=u&p=secret", b"x") == "4.03"
        [row] = (await node.api.get("/clients/a")).data
        assert (row["proto_name"], row["proto_ver"], row["port"]) == ("CoAP", 1, client.port)
        assert row["username"] == "u" and row["keepalive"] == 0 and row["clean_start"] is True
        answer = await client.observe("mqtt/t?c=a&u=u&p=secret")
        assert answer.code == codec.CONTENT
        assert (await node.api.delete("/clients/a")).status == 200
        assert (await client.notification()).code == codec.UNAVAILABLE
        await until(lambda: node.server.broker.sessions.get("a") is None)
        other = await device(node)
        await client.observe("mqtt/t?c=a&u=u&p=secret")
        assert await other.put("mqtt/t?c=a&u=u&p=secret", b"") == "2.04"  # takes over
        assert (await client.notification()).code == codec.UNAVAILABLE
        [row] = (await node.api.get("/clients/a")).data
        assert row["port"] == other.port
        node.server.banned.put(Ban(CLIENT_ID, "b", "tester", "", 0, 2**40))
        assert await client.put("mqtt/t?c=b&u=u&p=secret", b"") == "4.03"


async def test_another_client_at_the_same_address(device: Open) -> None:
    """Its requests are its own, and repetitions of those of the first one are not carried out again."""
    async with start() as node:
        client, peer = await device(node), await node.client("m")
        await peer.subscribe("t", qos=1)
        await client.observe("mqtt/x?c=a")
        first = client.request(PUT, "mqtt/t?c=a", b"1")
        client.send(first)
        answer = await client.hear()
        assert await client.put("mqtt/t?c=b", b"2") == "2.04"
        assert (await client.notification()).code == codec.UNAVAILABLE
        client.send(first)
        assert await client.hear() == answer
        assert await client.put("mqtt/t?c=b&u=other", b"3") == "2.04"
        for payload in (b"1", b"2", b"3"):
            await peer.expect_publish("t", payload, 1)
        assert [each["clientid"] for each in (await node.api.get("/clients", proto_name="CoAP")).data] == ["b"]
        assert (await node.api.get("/clients/b")).data[0]["username"] == "other"


async def test_values_of_topics(device: Open) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m", version=5)
        assert await client.code(GET, "ps/a/b?c=d") == "4.04"
        created = await client.ask(POST, "ps/a?c=d", b"<b>;ct=50", content_format=40)
        assert created.code == codec.CREATED
        assert [value for number, value in created.options if number == codec.LOCATION_PATH] == [b"ps", b"a", b"b"]
        assert await client.put("ps/a/b?c=d", b"{}", content_format=50, max_age=100) == "2.01"
        assert await client.put("ps/a/b?c=d", b"{1}", content_format=50, max_age=100) == "2.04"
        assert await client.put("ps/a/b?c=d", b"x", content_format=42) == "4.00"
        assert await client.put("ps/a/c?c=d", b"x", content_format=0) == "4.00"
        assert await client.code(POST, "ps/a/b?c=d", b"{2}", content_format=50, max_age=100) == "2.04"
        answer = await client.ask(GET, "ps/a/b?c=d")
        assert answer.payload == b"{2}" and codec.option(answer.options, codec.CONTENT_FORMAT) == b"\x32"
        assert 90 <= codec.uint(codec.option(answer.options, codec.MAX_AGE) or b"") <= 100
        assert await client.code(GET, "ps/a/b?c=d", accept=42) == "4.06"
        await peer.subscribe("a/#", qos=1)
        await peer.expect_publish("a/b", b"{2}", 1, retain=True)
        await peer.publish("a/mqtt", b"of mqtt", retain=True, qos=1)
        answer = await client.observe("ps/a/mqtt?c=d")
        assert answer.payload == b"of mqtt" and codec.option(answer.options, codec.OBSERVE)
        await peer.publish("a/mqtt", b"newer", retain=True, qos=1)
        assert await client.state() == b"newer"
        assert (await client.ask(GET, "ps/a/mqtt?c=d")).payload == b"newer"
        assert await client.code(GET, "ps/a/mqtt?c=d", observe=1, token=b"o") == "2.05"
        assert await client.code(DELETE, "ps/a?c=d") == "2.02"
        assert await client.code(GET, "ps/a/b?c=d") == await client.code(DELETE, "ps/a?c=d") == "4.04"
        assert len(node.server.broker.retained) == 0
        for wrong in (b"b", b"<b>;ct=0", b"<+>", b"<\xff>", b"<" + b"x" * 300 + b">"):
            assert await client.code(POST, "ps/a?c=d", wrong, content_format=40) == "4.00"
        assert await client.code(GET, "ps/a/+?c=d") == "4.00" and await client.code(6, "ps/a?c=d") == "4.05"
        await until(lambda: not node.server.broker.sessions.get("d").subscriptions)


async def test_many_values_are_deleted_within_limits(device: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "MAX_DELETED", 20)
    async with start() as node:
        client = await device(node)
        for number in range(21):
            assert await client.put(f"ps/all/{number}?c=d", b"x") == "2.01"
        assert await client.code(DELETE, "ps/all?c=d") == "4.13"
        assert await client.code(DELETE, "ps/all/0?c=d") == await client.code(DELETE, "ps/all?c=d") == "2.02"
        assert len(node.server.broker.retained) == 0


async def test_a_client_lives_while_it_observes(device: Open) -> None:
    async with start({"client_timeout": 1, "observer_check": 1, "ack_timeout": 0.2, "max_retransmit": 2}) as node:
        client, other = await device(node), await device(node)
        sessions = node.server.broker.sessions
        assert await client.put("mqtt/t?c=short", b"") == "2.04"
        await other.observe("mqtt/t?c=long")
        await until(lambda: sessions.get("short") is None)
        await until(lambda: len(other.pings) >= 2)
        assert sessions.get("long") is not None
        other.answers = False
        await until(lambda: sessions.get("long") is None)
        assert listener_of(node).refused["no_answer"] == 1
        assert await other.put("mqtt/t?c=long", b"") == "2.04"


async def test_a_client_that_rejects_a_notification(device: Open) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m")
        await client.observe("mqtt/t?c=a")
        await client.observe("mqtt/t?c=a", token=b"p")
        await peer.publish("t", b"x")
        assert await client.state() == await client.state() == b"x"
        client.answers = False
        await peer.publish("t", b"x")
        heard = await client.notification()
        client.send(codec.empty(codec.RST, heard.mid))
        client.answers = True
        assert (await client.notification()).token != heard.token
        await peer.publish("t", b"y")
        assert await client.state() == b"y" and client.notifications.empty()


async def test_an_address_that_is_not_proved(device: Open) -> None:
    """It is not sent more than has come from it, whatever it asks for."""
    async with start({"ack_timeout": 0.2}) as node:
        client, peer = await device(node), await node.client("m")
        client.answers = False
        await client.observe("mqtt/#?c=a")
        for number in range(50):
            await peer.publish(f"t/{number}", b"x" * 500)
        await until(lambda: node.server.broker.sessions.get("a") is None)
        assert client.got <= client.sent + CHALLENGE_BYTES and client.pings
        client.got = client.sent = 0
        await peer.publish("r", b"y" * 1000, retain=True)
        client.send(client.request(GET, "ps/r?c=a"))
        await asyncio.sleep(1)
        assert client.got <= client.sent + CHALLENGE_BYTES
        client.answers = True
        answer = await client.ask(GET, "ps/r?c=a", token=b"u")
        assert answer.payload == b"y" * 1000


async def test_limits_of_a_client(device: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "MAX_OBSERVATIONS", 2)
    monkeypatch.setattr(conversation, "MAX_OPEN", 4)
    async with start({"max_waiting_bytes": 1000, "max_body_bytes": 2000}) as node:
        client, peer = await device(node), await node.client("m")
        for token in (b"1", b"2"):
            await client.observe(f"mqtt/{token.decode()}?c=a", token)
        assert await client.code(GET, "mqtt/3?c=a", observe=0, token=b"3") == "5.03"
        assert (await client.ask(GET, "mqtt/1?c=a", observe=0, token=b"1")).code == codec.CONTENT  # it is there already
        assert len(node.server.broker.sessions.get("a").subscriptions) == 2
        client.answers = False
        for number in range(10):
            await peer.publish("1", b"x" * 300)
            await peer.publish("2", b"%d" % number * 900)
        await until(lambda: "waiting_for_client" in listener_of(node).refused)
        client.answers = True
        for _ in range(30):
            client.send(client.request(PUT, "mqtt/t?c=a", b"x"))
        codes = [(await client.hear()).code for _ in range(30)]
        assert set(codes) <= {codec.CHANGED, codec.UNAVAILABLE}


async def test_large_messages(device: Open) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m")
        await peer.subscribe("t", qos=1)
        body = bytes(range(256)) * 10
        for num in range(3):
            value = codec.uint_bytes(num << 4 | (num < 2) << 3 | 6)
            found = [
                (codec.URI_PATH, b"mqtt"),
                (codec.URI_PATH, b"t"),
                (codec.URI_QUERY, b"c=a"),
                (codec.BLOCK1, value),
            ]
            part = body[num * 1024 : num * 1024 + 1024]
            client.send(codec.encode(codec.CON, PUT, client.next_mid(), b"t", found, part))
            answer = await client.hear()
            assert codec.dotted(answer.code) == ("2.31" if num < 2 else "2.04")
            assert codec.option(answer.options, codec.BLOCK1) == value
        await peer.expect_publish("t", body, 1)
        await client.observe("mqtt/big?c=a")
        await peer.publish("big", body)
        first = await client.notification()
        assert first.payload == body[:1024]
        found = [(codec.URI_PATH, b"mqtt"), (codec.URI_PATH, b"big"), (codec.URI_QUERY, b"c=a")]
        got = first.payload
        for num in (1, 2):
            options = [*found, (codec.BLOCK2, codec.uint_bytes(num << 4 | 6))]
            client.send(codec.encode(codec.CON, GET, client.next_mid(), b"b", options))
            got += (await client.hear()).payload
        assert got == body


async def test_the_record_of_the_listener_and_its_rows(device: Open) -> None:
    """Rules, metrics and the API show what they show of every client."""
    async with start() as node:
        rows = {each["identifier"]: each for each in (await node.api.get(f"/nodes/{node.name}/listeners")).data}
        assert rows["coap:udp:devices"]["protocol"] == "coap:udp"
        body = {"rawsql": 'SELECT * FROM "t"', "actions": [{"name": "inspect", "params": {}}]}
        rule = (await node.api.post("/rules", body)).data["id"]
        client = await device(node)
        assert await client.put("mqtt/t?c=a", b"x") == "2.04"
        metrics = (await node.api.get(f"/rules/{rule}")).data["metrics"]
        assert metrics[0]["matched"] == 1
        assert len((await node.api.get("/clients", proto_name="CoAP", proto_ver="1")).data) == 1
        client.send(b"\x40")
        await until(lambda: listener_of(node).refused == {"malformed_datagram": 1})


async def test_qos_0_only(device: Open) -> None:
    async with start(zone={"max_qos": 0, "retain_available": False}) as node:
        client, peer = await device(node), await node.client("m")
        await peer.subscribe("t")
        assert await client.put("mqtt/t?c=a", b"x") == "2.04"
        await peer.expect_publish("t", b"x", 0)
        assert await client.put("ps/t?c=a", b"x") == "5.01"


@pytest.mark.parametrize(
    "table, told",
    [
        ({"block_size": 100}, "block_size: expected one of 16, 32"),
        ({"ack_timeout": 0}, "ack_timeout"),
        ({"client_timeout": 0}, "client_timeout"),
        ({"port": 5683}, "port"),
    ],
)
async def test_settings_that_cannot_be(table: dict[str, object], told: str) -> None:
    with pytest.raises(GatewayLoadError, match=told):
        GATEWAY.settings_from(table)


@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_of_a_subscription_of_the_operator_are_acknowledged(device: Open, qos: int) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m")
        await client.observe("mqtt/t?c=dev1")
        reply = await node.api.post("/mqtt/subscribe", {"clientid": "dev1", "topic": "own/#", "qos": qos})
        assert (reply.status, reply.code) == (200, 0)
        session = node.server.broker.sessions.get("dev1")
        await until(lambda: len(session.subscriptions) == 2)
        for number in range(3):
            await peer.publish(f"own/{number}", b"x", qos=qos)
        assert await client.code(GET, "ps/nothing?c=dev1") == "4.04"  # it waits for all that the session has
        assert not session.inflight


async def test_a_token_has_one_observation(device: Open) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m")
        await client.observe("mqtt/a?c=dev1", token=b"o")
        await client.observe("mqtt/b?c=dev1", token=b"o")
        session = node.server.broker.sessions.get("dev1")
        await until(lambda: list(session.subscriptions) == ["b"])
        await peer.publish("a", b"1")
        await peer.publish("b", b"2")
        assert await client.state() == b"2"


async def test_an_observation_that_is_refused_is_none(device: Open) -> None:
    async with start() as node:
        client = await device(node)
        assert await client.put("ps/t?c=dev1", b"x") == "2.01"
        assert await client.code(GET, "ps/t?c=dev1", observe=0, accept=codec.JSON) == "4.06"
        await until(lambda: not node.server.broker.sessions.get("dev1").subscriptions)


async def test_many_values_are_deleted_where_qos_0_is_the_maximum(device: Open) -> None:
    """Each answer comes at once: that must not lead from each value into the next one."""
    async with start(zone={"max_qos": 0}) as node:
        client = await device(node)
        peer = await node.client("m")
        for number in range(500):
            await peer.publish(f"all/{number}", b"x", retain=True)
        await until(lambda: len(node.server.broker.retained) == 500)
        assert await client.code(DELETE, "ps/all?c=d") == "2.02"
        await until(lambda: len(node.server.broker.retained) == 0)
        assert listener_of(node).gateway_faults == 0


async def test_who_may_not_publish_to_a_topic_does_not_learn_that_it_has_a_message(device: Open) -> None:
    rules = [{"allow": False, "action": "publish", "topics": ["shut/#"]}]
    async with start(access={"rules": rules}) as node:
        client, peer = await device(node), await node.client("m", version=5)
        for topic in ("shut/used", "open/used", "open/more"):
            node.server.broker.publish(
                Message(topic, b"{}", retain=True, properties={CONTENT_TYPE: "application/json"})
            )
        for topic in ("shut/used", "shut/free", "shut"):
            assert await client.put(f"ps/{topic}?c=d", b"x", content_format=42) == "4.03"
            assert await client.code(DELETE, f"ps/{topic}?c=d") == "4.03"
        assert await client.put("ps/open/used?c=d", b"x", content_format=42) == "4.00"
        assert await client.code(DELETE, "ps/open/free?c=d") == "4.04"
        assert await client.code(DELETE, "ps/open?c=d") == "2.02"
        await peer.subscribe("#", qos=1)
        await peer.expect_publish("shut/used", b"{}", 0, retain=True)
        assert len(node.server.broker.retained) == 1


async def test_what_lies_below_a_topic_is_cleared_where_the_client_may(device: Open) -> None:
    rules = [{"allow": False, "action": "publish", "topics": ["all/shut"]}]
    async with start(access={"rules": rules}) as node:
        client = await device(node)
        node.server.broker.publish(Message("all/shut", b"x", retain=True))
        assert await client.code(DELETE, "ps/all?c=d") == "4.04"
        assert await client.put("ps/all/open?c=d", b"x") == "2.01"
        assert await client.code(DELETE, "ps/all?c=d") == "2.02"
        assert [each.topic for each in Walk(node.server.broker.retained, "#").take(9)] == ["all/shut"]


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_service_is_asked_before_a_client_learns_of_a_message(device: Open, allowed: bool) -> None:
    class Service(OutsideSource):
        name = "service"

        async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
            await asyncio.sleep(0)
            return Verdict(ALLOW if allowed else DENY, "", "-")

    async with start() as node:
        client = await device(node)
        node.server.access.authorization.add(Service())
        node.server.broker.publish(Message("used", b"{}", retain=True, properties={CONTENT_TYPE: "application/json"}))
        assert await client.put("ps/used?c=d", b"x", content_format=42) == ("4.00" if allowed else "4.03")
        assert await client.code(DELETE, "ps/free?c=d") == ("4.04" if allowed else "4.03")


async def test_a_message_that_the_client_does_not_observe_is_counted(device: Open) -> None:
    async with start() as node:
        client, peer = await device(node), await node.client("m")
        await client.observe("mqtt/t?c=dev1")
        await node.api.post("/mqtt/subscribe", {"clientid": "dev1", "topic": "own/#", "qos": 0})
        await until(lambda: len(node.server.broker.sessions.get("dev1").subscriptions) == 2)
        await peer.publish("t", b"x")
        assert await client.state() == b"x"
        assert "not_observed" not in listener_of(node).refused
        await peer.publish("own/1", b"x")
        await until(lambda: listener_of(node).refused.get("not_observed") == 1)


async def test_an_observation_ends_with_an_error(device: Open) -> None:
    """RFC 7641, section 4.2."""
    async with start({"max_bodies_bytes": 1024, "block_size": 16}) as node:
        client, peer = await device(node), await node.client("m")
        await client.observe("mqtt/t?c=dev1")
        await peer.publish("t", b"small")
        assert await client.state() == b"small"
        await peer.publish("t", b"x" * 2000)
        heard = await client.notification()
        assert heard.code == codec.UNAVAILABLE and codec.option(heard.options, codec.OBSERVE) is None
        session = node.server.broker.sessions.get("dev1")
        await until(lambda: not session.subscriptions)
        assert listener_of(node).refused["bodies_full"] == 1
        assert (await client.observe("mqtt/t?c=dev1")).code == codec.CONTENT
