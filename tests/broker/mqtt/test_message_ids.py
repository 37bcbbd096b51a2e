from random import Random

from taipan.broker.mqtt.message_ids import MessageIds


def test_ids_are_the_start_of_the_node_and_a_number() -> None:
    ids = MessageIds(Random(1))
    prefix = f"{Random(1).getrandbits(64):016X}"
    assert [ids.next() for _ in range(10_000)] == [f"{prefix}{number:016X}" for number in range(1, 10_001)]
