"""StoredMessage: the first holder and the others."""

from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.persistence.stored_message import StoredMessage


def stored() -> StoredMessage:
    return StoredMessage(1, Message("t", b"x", 1))


def test_one_holder_needs_no_table() -> None:
    message = stored()
    delivery = message.plain(1)
    message.hold(5, delivery)
    assert (message.held, message.others, message.holders()) == (True, None, [(5, delivery, 0)])
    message.sent_to(5, delivery, 9)
    assert (message.sent, message.holders()) == (True, [(5, delivery, 9)])
    assert not message.let_go(6, "") and not message.let_go(5, "$share/g/t")
    assert message.let_go(5, "") and not message.let_go(5, "")
    assert (message.held, message.sent, message.holders()) == (False, False, [])


def test_several_holders_and_one_by_two_ways() -> None:
    message = stored()
    plain = message.plain(1)
    shared = Delivery(message.message, 1, group="$share/g/t")
    for session, delivery in ((5, plain), (6, plain), (5, shared)):
        message.hold(session, delivery)
    message.sent_to(6, plain, 3)
    assert message.holders() == [(5, plain, 0), (6, plain, 3), (5, shared, 0)]
    assert message.sent
    assert message.let_go(5, "") and message.let_go(6, "")
    assert (message.held, message.sent) == (True, False)
    message.hold(5, shared, 4)
    assert message.holders() == [(5, shared, 4)]
    assert message.let_go(5, "$share/g/t") and not message.held


def test_all_holders_get_the_message_that_it_becomes() -> None:
    message = stored()
    plain, alone = message.plain(1), Delivery(message.message, 2, True)
    message.hold(5, plain)
    message.hold(6, alone)
    plain.wire_v3 = (b"head", b"tail")
    other = Message("t", b"y", 1)
    message.replace_message(other)
    assert plain.message is alone.message is message.message is other
    assert (other.stored, plain.wire_v3, message.plain(1)) == (message, None, plain)


def test_a_crowd_is_held_apart_by_qos_and_each_packet_identifier_is_known() -> None:
    message = stored()
    for session in range(1, 301):
        message.hold(session, message.plain(1 + session % 2))
    message.sent_to(300, message.plain(1), 12)
    holders = message.holders()
    assert len(holders) == 300 and message.sent
    assert {session: (delivery.qos, packet_id) for session, delivery, packet_id in holders} == {
        session: (1 + session % 2, 12 if session == 300 else 0) for session in range(1, 301)
    }
    assert all(message.let_go(session, "") for session in range(1, 301))
    assert (message.held, message.sent, message.others) == (False, False, None)
