"""The soak for some seconds: a node under load, killed again and again, keeps what it promised."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from taipan.broker.mqtt.packets import Connack, Connect
from tools.soak.client import Gone, Receiver
from tools.soak.driver import Soak
from tools.soak.promises import Promises

SECONDS = 25.0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_acknowledged_is_kept_through_kills(tmp_path: Path) -> None:
    """[MQTT-4.1.0-1] [MQTT-4.4.0-1] [MQTT-4.3.3-10] [MQTT-4.6.0-6] across kill -9 at load, start-up, recovery, stop."""
    seed = random.SystemRandom().randrange(1_000_000)
    soak = Soak(seed, tmp_path / "node", quiet=True)
    kept = asyncio.run(soak.run(40, settle_every=4, seconds=SECONDS))
    assert kept, f"seed={seed} {soak.account()}\n" + "\n".join(soak.promises.violations[:5])
    # Thousands of promises and several starts in as many seconds, where the machine has nothing else to do.
    assert soak.promises.promised > 0 and soak.starts > 1


def test_broken_promises_are_found() -> None:
    """Loss, a second QoS 2 delivery, disorder and a wrong retained message are found."""
    promises = Promises()
    session = promises.subscriber("s")
    early = promises.sending("p", "t/1/0", 2)
    promises.acknowledged(early)
    promises.subscribing(session, "t/1/#")
    promises.subscribed(session, "t/1/#", 2)
    first, second, third = [promises.sending("p", "t/1/0", 2) for _ in range(3)]
    for message in (first, second, third):
        promises.acknowledged(message)
    assert promises.promised == promises.owed() == 3  # what was published before the SUBACK is not owed
    promises.delivered_to(session, second.name, "t/1/0", 2, False)
    assert not promises.violations
    promises.delivered_to(session, second.name, "t/1/0", 2, True)
    assert promises.duplicates == 1
    promises.delivered_to(session, first.name, "t/1/0", 2, False)
    assert promises.disorder == 1
    promises.settle()
    assert promises.lost == 1
    promises.retaining("r/1", "p:1", "new")
    promises.retained_acknowledged("r/1", "p:1")
    promises.retained_seen({})
    assert promises.other == 1
    assert len(promises.violations) == 4


def retained(*steps: str, before: str = "") -> set[str]:
    """What may be there after these: "a@1" is value a sent to node 1, "-@1" a clear, with "!" and its PUBACK; "kill@1"
    is the end of node 1."""
    promises = Promises()
    if before:
        promises.retaining("r", "before", before)
        promises.retained_seen({"r": before})
    for number, step in enumerate(steps):
        value, node = step.rstrip("!").split("@")
        if value == "kill":
            promises.retained_closed(int(node))
            continue
        promises.retaining("r", str(number), value.strip("-"), int(node))
        if step.endswith("!"):
            promises.retained_acknowledged("r", str(number), int(node))
    return set(promises.retained["r"].possible())


def test_what_may_be_retained_after_messages_by_one_node() -> None:
    assert retained("a@1", "b@1!") == {"b"}
    assert retained("a@1!", "b@1") == {"a", "b"}
    assert retained("a@1!", "-@1!") == {""}
    assert retained("a@1", "-@1!", "b@1") == {"", "b"}
    assert retained("-@1!", "a@1!", "-@1") == {"a", ""}


def test_what_another_node_had_taken_comes_back_only_after_a_clear_that_left_no_deletion() -> None:
    assert retained("a@1!", "-@2!") == {"", "a"}  # no node but 1 may know of it
    assert retained("a@1", "kill@1", "-@2!") == {"", "a"}
    assert retained("a@1!", "b@2", "-@2!") == {"", "a"}
    assert retained("a@1!", "b@2!") == {"b"}  # it loses against a later message
    assert retained("a@1!", "-@2!", "b@3!") == {"b"}
    assert retained("a@1!", "-@2!", before="x") == {""}  # and against the deletion of what all had
    assert retained("a@1", "kill@1", "-@2!", before="x") == {""}
    assert retained("-@2!", "a@1!", "-@2!", before="x") == {"", "a"}  # which node 1 may have known of
    assert retained("a@1!", "-@2!", "b@1!", "-@2!", before="x") == {"", "b"}


def test_what_another_node_has_not_acknowledged_it_may_take_later() -> None:
    assert retained("a@1", "b@2!") == {"a", "b"}
    assert retained("-@1", "b@2!") == {"", "b"}
    assert retained("a@1", "-@2!", before="x") == {"", "a"}
    assert retained("a@1", "b@1!", "c@2!") == {"c"}
    assert retained("a@1", "b@2!", "kill@1") == {"b"}


def test_the_ledger_demands_no_more_than_was_promised() -> None:
    """Nothing is owed for what is not acknowledged, nor after UNSUBSCRIBE or the session's end."""
    promises = Promises()
    session = promises.subscriber("s")
    promises.subscribing(session, "t/1/#")
    promises.sending("p", "t/1/0", 1)
    promises.subscribed(session, "t/1/#", 1)
    crossing = promises.sending("p", "t/1/0", 1)
    promises.unsubscribing(session, "t/1/#")
    promises.acknowledged(crossing)
    assert promises.owed() == 0
    promises.unsubscribed(session, "t/1/#")
    promises.subscribing(session, "t/1/#")
    promises.subscribed(session, "t/1/#", 1)
    promises.acknowledged(promises.sending("p", "t/1/0", 1))
    assert promises.owed() == 1
    promises.ending(session)
    promises.settle()
    assert promises.lost == 0
    assert not promises.violations


