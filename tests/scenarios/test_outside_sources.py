"""A service that is asked by HTTP, and JSON Web Tokens: what clients see of them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
import pytest_asyncio

from taipan.broker.access.http.declaration import HttpAccessSettings
from taipan.broker.channel import closing
from taipan.broker.config import RuleSettings
from taipan.broker.mqtt.constants import PUBACK
from taipan.broker.mqtt.packets import Ack, Connack, Connect, Disconnect, Suback, Subscribe, TopicFilter, Will
from tests.support.auth_service import AuthService, Question, auth_service
from tests.support.certificates import Certificates
from tests.support.clients import Clients, StartClients, tcp, v4, v5
from tests.support.patience import patience
from tests.support.peer import TIMEOUT, Peer
from tests.support.reason_codes import suback_refused
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "thirty-two bytes are what it takes, at least"


@pytest_asyncio.fixture(loop_scope="module")
async def service() -> AsyncIterator[AuthService]:
    async with auth_service() as service:
        yield service


def lose_the_sockets(clients: Clients, client_id: str = "") -> None:
    """As if they broke: a paused one hears of an end on the wire only later."""
    for connection in clients.server.connections:
        if client_id in ("", connection.channel.client.client_id):
            connection._transport.abort()


async def nothing_is_left(clients: Clients) -> None:
    """No connection, no channel, no open question and no parked packet but those of clients that are there."""
    await until(lambda: not clients.server.connections and not clients.server.context.channels)
    await until(lambda: clients.server.access.sources["http"]._open == 0)


async def slowly(question: Question) -> int:
    await asyncio.sleep(0.1)
    return 200


def a_to_z(question: Question) -> int:
    return 403 if "secret" in question["topic"] else 200


# --- who is it -------------------------------------------------------------------------------------------------------


@tcp
async def test_connect_is_asked(clients_of: StartClients, service: AuthService) -> None:
    """Also for anonymous clients, as EMQX 4 does."""
    service.replies["/auth"] = lambda asked: 200 if asked["password"] == "right" else 401
    clients = await clients_of(access={"http": service.settings()})
    await clients.connect("c1", username="ann", password=b"right")
    assert service.questions("/auth") == [{"clientid": "c1", "username": "ann", "password": "right"}]
    five = clients.version == 5
    attempts: list[tuple[dict[str, Any], int]] = [
        ({"username": "ann", "password": b"no"}, 0x86 if five else 4),
        ({}, 0x87 if five else 5),
    ]
    for options, code in attempts:
        peer = clients.peer()
        await peer.connect("c2", expect=None, **options)
        assert peer.connack.reason_code == code
        await peer.expect_closed()


@tcp
async def test_who_is_left_to_others(clients_of: StartClients, service: AuthService) -> None:
    """``ignore``: anonymous clients go by ``allow_anonymous``, a name that nobody knows is refused."""
    service.replies["/auth"] = "ignore"
    clients = await clients_of(access={"http": service.settings()})
    await clients.connect("c1")
    peer = clients.peer()
    await peer.connect("c2", username="ann", password=b"x", expect=None)
    assert peer.connack.reason_code == (0x86 if clients.version == 5 else 4)


@tcp
@pytest.mark.parametrize("on_failure", ["deny", "ignore"])
async def test_no_answer_to_connect(clients_of: StartClients, service: AuthService, on_failure: str) -> None:
    settings = service.settings(timeout=2.0, on_failure=on_failure)
    clients = await clients_of(access={"http": settings})
    wanted = 0 if on_failure == "ignore" else 0x88 if clients.version == 5 else 3

    async def attempt(client_id: str) -> None:
        peer = clients.peer()
        await peer.connect(client_id, expect=None)
        assert peer.connack.reason_code == wanted

    service.gate.clear()
    await attempt("hangs")
    service.gate.set()
    service.replies["/auth"] = 503
    await attempt("fails")
    service.replies["/auth"] = "hang up"
    await attempt("dies")
    await service.stop()
    await attempt("refuses")
    counted = clients.server.metrics.refusals.snapshot()
    assert counted["access_http_timeout"] == counted["access_http_status_503"] == 1
    assert counted["access_http_broken"] == counted["access_http_no_connection"] == 1


@tcp
async def test_a_client_that_goes_while_it_is_asked_about(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    service.gate.clear()
    peer = await clients.open()
    await peer.send(Connect(clients.version, "gone"))
    await until(lambda: service.asked)
    lose_the_sockets(clients)
    await nothing_is_left(clients)
    await until(lambda: service.at_once == 0)


@tcp
async def test_a_client_that_is_long_asked_about(clients_of: StartClients, service: AuthService) -> None:
    """The service's own time-out bounds it; ``idle_timeout`` was over with its CONNECT."""
    clients = await clients_of(access={"http": service.settings(timeout=0.5)})
    service.gate.clear()
    peer = await clients.open()
    await peer.send(Connect(clients.version, "slow"))
    await until(lambda: service.asked)
    await clients.pass_time(11)
    connack = await peer.receive()
    assert isinstance(connack, Connack) and connack.reason_code == (0x88 if clients.version == 5 else 3)
    await until(lambda: service.at_once == 0)


