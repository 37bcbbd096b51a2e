"""What a client keeps between connections: order, window, DUP, and who is told of an answer."""

from __future__ import annotations

import asyncio

import pytest

from taipan.broker.mqtt.message import Message
from taipan.ruleengine.mqtt_client.session_state import MAX_IN_FLIGHT, OutgoingMessages, SessionState

pytestmark = pytest.mark.asyncio


def offered(state: SessionState, qos: int = 1) -> OutgoingMessages:
    outgoing = state.offer(object(), Message("t", b"x", qos))
    outgoing.waiter = asyncio.get_running_loop().create_future()
    return outgoing


def sent(state: SessionState) -> list[OutgoingMessages]:
    found = []
    while (outgoing := state.next_to_send(1.0)) is not None:
        found.append(outgoing)
    return found


def lost(state: SessionState, *all: OutgoingMessages) -> None:
    waiters = [each.waiter for each in all]
    state.disconnected(ConnectionError("lost"))
    for waiter in waiters:
        assert waiter is not None and isinstance(waiter.exception(), ConnectionError)


@pytest.mark.parametrize("receive_maximum, most", [(1, 1), (3, 3), (65_535, MAX_IN_FLIGHT)])
async def test_no_more_than_the_window_is_in_flight(receive_maximum: int, most: int) -> None:
    """[MQTT-4.9.0-2]"""
    state = SessionState()
    state.connected(False, receive_maximum, 2)
    all = [offered(state) for _ in range(100)]
    assert sent(state) == all[:most]
    state.answered(all[0], 0)
    assert sent(state) == [all[most]]
    assert len({each.message.packet_id for each in all[:most]}) == most


async def test_what_is_lost_is_sent_again_in_order_before_the_new_and_with_dup() -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1]"""
    state = SessionState()
    state.connected(False, 10, 2)
    all = [offered(state, qos) for qos in (1, 2, 1)]
    sent(state)
    ids = [each.message.packet_id for each in all]
    all[1].released = True
    lost(state, *all)
    state.connected(True, 10, 2)
    fresh = offered(state)
    assert sent(state) == [*all, fresh]
    assert [each.message.packet_id for each in all] == ids
    assert all[0].message.dup and all[2].message.dup and not fresh.message.dup
    assert all[1].released


async def test_a_smaller_window_holds_for_what_is_sent_again_too() -> None:
    state = SessionState()
    state.connected(False, 10, 2)
    all = [offered(state) for _ in range(3)]
    sent(state)
    lost(state, *all)
    state.connected(True, 1, 2)
    assert sent(state) == all[:1]
    state.answered(all[0], 0)
    assert sent(state) == all[1:2]


async def test_the_same_key_is_the_same_message_also_when_its_answer_has_come_meanwhile() -> None:
    state = SessionState()
    state.connected(False, 10, 2)
    first, second = offered(state), offered(state)
    sent(state)
    lost(state, first, second)
    state.connected(True, 10, 2)
    sent(state)
    state.answered(first, 16)
    assert state.offer(first.key, Message("t", b"x", 1)) is first and first.answer == 16
    assert state.offer(second.key, Message("t", b"x", 1)) is second and second.answer is None
    # Once told, an answer is forgotten.
    assert state.offer(first.key, Message("t", b"x", 1)) is not first


async def test_without_a_session_of_the_other_side_nothing_is_in_flight() -> None:
    """[MQTT-3.2.2-5]"""
    state = SessionState()
    state.connected(False, 10, 2)
    gone = offered(state, 2)
    sent(state)
    state.unreleased.add(7)
    lost(state, gone)
    state.connected(False, 10, 2)
    assert sent(state) == [] and state.unreleased == set()
    again = state.offer(gone.key, Message("t", b"x", 2))
    assert again is not gone and not again.message.dup


async def test_what_the_other_side_takes_no_more_at_its_qos_is_offered_anew() -> None:
    """[MQTT-3.2.2-11]"""
    state = SessionState()
    state.connected(False, 10, 2)
    first, second = offered(state, 2), offered(state, 1)
    sent(state)
    lost(state, first, second)
    state.connected(True, 10, 1)
    assert sent(state) == [second]


async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    state = SessionState()
    state.connected(False, 1, 2)
    first, second, third = offered(state), offered(state), offered(state, 0)
    assert sent(state) == [first]
    for each in (second, third):
        assert each.waiter is not None
        each.waiter.cancel()
    state.answered(first, 0)
    assert sent(state) == []


async def test_answers_that_nobody_asks_for_take_no_more_than_their_room() -> None:
    state = SessionState()
    state.connected(False, 65_535, 2)
    for _ in range(10 * MAX_IN_FLIGHT):
        outgoing = offered(state)
        sent(state)
        assert outgoing.waiter is not None
        outgoing.waiter.cancel()
        state.answered(outgoing, 0)
    assert len(state._answered) == MAX_IN_FLIGHT and not state._by_key and not state._in_flight


async def test_the_oldest_is_what_has_been_without_an_answer_longest_on_this_connection() -> None:
    state = SessionState()
    state.connected(False, 10, 2)
    first, second = offered(state), offered(state)
    assert state.oldest is None
    assert state.next_to_send(5.0) is first and state.next_to_send(6.0) is second
    assert state.oldest == 5.0
    state.answered(first, 0)
    assert state.oldest == 6.0
    lost(state, second)
    assert state.oldest is None