def test_the_ledger_knows_what_expires_and_what_was_refused() -> None:
    """Late or with a wrong remaining time, or refused and delivered: found. Not delivered for one of these: no loss."""
    promises = Promises()
    session = promises.subscriber("s")
    promises.subscribing(session, "t/1/#")
    promises.subscribed(session, "t/1/#", 1)
    short, long, refused, unsure = [promises.sending("p", "t/1/0", 1, expiry) for expiry in (10, 3600, 0, 0)]
    promises.acknowledged(short)
    promises.acknowledged(long)
    promises.refused(refused, certain=True)
    promises.refused(unsure, certain=False)
    assert promises.owed() == 2
    promises.remaining(session, long.name, 3600, False)
    promises.delivered_to(session, unsure.name, "t/1/0", 1, False)
    assert not promises.violations
    promises.remaining(session, long.name, 3500, False)
    promises.remaining(session, long.name, 0, False)
    assert promises.other == len(promises.violations) == 2
    promises.delivered_to(session, refused.name, "t/1/0", 1, False)
    assert "was refused" in promises.violations[-2]  # and behind a later one
    assert promises.disorder == 1
    promises.remaining(session, short.name, 10, False)
    assert len(promises.violations) == 4
    short.owed_until = short.expired_at = time.monotonic() - 60
    assert promises.owed() == 1
    promises.remaining(session, short.name, 5, False)
    promises.remaining(session, short.name, 10, True)  # again, and it was sent in time
    assert len(promises.violations) == 5
    promises.settle()
    assert (promises.lost, promises.expired) == (1, 1)
    late = promises.sending("p", "t/1/0", 1, 10)
    late.expired_at = time.monotonic() - 60
    promises.delivered_to(session, late.name, "t/1/0", 1, False)
    assert "after it expired" in promises.violations[-1]


@pytest.mark.asyncio
async def test_a_session_that_is_present_may_be_that_of_a_connect_that_was_not_answered() -> None:
    promises = Promises()
    receiver = Receiver(promises, 0, "s", 5, True)
    receiver.expiry = 10
    receiver.held = True
    present: list[bool | None] = [None, True]

    async def ask(packet: Connect, answer: type, packet_id: int) -> Connack:
        session_present = present.pop(0)
        if session_present is None:
            raise Gone
        return Connack(0, session_present)

    receiver.ask = ask  # type: ignore[method-assign, assignment]
    over = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        over.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    promises.subscribing(receiver.session, "t/#")
    promises.subscribed(receiver.session, "t/#", 1)
    promises.acknowledged(promises.sending("p", "t/1", 1))
    assert receiver.session.owed
    receiver._left = (time.monotonic() - 11, time.monotonic() - 11)
    promises.ready_at = time.monotonic()
    with pytest.raises(Gone):
        await receiver.connect()  # the session has expired, and this may have begun another
    assert await receiver.connect()
    assert not receiver.session.owed
    receiver.drop()
    server.close()
    for _ in range(2):
        await over.acquire()


def test_a_session_that_expires_is_owed_what_came_before_only_if_it_is_back_in_time() -> None:
    promises = Promises()
    receiver = Receiver(promises, 0, "s", 5, True)
    receiver.expiry = 10
    receiver.lost()
    assert receiver._must_be_there() and not receiver._must_be_gone(time.monotonic())
    first, last = receiver._left
    receiver._left = (first - 9, last - 9)
    assert not receiver._must_be_there() and not receiver._must_be_gone(time.monotonic())
    receiver._left = (first - 13, last - 13)
    assert receiver._must_be_gone(time.monotonic())
    promises.ready_at = time.monotonic()  # killed with its client connected, it counts as left now
    assert not receiver._must_be_gone(time.monotonic())


def test_the_ledger_knows_clients_whose_sessions_begin_anew() -> None:
    """They are owed QoS 1 since their SUBACK, and get QoS 2 once, by whichever session."""
    promises = Promises()
    session = promises.subscriber("m")
    session.moves = True
    promises.count(session, False)
    promises.subscribing(session, "t/#")
    promises.subscribed(session, "t/#", 2)
    early = promises.sending("p", "t/1", 1)
    promises.delivered_to(session, early.name, "t/1", 1, False)
    promises.acknowledged(early)  # later than the message came
    assert promises.owed() == 0
    lost, other = promises.sending("p", "t/1", 1), promises.sending("p", "t/1", 1)
    once, twice = promises.sending("p", "t/1", 2), promises.sending("p", "t/1", 2)
    for message in (lost, other, once, twice):
        promises.acknowledged(message)
    promises.delivered_to(session, other.name, "t/1", 1, False)
    promises.delivered_to(session, other.name, "t/1", 1, False)
    promises.delivered_to(session, twice.name, "t/1", 2, False)
    promises.delivered_to(session, twice.name, "t/1", 2, True)  # one that it has forgotten with its session
    assert not promises.violations
    promises.delivered_to(session, twice.name, "t/1", 2, False)
    assert [each.splitlines()[0] for each in promises.violations] == [
        f"{twice.name} came to m with two sessions and QoS 2"
    ]
    promises.settle()
    assert [each.splitlines()[0] for each in promises.violations[1:]] == [f"{lost.name} was lost for m"]
    for end in (promises.ended, promises.doubtful):
        promises.subscribing(session, "t/#")
        promises.subscribed(session, "t/#", 2)
        promises.acknowledged(promises.sending("p", "t/1", 1))
        assert promises.owed() == 1
        end(session)
        promises.acknowledged(promises.sending("p", "t/1", 1))
        assert promises.owed() == 0
