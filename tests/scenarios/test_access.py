"""Who may: users, rules, what a refusal looks like in each version, at every entrance."""

from collections.abc import Awaitable, Callable

import pytest

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.mqtt.packets import Connect, Suback, Subscribe, TopicFilter, Will
from tests.broker.access.test_foreign_hashes import mosquitto7
from tests.support.clients import Clients, tcp, v4, v5
from tests.support.node import free_port
from tests.support.peer import Peer
from tests.support.reason_codes import suback_refused
from tests.support.wire import Publish

from .until_quiet import payloads

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]

USERS = [
    {"username": "ann", "password_hash": str(ScryptHash.create(b"secret"))},
    {"username": "root", "password_hash": str(ScryptHash.create(b"toor")), "is_superuser": True},
]


# --- users -----------------------------------------------------------------------------------------------------------


@tcp
async def test_users(clients_of: Start) -> None:
    """Refused with a code of the list, Session Present 0, then closed [MQTT-3.1.4-2] [MQTT-3.2.2-6] [MQTT-3.2.2-7]
    [MQTT-3.2.2-8] [3.1.1 MQTT-3.1.4-2] [3.1.1 MQTT-3.2.2-4] [3.1.1 MQTT-3.2.2-5]."""
    clients = await clients_of(zone={"allow_anonymous": False}, access={"users": USERS})
    five = clients.version == 5
    stored = await clients.persistent("wrong", username="ann", password=b"secret")
    await stored.disconnect()
    for username, password in (("ann", b"wrong"), ("nobody", b"secret"), ("ann", b""), ("ANN", b"secret")):
        peer = clients.peer()
        await peer.connect("wrong", False, username=username, password=password, expect=None)
        assert peer.connack.reason_code in ((0x86, 0x87) if five else (4, 5))
        assert not peer.connack.session_present
    await clients.peer().connect("nobody", expect=None)
    peer = clients.peer()
    await peer.connect("anonymous", expect=None)
    assert peer.connack.reason_code in ((0x86, 0x87) if five else (4, 5))


@tcp
async def test_users_of_the_file_with_hashes_of_others(clients_of: Start) -> None:
    users = [
        {"username": "ann", "password_hash": mosquitto7(b"secret")},
        {"username": "bob", "password_hash": "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"},
    ]
    clients = await clients_of(zone={"allow_anonymous": False}, access={"users": users, "hash_cost": 10})
    for _ in range(2):
        await clients.connect(username="ann", password=b"secret")
        await clients.connect(username="bob", password=b"U*U")
    peer = clients.peer()
    await peer.connect(username="bob", password=b"secret", expect=None)
    assert peer.connack.reason_code == (0x86 if clients.version == 5 else 4)


@tcp
async def test_a_refused_client_leaves_the_session_of_that_name_alone(clients_of: Start) -> None:
    clients = await clients_of(zone={"allow_anonymous": False}, access={"users": USERS})
    right = await clients.connect("same", username="ann", password=b"secret")
    await clients.peer().connect("same", username="ann", password=b"wrong", expect=None)
    await right.nothing()


@tcp
async def test_packets_after_a_refused_connect_are_not_processed(clients_of: Start) -> None:
    """[MQTT-3.1.4-6] [3.1.1 MQTT-3.1.4-5]"""
    clients = await clients_of(zone={"allow_anonymous": False}, access={"users": USERS})
    watcher = await clients.connect("w", username="root", password=b"toor")
    await watcher.subscribe("t", qos=1)
    peer = await clients.open()
    await peer.send(Connect(clients.version, "bad", username="ann", password=b"x"), Publish("t", b"sneaked in"))
    await peer.receive()
    await watcher.nothing()


@tcp
async def test_anonymous_clients_on_loopback_and_elsewhere(clients_of: Start) -> None:
    """Where nothing is said, only a listener bound to loopback lets them in."""
    clients = await clients_of(listeners=[{"type": "tcp", "bind": f"0.0.0.0:{free_port()}"}, {"type": "ws"}])
    five = clients.version == 5
    peer = Peer(clients.node.address("tcp")._replace(host="127.0.0.1"), clients.version)
    await peer.connect("x", expect=None)
    assert peer.connack.reason_code in ((0x86, 0x87) if five else (4, 5))
    await peer.close()
    await clients.connect("y", transport="ws")


@tcp
async def test_anonymous_clients_elsewhere_if_it_is_said_in_so_many_words(clients_of: Start) -> None:
    clients = await clients_of(
        zone={"allow_anonymous": True}, listeners=[{"type": "tcp", "bind": f"0.0.0.0:{free_port()}"}]
    )
    peer = Peer(clients.node.address("tcp")._replace(host="127.0.0.1"), clients.version)
    await peer.connect("x")
    await peer.disconnect()


