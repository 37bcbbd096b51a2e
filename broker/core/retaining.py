"""Retaining: which messages are retained, why others are not, and which may be sent for a new subscription."""

from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..config import RetainedSettings
from ..mqtt.message import Message
from ..routing.retained import ABSENT, CLEARED, FULL, FULL_BYTES, STORED, TOO_LARGE
from ..session.memory_account import NORMAL
from .cluster import RetainedChanges
from .outcome import (
    NO_MEMORY,
    RETAINED_BYTES_FULL,
    RETAINED_FULL,
    RETAINED_TOO_LARGE,
    RETAINED_TOO_LARGE_FOR_NATS,
    Outcome,
)

if TYPE_CHECKING:
    from .broker import Broker

_SHORT_OF_MEMORY: Final = -1  # in addition to the results of ``RetainedStore.refusal``
_TOO_LARGE_FOR_NATS: Final = -2

# Why a message is not retained, and the word for it in log and metrics.
_NOT_RETAINED: Final[dict[int, tuple[Outcome, str]]] = {
    FULL: (RETAINED_FULL, "full"),
    FULL_BYTES: (RETAINED_BYTES_FULL, "full"),
    TOO_LARGE: (RETAINED_TOO_LARGE, "too_large"),
    _SHORT_OF_MEMORY: (NO_MEMORY, "memory"),
    _TOO_LARGE_FOR_NATS: (RETAINED_TOO_LARGE_FOR_NATS, "too_large"),
}


class Retaining:
    """Decides for a ``Broker`` which messages its ``RetainedStore`` keeps, and records changes on disk and for other
    nodes."""

    def __init__(
        self, broker: "Broker", settings: RetainedSettings, allowed: Callable[[Message], bool] | None = None
    ) -> None:
        """``allowed``: whether a retained message may still be delivered according to its publisher's current rights;
        called while ``check_source`` is set."""
        self._broker = broker
        self._store = broker.retained
        self._metrics = broker.metrics
        self._allowed = allowed
        self.check_source = settings.check_source
        # Informs the other nodes of a cluster about retained messages.
        self.changes: RetainedChanges | None = None

    def retain(self, message: Message) -> None:
        """Store the message for future subscriptions, within the limits; an empty one deletes the stored message. If
        the message cannot be stored, the retained message of its topic is deleted, because it is out of date."""
        # [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-7]
        done = self._refused_before(message, message.topic)
        if not done:
            done = self._store.put(message)
            # An iteration ends after about 4 MiB, so that memory is checked before too much is stored.
            self._broker.budget.deliveries += message.payload_size >> 10
        refused = _NOT_RETAINED.get(done)
        if refused is not None:
            outcome, reason = refused
            client_id = "" if message.publisher is None else message.publisher.client_id
            self._broker.throttled_log.warn(
                "retain_refused", client_id, message.topic, reason, outcome.setting, message.timestamp
            )
            self._metrics.refusals.add("retained_" + reason)
            done = CLEARED if self._store.delete(message.topic) else done
        if (refused is None or done == CLEARED) and not message.topic.startswith("$SYS"):
            self._record(message, done)
            if self.changes is not None:
                decision = self.changes.changed(message.topic)
                if decision is not None:
                    self._broker.undecided = decision
        self._metrics.messages_retained = len(self._store)

    def _record(self, message: Message, done: int) -> None:
        durability = self._broker.durability
        if durability is None:
            return
        if done == CLEARED:
            durability.node.retained_cleared(message.topic)
        elif done != ABSENT:
            durability.node.retained_stored(message, done == STORED)

    def take(self, message: Message) -> bool:
        """Apply a message that another node has retained, or cleared (an empty payload); return whether it is now the
        same here."""
        done = self._store.put(message, True)
        refused = _NOT_RETAINED.get(done)
        if refused is None:
            self._record(message, done)
            self._metrics.messages_retained = len(self._store)
            return True
        outcome, reason = refused
        now = self._broker.clock.now()
        self._broker.throttled_log.warn("retain_refused", "-", message.topic, reason, outcome.setting, now)
        self._metrics.refusals.add("retained_" + reason)
        return False

    def clear(self, topic: str) -> Future[None] | None:
        """Remove the message of ``topic`` for an operator. Return what ``RetainedChanges.changed`` returns."""
        decision: Future[None] | None = None
        if self._store.delete(topic) and not topic.startswith("$SYS"):
            durability = self._broker.durability
            if durability is not None:
                durability.node.retained_cleared(topic)
            if self.changes is not None:
                decision = self.changes.changed(topic)
        self._metrics.messages_retained = len(self._store)
        return decision

    def refusal(self, message: Message) -> Outcome | None:
        """Return why a message that is not yet published cannot be retained at its final topic; None: it can."""
        topic = self._broker.destination(message.topic)
        if not isinstance(topic, str):
            return None  # the message is refused for that reason
        refused = self._refused_before(message, topic) or self._store.refusal(message, topic)
        return _NOT_RETAINED[refused][0] if refused else None

    def _refused_before(self, message: Message, topic: str) -> int:
        """Return why the message cannot be retained, regardless of the space in the store; 0: it can."""
        if topic.startswith("$SYS"):
            return 0
        if self._broker.account.level > NORMAL and self._store.grows_by(message, topic) > 0:
            return _SHORT_OF_MEMORY
        changes = self.changes
        return 0 if changes is None or changes.fits(message) else _TOO_LARGE_FOR_NATS

    def may_be_replayed(self, message: Message) -> bool:
        """Return whether the publisher may still publish to the topic. Call this while ``check_source`` is set."""
        if self._allowed is None or self._allowed(message):
            return True
        self._metrics.refusals.add("retained_source_denied")
        return False

    def not_withheld(self, messages: list[Message]) -> list[Message]:
        """Return the retained messages whose publishers are not withheld. Call this while ``Broker.any_withheld``."""
        withheld = self._broker.withheld
        given = [each for each in messages if each.publisher is None or withheld(each.publisher) is None]
        if len(given) < len(messages):
            self._metrics.refusals.add("retained_publisher_banned", len(messages) - len(given))
        return given

    def sweep(self, now: float, budget: int) -> None:
        """Remove expired retained messages, at most ``budget`` of them."""
        self._store.sweep(now, budget)
        self._metrics.messages_retained = len(self._store)
