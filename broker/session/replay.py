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
    """What is left to send, filter by filter, fetched as the client keeps up."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[RetainedSource, Subscription]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def __bool__(self) -> bool:
        return len(self._left) > 0

    def add(self, source: RetainedSource, subscription: Subscription) -> None:
        """All of a filter comes again, so there is one for each at most."""
        self._left.pop(subscription.filter, None)
        self._left[subscription.filter] = (source, subscription)

    def filters(self) -> list[str]:
        """Of which something is still to be sent."""
        return list(self._left)

    def stop(self, filter: str) -> None:
        """What is left of this filter is not sent."""
        self._left.pop(filter, None)

    def advance(self, session: "Session", writer: ClientWriter) -> None:
        """Let ``session`` send the next ones until a slice is full, or no other may follow at once."""
        budget = ReplayBudget()
        left = self._left
        while left and not budget.spent:
            filter = next(iter(left))
            source, subscription = left[filter]
            messages = source.take(session.room_for_retained(budget.messages, subscription), budget)
            sent = session.send_retained(writer, messages, subscription)
            if sent < len(messages):
                source.put_back(messages[sent:])
            now = left.get(filter)
            if now is not None and now[0] is source and source.done:
                del left[filter]
            if not session.takes_retained(writer):
                return
