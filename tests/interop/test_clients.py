"""What every client library must see of the node, over every transport and version it speaks."""

import queue

import pytest

from .clients.client import InteropClient, Will
from .conftest import Connect

SUBJECTS = [
    ("paho-mqtt", 3, "tcp"),
    ("paho-mqtt", 4, "tcp"),
    ("paho-mqtt", 5, "tcp"),
    ("paho-mqtt", 3, "ws"),
    ("paho-mqtt", 4, "ws"),
    ("paho-mqtt", 5, "ws"),
    ("aiomqtt", 4, "tcp"),
    ("aiomqtt", 5, "tcp"),
    ("aiomqtt", 5, "ws"),
    ("gmqtt", 4, "tcp"),
    ("gmqtt", 5, "tcp"),
    ("amqtt", 4, "tcp"),
    ("amqtt", 4, "ws"),
    ("MQTT.js", 4, "tcp"),
    ("MQTT.js", 5, "tcp"),
    ("MQTT.js", 4, "ws"),
    ("MQTT.js", 5, "ws"),
]

MEBIBYTE = 1_048_576

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.parametrize("subject", SUBJECTS, ids=lambda each: f"{each[0]}-v{each[1]}-{each[2]}"),
]


def leave(client: InteropClient) -> None:
    client.disconnect()
    client.ended = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_its_subscriber_at_the_qos_it_was_sent(connect: Connect, unique: str, qos: int) -> None:
    """[MQTT-3.8.4-8] [MQTT-4.3.1-1] [MQTT-4.3.2-1] [MQTT-4.3.3-1]"""
    client = connect("one")
    client.subscribe(f"{unique}/+", qos)
    client.publish(f"{unique}/a", b"hello", qos)
    message = client.next()
    assert (message.topic, message.payload, message.qos) == (f"{unique}/a", b"hello", qos)
    assert not message.retain


def test_many_messages_arrive_once_and_in_order(connect: Connect, unique: str) -> None:
    """[MQTT-4.6.0-6]"""
    publisher, subscriber = connect("publisher"), connect("subscriber")
    subscriber.subscribe(f"{unique}/#", 2)
    for number in range(60):
        publisher.publish(f"{unique}/{number % 3}/q{number % 3}", str(number).encode(), number % 3)
    publisher.publish(f"{unique}/end", b"end", 2)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(61):
        message = subscriber.next()
        if message.payload != b"end":
            seen[message.qos].append(int(message.payload))
    assert seen == {qos: list(range(qos, 60, 3)) for qos in range(3)}


def test_a_retained_message_waits_for_its_subscriber(connect: Connect, unique: str) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-9]"""
    client = connect("one")
    client.publish(f"{unique}/kept", b"kept", 1, retain=True)
    client.subscribe(f"{unique}/fence", 1)
    client.publish(f"{unique}/fence", b"", 1)  # the libraries that do not wait for PUBACK have got it now
    assert client.next().topic == f"{unique}/fence"
    client.subscribe(f"{unique}/kept", 1)
    message = client.next()
    assert (message.payload, message.qos, message.retain) == (b"kept", 1, True)
    client.publish(f"{unique}/kept", b"", 1, retain=True)
    assert client.next().payload == b""
    client.unsubscribe(f"{unique}/kept")
    client.subscribe(f"{unique}/kept", 1)
    client.publish(f"{unique}/fence", b"last", 1)
    assert client.next().payload == b"last"


def test_a_will_is_published_when_the_connection_breaks(connect: Connect, unique: str) -> None:
    """[MQTT-3.1.2-8]"""
    observer = connect("observer")
    observer.subscribe(f"{unique}/will", 2)
    dying = connect("dying", will=Will(f"{unique}/will", b"gone", 2))
    dying.drop()
    dying.ended = True  # type: ignore[attr-defined]
    message = observer.next()
    assert (message.payload, message.qos, message.retain) == (b"gone", 2, False)


def test_no_will_after_disconnect(connect: Connect, unique: str) -> None:
    """[MQTT-3.14.4-3]"""
    observer = connect("observer")
    observer.subscribe(f"{unique}/will", 1)
    leave(connect("leaving", will=Will(f"{unique}/will", b"gone", 1)))
    observer.publish(f"{unique}/will", b"nobody died", 1)
    assert observer.next().payload == b"nobody died"


def test_an_unsubscribed_filter_brings_nothing_more(connect: Connect, unique: str) -> None:
    """[MQTT-3.10.4-2] [MQTT-3.10.4-4]"""
    client = connect("one")
    client.subscribe(f"{unique}/off", 1)
    client.subscribe(f"{unique}/on", 1)
    client.unsubscribe(f"{unique}/off")
    client.publish(f"{unique}/off", b"unheard", 1)
    client.publish(f"{unique}/on", b"heard", 1)
    assert client.next().payload == b"heard"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_keeps_what_its_client_missed(connect: Connect, unique: str, qos: int) -> None:
    """[MQTT-3.1.2-5] [MQTT-3.2.2-3] [MQTT-4.1.0-1]"""
    leave(connect("away"))  # nothing there yet
    away = connect("away", persistent=True)
    away.subscribe(f"{unique}/missed", qos)
    leave(away)
    publisher = connect("publisher")
    for number in range(5):
        publisher.publish(f"{unique}/missed", str(number).encode(), qos)
    leave(publisher)
    back = connect("away", persistent=True, present=True)
    assert [back.next().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    leave(back)
    connect("away", clean=True)  # ends the session


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_mebibyte_passes_whole(connect: Connect, unique: str, qos: int) -> None:
    client = connect("one")
    client.subscribe(f"{unique}/large", qos)
    payload = (bytes(range(256)) * (MEBIBYTE // 256))[: client.largest_payload]
    client.publish(f"{unique}/large", payload, qos)
    message = client.next()
    assert message.qos == qos
    assert message.payload == payload


def test_topics_are_any_utf8(connect: Connect, unique: str) -> None:
    """[MQTT-1.5.4-1] [MQTT-4.7.3-4]"""
    client = connect("one")
    topic = f"{unique}/Grüße/日本語/🐍/ with spaces /.*>"
    client.subscribe(topic, 1)
    client.publish(topic, "añb€😀".encode(), 1)
    message = client.next()
    assert (message.topic, message.payload.decode()) == (topic, "añb€😀")


def test_properties_travel_unchanged(connect: Connect, unique: str, subject: tuple[str, int, str]) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]

    Where the version has none the message arrives without.
    """
    client = connect("one")
    client.subscribe(f"{unique}/properties", 1)
    sent = {
        "user": [("k", "1"), ("k", "2"), ("ключ", "значение")],
        "content_type": "text/plain",
        "response_topic": f"{unique}/reply",
        "correlation": b"\x00\x01\xff",
        "payload_format": 1,
        "expiry": 1000,
    }
    client.publish(f"{unique}/properties", b"text", 1, properties=sent if subject[1] == 5 else None)
    found = dict(client.next().properties)
    if subject[1] != 5:
        assert not found
        return
    assert 995 <= found.pop("expiry", 1000) <= 1000
    del sent["expiry"]
    assert found == sent


def test_a_second_client_takes_over(connect: Connect, unique: str) -> None:
    """[MQTT-3.1.4-3]"""
    first = connect("same")
    second = connect("same")
    first.ended = True  # type: ignore[attr-defined]
    second.subscribe(f"{unique}/t", 1)
    second.publish(f"{unique}/t", b"mine", 1)
    assert second.next().payload == b"mine"
    with pytest.raises(queue.Empty):
        first.next(timeout=0.05)
    release = getattr(first, "abandon", None)
    if release is not None:
        release()
