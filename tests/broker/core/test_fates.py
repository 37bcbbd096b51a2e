"""Fates: what is said of deliveries, when, and what need not be said."""

from collections.abc import Callable
from typing import Any

from broker.core.fates import LINGER, Fates
from broker.mqtt.message import Message
from broker.session.limits import Limits
from broker.session.session import Session
from broker.storage.records import DeliveriesDone, DeliveriesSent


class Loop:
    """Keeps what is to be called later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.woken = 0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.later.append((seconds, callback))

    def wake(self) -> None:
        self.woken += 1


class Stored:
    number = 7


def session_with(*packet_ids: int) -> Session:
    nobody: Any = None
    session = Session("c", Limits(), nobody, 0.0)
    session.number = 3
    for packet_id in packet_ids:
        message = Message("t", b"x", 1)
        message.stored = Stored()
        session.inflight[packet_id] = message.plain(1)
    return session


def test_of_what_was_sent_only_what_is_still_in_flight_is_said() -> None:
    fates = Fates(lambda: None)
    session = session_with(1, 2, 3)
    fates.sent_to(session).update(dict.fromkeys((1, 2, 3)))
    fates.done_by(3).append(9)
    del session.inflight[1]
    session.inflight[2] = None  # PUBREL is out
    assert list(fates.take()) == [DeliveriesSent(3, [(7, "", 3)]), DeliveriesDone(3, [9])]
    assert (len(fates), fates.due, list(fates.take())) == (0, False, [])


def test_nothing_is_said_where_all_that_was_sent_is_done() -> None:
    fates = Fates(lambda: None)
    fates.sent_to(session_with())[1] = None
    assert list(fates.take()) == []


def test_they_linger_once_and_are_due_then() -> None:
    loop = Loop()
    fates = Fates(loop.wake, loop.call_later)
    fates.done_by(3).append(1)
    fates.done_by(4).append((2, "$share/g/t"))
    assert [seconds for seconds, _ in loop.later] == [LINGER]
    assert (fates.due, loop.woken) == (False, 0)
    loop.later.pop()[1]()
    assert (fates.due, loop.woken) == (True, 1)
    assert list(fates.take()) == [DeliveriesDone(3, [1]), DeliveriesDone(4, [(2, "$share/g/t")])]


def test_what_went_with_another_batch_is_not_due() -> None:
    loop = Loop()
    fates = Fates(loop.wake, loop.call_later)
    fates.done_by(3).append(1)
    list(fates.take())
    loop.later.pop()[1]()
    assert (fates.due, loop.woken) == (False, 0)


def test_a_session_settles_before_more_is_said_of_its_messages() -> None:
    fates = Fates(lambda: None)
    fates.done_by(3).append(1)
    fates.done_by(4).append(2)
    assert list(fates.settle(3)) == [DeliveriesDone(3, [1])]
    assert list(fates.settle(3)) == []
    assert list(fates.take()) == [DeliveriesDone(4, [2])]
