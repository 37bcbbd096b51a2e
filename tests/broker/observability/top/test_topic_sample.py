"""TopicSample: exact at low rates, close at high ones, whatever the rhythm of the publishers."""

from random import Random

import pytest

from taipan.broker.observability.top.topic_sample import CAPACITY, MAX_TOPIC, PERIODS, SAMPLES, TopicSample


class Publishing:
    """Publishes as the broker does, and counts how often the sample looks."""

    def __init__(self) -> None:
        self.sample = TopicSample(Random(7))
        self.now = 0.0
        self.looks = 0

    def publish(self, topic: str, count: int = 1, octets: int = 10) -> None:
        self.sample.left -= count
        if self.sample.left < 0:
            self.looks += 1
            self.sample.take(topic, octets, "p", self.now)

    def second(self) -> None:
        self.now += 1.0
        self.sample.tick(self.now)

    def counts(self) -> dict[str, int]:
        return {row.key: row.total for row in self.sample.messages.recent(self.now)}


def test_every_message_is_counted_at_a_low_rate() -> None:
    node = Publishing()
    for _ in range(5):
        for number in range(SAMPLES // 2):
            node.publish(f"t/{number % 3}")
        node.publish("run", count=100)
        node.second()
    third = SAMPLES // 6
    assert node.counts() == pytest.approx({"t/0": 5 * third, "t/1": 5 * third, "t/2": 5 * third, "run": 500}, abs=5)
    assert sum(node.counts().values()) == 5 * (SAMPLES // 2 + 100)
    octets = {row.key: row.total for row in node.sample.octets.recent(node.now)}
    assert octets["run"] == 5_000


@pytest.mark.parametrize("rate", [5_000, 40_000, 200_000])
def test_shares_at_a_high_rate(rate: int) -> None:
    """One topic has half of the messages in one burst of each second, one a tenth in turn, the rest have few each."""
    node = Publishing()
    for second in range(20):
        for number in range(rate // 2):
            node.publish("tenth" if number % 5 == 0 else f"few/{number % 1000}")
        for _ in range(rate // 64):
            node.publish("burst", count=32)
        node.second()
        # The step follows within the first second.
        assert second == 0 or node.looks <= 2_000
        node.looks = 0
    found = node.counts()
    whole = rate * 20
    assert found["burst"] == pytest.approx(whole / 2, rel=0.15)
    assert found["tenth"] == pytest.approx(whole / 10, rel=0.25)
    assert sorted(found, key=lambda topic: -found[topic])[:2] == ["burst", "tenth"]


def test_a_quiet_topic_after_a_storm() -> None:
    node = Publishing()
    for _ in range(3):
        for _ in range(100_000):
            node.publish("storm")
        node.second()
    node.second()
    for _ in range(20):
        node.publish("quiet")
    assert node.counts()["quiet"] == pytest.approx(20, abs=1)


def test_memory_is_limited() -> None:
    node = Publishing()
    for number in range(100_000):
        node.publish("x" * 2_000 + str(number) if number % 2 else f"{number}/" + "y" * 60_000)
        if number % 300 == 0:
            node.second()
    assert len(node.sample.messages) <= 2 * CAPACITY * PERIODS
    assert all(len(row.key) <= MAX_TOPIC for row in node.sample.messages.recent(node.now))
