"""Replay: retained messages that a session is still to be sent because of its SUBSCRIBEs."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from .protocols import ClientWriter, RetainedSource
from .subscription import Subscription

if TYPE_CHECKING:
    from .session import Session

# So many retained messages, or so many bytes of them, go to a client before its output is written, and the search for
# them takes so many steps that find nothing.
REPLAY_SLICE: Final = 512
REPLAY_BYTES: Final = 262_144
REPLAY_STEPS = 2000

MOST_REPEATS: Final = 64  # of a session: SUBSCRIBEs that wait behind another one to the same filter


class ReplayBudget:
    """What is left of a slice: messages, bytes of payload, steps that find nothing."""

    __slots__ = ("bytes", "messages", "steps")

    def __init__(self) -> None:
        self.messages = REPLAY_SLICE
        self.bytes = REPLAY_BYTES
        self.steps = REPLAY_STEPS

    @property
    def spent(self) -> bool:
        return self.messages <= 0 or self.bytes <= 0 or self.steps <= 0


class Replay:
    """What is left to send, filter by filter, fetched as the client keeps up.

    Each SUBSCRIBE to a filter, also of those in one packet, sends all of its own, in order [MQTT-3.8.4-4, -5]. When too
    many wait, one takes the place of the one before it.
    """

    __slots__ = ("_left", "_repeats")

    def __init__(self) -> None:
        self._left: OrderedDict[str, list[tuple[RetainedSource, Subscription]]] = OrderedDict()
        self._repeats = 0

    def __len__(self) -> int:
        return len(self._left) + self._repeats

    def __bool__(self) -> bool:
        return len(self._left) > 0

    def add(self, source: RetainedSource, subscription: Subscription) -> None:
        """These come after those of earlier SUBSCRIBEs to the same filter."""
        waiting = self._left.get(subscription.filter)
        if waiting is None:
            self._left[subscription.filter] = [(source, subscription)]
        elif self._repeats < MOST_REPEATS:
            waiting.append((source, subscription))
            self._repeats += 1
        else:
            waiting[-1] = (source, subscription)

    def filters(self) -> list[str]:
        """Of which something is still to be sent, each once for each SUBSCRIBE."""
        return [filter for filter, waiting in self._left.items() for _ in waiting]

    def stop(self, filter: str) -> None:
        """What is left of this filter is not sent."""
        waiting = self._left.pop(filter, None)
        if waiting is not None:
            self._repeats -= len(waiting) - 1

    def advance(self, session: "Session", writer: ClientWriter) -> None:
        """Let ``session`` send the next ones until a slice is full, or no other may follow at once."""
        budget = ReplayBudget()
        left = self._left
        while left and not budget.spent:
            filter = next(iter(left))
            source, subscription = left[filter][0]
            messages = source.take(session.room_for_retained(budget.messages, subscription), budget)
            sent = session.send_retained(writer, messages, subscription)
            if sent < len(messages):
                source.put_back(messages[sent:])
            waiting = left.get(filter)
            if waiting is not None and waiting[0][0] is source and source.done:
                del waiting[0]
                if waiting:
                    self._repeats -= 1
                else:
                    del left[filter]
            if not session.takes_retained(writer):
                return
