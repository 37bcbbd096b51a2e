"""TopicSample: the topics with most messages, from a sample of the published messages.

The publish path counts down one number. When the number falls below zero, the current message is sampled, and
represents all messages since the last sample. A random number of messages is skipped in between, so that the sample
stays at about ``SAMPLES`` a second and no regular publisher is always or never sampled. Up to ``SAMPLES`` messages a
second, every message is sampled, and the counts are exact.
"""

from random import Random
from typing import Final

from ...mqtt.message import Message
from .frequent_counts import ROW_BYTES, RecentCounts

SAMPLES: Final = 500
"""Messages that are looked at in a second, roughly."""
CAPACITY: Final = 128
PERIODS: Final = 6
PERIOD: Final = 10.0
MAX_TOPIC: Final = 512
"""Maximum length of a stored topic in characters; longer topics are counted by their beginning."""


class TopicSample:
    """``left``: number of messages until the next sample; ``Broker.publish`` counts it down."""

    __slots__ = ("_looked_at", "_rng", "_step", "_stood_for", "left", "messages", "octets")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.left = 0
        self._step = 1  # one of so many messages is looked at
        # In the current second: messages that were looked at, and messages for which they stand.
        self._looked_at = self._stood_for = 0
        self.messages: RecentCounts[str] = RecentCounts(CAPACITY, PERIODS, PERIOD)
        self.octets: RecentCounts[str] = RecentCounts(CAPACITY, PERIODS, PERIOD)

    def note(self, message: Message, now: float) -> None:
        """Count a message. Called when ``left`` is below 0."""
        publisher = "" if message.publisher is None else message.publisher.client_id
        self.take(message.topic, message.payload_size, publisher, now)

    def take(self, topic: str, octets: int, publisher: str, now: float) -> None:
        """Count a message to a topic, and with it the messages before it; ``octets``: size of the payload."""
        weight = 0
        if self._step == 1:
            weight, self.left = -self.left, 0
        else:
            while self.left < 0:
                self.left += self._rng.randint(1, 2 * self._step - 1)
                weight += self._step
        self._looked_at += 1
        self._stood_for += weight
        if self._looked_at > 2 * SAMPLES:
            # The rate rises: do not wait for the end of the second.
            self._looked_at = 0
            self._step *= 4
        topic = topic[:MAX_TOPIC]
        self.messages.add(topic, now, weight, (publisher,))
        if octets:
            self.octets.add(topic, now, weight * octets)

    @property
    def size(self) -> int:
        """Return approximately how many bytes of memory the counts use."""
        return ROW_BYTES * (len(self.messages) + len(self.octets))

    def tick(self, now: float) -> None:
        """Adapt to the rate of the last second; called once a second."""
        self._step = max(1, self._stood_for // SAMPLES)
        self._looked_at = self._stood_for = 0
        self.left = min(self.left, 2 * self._step - 2)