@tcp
async def test_superusers_are_not_asked_about(clients_of: StartClients, service: AuthService) -> None:
    service.replies["/super"] = lambda asked: 200 if asked["username"] == "root" else 403
    service.replies["/acl"] = 403
    clients = await clients_of(access={"http": service.settings(superuser_url=service.url("/super"))})
    root = await clients.connect("r", username="root", password=b"x")
    await root.subscribe("t")
    assert not service.questions()
    ann = await clients.connect("a", username="ann", password=b"x")
    await ann.subscribe("t", expect=[suback_refused(clients.version)])


@tcp
@pytest.mark.parametrize("body", ["form", "json"])
async def test_a_password_of_any_bytes(clients_of: StartClients, service: AuthService, body: str) -> None:
    clients = await clients_of(access={"http": service.settings(body=body)})
    await clients.connect("c", username="a&b=%P %c", password="ü=&%u".encode())
    assert service.questions("/auth") == [{"clientid": "c", "username": "a&b=%P %c", "password": "ü=&%u"}]


# --- what may it do --------------------------------------------------------------------------------------------------


@tcp
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_is_asked_once(clients_of: StartClients, service: AuthService, qos: int) -> None:
    clients = await clients_of(access={"http": service.settings()})
    watcher = await clients.connect("w")
    await watcher.subscribe("t", qos=2)
    peer = await clients.connect("p")
    for number in range(3):
        await peer.publish("t", b"%d" % number, qos)
        await watcher.expect_publish("t", b"%d" % number, qos)
    assert [each["access"] for each in service.questions()] == ["1", "2"]
    assert service.topics() == ["t", "t"]
    await clients.pass_time(61)
    await peer.publish("t", b"later", qos)
    await watcher.expect_publish("t", b"later")
    assert service.topics() == ["t", "t", "t"]


@tcp
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_pipelined_publishes_keep_their_order(clients_of: StartClients, service: AuthService, qos: int) -> None:
    async def slowly(question: Question) -> int:
        await asyncio.sleep(0.002 if question["topic"].endswith("0") else 0)
        return a_to_z(question)

    service.replies["/acl"] = slowly
    clients = await clients_of(access={"http": service.settings()})
    watcher = await clients.connect("w")
    await watcher.subscribe("#", qos=0)
    peer = await clients.connect("p")
    topics = [f"secret/{number}" if number % 7 == 3 else f"t/{number}" for number in range(60)]
    await peer.send(*[Publish(topic, topic.encode(), qos, packet_id=n + 1) for n, topic in enumerate(topics)])
    for topic in topics:
        if not topic.startswith("secret"):
            await watcher.expect_publish(topic, topic.encode())
    await watcher.nothing()
    for number, topic in enumerate(topics if qos else []):
        denied = topic.startswith("secret") and clients.version == 5
        await peer.expect_ack(0x04 if qos == 1 else 0x05, number + 1, 0x87 if denied else 0)
    assert sorted(service.topics()[1:]) == sorted(topics)


@tcp
async def test_subscribe_asks_at_once_and_answers_in_order(clients_of: StartClients, service: AuthService) -> None:
    service.replies["/acl"] = a_to_z
    clients = await clients_of(access={"http": service.settings(), "cache_max_size": 4})
    peer = await clients.connect("s")
    service.gate.clear()
    filters = [f"{'secret' if number % 3 == 0 else 'open'}/{number}/#" for number in range(40)]
    await peer.send(Subscribe(7, [TopicFilter(each, 1) for each in filters]))
    await until(lambda: service.at_once == 16)
    service.gate.set()
    suback = await peer.expect(Suback, packet_id=7)
    assert suback.reason_codes == [
        suback_refused(clients.version) if each.startswith("secret") else 1 for each in filters
    ]
    assert sorted(service.topics()) == sorted(filters)  # each once, also those the small cache has lost
    assert service.most_at_once == 16


