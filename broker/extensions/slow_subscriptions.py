"""Slow subscriptions: the subscribers with the longest time from publication to acknowledgement of a message."""

from dataclasses import dataclass
from typing import ClassVar

from ..config import SlowSubscriptionsSettings
from ..core.hooks import Hooks
from ..loop.timers import DatedTimeSource
from ..mqtt.message import Message
from ..session.client_info import ClientInfo
from .extension import Extension


@dataclass(slots=True)
class SlowSubscription:
    """``timespan``: the longest recent time in seconds. ``updated_at``: Unix seconds."""

    client_id: str
    topic: str
    timespan: float
    updated_at: float


class SlowSubscriptions(Extension):
    """Keeps the ``top`` slowest QoS 1 and 2 deliveries above ``threshold``, each for ``expire`` seconds."""

    name: ClassVar[str] = "emqx_mod_slow_subs"
    description: ClassVar[str] = "Slow subscriptions"

    def __init__(self, settings: SlowSubscriptionsSettings, hooks: Hooks, clock: DatedTimeSource) -> None:
        self.settings = settings
        self._hooks = hooks
        self._clock = clock
        self._slow: dict[tuple[str, str], SlowSubscription] = {}
        self._active = False

    @property
    def active(self) -> bool:
        """Whether deliveries are observed."""
        return self._active

    def load(self) -> None:
        """Observe deliveries from now on."""
        if not self._active:
            self._active = True
            self._hooks.delivery_completed.add(self._completed)

    def unload(self) -> None:
        """Stop observing deliveries, and clear the ranking."""
        if self._active:
            self._active = False
            self._hooks.delivery_completed.remove(self._completed)
            self._slow.clear()

    def _completed(self, client: ClientInfo, message: Message, published_at: float) -> None:
        now = self._clock.now()
        timespan = now - published_at
        if timespan < self.settings.threshold:
            return
        key = (client.client_id, message.topic)
        known = self._slow.get(key)
        if known is not None:
            known.timespan = max(known.timespan, timespan)
            known.updated_at = now
            return
        if len(self._slow) >= self.settings.top:
            self._expire(now)
        if len(self._slow) >= self.settings.top:
            fastest = min(self._slow, key=lambda each: self._slow[each].timespan)
            if self._slow[fastest].timespan >= timespan:
                return
            del self._slow[fastest]
        self._slow[key] = SlowSubscription(client.client_id, message.topic, timespan, now)

    def _expire(self, now: float) -> None:
        before = now - self.settings.expire
        for key in [key for key, each in self._slow.items() if each.updated_at < before]:
            del self._slow[key]

    def ranking(self) -> list[SlowSubscription]:
        """Return the ranking, slowest first."""
        self._expire(self._clock.now())
        return sorted(self._slow.values(), key=lambda each: -each.timespan)

    def clear(self) -> None:
        """Clear the ranking."""
        self._slow.clear()
