"""Delayed publish: what is sent to ``$delayed/<seconds>/<topic>`` is published to ``<topic>`` that much later.

Every entrance for messages (PUBLISH, a will, the management API, a rule, a bridge) does the same::

    if reserved(topic):
        ...                                                 # refused, whatever access rules say
    elif delayed.handles(topic):
        inner = delayed.inner_topic(topic)                  # None: not well formed; the one to ask access control for
        message.topic = delayed.mounted(topic, mountpoint)  # where there is a mount point
        reason_code = delayed.accept(message, now)
    else:
        broker.publish(message)

What comes over no connection does it by ``Server.publish``.

Not a callback at ``message.publish``: that could not tell the publisher why it was refused, and every message of the
node would pay for it. When its time has come a message goes through ``Broker.publish``, hooks and all.
"""

import logging
from collections.abc import Callable
from typing import ClassVar, Final

from ..config import DelayedSettings
from ..loop.timers import Timers
from ..mqtt.message import Message
from ..mqtt.reason_codes import NOT_AUTHORIZED, QUOTA_EXCEEDED, SUCCESS, TOPIC_NAME_INVALID
from ..observability.metrics import Metrics
from ..persistence.durability import Durability
from ..session.account import UNACCOUNTED, Account
from .extension import Extension

logger = logging.getLogger(__name__)

PREFIX: Final = "$delayed/"
ABSOLUTE: Final = 4_294_967
"""Numbers from here on are a moment in unix seconds rather than a time span, as in EMQX."""
_DIGITS: Final = 12
_WARN_EVERY: Final = 60.0


class Delayed(Extension):
    """Holds messages until their time has come, within the bounds of its settings.

    ``count`` and ``size`` tell how many messages and bytes wait. ``setting``: what the latest refusal came from.
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
    ) -> None:
        """``wall_timers``: what is due at a date; ``skew``: from the clock of ``timers`` to that of these."""
        self._settings = settings
        self._timers = timers
        self._wall_timers = timers if wall_timers is None else wall_timers
        self._skew = skew
        self._publish = publish
        self._metrics = metrics
        self._active = False
        self._warn_at = 0.0  # not before then again
        self.setting = ""
        # What outlives the process; None at durability level ``memory``.
        self.durability: Durability | None = None
        # How short the node's memory is.
        self.account: Account = UNACCOUNTED
        self.count = 0
        self.size = 0

    @property
    def active(self) -> bool:
        """Whether it is loaded."""
        return self._active

    def load(self) -> None:
        """Take delayed messages from now on."""
        self._active = True

    def handles(self, topic: str) -> bool:
        """Whether a message to this topic is for ``accept`` rather than for ``Broker.publish``."""
        return self._active and topic.startswith(PREFIX)

    def inner_topic(self, topic: str) -> str | None:
        """The topic a message to ``topic`` ends up at, as written there; ``None`` where it is not well formed.

        ``$delayed/15/x/y`` -> ``x/y``; ``$delayed/15//x`` -> ``/x``.
        """
        found = _split(topic)
        return None if found is None else found[1]

    def mounted(self, topic: str, mountpoint: str) -> str:
        """``topic`` with ``mountpoint`` in front of its inner topic; put in front of the whole where it has none."""
        found = _split(topic)
        return mountpoint + topic if found is None else f"{PREFIX}{found[0]}/{mountpoint}{found[1]}"

    def accept(self, message: Message, now: float) -> int:
        """Hold ``message`` until its time; a Reason Code of 5.0 tells what became of it.

        SUCCESS; TOPIC_NAME_INVALID: the seconds or the topic are not well formed; NOT_AUTHORIZED: a topic of the
        server's own; QUOTA_EXCEEDED: too many or too much waiting, or too far off. What is not accepted is dropped,
        counted in ``metrics.refusals``.
        """
        if reserved(message.topic):
            return self._refuse(message, NOT_AUTHORIZED, "delayed_reserved", "-")
        found = _split(message.topic)
        if found is None:
            return self._refuse(message, TOPIC_NAME_INVALID, "delayed_topic_invalid", "-")
        number, topic = found
        dated = number >= ABSOLUTE
        when = float(number) - self._skew() if dated else now + number
        if when - now > self._settings.max_seconds or now - when > ABSOLUTE:
            return self._refuse(message, QUOTA_EXCEEDED, "delayed_too_far", "delayed.max_seconds")
        held = _readdressed(message, topic)
        size = _size(held)
        settings = self._settings
        if self.account.level:
            return self._refuse_full(message, now, "limits.memory")
        if settings.max_messages and self.count >= settings.max_messages:
            return self._refuse_full(message, now, "delayed.max_messages")
        if settings.max_bytes and self.size + size > settings.max_bytes:
            return self._refuse_full(message, now, "delayed.max_bytes")
        self._metrics.messages_delayed += 1
        date = when + self._skew()
        number = 0 if self.durability is None else self.durability.node.delayed_stored(held, date)
        self._hold(held, date if dated else when, number, self._wall_timers if dated else self._timers)
        return SUCCESS

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
            self._refuse(message, NOT_AUTHORIZED, "delayed_reserved", "-")
            return
        self._publish(message)

    def _refuse_full(self, message: Message, now: float, setting: str) -> int:
        if now >= self._warn_at:  # not for each of a flood
            self._warn_at = now + _WARN_EVERY
            logger.warning("delayed_messages_full messages=%s bytes=%s setting=%s", self.count, self.size, setting)
        return self._refuse(message, QUOTA_EXCEEDED, "delayed_full", setting)

    def _refuse(self, message: Message, reason_code: int, reason: str, setting: str) -> int:
        self._metrics.refusals.add(reason)
        self.setting = setting
        if logger.isEnabledFor(logging.DEBUG):
            publisher = message.publisher
            client_id = None if publisher is None else publisher.client_id
            logger.debug("%s client_id=%s topic=%s setting=%s", reason, client_id, message.topic, setting)
        return reason_code


def reserved(topic: str) -> bool:
    """Whether only the server publishes to ``topic``, whatever the access rules say: ``$SYS`` and what is below,
    and what would get there by a delay, whether delayed publish is loaded or not."""
    if not topic.startswith("$"):
        return False
    found = _split(topic)
    real = topic if found is None else found[1]
    return real == "$SYS" or real.startswith("$SYS/")


def _size(message: Message) -> int:
    return message.payload_size + len(message.topic) + 200  # about what it takes in memory


def _split(topic: str) -> tuple[int, str] | None:
    """``$delayed/<number>/<topic>`` as (number, topic)."""
    if not topic.startswith(PREFIX):
        return None
    digits, slash, inner = topic[len(PREFIX) :].partition("/")
    if not slash or not inner or len(digits) > _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    if inner.startswith(PREFIX):  # a delay of a delay would go round the bounds
        return None
    return int(digits), inner


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
