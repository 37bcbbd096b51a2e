"""Replay: retained messages that still have to be sent to a session because of its SUBSCRIBEs."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ..mqtt.message import Delivery, Message
from .acceptance import may_queue
from .protocols import ClientWriter, RetainedSource
from .subscription import Subscription

if TYPE_CHECKING:
    from .session import Session

# Limits for one slice, after which the client's output is written: retained messages, their bytes, and steps of the
# search that find nothing.
REPLAY_SLICE: Final = 512
REPLAY_BYTES: Final = 262_144
REPLAY_STEPS = 2000

MOST_REPEATS: Final = 64  # per session: SUBSCRIBEs that wait for an earlier one with the same filter


class ReplayBudget:
    """The rest of a slice: messages, bytes of payload, steps that find nothing."""

    __slots__ = ("bytes", "messages", "steps")

    def __init__(self) -> None:
        self.messages = REPLAY_SLICE
        self.bytes = REPLAY_BYTES
        self.steps = REPLAY_STEPS

    @property
    def spent(self) -> bool:
        return self.messages <= 0 or self.bytes <= 0 or self.steps <= 0


class Replay:
    """The retained messages that still have to be sent, filter by filter, read when the client can receive them.

    Each SUBSCRIBE to a filter, even within one packet, sends all of its messages, in order [MQTT-3.8.4-4, -5]. If too
    many wait, a SUBSCRIBE replaces the one before it."""

    __slots__ = ("_left", "_repeats")

    def __init__(self) -> None:
        self._left: OrderedDict[str, list[tuple[RetainedSource, Subscription]]] = OrderedDict()
        self._repeats = 0

    def __len__(self) -> int:
        return len(self._left) + self._repeats

    def __bool__(self) -> bool:
        return len(self._left) > 0

    def add(self, source: RetainedSource, subscription: Subscription) -> None:
        """Add retained messages after those of earlier SUBSCRIBEs to the same filter."""
        waiting = self._left.get(subscription.filter)
        if waiting is None:
            self._left[subscription.filter] = [(source, subscription)]
        elif self._repeats < MOST_REPEATS:
            waiting.append((source, subscription))
            self._repeats += 1
        else:
            waiting[-1] = (source, subscription)

    def filters(self) -> list[str]:
        """Return the filters with messages that still have to be sent, once for each SUBSCRIBE."""
        return [filter for filter, waiting in self._left.items() for _ in waiting]

    def stop(self, filter: str) -> None:
        """Do not send the remaining messages of this filter."""
        waiting = self._left.pop(filter, None)
        if waiting is not None:
            self._repeats -= len(waiting) - 1

    def advance(self, session: "Session", writer: ClientWriter) -> None:
        """Send the next messages to ``session`` until a slice is full, or until no further message may be sent now."""
        budget = ReplayBudget()
        left = self._left
        while left and not budget.spent:
            filter = next(iter(left))
            source, subscription = left[filter][0]
            messages = source.take(_room_for(session, budget.messages, subscription), budget)
            sent = _send_retained(session, writer, messages, subscription)
            if sent < len(messages):
                source.put_back(messages[sent:])
            waiting = left.get(filter)
            if waiting is not None and waiting[0][0] is source and source.done:
                del waiting[0]
                if waiting:
                    self._repeats -= 1
                else:
                    del left[filter]
            if not _takes_retained(session, writer):
                return


def _takes_retained(session: "Session", writer: ClientWriter) -> bool:
    """Return whether another retained message may follow now."""
    return writer.writable and session.queue is None


def _room_for(session: "Session", most: int, subscription: Subscription) -> int:
    """Return how many retained messages to read, at most ``most``: at least one, which may have to wait in the
    queue."""
    if subscription.qos == 0:
        return most
    if session.resend is not None:
        return 1
    return max(1, min(most, session.window - len(session.inflight)))


def _send_retained(
    session: "Session", writer: ClientWriter, messages: list[Message], subscription: Subscription
) -> int:
    """Send retained messages for a SUBSCRIBE, or queue one; return how many. The others follow later."""
    identifiers = subscription.identifiers
    if subscription.qos == 0:
        return _send_retained0(session, writer, messages, identifiers)
    upgrade = session.limits.upgrade_qos
    at = 0
    while at < len(messages):
        first = messages[at]
        qos = subscription.qos if upgrade else min(first.qos, subscription.qos)
        end = at + 1
        while end < len(messages) and (upgrade or min(messages[end].qos, subscription.qos) == qos):
            if qos and messages[end].expires:
                break
            end += 1
        if qos == 0:
            end = at + _send_retained0(session, writer, messages[at:end], identifiers)
        elif qos == 1 and not first.expires and not may_queue(session, end - at):
            session.send_run(writer, [_retained(session, each, 1, identifiers) for each in messages[at:end]])
        else:
            end = at + 1
            _send_retained_qos(session, writer, _retained(session, first, qos, identifiers))
        at = end
        if not _takes_retained(session, writer):
            break
    return at


def _send_retained0(
    session: "Session", writer: ClientWriter, messages: list[Message], identifiers: tuple[int, ...]
) -> int:
    """Send retained messages with QoS 0; return how many were sent before the client was not writable."""
    if session.packets is not None:
        return session.packets.send_retained0(messages, identifiers)
    for count, message in enumerate(messages, 1):
        writer.send_publish(Delivery(message, 0, True, identifiers), 0, False)
        if not writer.writable:
            return count
    return len(messages)


def _retained(session: "Session", message: Message, qos: int, identifiers: tuple[int, ...]) -> Delivery:
    """Return the delivery, which the session holds from now on."""
    journal = session.journal
    if journal is None:
        return Delivery(message, qos, True, identifiers)
    delivery = Delivery(message.twin(), qos, True, identifiers)  # may already be in flight to this session
    journal.hold(session, delivery)
    return delivery


def _send_retained_qos(session: "Session", writer: ClientWriter, delivery: Delivery) -> None:
    if session.resend is not None or len(session.inflight) >= session.window or not writer.writable:
        # One message waits in the queue, whatever its limits, so that they never cut a replay short.
        session.new_queue().push_front(delivery)
    else:
        session.send(writer, delivery)
