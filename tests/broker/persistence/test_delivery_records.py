"""What is said of deliveries, when, and what need not be said."""

from collections.abc import Callable

from taipan.broker.mqtt.message import Message
from taipan.broker.persistence.delivery_records import DELAY, PendingDeliveryRecords
from taipan.broker.persistence.log.records import DeliveriesDone, DeliveriesSent
from taipan.broker.persistence.stored_message import StoredMessage
from taipan.broker.session.session import Session
from tests.support.sessions import make_session


class Loop:
    """Keeps what is to be called later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.woken = 0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.later.append((seconds, callback))

    def wake(self) -> None:
        self.woken += 1


def session_with(*packet_ids: int) -> Session:
    session = make_session("c")
    session.number = 3
    for packet_id in packet_ids:
        message = Message("t", b"x", 1)
        message.stored = StoredMessage(7, message)
        session.change_inflight()[packet_id] = message.plain(1)
    return session


def test_of_what_was_sent_only_what_is_still_in_flight_is_said() -> None:
    delivery_records = PendingDeliveryRecords(lambda: None)
    session = session_with(1, 2, 3)
    delivery_records.sent_to(session).update(dict.fromkeys((1, 2, 3)))
    delivery_records.done_by(3).append(9)
    del session.change_inflight()[1]
    session.change_inflight()[2] = None  # PUBREL is out
    assert list(delivery_records.take()) == [DeliveriesSent(3, [(7, "", 3)]), DeliveriesDone(3, [9])]
    assert (len(delivery_records), delivery_records.due, list(delivery_records.take())) == (0, False, [])


def test_nothing_is_said_where_all_that_was_sent_is_done() -> None:
    delivery_records = PendingDeliveryRecords(lambda: None)
    delivery_records.sent_to(session_with())[1] = None
    assert list(delivery_records.take()) == []


def test_they_linger_once_and_are_due_then() -> None:
    loop = Loop()
    delivery_records = PendingDeliveryRecords(loop.wake, loop.call_later)
    delivery_records.done_by(3).append(1)
    delivery_records.done_by(4).append((2, "$share/g/t"))
    assert [seconds for seconds, _ in loop.later] == [DELAY]
    assert (delivery_records.due, loop.woken) == (False, 0)
    loop.later.pop()[1]()
    assert (delivery_records.due, loop.woken) == (True, 1)
    assert list(delivery_records.take()) == [DeliveriesDone(3, [1]), DeliveriesDone(4, [(2, "$share/g/t")])]


def test_what_went_with_another_batch_is_not_due() -> None:
    loop = Loop()
    delivery_records = PendingDeliveryRecords(loop.wake, loop.call_later)
    delivery_records.done_by(3).append(1)
    list(delivery_records.take())
    loop.later.pop()[1]()
    assert (delivery_records.due, loop.woken) == (False, 0)


def test_a_session_settles_before_more_is_said_of_its_messages() -> None:
    delivery_records = PendingDeliveryRecords(lambda: None)
    delivery_records.done_by(3).append(1)
    delivery_records.done_by(4).append(2)
    assert list(delivery_records.take_done(3)) == [DeliveriesDone(3, [1])]
    assert list(delivery_records.take_done(3)) == []
    assert list(delivery_records.take()) == [DeliveriesDone(4, [2])]