@tcp
async def test_a_shared_subscription_is_asked_by_its_filter(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    peer = await clients.connect("s")
    await peer.subscribe("$share/g/a/+")
    assert service.topics() == ["a/+"]


@tcp
async def test_packets_behind_a_question_wait_and_others_do_not(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    other = await clients.connect("o")
    await other.subscribe("known")
    await other.publish("known", b"0", 1)
    await other.answer(Publish, payload=b"0")
    peer = await clients.connect("p")
    service.gate.clear()
    await peer.send(Publish("new", b"x", 1, packet_id=1), Subscribe(2, [TopicFilter("known")]))
    await until(lambda: service.at_once == 1)
    for number in range(50):
        await other.publish("known", b"%d" % number, 1)
        await other.answer(Publish, payload=b"%d" % number)
    with pytest.raises(TimeoutError):
        await peer.receive(0.05)
    service.gate.set()
    await peer.expect_ack(0x04, 1)
    await peer.expect(Suback, packet_id=2)


@tcp
@pytest.mark.parametrize("on_failure", ["deny", "ignore"])
async def test_no_answer_to_publish_is_not_remembered(
    clients_of: StartClients, service: AuthService, on_failure: str
) -> None:
    clients = await clients_of(access={"http": service.settings(timeout=2.0, on_failure=on_failure)})
    peer = await clients.connect("p")
    port = service.port
    await service.stop()
    for qos in (0, 1, 2):
        denied = on_failure == "deny" and clients.version == 5 and qos
        await peer.publish("t", b"", qos, expect=0x87 if denied else (0, 0x10))
    await peer.subscribe("t", expect=[suback_refused(clients.version) if on_failure == "deny" else 0])
    assert clients.server.metrics.refusals.snapshot()["access_http_no_connection"] == 4
    await service.start(port)
    await peer.publish("t", b"", 1)
    await peer.subscribe("t")
    assert service.topics() == ["t", "t"]


@tcp
async def test_takeover_while_a_question_is_open(clients_of: StartClients, service: AuthService) -> None:
    """The old connection's PUBLISH was not taken: when the new one sends it again it is new, also at QoS 2."""
    clients = await clients_of(access={"http": {"acl_url": service.url("/acl")}})
    watcher = await clients.connect("w")
    await watcher.subscribe("t", "u", qos=2)
    old = await clients.persistent("same")
    service.gate.clear()
    await old.send(Publish("t", b"once", 2, packet_id=9), Publish("u", b"parked", 0))
    await until(lambda: service.at_once == 1)
    new = await clients.persistent("same")
    await until(lambda: service.at_once == 0)  # nobody waits for that answer any more
    service.gate.set()
    await new.send(Publish("t", b"once", 2, packet_id=9, dup=True))
    await new.expect_ack(0x05, 9)
    await watcher.expect_publish("t", b"once", 2)
    await watcher.nothing()
    if clients.version == 5:
        await old.expect(Disconnect)
    await old.expect_closed()


@tcp
@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_qos2_sent_again_after_the_question_was_given_up(
    clients_of: StartClients, service: AuthService, level: str, tmp_path: Path
) -> None:
    clients = await clients_of(
        access={"http": service.settings()}, durability={"level": level}, node={"data_dir": str(tmp_path)}
    )
    watcher = await clients.connect("w")
    await watcher.subscribe("t", qos=2)
    old = await clients.persistent("same")
    service.gate.clear()
    await old.send(Publish("t", b"once", 2, packet_id=9))
    await until(lambda: service.at_once == 1)
    closing.kick(clients.server.context.channels["same"])
    if clients.version == 5:
        await old.expect(Disconnect)
    await old.expect_closed()
    await until(lambda: service.at_once == 0)
    service.gate.set()
    new = await clients.persistent("same")
    await new.send(Publish("t", b"once", 2, packet_id=9, dup=True))
    await new.expect_ack(0x05, 9)
    await watcher.expect_publish("t", b"once", 2)
    await watcher.nothing()


@tcp
async def test_what_a_client_sent_before_it_broke_off_is_taken(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    watcher = await clients.connect("w")
    await watcher.subscribe("#")
    peer = await clients.connect("p", will=Will("gone", b"will"))
    service.gate.clear()
    await peer.send(Publish("a", b"1"), Publish("b", b"2"), Disconnect(0))
    await until(lambda: service.at_once == 1)
    lose_the_sockets(clients, "p")
    await asyncio.sleep(0.01)
    service.gate.set()
    await watcher.expect_publish("a", b"1")
    await watcher.expect_publish("b", b"2")
    await watcher.nothing()  # the DISCONNECT has been heard, too
    await watcher.disconnect()
    await nothing_is_left(clients)


@tcp
async def test_what_a_lost_client_sent_is_not_waited_for_for_ever(
    clients_of: StartClients, service: AuthService, caplog: pytest.LogCaptureFixture
) -> None:
    clients = await clients_of(access={"http": service.settings()})
    peer = await clients.connect("p")
    service.gate.clear()
    await peer.send(Publish("a", b"1"))
    await until(lambda: service.at_once == 1)
    lose_the_sockets(clients)
    await asyncio.sleep(0.01)
    assert len(clients.server.connections) == 1
    await clients.pass_time(11)
    await nothing_is_left(clients)
    await until(lambda: service.at_once == 0)
    assert clients.server.metrics.packets_publish_dropped == 1
    assert clients.server.metrics.refusals.snapshot()["publish_quota_exceeded"] == 1
    assert "waited for an answer when its client left" in caplog.text


@tcp
async def test_a_node_stops_while_a_question_is_open(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    peer = await clients.connect("p")
    service.gate.clear()
    await peer.send(Publish("a", b"1"), Subscribe(1, [TopicFilter("b")]))
    await until(lambda: service.at_once == 1)
    async with asyncio.timeout(patience(TIMEOUT)):
        stopping = asyncio.ensure_future(clients.server.stop())
        if clients.version == 5:
            await peer.expect(Disconnect)
        await peer.expect_closed()
        await peer.close()
        await stopping
    assert clients.server.access.sources["http"]._open == 0


@tcp
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_will_is_asked_about_at_connect(clients_of: StartClients, service: AuthService, allowed: bool) -> None:
    service.replies["/acl"] = lambda asked: 200 if allowed or asked["access"] == "1" else 403
    clients = await clients_of(access={"http": service.settings(), "cache_ttl": 1})
    watcher = await clients.connect("w")
    await watcher.subscribe("will")
    peer = await clients.connect("p", will=Will("will", b"gone"))
    assert service.topics() == ["will", "will"]
    await clients.pass_time(10)  # no cache knows it any more
    await service.stop()
    await peer.drop()
    if allowed:
        await watcher.expect_publish("will", b"gone")
    await watcher.nothing()


@tcp
async def test_rules_that_are_nearer_are_asked_first(clients_of: StartClients, service: AuthService) -> None:
    service.replies["/acl"] = 403
    rules = [{"allow": True, "topics": ["mine"]}, {"allow": False, "topics": ["theirs"]}]
    clients = await clients_of(access={"http": service.settings(), "rules": rules})
    peer = await clients.connect("p")
    await peer.subscribe(
        "mine",
        "theirs",
        "other",
        expect=[0, suback_refused(clients.version), suback_refused(clients.version)],
    )
    assert service.topics() == ["other"]


@tcp
async def test_http_before_the_rules_of_the_file(clients_of: StartClients, service: AuthService) -> None:
    service.replies["/acl"] = lambda asked: 200 if asked["topic"] == "mine" else "ignore"
    clients = await clients_of(
        access={
            "http": service.settings(),
            "rules": [{"allow": False}],
            "authorizers": ["http", "configuration"],
        }
    )
    peer = await clients.connect("p")
    await peer.subscribe("mine", "other", expect=[0, suback_refused(clients.version)])


@tcp
async def test_a_changed_rule_counts_while_a_question_is_open(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    peer = await clients.connect("p")
    service.gate.clear()
    await peer.send(Subscribe(1, [TopicFilter("t")]))
    await until(lambda: service.at_once == 1)
    node = clients.server
    access = msgspec.structs.replace(node.settings.access, rules=[RuleSettings(allow=False, topics=["t"])])
    node.reload(msgspec.structs.replace(node.settings, access=access))
    service.gate.set()
    suback = await peer.expect(Suback)
    assert suback.reason_codes == [suback_refused(clients.version)]


@tcp
async def test_reload_takes_another_service(clients_of: StartClients, service: AuthService) -> None:
    clients = await clients_of(access={"http": service.settings()})
    peer = await clients.connect("p")
    await peer.subscribe("t")
    node = clients.server
    old = node.access.sources["http"]
    service.gate.clear()
    await peer.send(Subscribe(1, [TopicFilter("slow")]))
    await until(lambda: service.at_once == 1)
    service.replies["/other"] = 403
    http = msgspec.convert({"acl_url": service.url("/other")}, HttpAccessSettings)
    access = msgspec.structs.replace(node.settings.access, http=http)
    node.reload(msgspec.structs.replace(node.settings, access=access))
    service.gate.set()
    await peer.expect(Suback, packet_id=1)  # answered by the service that was asked
    await until(lambda: not old.busy)
    assert old._session.closed
    await peer.subscribe("t", expect=[suback_refused(clients.version)])
    # The other one is asked about what there is already, and about what the old one was asked while it was replaced.
    await until(lambda: node.broker.router.subscription_count == 0)
    assert {question["topic"] for question in service.questions("/other")} == {"t", "slow"}


@tcp
async def test_disconnect_on_denial(clients_of: StartClients, service: AuthService) -> None:
    service.replies["/acl"] = 403
    clients = await clients_of(access={"http": service.settings()}, zone={"acl_deny_action": "disconnect"})
    for packet in (Publish("t", b"", 1, packet_id=1), Subscribe(1, [TopicFilter("t"), TopicFilter("u")])):
        peer = await clients.connect("p")
        await peer.send(packet)
        if clients.version == 5:
            assert (await peer.expect(Disconnect)).reason_code == 0x87
        await peer.expect_closed()


@v5
@tcp
async def test_a_packet_that_turns_out_wrong_after_the_question(clients_of: StartClients, service: AuthService) -> None:
    """[MQTT-3.8.3-4]"""
    clients = await clients_of(access={"http": service.settings()})
    wrong = [TopicFilter("$share/g/t", no_local=True)]
    clients.server.hooks.client_subscribe.add(lambda filters, client, properties: wrong)
    peer = await clients.connect("p")
    await peer.send(Subscribe(1, [TopicFilter("u")]))
    assert (await peer.expect(Disconnect)).reason_code == 0x82
    await peer.expect_closed()
    assert service.topics() == ["t"]


@pytest.mark.parametrize("transport", ["ssl", "wss"])
async def test_tls_ends_right_behind_the_packets(
    clients_of: StartClients, service: AuthService, tmp_path: Path
) -> None:
    """PUBLISH, DISCONNECT and the end of TLS in one go, as command line clients do: nothing of it is lost."""
    certificates = Certificates(tmp_path)
    certificates.issue("localhost")
    tls = msgspec.to_builtins(certificates.settings())
    clients = await clients_of(
        access={"http": service.settings()},
        listeners=[{"type": "ssl", "tls": tls}, {"type": "wss", "tls": tls}, {"type": "tcp"}],
    )
    watcher = await clients.connect("w", transport="tcp")
    await watcher.subscribe("#")
    peer = clients.peer()
    peer.ssl = ssl.create_default_context(cafile=certificates.ca)
    await peer.connect("p", will=Will("gone", b"will"))
    service.replies["/acl"] = slowly
    await peer.send(Publish("a", b"1"), Publish("b", b"2"), Disconnect(0))
    await peer.close()
    await watcher.expect_publish("a", b"1")
    await watcher.expect_publish("b", b"2")
    await until(lambda: len(clients.server.connections) == 1)
    await watcher.nothing()


@tcp
@v4
@pytest.mark.parametrize("answer", [200, 403])
async def test_a_message_that_waited_is_asked_about_again(
    clients_of: StartClients, service: AuthService, answer: int
) -> None:
    """``queue_full = "refuse"``: whether it may be published is judged when it is published."""
    zone = {"max_queued_messages": 1, "queue_full": "refuse"}
    clients = await clients_of(zone=zone, access={"http": service.settings(), "cache": False})
    reader = await clients.persistent("r")
    await reader.subscribe("t", qos=1)
    await reader.disconnect()
    publisher = await clients.connect("p")
    await publisher.publish("t", b"queued", 1)
    await publisher.send(Publish("t", b"waits", 1, packet_id=9))
    await until(lambda: clients.server.metrics.packets_publish_dropped == 1)
    asked = len(service.questions())
    service.replies["/acl"] = lambda question: answer if question["clientid"] == "p" else 200
    reader = await clients.persistent("r", session_present=True)
    await reader.expect_publish("t", b"queued", 1)
    await publisher.expect_ack(PUBACK, 9)
    assert [each["topic"] for each in service.questions()[asked:] if each["clientid"] == "p"] == ["t"]
    if answer == 200:
        await reader.expect_publish("t", b"waits", 1)
    await reader.nothing()
    assert clients.server.metrics.packets_publish_auth_error == int(answer == 403)


@tcp
async def test_retained_messages_with_check_source(clients_of: StartClients, service: AuthService) -> None:
    """What the service allowed once stays allowed; what the file denies now is kept back."""
    clients = await clients_of(access={"http": service.settings()}, retained={"check_source": True})
    peer = await clients.connect("p")
    await peer.publish("kept", b"1", 1, retain=True)
    await peer.publish("lost", b"2", 1, retain=True)
    await peer.disconnect()
    node = clients.server
    rules = [RuleSettings(allow=False, action="publish", topics=["lost"])]
    access = msgspec.structs.replace(node.settings.access, rules=rules)
    node.reload(msgspec.structs.replace(node.settings, access=access))
    watcher = await clients.connect("w")
    await watcher.subscribe("#")
    await watcher.expect_publish("kept", b"1", retain=True)
    await watcher.nothing()


# --- tokens ----------------------------------------------------------------------------------------------------------


def token(clients: Clients, **claims: Any) -> bytes:
    now = clients.server.clock.now()
    return jwt.encode({"sub": "ann", "exp": now + 60, **claims}, SECRET, "HS256").encode()


async def test_a_token_instead_of_a_password(clients_of: StartClients) -> None:
    clients = await clients_of(access={"jwt": {"secret": SECRET}})
    await clients.connect("c1", username="ann", password=token(clients))
    for password in (token(clients, sub="bob"), token(clients)[:-4] + b"AAAA", b"no token"):
        peer = clients.peer()
        await peer.connect("c2", username="ann", password=password, expect=None)
        assert peer.connack.reason_code == (0x86 if clients.version == 5 else 4)


async def test_the_connection_ends_with_its_token(clients_of: StartClients) -> None:
    clients = await clients_of(access={"jwt": {"secret": SECRET}})
    watcher = await clients.connect("w")
    await watcher.subscribe("will")
    peer: Peer = await clients.connect("c", username="ann", password=token(clients), will=Will("will", b"gone"))
    await clients.pass_time(58)
    await peer.ping()
    await clients.pass_time(3)
    if clients.version == 5:
        assert (await peer.expect(Disconnect)).reason_code == 0x87
    await peer.expect_closed()
    await watcher.expect_publish("will", b"gone")


@tcp
async def test_what_a_token_allows(clients_of: StartClients) -> None:
    clients = await clients_of(access={"jwt": {"secret": SECRET}})
    acl = {"pub": ["out/%c"], "sub": ["in/%u/#"], "all": ["both"]}
    peer = await clients.connect("c", username="ann", password=token(clients, acl=acl))
    denied = suback_refused(clients.version)
    await peer.subscribe("in/ann/x", "in/#", "both", "out/c", expect=[0, denied, 0, denied])
    five = clients.version == 5
    for topic, code in (("out/c", 0), ("in/ann/x", 0x87), ("both", 0), ("else", 0x87)):
        await peer.send(Publish(topic, b"", 1, packet_id=5))
        found = await peer.answer(Ack, packet_id=5)
        assert not five or (found.reason_code == 0x87) is (code == 0x87)


@v5
@tcp
async def test_who_gives_no_name_has_that_of_the_token(clients_of: StartClients) -> None:
    clients = await clients_of(access={"jwt": {"secret": SECRET}})
    await clients.connect("c", password=token(clients))
    assert clients.server.context.channels["c"].client.username == "ann"


@tcp
async def test_a_token_in_place_of_the_name_is_seen_by_nobody(
    clients_of: StartClients, caplog: pytest.LogCaptureFixture
) -> None:
    clients = await clients_of(access={"jwt": {"secret": SECRET, "token_from": "username"}})
    text = token(clients).decode()
    with caplog.at_level("INFO"):
        peer = await clients.connect("c", username=text)
        assert clients.server.context.channels["c"].client.username == "ann"
        await peer.disconnect()
        await clients.peer().connect("c", username=text[:-3] + "AAA", expect=None)
    assert text[:20] not in caplog.text and "client_refused" in caplog.text
