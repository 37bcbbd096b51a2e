"""TopicWatch: the levels directly below a prefix with the number of messages that they receive, counted while there is
a reader."""

from typing import Final

import msgspec

from taipan.broker.core.hooks import Hooks
from taipan.broker.loop.timers import TimeSource
from taipan.broker.mqtt.message import Message

MAX_LEVELS: Final = 1000
"""Maximum number of levels with separate counts."""
MAX_TOPIC: Final = 512
"""Maximum length of a topic that is reported, in characters."""
MAX_PAYLOAD: Final = 256
SHOWN: Final = 100
"""Rows of an answer: the busiest levels."""
_FORGET_AFTER: Final = 60.0
_SAMPLE: Final = 1.0
_WINDOW: Final = 10.0
"""Seconds over which a rate is averaged, so that a message every few seconds also has a rate."""
_SAMPLES: Final = 10


class TopicRow(msgspec.Struct):
    """``messages``: number since the observation began, on this topic and below it; ``rate``: messages per second.
    ``payload``: the last one on this topic itself, as text. ``deeper``: whether there were messages below it."""

    level: str
    topic: str
    rate: float
    messages: int
    payload: str | None
    deeper: bool


class TopicRows(msgspec.Struct):
    """``others``: messages of levels without separate counts: too many levels, or too long."""

    prefix: str
    rows: list[TopicRow]
    others: int


class _Level:
    __slots__ = ("before", "deeper", "messages", "payload", "rate", "seen_at", "size")

    before: list[int]
    """``messages`` at the last samples of the watch, the latest last; there are none from before the level appeared."""

    def __init__(self) -> None:
        self.messages = 0
        self.before = []
        self.rate = 0.0
        self.payload: bytes | None = None
        self.size = 0
        self.deeper = False
        self.seen_at = 0.0


class TopicWatch:
    """Subscribed to the hook of published messages until it is closed."""

    def __init__(self, start: str, hooks: Hooks, clock: TimeSource) -> None:
        """``start``: the text with which the topics begin; it is empty or ends in ``/``."""
        self._start = start
        self._hooks = hooks
        self._clock = clock
        self._levels: dict[str, _Level] = {}
        self._others = 0
        self._sampled_at = [clock.now()]
        hooks.message_publish.add(self._published, priority=-1000)  # after callbacks that change the message

    def close(self) -> None:
        self._hooks.message_publish.remove(self._published)

    def rows(self) -> TopicRows:
        """Return the busiest levels. Their rates cover the last ten seconds, or the time since the first reader."""
        now = self._clock.now()
        samples = self._sampled_at
        if now - samples[-1] >= _SAMPLE:
            while len(samples) > 1 and (now - samples[0] > _WINDOW or len(samples) > _SAMPLES):
                del samples[0]
            seconds, count = now - samples[0], len(samples)
            full = len(self._levels) >= MAX_LEVELS
            for name, level in list(self._levels.items()):
                before = level.before
                del before[: max(0, len(before) - count)]
                level.rate = round((level.messages - (before[0] if len(before) == count else 0)) / seconds, 2)
                grown = level.messages - (before[-1] if before else 0)
                before.append(level.messages)
                if grown:
                    level.seen_at = now
                elif full and now - level.seen_at > _FORGET_AFTER:
                    del self._levels[name]  # other levels need its place
            samples.append(now)
        busiest = sorted(self._levels.items(), key=lambda each: (-each[1].rate, -each[1].messages))
        rows = [
            TopicRow(name, self._start + name, level.rate, level.messages, _text(level), level.deeper)
            for name, level in busiest[:SHOWN]
        ]
        return TopicRows(self._start[:-1], rows, self._others + sum(level.messages for _, level in busiest[SHOWN:]))

    def _published(self, message: Message) -> Message:
        topic = message.topic
        start = self._start
        if not topic.startswith(start):
            return message
        end = topic.find("/", len(start))
        name = topic[len(start) :] if end < 0 else topic[len(start) : end]
        level = self._levels.get(name)
        if level is None:
            if len(self._levels) >= MAX_LEVELS or len(start) + len(name) > MAX_TOPIC:
                self._others += 1
                return message
            level = self._levels[name] = _Level()
        level.messages += 1
        if end < 0:
            payload = message.payload
            level.payload = payload[:MAX_PAYLOAD]
            level.size = len(payload)
        else:
            level.deeper = True
        return message


def _text(level: _Level) -> str | None:
    if level.payload is None:
        return None
    try:
        # An incomplete character at the end is removed.
        return level.payload.decode("utf-8", "strict" if level.size <= MAX_PAYLOAD else "ignore")
    except UnicodeDecodeError:
        return "0x" + level.payload[: MAX_PAYLOAD // 2 - 1].hex()
