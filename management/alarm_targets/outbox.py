"""Outbox: which notice a target is sent next, and when. No input or output; time is an argument.

Only the latest notice of each alarm waits: if an alarm ends before its activation was sent, the target receives one
notice, with both times. So a target that cannot be reached, or an alarm that changes all the time, needs a bounded
amount of memory, and the target always learns the latest state."""

from enum import Enum
from typing import Final

from .notice import Notice

MAX_WAITING: Final = 1000
"""Maximum number of alarms of which a notice waits for one target."""
BETWEEN: Final = 60.0
"""Seconds between two notices about one alarm to one target."""
FIRST_PAUSE: Final = 1.0
"""Seconds after a failure; the pause doubles with each further one."""
LONGEST_PAUSE: Final = 300.0
GIVE_UP: Final = 86_400.0
"""Seconds after which a notice that could not be sent is dropped."""


class State(Enum):
    """``READY``: the next notice that is due may be sent. ``SENDING``: one is being sent. ``PAUSING``: the last attempt
    has failed, and the next one comes later."""

    READY = "ready"
    SENDING = "sending"
    PAUSING = "pausing"


class Outbox:
    """The notices that wait for one target, oldest first. ``dropped``: how many were given up."""

    def __init__(self) -> None:
        self.state = State.READY
        self.dropped = 0
        self._waiting: dict[str, tuple[float, Notice]] = {}
        self._sent_at: dict[str, float] = {}
        self._failures = 0
        self._again_at = 0.0
        self._sending: tuple[float, Notice] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + (self._sending is not None)

    def put(self, notice: Notice, now: float) -> Notice | None:
        """Add a notice, in place of the waiting one about the same alarm. Return the notice that was dropped because
        too many wait."""
        self._waiting.pop(notice.name, None)
        self._waiting[notice.name] = (now, notice)
        if len(self._waiting) <= MAX_WAITING:
            return None
        self.dropped += 1
        return self._waiting.pop(next(iter(self._waiting)))[1]

    def next(self, now: float) -> Notice | None:
        """Begin to send the first notice that is due, if there is one."""
        assert self.state is not State.SENDING
        if self.state is State.PAUSING and now < self._again_at:
            return None
        for name, (since, notice) in self._waiting.items():
            if self._due_at(name) <= now:
                del self._waiting[name]
                self._sending = (since, notice)
                self.state = State.SENDING
                return notice
        return None

    def due_at(self) -> float | None:
        """Return when ``next`` returns a notice at the earliest; None: nothing waits."""
        if not self._waiting:
            return None
        earliest = min(self._due_at(name) for name in self._waiting)
        return max(earliest, self._again_at) if self.state is State.PAUSING else earliest

    def sent(self, now: float) -> None:
        """Note that the notice that ``next`` returned was sent."""
        assert self._sending is not None
        self._sent_at[self._sending[1].name] = now
        if len(self._sent_at) > MAX_WAITING:
            self._sent_at = {name: at for name, at in self._sent_at.items() if now - at < BETWEEN}
        while len(self._sent_at) > MAX_WAITING:
            del self._sent_at[next(iter(self._sent_at))]
        self._sending = None
        self._failures = 0
        self.state = State.READY

    def failed(self, now: float) -> Notice | None:
        """Put back the notice of ``next``, which could not be sent: it waits after the others, unless a later one about
        the same alarm has arrived. Return the notice if it is given up."""
        assert self._sending is not None
        (since, notice), self._sending = self._sending, None
        self.state = State.PAUSING
        self._again_at = now + min(FIRST_PAUSE * 2 ** min(self._failures, 20), LONGEST_PAUSE)
        self._failures += 1
        if notice.name in self._waiting:
            return None
        if now - since >= GIVE_UP:
            self.dropped += 1
            return notice
        self._waiting[notice.name] = (since, notice)
        return None

    def at_once(self) -> None:
        """End the pause after a failure, because the target was changed."""
        self._failures = 0
        self._again_at = 0.0
        if self.state is State.PAUSING:
            self.state = State.READY

    def _due_at(self, name: str) -> float:
        sent_at = self._sent_at.get(name)
        return 0.0 if sent_at is None else sent_at + BETWEEN
