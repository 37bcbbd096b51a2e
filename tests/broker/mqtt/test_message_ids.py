from random import Random

from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.message_ids import MessageIds


def test_ids_are_the_start_of_the_node_and_a_number() -> None:
    ids = MessageIds(Random(1))
    prefix = f"{Random(1).getrandbits(64):016X}"
    messages = [Message("t") for _ in range(10_000)]
    assert not any(message.identified or message.id for message in messages)
    for message in messages:
        ids.give(message)
    assert all(message.identified for message in messages)
    assert [message.id for message in messages] == [f"{prefix}{number:016X}" for number in range(1, 10_001)]
    messages[4095].id = "of somebody else"
    assert messages[4095].id == "of somebody else" and messages[4095].identified
    assert messages[0].id == f"{prefix}{1:016X}"
