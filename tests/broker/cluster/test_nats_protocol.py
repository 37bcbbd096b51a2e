"""NATS's client protocol, in pieces of any size, and what is not of it."""

import asyncio

import pytest

from taipan.broker.cluster.nats.protocol import Msg, NatsProtocol, header_lines, headers_of, published


class Told:
    """``Owner`` that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def on_connected(self, transport: asyncio.Transport) -> None:
        self.told.append(("connected", None))

    def on_lost(self, error: Exception | None) -> None:
        self.told.append(("lost", None))

    def on_info(self, data: bytes) -> None:
        self.told.append(("info", data))

    def on_error(self, text: str) -> None:
        self.told.append(("error", text))

    def on_malformed(self, text: str) -> None:
        self.told.append(("malformed", text))

    def on_unreadable(self) -> None:
        self.told.append(("unreadable", None))

    def on_ping(self) -> None:
        self.told.append(("ping", None))

    def on_pong(self) -> None:
        self.told.append(("pong", None))

    def message(self, message: Msg) -> None:
        self.told.append((message.subject, (message.reply, message.data, message.headers)))


STREAM = (
    b'INFO {"version":"2.10.25"}\r\n+OK\r\nPING\r\nPONG\r\n'
    b"MSG a.b 1 5\r\n\r\nPI\r\r\n"
    b"MSG a.c 1 r.1 0\r\n\r\n"
    b"MSG other 7 3\r\nxyz\r\n"
    b"HMSG a.d 1 r.2 40 42\r\nNATS/1.0 100 Idle Heartbeat\r\nX: 1:2 \r\n\r\nhi\r\n"
    b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
)
EVENTS = [
    ("info", b'{"version":"2.10.25"}'),
    ("ping", None),
    ("pong", None),
    ("a.b", ("", b"\r\nPI\r", None)),
    ("a.c", ("r.1", b"", None)),
    ("a.d", ("r.2", b"hi", {"Status": "100", "X": "1:2"})),
    ("error", 'Permissions Violation for Publish to "a"'),
]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, len(STREAM)])
def test_pieces_of_any_size_say_the_same(step: int) -> None:
    told = Told()
    protocol = NatsProtocol(told)
    assert protocol.subscribe(told.message) == 1
    for at in range(0, len(STREAM), step):
        protocol.data_received(STREAM[at : at + step])
    assert told.told == EVENTS


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 r 5 6\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 five\r\n",
        b"MSG a 1 67108865\r\n",
        b"HMSG a 1 9 5\r\n",
        b"HMSG a 1 5\r\n",
        b"x" * 1_048_577,
    ],
)
def test_what_is_not_of_the_protocol_ends_the_connection(data: bytes) -> None:
    told = Told()
    protocol = NatsProtocol(told)
    protocol.data_received(data)
    protocol.data_received(b"PING\r\n")
    assert [what for what, _ in told.told] == ["malformed"]


def test_a_subject_that_is_no_text_costs_its_message_only() -> None:
    """The server passes on what any client gives it for a reply."""
    told = Told()
    protocol = NatsProtocol(told)
    number = protocol.subscribe(told.message)
    protocol.data_received(b"MSG a %d 1\r\nw\r\nMSG a %d \xff\xfe 1\r\nx\r\n" % (number, number))
    protocol.data_received(b"MSG \xff\xfe %d 1\r\ny\r\nMSG b %d 1\r\nz\r\n" % (number, number))
    assert told.told == [
        ("a", ("", b"w", None)),
        ("unreadable", None),
        ("unreadable", None),
        ("b", ("", b"z", None)),
    ]


def test_a_handler_that_fails_costs_its_message_only(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    protocol = NatsProtocol(told)

    def fail(message: Msg) -> None:
        raise ValueError("a fault")

    failing, other = protocol.subscribe(fail), protocol.subscribe(told.message)
    protocol.data_received(b"MSG a %d 1\r\nx\r\nMSG b %d 1\r\ny\r\n" % (failing, other))
    assert told.told == [("b", ("", b"y", None))]
    assert "nats_handler_failed subject=a" in caplog.text
    assert protocol.unsubscribe(other) and not protocol.unsubscribe(other)
    protocol.data_received(b"MSG b %d 1\r\nz\r\n" % other)
    assert len(told.told) == 1


def test_what_is_sent() -> None:
    assert published("a", "", b"", b"xy") == [b"PUB a 2\r\nxy\r\n"]
    assert published("a", "r", b"", b"") == [b"PUB a r 0\r\n\r\n"]
    lines = header_lines({"K": "V"})
    assert published("a", "r", lines, b"xy") == [b"HPUB a r 18 20\r\nNATS/1.0\r\nK: V\r\n\r\nxy\r\n"]
    large = bytes(100_000)
    assert published("a", "r", lines, large) == [b"HPUB a r 18 100018\r\nNATS/1.0\r\nK: V\r\n\r\n", large, b"\r\n"]
    assert headers_of(lines) == {"K": "V"}
