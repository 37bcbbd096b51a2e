"""AUTH: the exchange before CONNACK, and re-authentication, without a socket."""

from typing import Any

import pytest

from taipan.broker.access.enhanced import CONTINUE, FAILURE, SUCCESS, AuthStep
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp
from taipan.broker.session.client_info import ClientInfo
from tests.support.fake_node import FakeClient, FakeNode, reason_codes
from tests.support.wire import Publish


class Method:
    """Says what its script says: CONTINUE, SUCCESS or FAILURE for each step of each exchange."""

    name = "TEST"
    username = ""  # never told before it is proved

    def __init__(self, *script: AuthStep) -> None:
        self.script = iter(script)
        self.heard: list[bytes | None] = []

    def start(self, client: ClientInfo) -> "Method":
        return self

    def step(self, data: bytes | None) -> AuthStep:
        self.heard.append(data)
        return next(self.script)


MORE = AuthStep(CONTINUE, b"more")
YES = AuthStep(SUCCESS, b"yes", "name", True)
NAMELESS = AuthStep(SUCCESS)
NO = AuthStep(FAILURE, reason_code=rc.NOT_AUTHORIZED, detail="no")
OURS = {c.AUTHENTICATION_METHOD: "TEST"}


def node_with_method(*script: AuthStep) -> tuple[FakeNode, Method]:
    node = FakeNode()
    method = Method(*script)
    node.context.access.authentication.enhanced_method = lambda name: method if name == "TEST" else None  # type: ignore[assignment]
    return node, method


def begin(node: FakeNode, data: bytes = b"") -> FakeClient:
    client = node.open()
    client.feed(Connect(5, "c", properties={**OURS, **({c.AUTHENTICATION_DATA: data} if data else {})}))
    return client


@pytest.mark.interpreted
def test_an_exchange_before_connack() -> None:
    """[MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]"""
    node, method = node_with_method(MORE, YES)
    client = begin(node, b"first")
    assert client.received() == [Auth(0x18, {**OURS, c.AUTHENTICATION_DATA: b"more"})]
    (connack,) = client.ask(Auth(0x18, {**OURS, c.AUTHENTICATION_DATA: b"second"}))
    assert isinstance(connack, Connack) and connack.reason_code == 0
    assert connack.properties[c.AUTHENTICATION_METHOD] == "TEST"
    assert connack.properties[c.AUTHENTICATION_DATA] == b"yes"
    assert method.heard == [b"first", b"second"]
    facts = client.channel.client
    assert (facts.username, facts.is_superuser, facts.anonymous) == ("name", True, False)
    assert (node.metrics.packets_auth_sent, node.metrics.packets_auth_received) == (1, 1)


@pytest.mark.interpreted
def test_a_method_that_needs_one_step_and_knows_no_names() -> None:
    node, method = node_with_method(NAMELESS)
    client = begin(node)
    (connack,) = client.received()
    assert isinstance(connack, Connack) and c.AUTHENTICATION_DATA not in connack.properties
    assert (method.heard, client.channel.client.username) == ([None], None)


@pytest.mark.interpreted
def test_a_failed_exchange() -> None:
    """[MQTT-4.12.0-4]"""
    node, _ = node_with_method(MORE, NO)
    client = begin(node)
    client.received()
    (connack,) = client.ask(Auth(0x18, OURS))
    assert isinstance(connack, Connack) and connack.reason_code == rc.NOT_AUTHORIZED
    assert client.closed
    assert node.metrics.client_auth_failure == 1


@pytest.mark.parametrize("packet", [Pingreq(), Publish("t"), Publish("t", qos=1, packet_id=1)])
@pytest.mark.interpreted
def test_nothing_but_auth_during_the_exchange(packet: Any) -> None:
    """[MQTT-3.1.2-30]"""
    node, _ = node_with_method(MORE)
    client = begin(node)
    client.received()
    (connack,) = client.ask(packet, Pingreq())
    assert isinstance(connack, Connack) and connack.reason_code == rc.PROTOCOL_ERROR
    assert client.closed


@pytest.mark.parametrize("packet", [Auth(0x19, OURS), Auth(0x18, {c.AUTHENTICATION_METHOD: "OTHER"}), Connect(5, "c")])
@pytest.mark.interpreted
def test_a_wrong_step_of_the_exchange(packet: Any) -> None:
    """[MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-3.1.0-2]"""
    node, _ = node_with_method(MORE)
    client = begin(node)
    client.received()
    assert all(isinstance(each, Connack) and each.reason_code for each in client.ask(packet))
    assert client.closed


@pytest.mark.interpreted
def test_the_client_gives_up_the_exchange() -> None:
    node, _ = node_with_method(MORE)
    client = begin(node)
    client.received()
    client.send(Disconnect())
    assert client.closed
    assert node.metrics.refusals.snapshot() == {"normal": 1}


def authenticated(*script: AuthStep) -> FakeClient:
    node, _ = node_with_method(YES, *script)
    client = begin(node)
    client.received()
    return client


@pytest.mark.interpreted
def test_a_re_authentication_while_other_traffic_goes_on() -> None:
    """[MQTT-4.12.1-1]"""
    client = authenticated(MORE, AuthStep(SUCCESS, b"", "name", False))
    assert client.ask(Auth(0x19, OURS)) == [Auth(0x18, {**OURS, c.AUTHENTICATION_DATA: b"more"})]
    assert client.ask(Pingreq()) == [Pingresp()]
    assert client.ask(Auth(0x18, OURS)) == [Auth(0, OURS)]
    assert not client.channel.client.is_superuser


@pytest.mark.parametrize("step", [NO, AuthStep(SUCCESS, b"", "somebody else")])
@pytest.mark.interpreted
def test_a_failed_re_authentication(step: AuthStep) -> None:
    """[MQTT-4.12.1-2]"""
    client = authenticated(step)
    client.send(Auth(0x19, OURS))
    assert reason_codes(client) == [rc.NOT_AUTHORIZED]
    assert client.closed


@pytest.mark.interpreted
def test_a_method_that_is_gone() -> None:
    client = authenticated()
    client.node.context.access.authentication.enhanced_method = lambda name: None  # type: ignore[assignment]
    client.send(Auth(0x19, OURS))
    assert reason_codes(client) == [rc.NOT_AUTHORIZED]


@pytest.mark.interpreted
def test_auth_out_of_place() -> None:
    """[MQTT-4.12.0-7] [MQTT-4.12.1-1]"""
    plain = FakeNode().connect()
    plain.send(Auth(0x19, OURS))
    assert reason_codes(plain) == [rc.PROTOCOL_ERROR]
    for packets in (
        [Auth(0x18, OURS)],
        [Auth(0x19, {c.AUTHENTICATION_METHOD: "OTHER"})],
        [Auth(0x19, OURS), Auth(0x19, OURS)],
    ):
        client = authenticated(MORE)
        answers = client.ask(*packets)
        assert isinstance(answers[-1], Disconnect) and answers[-1].reason_code == rc.PROTOCOL_ERROR
        assert client.closed
