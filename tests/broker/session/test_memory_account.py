"""MemoryAccount: whatever happens to queues, what is counted is what they hold."""

from random import Random

import pytest

from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.session import queue as module
from taipan.broker.session.memory_account import MemoryAccount
from taipan.broker.session.queue import MessageQueue


def made(rng: Random, now: float) -> Message:
    properties = {MESSAGE_EXPIRY_INTERVAL: rng.randrange(1, 9)} if rng.random() < 0.2 else {}
    qos = rng.choice((0, 1, 1, 1, 2))
    return Message(rng.choice("abcd"), bytes(rng.randrange(99)), qos, properties=properties, timestamp=now)


def delivered(rng: Random, message: Message) -> Delivery:
    if rng.random() < 0.7:
        return message.plain(message.qos) if message.qos else Delivery(message, 0)
    return Delivery(message, message.qos, rng.random() < 0.5, (7,), rng.choice(("", "$share/g/t")))


def check(account: MemoryAccount, queues: list[MessageQueue]) -> None:
    """By counting all of them."""
    held = [(queue, each) for queue in queues for each in queue]
    assert account.entries == len(held)
    assert account.apart == sum(1 for _, each in held if each.identifiers or each.retain or each.group)
    counted = {id(each.message): each.size for queue, each in held if not queue._durable or each.qos == 0}
    assert account.message_bytes == sum(counted.values())


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(8))
def test_what_is_counted_is_what_is_held(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPIRY_SLICE", 7)
    monkeypatch.setattr(module, "MAX_TOPICS", 3)
    rng = Random(seed)
    account = MemoryAccount()
    queues = [
        MessageQueue(30, 9000, {"a": 9} if number % 3 == 2 else None, 0, number == 4, account, number % 2 == 1)
        for number in range(6)
    ]
    now = 0.0
    for _ in range(3000):
        now += rng.random() * 0.1
        queue = rng.choice(queues)
        step = rng.randrange(12)
        if step < 6:
            message = made(rng, now)
            for each in rng.sample(queues, 3):
                each.push(delivered(rng, message))
        elif step == 6:
            queue.pop_run(rng.randrange(20))
        elif step == 7:
            popped = queue.pop()
            if popped is not None and rng.random() < 0.5:
                queue.push_front(popped)
        elif step == 8:
            queue.shed(rng.randrange(12))
        elif step == 9:
            queue.drop_expired(now)
        elif step == 10:
            queue.take({rng.choice("abcd")}, {"$share/g/t"} if rng.random() < 0.3 else set())
        elif rng.random() < 0.2:
            queue.clear()
        check(account, queues)
    for queue in queues:
        queue.clear()
    assert (account.entries, account.apart, account.message_bytes) == (0, 0, 0)
