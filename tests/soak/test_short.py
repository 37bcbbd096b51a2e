"""The soak for some seconds: a node under load, killed again and again, keeps what it promised."""

import asyncio
import random
from pathlib import Path

import pytest

from .driver import Soak
from .ledger import Ledger

SECONDS = 25.0


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
