"""The soak for some seconds: a node under load, killed again and again, keeps what it promised."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from taipan.broker.mqtt.packets import Connack, Connect
from tools.soak.client import Gone, Taker
from tools.soak.driver import Soak
from tools.soak.ledger import Ledger

SECONDS = 25.0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_acknowledged_is_kept_through_kills(tmp_path: Path) -> None:
    """[MQTT-4.1.0-1] [MQTT-4.4.0-1] [MQTT-4.3.3-10] [MQTT-4.6.0-6] across kill -9 at load, start-up, recovery, stop."""
    seed = random.SystemRandom().randrange(1_000_000)
    soak = Soak(seed, tmp_path / "node", quiet=True)
    kept = asyncio.run(soak.run(40, settle_every=4, seconds=SECONDS))
    assert kept, f"seed={seed} {soak.account()}\n" + "\n".join(soak.ledger.violations[:5])
    assert soak.ledger.promised > 1000
    assert soak.starts > 5


def test_the_ledger_finds_what_it_is_there_for() -> None:
    """Loss, a second QoS 2 delivery, disorder and a wrong retained message are found."""
    ledger = Ledger()
    session = ledger.subscriber("s")
    early = ledger.sending("p", "t/1/0", 2)
    ledger.acknowledged(early)
    ledger.subscribing(session, "t/1/#")
    ledger.subscribed(session, "t/1/#", 2)
    first, second, third = [ledger.sending("p", "t/1/0", 2) for _ in range(3)]
    for message in (first, second, third):
        ledger.acknowledged(message)
    assert ledger.promised == ledger.owed() == 3  # what was published before the SUBACK is not owed
    ledger.delivered_to(session, second.name, "t/1/0", 2, False)
    assert not ledger.violations
    ledger.delivered_to(session, second.name, "t/1/0", 2, True)
    assert ledger.duplicates == 1
    ledger.delivered_to(session, first.name, "t/1/0", 2, False)
    assert ledger.disorder == 1
    ledger.settle()
    assert ledger.lost == 1
    ledger.retaining("r/1", "new")
    ledger.retained_acknowledged("r/1", "new")
    ledger.retained_seen({})
    assert ledger.other == 1
    assert len(ledger.violations) == 4


def test_the_ledger_demands_no_more_than_was_promised() -> None:
    """Nothing is owed for what is not acknowledged, nor after UNSUBSCRIBE or the session's end."""
    ledger = Ledger()
    session = ledger.subscriber("s")
    ledger.subscribing(session, "t/1/#")
    ledger.sending("p", "t/1/0", 1)
    ledger.subscribed(session, "t/1/#", 1)
    crossing = ledger.sending("p", "t/1/0", 1)
    ledger.unsubscribing(session, "t/1/#")
    ledger.acknowledged(crossing)
    assert ledger.owed() == 0
    ledger.unsubscribed(session, "t/1/#")
    ledger.subscribing(session, "t/1/#")
    ledger.subscribed(session, "t/1/#", 1)
    ledger.acknowledged(ledger.sending("p", "t/1/0", 1))
    assert ledger.owed() == 1
    ledger.ending(session)
    ledger.settle()
    assert ledger.lost == 0
    assert not ledger.violations


def test_the_ledger_knows_what_expires_and_what_was_refused() -> None:
    """Late or with a wrong remaining time, or refused and delivered: found. Not delivered for one of these: no loss."""
    ledger = Ledger()
    session = ledger.subscriber("s")
    ledger.subscribing(session, "t/1/#")
    ledger.subscribed(session, "t/1/#", 1)
    short, long, refused, unsure = [ledger.sending("p", "t/1/0", 1, expiry) for expiry in (10, 3600, 0, 0)]
    ledger.acknowledged(short)
    ledger.acknowledged(long)
    ledger.refused(refused, certain=True)
    ledger.refused(unsure, certain=False)
    assert ledger.owed() == 2
    ledger.remaining(session, long.name, 3600, False)
    ledger.delivered_to(session, unsure.name, "t/1/0", 1, False)
    assert not ledger.violations
    ledger.remaining(session, long.name, 3500, False)
    ledger.remaining(session, long.name, 0, False)
    assert ledger.other == len(ledger.violations) == 2
    ledger.delivered_to(session, refused.name, "t/1/0", 1, False)
    assert "was refused" in ledger.violations[-2]  # and behind a later one
    assert ledger.disorder == 1
    ledger.remaining(session, short.name, 10, False)
    assert len(ledger.violations) == 4
    short.owed_until = short.expired_at = time.monotonic() - 60
    assert ledger.owed() == 1
    ledger.remaining(session, short.name, 5, False)
    ledger.remaining(session, short.name, 10, True)  # again, and it was sent in time
    assert len(ledger.violations) == 5
    ledger.settle()
    assert (ledger.lost, ledger.expired) == (1, 1)
    late = ledger.sending("p", "t/1/0", 1, 10)
    late.expired_at = time.monotonic() - 60
    ledger.delivered_to(session, late.name, "t/1/0", 1, False)
    assert "after it expired" in ledger.violations[-1]


@pytest.mark.asyncio
async def test_a_session_that_is_present_may_be_that_of_a_connect_that_was_not_answered() -> None:
    ledger = Ledger()
    taker = Taker(ledger, 0, "s", 5, True)
    taker.expiry = 10
    taker.held = True
    present: list[bool | None] = [None, True]

    async def ask(packet: Connect, answer: type, packet_id: int) -> Connack:
        session_present = present.pop(0)
        if session_present is None:
            raise Gone
        return Connack(0, session_present)

    taker.ask = ask  # type: ignore[method-assign, assignment]
    over = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        over.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    taker.port = server.sockets[0].getsockname()[1]
    ledger.subscribing(taker.session, "t/#")
    ledger.subscribed(taker.session, "t/#", 1)
    ledger.acknowledged(ledger.sending("p", "t/1", 1))
    assert taker.session.owed
    taker._left = (time.monotonic() - 11, time.monotonic() - 11)
    ledger.ready_at = time.monotonic()
    with pytest.raises(Gone):
        await taker.connect()  # the session has expired, and this may have begun another
    assert await taker.connect()
    assert not taker.session.owed
    taker.drop()
    server.close()
    for _ in range(2):
        await over.acquire()


def test_a_session_that_expires_is_owed_what_came_before_only_if_it_is_back_in_time() -> None:
    ledger = Ledger()
    taker = Taker(ledger, 0, "s", 5, True)
    taker.expiry = 10
    taker.lost()
    assert taker._must_be_there() and not taker._must_be_gone(time.monotonic())
    first, last = taker._left
    taker._left = (first - 9, last - 9)
    assert not taker._must_be_there() and not taker._must_be_gone(time.monotonic())
    taker._left = (first - 13, last - 13)
    assert taker._must_be_gone(time.monotonic())
    ledger.ready_at = time.monotonic()  # killed with its client connected, it counts as left now
    assert not taker._must_be_gone(time.monotonic())
