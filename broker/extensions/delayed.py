"""Delayed publish: messages to ``$delayed/<seconds>/<topic>`` are published to ``<topic>`` after that time.

``Broker.accept`` passes the messages that this extension ``handles`` to it. It is not a callback of
``message.publish``: such a callback could not report to the publisher why a message was refused, and every message
would pay for it. A message that is due goes through ``Broker.publish`` with all hooks."""

import logging
from collections.abc import Callable
from typing import ClassVar, Final

from ..config import DelayedSettings
from ..core.delayed_topic import PREFIX, reserved, split
from ..core.outcome import DELAYED, NO_MEMORY, NOT_DELAYED, RESERVED, Outcome
from ..loop.timers import Timer, Timers
from ..mqtt.message import Message
from ..mqtt.properties import memory_size
from ..mqtt.reason_codes import QUOTA_EXCEEDED
from ..observability.metrics import Metrics
from ..observability.throttle import Throttle
from ..persistence.durability import Durability
from ..session.memory_account import UNACCOUNTED, MemoryAccount
from .extension import Extension

logger = logging.getLogger(__name__)

ABSOLUTE: Final = 4_294_967
"""Numbers from this one on are a time in Unix seconds instead of a delay, as in EMQX."""
_TOO_FAR: Final = Outcome(QUOTA_EXCEEDED, "delayed.max_seconds")
_TOO_MANY: Final = Outcome(QUOTA_EXCEEDED, "delayed.max_messages")
_TOO_LARGE: Final = Outcome(QUOTA_EXCEEDED, "delayed.max_bytes")


class DelayedMessage:
    """A message that waits. ``when``: when it is due, by the clock of the node; ``date``: the same in Unix seconds.
    ``number``: its number in the journal; 0: it is not stored. ``size``: its approximate memory."""

    __slots__ = ("date", "message", "number", "size", "timer", "when")

    def __init__(self, message: Message, size: int, when: float, date: float, number: int) -> None:
        self.message = message
        self.size = size
        self.when = when
        self.date = date
        self.number = number
        self.timer: Timer | None = None