# --- rules -----------------------------------------------------------------------------------------------------------

RULES = [
    {"allow": False, "action": "subscribe", "topics": ["eq #"]},
    {"allow": True, "topics": ["own/%c/#", "user/%u/#"]},
    {"allow": True, "username": "ann", "action": "publish", "topics": ["news/+"]},
    {"allow": True, "action": "subscribe", "topics": ["news/#"]},
    {"allow": True, "client_id": "special", "topics": ["special/#"]},
    {"allow": True, "address": "127.0.0.0/8", "topics": ["local/#"]},
    {"allow": True, "address": "10.0.0.0/8", "topics": ["far/#"]},
    {"allow": False},
]


async def judged(peer: Peer, topic: str) -> tuple[bool, bool]:
    """Whether this client may publish and subscribe to a topic."""
    publish = await peer.publish(topic, b"", 1, expect=None) < 0x80
    watched = await _subscribes(peer, topic)
    return publish, watched


async def _subscribes(peer: Peer, topic: str) -> bool:
    packet_id = peer.next_packet_id()
    await peer.send(Subscribe(packet_id, [TopicFilter(topic)]))
    suback = await peer.answer(Suback, packet_id=packet_id)
    return suback.reason_codes[0] < 0x80


@tcp
@v5
async def test_rules(clients_of: Start) -> None:
    """By user, client, address and all; the first that matches decides."""
    clients = await clients_of(access={"rules": RULES, "users": USERS})
    ann = await clients.connect("one", username="ann", password=b"secret")
    special = await clients.connect("special")
    assert await judged(ann, "own/one/x") == (True, True)
    assert await judged(ann, "own/two/x") == (False, False)
    assert await judged(ann, "user/ann/x") == (True, True)
    assert await judged(ann, "user/bob/x") == (False, False)
    assert await judged(ann, "news/a") == (True, True)
    assert await judged(ann, "news/a/b") == (False, True)
    assert await judged(special, "news/a") == (False, True)
    assert await judged(special, "special/a") == (True, True)
    assert await judged(ann, "special/a") == (False, False)
    assert await judged(ann, "local/x") == (True, True)
    assert await judged(ann, "far/x") == (False, False)
    assert await judged(ann, "elsewhere") == (False, False)
    for filter in ("#", "+/one/x", "own/+/x", "own/#", "own/one/#/", "$share/g/own/two/x"):
        assert not await _subscribes(ann, filter)
    assert await _subscribes(ann, "$share/g/own/one/x")
    assert await _subscribes(ann, "own/one/#")


@tcp
@v5
@pytest.mark.parametrize("name", ["+", "#", "two/x", "+/x", "", "one/#"])
async def test_placeholders_never_widen_a_pattern(clients_of: Start, name: str) -> None:
    clients = await clients_of(access={"rules": [{"allow": True, "topics": ["own/%u/#"]}, {"allow": False}]})
    peer = await clients.connect("x", username=name)
    for filter in ("own/two/x", "own/+/x", "own/#", "#", "own/victim/y"):
        if filter == f"own/{name}":
            continue
        assert not await _subscribes(peer, filter), (name, filter)
    assert await peer.publish("own/victim/x", b"", 1, expect=None) == 0x87


@tcp
async def test_no_match(clients_of: Start) -> None:
    for no_match, allowed in (("allow", True), ("deny", False)):
        clients = await clients_of(access={"no_match": no_match})
        peer = await clients.connect("x")
        await peer.subscribe("t", qos=1, expect=[1 if allowed else suback_refused(clients.version)])


@tcp
async def test_a_superuser_may_everything(clients_of: Start) -> None:
    clients = await clients_of(access={"users": USERS, "rules": [{"allow": False}]})
    peer = await clients.connect("x", username="root", password=b"toor")
    await peer.subscribe("#", qos=1)
    await peer.publish("t", b"x", 1)
    await peer.expect_publish("t", b"x")


@tcp
async def test_rules_switched_off(clients_of: Start) -> None:
    clients = await clients_of(zone={"enable_acl": False}, access={"rules": [{"allow": False}]})
    peer = await clients.connect("x")
    await peer.subscribe("t", qos=1)


# --- refusals --------------------------------------------------------------------------------------------------------

CLOSED = {"rules": [{"allow": False, "topics": ["no/#"]}]}


@tcp
async def test_a_refused_publish(clients_of: Start) -> None:
    """5.0 is told, 3.1.1 is acknowledged, nobody gets it, the connection stays [3.1.1 MQTT-3.3.5-2]."""
    clients = await clients_of(access={"rules": [{"allow": False, "action": "publish", "topics": ["no/#"]}]})
    watcher, peer = await clients.connect("w"), await clients.connect("p")
    await watcher.subscribe("#", qos=2)
    for qos in (0, 1, 2):
        await peer.publish("no/x", b"x", qos, expect=0x87 if clients.version == 5 else 0)
        await peer.publish("no/x", b"x", qos, True, expect=0x87 if clients.version == 5 else 0)
    await watcher.nothing()
    late = await clients.connect("late")
    await late.subscribe("#", qos=1)
    await late.nothing()


