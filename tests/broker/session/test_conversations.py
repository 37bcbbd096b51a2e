"""What every way to a client has to do, whoever is at its other end: a client of MQTT, a node, the program."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.run import Run
from taipan.broker.session.replay import ReplayBudget
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from taipan.subscription import _Receiver
from tests.broker.channel.test_outbound_writer import WriterHarness
from tests.broker.cluster.test_link_writer import Sending
from tests.support.sessions import make_session
from tools.simulation.loop import VirtualLoop

KINDS = ("packets 3.1.1", "packets 5.0", "link", "program")


class Conversation:
    """A session with one of them at its other end. ``count``: how many messages have arrived since its last call."""

    def __init__(self, kind: str) -> None:
        self.count: Callable[[], int]
        self.writer: Any
        if kind == "link":
            self._to_a_node()
            return
        self.session = make_session("c", observer=self)
        if kind == "program":
            receiver = self.writer = _Receiver(None, "subscriber:1", 1000)  # type: ignore[arg-type]
            self.count = lambda: len([receiver.pop() for _ in range(len(receiver.messages))])
            self.session.attach(receiver, 100, self.session.limits, 0.0)
            return
        harness = WriterHarness(5 if kind.endswith("5.0") else 4).open()
        self.writer = harness.writer
        self.count = lambda: len(harness.read())
        self.session.attach(self.writer, 100, self.session.limits, 0.0, packets=self.writer)

    def _to_a_node(self) -> None:
        sending = Sending()
        self.session = sending.session
        writer = self.writer = sending.writer
        sent: list[object] = []

        def send(number: int, after: int, first: int, publishers: Any, messages: list[Any], runs: list[Any]) -> int:
            sent.extend(messages)
            for run in runs:
                sent.extend(range(run[5].count(b"\x00\x01t")))  # packets to this topic
            return 1

        def count() -> int:
            writer.flush_now()
            found = len(sent)
            sent.clear()
            return found

        writer._send = send
        self.count = count
        self.session.attach(writer, 100, self.session.limits, 0.0, keeper=writer)

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        pytest.fail(f"{delivery.message.payload!r} is dropped: {reason}")


def messages(count: int, qos: int = 0, retain: bool = False) -> list[Message]:
    return [Message("t", b"%d" % number, qos, retain) for number in range(count)]


class Stored:
    """Retained messages that were found."""

    def __init__(self, found: list[Message]) -> None:
        self._left = found

    @property
    def done(self) -> bool:
        return not self._left

    def take(self, most: int, budget: ReplayBudget) -> list[Message]:
        taken, self._left = self._left[:most], self._left[most:]
        return taken

    def put_back(self, messages: list[Message]) -> None:
        self._left[:0] = messages


def hold(kind: str, check: Callable[[Conversation], None]) -> None:
    async def main() -> None:
        check(Conversation(kind))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_by_one_or_together(kind: str, qos: int) -> None:
    def check(conversation: Conversation) -> None:
        session = conversation.session
        subscription = Subscription(session, "t", qos)
        for message in messages(3, qos):
            session.deliver(message, subscription)
        assert conversation.count() == 3
        owed = 0 if qos == 0 or kind == "program" else 3
        assert len(session.inflight) == owed  # the program has what it was given
        if qos < 2:
            session.deliver_run(Run("t", qos, messages(4, qos)), subscription)
            assert conversation.count() == 4
            assert len(session.inflight) == (owed and 7)
        assert session.queued == 0

    hold(kind, check)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages(kind: str, qos: int) -> None:
    def check(conversation: Conversation) -> None:
        session = conversation.session
        session.replay(Stored(messages(5, 1, True)), Subscription(session, "t", qos))
        session.advance(0)
        assert conversation.count() == 5
        assert session.replays is None

    hold(kind, check)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_in_flight_is_sent_again(kind: str) -> None:
    """Of an identifier that its client has let go only a conversation in packets has something to say."""

    def check(conversation: Conversation) -> None:
        session = conversation.session
        session.change_inflight().update({1: messages(1, 1)[0].plain(1), 2: None})
        packets, keeper = session.packets, session.keeper
        session.attach(conversation.writer, 100, session.limits, 0.0, packets, keeper)
        session.advance(0)
        assert conversation.count() == 1 + (packets is not None)
        assert session.resend is None

    hold(kind, check)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_does_not_have_is_none(kind: str) -> None:
    def check(conversation: Conversation) -> None:
        session = conversation.session
        assert (session.packets is conversation.writer) == kind.startswith("packets")
        assert (session.keeper is conversation.writer) == (kind == "link")
        session.detach()
        assert (session.writer, session.packets, session.keeper) == (None, None, None)

    hold(kind, check)
