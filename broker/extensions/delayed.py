"""Delayed publish: what is sent to ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` that much later.

``Broker.accept`` gives it the messages that it ``handles``. Not a callback at ``message.publish``: that could not tell
the publisher why it was refused, and every message of the node would pay for it. When its time has come a message
goes through ``Broker.publish``, hooks and all.
"""

import logging
from collections.abc import Callable
from typing import ClassVar, Final

from ..config import DelayedSettings
from ..core.delayed_topic import PREFIX, reserved, split
from ..core.outcome import DELAYED, NO_MEMORY, NOT_DELAYED, RESERVED, Outcome
from ..loop.timers import Timers
from ..mqtt.message import Message
from ..mqtt.properties import memory_size
from ..mqtt.reason_codes import QUOTA_EXCEEDED
from ..observability.metrics import Metrics
from ..persistence.durability import Durability
from ..session.memory_account import UNACCOUNTED, MemoryAccount
from .extension import Extension

logger = logging.getLogger(__name__)

ABSOLUTE: Final = 4_294_967
"""Numbers from here on are a moment in unix seconds rather than a time span, as in EMQX."""
_WARN_EVERY: Final = 60.0
_TOO_FAR: Final = Outcome(QUOTA_EXCEEDED, "delayed.max_seconds")
_TOO_MANY: Final = Outcome(QUOTA_EXCEEDED, "delayed.max_messages")
_TOO_LARGE: Final = Outcome(QUOTA_EXCEEDED, "delayed.max_bytes")


class Delayed(Extension):
    """Holds messages until their time has come, within the bounds of its settings.

    ``count`` and ``size`` tell how many messages and bytes wait.
    """

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
        """``wall_timers``: what is due at a date; ``skew``: from the clock of ``timers`` to that of these; ``account``:
        how short the node's memory is."""
        self._settings = settings
        self._timers = timers
        self._wall_timers = timers if wall_timers is None else wall_timers
        self._skew = skew
        self._publish = publish
        self._metrics = metrics
        self._active = False
        self._warn_at = 0.0  # not before then again
        # What outlives the process; None at durability level ``memory``.
        self.durability: Durability | None = None
        self.account = account
        self.count = 0
        self.size = 0

    @property
    def active(self) -> bool:
        """Whether it is loaded."""
        return self._active

    def load(self) -> None:
        """Take delayed messages from now on."""
        self._active = True

    def unload(self) -> None:
        """Take none any more; those that wait still come."""
        self._active = False

    def handles(self, topic: str) -> bool:
        """Whether a message to this topic is for ``accept`` rather than for ``Broker.publish``."""
        return self._active and topic.startswith(PREFIX)

    def accept(self, message: Message, now: float) -> Outcome:
        """Hold ``message`` until its time, or refuse it: it is not well formed, or too many or too much waits, or it is
        too far off. What is refused is dropped and counted in ``metrics.refusals``."""
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
        """Take a message back that waited when the node stopped, until the date ``when``; ``number`` is the journal's.

        Only dates outlive a process; whether this one was told to wait for a while or for a date is the same now.
        """
        self._hold(message, when, number, self._wall_timers)

    def _hold(self, message: Message, when: float, number: int, timers: Timers) -> None:
        size = _size(message)
        self.count += 1
        self.size += size
        skew = self._skew() if timers is self._wall_timers else 0.0
        timers.at(when, lambda: self._release(message, size, when - skew, number))

    def _release(self, message: Message, size: int, when: float, number: int) -> None:
        self.count -= 1
        self.size -= size
        if self.durability is not None and number:
            self.durability.node.delayed_gone(number)
        if message.expired(when):  # its Message Expiry Interval ran meanwhile
            self._metrics.refusals.add("delayed_expired")
            return
        if reserved(message.topic):  # taken by an earlier version
            self._refuse(message, RESERVED, "delayed_reserved")
            return
        self._publish(message)

    def _refuse_full(self, message: Message, now: float, outcome: Outcome) -> Outcome:
        if now >= self._warn_at:  # not for each of a burst of messages
            self._warn_at = now + _WARN_EVERY
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
    """About what it takes in memory."""
    size = message.payload_size + len(message.topic) + 200
    if message.has_properties:
        size += memory_size(message.properties)
    publisher = message.publisher
    return size if publisher is None else size + len(publisher.client_id) + len(publisher.username or "")


def _readdressed(message: Message, topic: str) -> Message:
    """The same message for another topic; it keeps its time, so that its Message Expiry Interval runs meanwhile."""
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
