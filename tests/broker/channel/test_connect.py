"""CONNECT, without a socket: who a client is, and what a refusal tells it."""

import pytest

from taipan.broker.access.scram import ScramVerifier
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Auth, Connack, Connect, Will
from tests.support.fake_node import FakeNode
from tests.support.scram_client import ScramClient
from tests.support.wire import Publish

SCRAM = "SCRAM-SHA-256"


def scram_node(**zone: object) -> FakeNode:
    """Knows ``ann`` with the password ``secret``."""
    users = [{"username": "ann", "scram": str(ScramVerifier.create("secret"))}]
    return FakeNode({"allow_anonymous": False, **zone}, access={"users": users})


def scram_connect(node: FakeNode, client_id: str, username: str, password: str) -> tuple[Connack, str]:
    """The CONNACK, and by which identifier the broker knows the client."""
    scram = ScramClient(username, password)
    client = node.open()
    client.feed(
        Connect(5, client_id, properties={c.AUTHENTICATION_METHOD: SCRAM, c.AUTHENTICATION_DATA: scram.first()})
    )
    (challenge,) = client.received()
    assert isinstance(challenge, Auth)
    proof = scram.final(challenge.properties[c.AUTHENTICATION_DATA])
    answer = client.ask(Auth(0x18, {c.AUTHENTICATION_METHOD: SCRAM, c.AUTHENTICATION_DATA: proof}))[0]
    assert isinstance(answer, Connack)
    return answer, client.channel.client.client_id


# --- identifiers ----------------------------------------------------------------------------------------------------


def test_the_user_name_as_identifier_is_told_to_who_gave_none() -> None:
    """[MQTT-3.2.2-16]"""
    node = FakeNode({"use_username_as_client_id": True})
    for given, told in (("", "ann"), ("x", None)):
        client = node.open()
        connack = client.connect(given, username="ann")
        assert client.channel.client.client_id == "ann"
        assert connack.properties.get(c.ASSIGNED_CLIENT_IDENTIFIER) == told


def test_the_user_name_as_identifier_may_come_by_scram() -> None:
    node = scram_node(use_username_as_client_id=True)
    connack, client_id = scram_connect(node, "x", "ann", "secret")
    assert (connack.reason_code, client_id) == (0, "ann")
    node = scram_node(use_username_as_client_id=True, max_client_id_length=2)
    connack, _ = scram_connect(node, "x", "ann", "secret")
    assert connack.reason_code == rc.CLIENT_IDENTIFIER_NOT_VALID


@pytest.mark.parametrize("client_id, code", [("abcd", 0), ("abcde", 0x85), ("äb", 0), ("äääa", 0x85)])
def test_the_length_of_an_identifier_is_in_bytes(client_id: str, code: int) -> None:
    assert FakeNode({"max_client_id_length": 4}).open().connect(client_id).reason_code == code


# --- what a refusal tells -------------------------------------------------------------------------------------------


def test_whether_a_user_exists_does_not_show() -> None:
    node = scram_node()
    answers = [scram_connect(node, "x", username, "wrong")[0] for username in ("ann", "nobody")]
    assert answers == [Connack(rc.NOT_AUTHORIZED)] * 2
    assert FakeNode({"allow_anonymous": False}).open().connect("x") == Connack(rc.NOT_AUTHORIZED)


# --- the mount point ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", ["$SYS", "$delayed", "$share", "a/b", "+", "#"])
@pytest.mark.parametrize("mountpoint", ["%c/", "%u/"])
def test_no_name_mounts_a_client_among_the_topics_of_the_server(version: int, name: str, mountpoint: str) -> None:
    """As ``$delayed`` a client could publish to every topic, as ``$SYS`` it could speak for the broker."""
    node = FakeNode()
    client = node.open(version, {"mountpoint": mountpoint})
    client_id, username = (name, "u") if mountpoint == "%c/" else ("c", name)
    assert client.connect(client_id, username=username).reason_code != 0
    client.publish("1/other", b"x")
    node.pass_time(2)
    assert client.closed and node.metrics.messages_publish == 0


@pytest.mark.parametrize("topic", ["$SYS", "$SYS/x", "$delayed/1/$SYS", "$delayed/1/$SYS/x"])
def test_no_will_speaks_for_the_broker(topic: str) -> None:
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("$SYS/x", "$SYS", "$delayed/#")
    client = node.open()
    client.connect("c", will=Will(topic, b"spoofed"))
    client.vanish()
    node.pass_time(2)
    assert watcher.messages() == []


# --- what is left of it ---------------------------------------------------------------------------------------------


def test_who_has_gone_leaves_no_decisions_in_memory() -> None:
    """Its retained messages know who published them, for ever."""
    node = FakeNode()
    client = node.connect()
    client.send(Publish("t", b"x", retain=True))
    assert client.channel.client.acl_cache is not None
    client.vanish()
    kept = node.broker.retained.get("t")
    assert kept is not None and kept.publisher.client_id == "c" and kept.publisher.acl_cache is None