class Delayed(Extension):
    """Holds messages until they are due, within the limits of its settings.

    ``waiting``: the messages, each under a number of this process; ``size``: their total size."""

    name: ClassVar[str] = "emqx_mod_delayed"
    description: ClassVar[str] = "Delayed publish"

    def __init__(
        self,
        settings: DelayedSettings,
        timers: Timers,
        publish: Callable[[Message], object],
        metrics: Metrics,
        wall_timers: Timers | None = None,
        skew: Callable[[], float] = lambda: 0.0,
        account: MemoryAccount = UNACCOUNTED,
    ) -> None:
        """``wall_timers``: timers for dates; ``skew``: the difference between the clock of ``timers`` and that of
        ``wall_timers``; ``account``: the node's memory level."""
        self._settings = settings
        self._timers = timers
        self._wall_timers = timers if wall_timers is None else wall_timers
        self._skew = skew
        self._publish = publish
        self._metrics = metrics
        self._active = False
        self._throttle = Throttle()
        # Durable storage; None at durability level ``memory``.
        self.durability: Durability | None = None
        self.account = account
        self.waiting: dict[int, DelayedMessage] = {}
        self.size = 0
        self._last = 0

    @property
    def count(self) -> int:
        """The number of waiting messages."""
        return len(self.waiting)

    @property
    def active(self) -> bool:
        """Whether the extension is loaded."""
        return self._active

    def load(self) -> None:
        """Accept delayed messages from now on."""
        self._active = True

    def unload(self) -> None:
        """Stop accepting delayed messages; those that wait are still published."""
        self._active = False

    def handles(self, topic: str) -> bool:
        """Return whether a message to this topic has to be passed to ``accept`` instead of ``Broker.publish``."""
        return self._active and topic.startswith(PREFIX)

    def accept(self, message: Message, now: float) -> Outcome:
        """Hold ``message`` until it is due, or refuse it because it is invalid, too many or too large messages wait, or
        its delay is too long. A refused message is dropped and counted in ``metrics.refusals``."""
        if reserved(message.topic):
            return self._refuse(message, RESERVED, "delayed_reserved")
        found = split(message.topic)
        if found is None:
            return self._refuse(message, NOT_DELAYED, "delayed_topic_invalid")
        number, topic = found
        dated = number >= ABSOLUTE
        when = float(number) - self._skew() if dated else now + number
        if when - now > self._settings.max_seconds or now - when > ABSOLUTE:
            return self._refuse(message, _TOO_FAR, "delayed_too_far")
        held = _readdressed(message, topic)
        size = _size(held)
        settings = self._settings
        if self.account.level:
            return self._refuse_full(message, now, NO_MEMORY)
        if settings.max_messages and self.count >= settings.max_messages:
            return self._refuse_full(message, now, _TOO_MANY)
        if settings.max_bytes and self.size + size > settings.max_bytes:
            return self._refuse_full(message, now, _TOO_LARGE)
        self._metrics.messages_delayed += 1
        date = when + self._skew()
        number = 0 if self.durability is None else self.durability.node.delayed_stored(held, date)
        self._hold(held, date if dated else when, number, self._wall_timers if dated else self._timers)
        return DELAYED

    def recover(self, message: Message, when: float, number: int) -> None:
        """Restore a message that waited when the node stopped, until the date ``when``; ``number`` is its number in the
        journal.

        Only dates survive a restart, so it no longer matters whether the message had a delay or a date."""
        self._hold(message, when, number, self._wall_timers)

    def _hold(self, message: Message, when: float, number: int, timers: Timers) -> None:
        skew = self._skew() if timers is self._wall_timers else 0.0
        date = when if timers is self._wall_timers else when + self._skew()
        held = DelayedMessage(message, _size(message), when - skew, date, number)
        self._last += 1
        key = self._last
        self.waiting[key] = held
        self.size += held.size
        held.timer = timers.at(when, lambda: self._release(key))

    def delete(self, key: int) -> bool:
        """Delete a waiting message; return whether it still waited. The deletion is on disk after the next batch."""
        held = self.waiting.get(key)
        if held is None:
            return False
        if held.timer is not None:
            held.timer.cancel()
        self._forget(key)
        return True

    def _forget(self, key: int) -> DelayedMessage:
        held = self.waiting.pop(key)
        self.size -= held.size
        if self.durability is not None and held.number:
            self.durability.node.delayed_gone(held.number)
        return held

    def _release(self, key: int) -> None:
        held = self._forget(key)
        message = held.message
        if message.expired(held.when):  # its Message Expiry Interval continued in the meantime
            self._metrics.refusals.add("delayed_expired")
            return
        self._publish(message)

    def _refuse_full(self, message: Message, now: float, outcome: Outcome) -> Outcome:
        if self._throttle.due(now):
            logger.warning(
                "delayed_messages_full messages=%s bytes=%s setting=%s", self.count, self.size, outcome.setting
            )
        return self._refuse(message, outcome, "delayed_full")

    def _refuse(self, message: Message, outcome: Outcome, reason: str) -> Outcome:
        self._metrics.refusals.add(reason)
        if logger.isEnabledFor(logging.DEBUG):
            publisher = message.publisher
            client_id = None if publisher is None else publisher.client_id
            logger.debug("%s client_id=%s topic=%s setting=%s", reason, client_id, message.topic, outcome.setting)
        return outcome


def _size(message: Message) -> int:
    """Return the approximate memory of a message."""
    size = message.payload_size + len(message.topic) + 200
    if message.has_properties:
        size += memory_size(message.properties)
    publisher = message.publisher
    return size if publisher is None else size + len(publisher.client_id) + len(publisher.username or "")


def _readdressed(message: Message, topic: str) -> Message:
    """Return the message with another topic; it keeps its time, so that its Message Expiry Interval continues."""
    copy = Message(
        topic,
        message.payload,
        message.qos,
        message.retain,
        message.properties,
        message.publisher,
        message.timestamp,
    )
    copy.id = message.id
    copy.hops = message.hops
    return copy
