"""Topic metrics: message counts of single topics that an operator has added."""

from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

from ..core.hooks import Hooks
from ..loop.timers import DatedTimeSource, Timer, Timers
from ..mqtt.message import Message
from ..session.client_info import ClientInfo
from .extension import Extension

MAX_TOPICS: Final = 512
"""Maximum number of topics, as in EMQX."""
NAMES: Final = (
    "messages.in",
    "messages.out",
    "messages.dropped",
    "messages.qos0.in",
    "messages.qos0.out",
    "messages.qos1.in",
    "messages.qos1.out",
    "messages.qos2.in",
    "messages.qos2.out",
)
SAMPLE: Final = 1.0
WINDOW: Final = 5
"""Seconds between two samples, and the number of these intervals over which a rate is averaged."""

_IN: Final = 0
_OUT: Final = 1
_DROPPED: Final = 2
_BY_QOS: Final = 3


class _Counters:
    __slots__ = ("counts", "samples")

    def __init__(self, now: float) -> None:
        self.counts = [0] * len(NAMES)
        self.samples: deque[tuple[float, list[int]]] = deque([(now, self.counts.copy())], maxlen=WINDOW + 1)


class TopicMetrics(Extension):
    """Counts messages of the topics that were added. While there are none, it uses no hooks and no timer.

    *In* is a published message, *out* one delivery of it, *dropped* a message without subscribers."""

    name: ClassVar[str] = "emqx_mod_topic_metrics"
    description: ClassVar[str] = "Topic metrics"

    def __init__(self, hooks: Hooks, timers: Timers, clock: DatedTimeSource) -> None:
        self._hooks = hooks
        self._timers = timers
        self._clock = clock
        self._topics: dict[str, _Counters] = {}
        self._timer: Timer | None = None
        self._active = False
        self._attached = False
        self.load()

    @property
    def active(self) -> bool:
        """Whether messages are counted."""
        return self._active

    def load(self) -> None:
        """Start counting."""
        self._active = True
        self._update_hooks()

    def unload(self) -> None:
        """Stop counting; the topics are kept, but their counts are not."""
        self._active = False
        self._update_hooks()
        for topic in self._topics:
            self._topics[topic] = _Counters(self._clock.now())

    def add(self, topic: str) -> None:
        """Count this topic. No effect if it is already counted. Raises ``ValueError`` beyond ``MAX_TOPICS``."""
        if topic in self._topics:
            return
        if len(self._topics) >= MAX_TOPICS:
            raise ValueError(f"more than {MAX_TOPICS} topics")
        self._topics[topic] = _Counters(self._clock.now())
        self._update_hooks()

    def remove(self, topic: str) -> bool:
        """Remove a topic; return whether it was counted."""
        found = self._topics.pop(topic, None) is not None
        self._update_hooks()
        return found

    def topics(self) -> Iterator[str]:
        return iter(self._topics)

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def snapshot(self, topic: str) -> dict[str, int | float]:
        """Return ``<name>.count`` and ``<name>.rate`` (per second, average of the last intervals). Raises ``KeyError``
        for an unknown topic."""
        counters = self._topics[topic]
        since, before = counters.samples[0]
        # There is no rate for less than a second: one message right after ``add`` is not 36 per second.
        seconds = max(self._clock.now() - since, SAMPLE)
        values: dict[str, int | float] = {}
        for name, count, earlier in zip(NAMES, counters.counts, before, strict=True):
            values[f"{name}.count"] = count
            values[f"{name}.rate"] = round((count - earlier) / seconds, 2)
        return values

    def _update_hooks(self) -> None:
        """Use the hooks only while there is a topic to count."""
        wanted = self._active and bool(self._topics)
        if wanted == self._attached:
            return
        self._attached = wanted
        hooks = self._hooks
        if wanted:
            hooks.message_publish.add(self._published, priority=-1000)  # after callbacks that change the message
            hooks.message_delivered.add(self._delivered)
            hooks.message_dropped.add(self._dropped)
            self._timer = self._timers.after(SAMPLE, self._sample)
        else:
            hooks.message_publish.remove(self._published)
            hooks.message_delivered.remove(self._delivered)
            hooks.message_dropped.remove(self._dropped)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _sample(self) -> None:
        now = self._clock.now()
        for counters in self._topics.values():
            counters.samples.append((now, counters.counts.copy()))
        self._timer = self._timers.after(SAMPLE, self._sample)

    def _published(self, message: Message) -> Message:
        counters = self._topics.get(message.topic)
        if counters is not None:
            counters.counts[_IN] += 1
            counters.counts[_BY_QOS + 2 * message.qos] += 1
        return message

    def _delivered(self, client: ClientInfo, message: Message) -> None:
        counters = self._topics.get(message.topic)
        if counters is not None:
            counters.counts[_OUT] += 1
            counters.counts[_BY_QOS + 2 * message.qos + 1] += 1

    def _dropped(self, message: Message, reason: str) -> None:
        counters = self._topics.get(message.topic)
        if counters is not None:
            counters.counts[_DROPPED] += 1