@tcp
@v5
async def test_a_refused_qos_2_publish_frees_its_identifier(clients_of: Start) -> None:
    """[MQTT-4.3.3-9]"""
    clients = await clients_of(access=CLOSED)
    peer = await clients.connect("p")
    await peer.publish("no/x", b"x", 2, packet_id=5, expect=0x87)
    await peer.publish("yes", b"x", 2, packet_id=5)


@tcp
async def test_a_refused_filter_among_others(clients_of: Start) -> None:
    """[MQTT-3.8.4-6] [3.1.1 MQTT-3.9.3-2]"""
    clients = await clients_of(access=CLOSED)
    peer = await clients.connect("p")
    await peer.subscribe("a", "no/x", "b", qos=1, expect=[1, suback_refused(clients.version), 1])
    await peer.publish("b", b"x", 1)
    await peer.expect_publish("b", b"x")


@tcp
@v5
async def test_the_code_of_a_refused_filter_is_a_setting(clients_of: Start) -> None:
    clients = await clients_of(zone={"suback_denied_code": 0x80}, access=CLOSED)
    peer = await clients.connect("p")
    await peer.subscribe("no/x", expect=[0x80])


@tcp
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_deny_action_disconnect_on_publish(clients_of: Start, qos: int) -> None:
    """MQTT 5.0 section 4.13."""
    clients = await clients_of(zone={"acl_deny_action": "disconnect"}, access=CLOSED)
    peer = await clients.connect("p")
    await peer.send(Publish("no/x", b"x", qos, packet_id=1 if qos else 0))
    await peer.expect_disconnect(0x87)


@tcp
async def test_deny_action_disconnect_on_subscribe(clients_of: Start) -> None:
    clients = await clients_of(zone={"acl_deny_action": "disconnect"}, access=CLOSED)
    peer = await clients.connect("p")
    await peer.send(Subscribe(1, [TopicFilter("no/x")]))
    await peer.expect_disconnect(0x87)


@tcp
async def test_a_will_that_is_not_allowed_is_not_published(clients_of: Start) -> None:
    """[MQTT-3.1.2-8]"""
    clients = await clients_of(access={"rules": [{"allow": False, "action": "publish", "topics": ["no/#"]}]})
    watcher = await clients.connect("w")
    await watcher.subscribe("no/#", "$delayed/#", qos=1)
    for topic in ("no/x", "$delayed/1/no/x"):
        peer = clients.peer()
        await peer.connect("dying", will=Will(topic, b"x", 1), expect=None)
        if peer.connack.reason_code == 0:
            await peer.drop()
        await clients.pass_time(2)
        await watcher.nothing()


@tcp
async def test_retained_messages_only_through_subscriptions_that_are_allowed(clients_of: Start) -> None:
    clients = await clients_of(access={"rules": [{"allow": False, "action": "subscribe", "topics": ["no/#"]}]})
    publisher, peer = await clients.connect("p"), await clients.connect("s")
    await publisher.publish("no/x", b"kept", 1, True)
    await peer.subscribe("no/#", qos=1, expect=[suback_refused(clients.version)])
    await peer.subscribe("+/x", qos=1, expect=[suback_refused(clients.version)])
    await peer.nothing()


@tcp
async def test_decisions_are_cached_for_their_time(clients_of: Start) -> None:
    clients = await clients_of(access={"cache_ttl": 60.0, "rules": [{"allow": False, "topics": ["no/#"]}]})
    peer = await clients.connect("p")
    server = clients.server
    for _ in range(5):
        await peer.publish("yes", b"x", 1)
    first = server.metrics.snapshot()
    await peer.publish("yes", b"x", 1)
    second = server.metrics.snapshot()
    assert second["client.acl.cache_hit"] == first["client.acl.cache_hit"] + 1
    assert second["client.check_acl"] == first["client.check_acl"]
    await clients.pass_time(61)
    await peer.publish("yes", b"x", 1)
    assert server.metrics.snapshot()["client.check_acl"] == first["client.check_acl"] + 1


@tcp
@v4
async def test_payloads_of_3_1_1_that_were_refused_are_gone(clients_of: Start) -> None:
    clients = await clients_of(access=CLOSED)
    peer = await clients.persistent("p")
    await peer.subscribe("#", qos=1, expect=[0x80])  # it could match no/x
    await peer.subscribe("yes", qos=1)
    await peer.publish("no/x", b"x", 1)
    await peer.publish("yes", b"y", 1)
    assert await payloads(peer) == [b"y"]
