"""Commands that have no answer yet: under way, or waiting for a device in queue mode to wake up; and the last answers,
for the API.

A device in queue mode is reachable for a while after each of its messages. ``PendingCommands`` knows the time only as
an argument, and sends nothing: the conversation asks for the next command. Commands and answers are kept as bytes:
parsed JSON can be many times as large."""

from collections import OrderedDict, deque
from typing import Final

SPACING: Final = 0.1
"""Seconds between two commands that have waited: a device that has just woken up has little memory."""
COMMAND_BYTES: Final = 400
"""Approximate memory of a command without its own bytes."""
MAX_ANSWERS: Final = 64
MAX_ANSWER_BYTES: Final = 65_536
"""Last answers that are kept of one device, and their bytes."""
_ANSWER_BYTES: Final = 200


class PendingCommands:
    """The commands of one device. ``add`` counts a command, which may ``wait`` until ``next`` returns it; ``done`` ends
    it."""

    __slots__ = ("_bytes", "_count", "_heard_at", "_max_bytes", "_max_commands", "_sent_at", "_waiting", "_window")

    def __init__(self, window: float, max_commands: int, max_bytes: int) -> None:
        self._window = window
        self._max_commands = max_commands
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] | None = None
        self._count = 0
        self._bytes = 0
        self._heard_at = 0.0
        self._sent_at = 0.0

    def __len__(self) -> int:
        return self._count

    @property
    def waiting(self) -> int:
        """How many wait."""
        return 0 if self._waiting is None else len(self._waiting)

    def heard(self, now: float) -> None:
        """The device has sent something: it is awake."""
        self._heard_at = now

    def sent(self, now: float) -> None:
        """A command is sent to the device."""
        self._sent_at = now

    def lost(self) -> None:
        """The device does not answer. Unless it has sent something since the command was sent, it is asleep."""
        if self._heard_at <= self._sent_at:
            self._heard_at = 0.0

    @property
    def silent(self) -> bool:
        """Return whether the device has sent nothing since it did not answer."""
        return self._heard_at == 0.0

    def asleep(self, now: float) -> bool:
        """Return whether the device is no longer expected to receive commands."""
        return now >= self._heard_at + self._window

    def add(self, payload: bytes) -> str:
        """Count a command. Return the setting that does not allow it; empty: the command is counted."""
        if self._count >= self._max_commands:
            return "max_queued_commands"
        size = len(payload) + COMMAND_BYTES
        if self._bytes + size > self._max_bytes:
            return "max_queued_bytes"
        self._count += 1
        self._bytes += size
        return ""

    def done(self, payload: bytes) -> None:
        """Note that a command has been answered, or never will be."""
        self._count -= 1
        self._bytes -= len(payload) + COMMAND_BYTES
        assert self._count >= self.waiting and self._bytes >= 0, "a command ends once"

    def wait(self, payload: bytes) -> None:
        """Let a command that was added wait."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(payload)
        assert self.waiting <= self._count, "only commands that were added wait"

    def next(self) -> bytes | None:
        """Remove and return the oldest command that waits."""
        if self._waiting is None:
            return None
        payload = self._waiting.popleft()
        if not self._waiting:
            self._waiting = None
        return payload


class LastAnswers:
    """The last answers of one device by path and kind of command. The oldest answers are removed first."""

    __slots__ = ("_answers", "_bytes")

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    def put(self, path: str, kind: str, answer: bytes) -> None:
        """Keep an answer; an empty one: there is none yet."""
        key = _normal(path), kind
        self._drop(key)
        if len(answer) > MAX_ANSWER_BYTES:
            return
        self._answers[key] = answer
        self._bytes += _size(key, answer)
        while len(self._answers) > MAX_ANSWERS or self._bytes > MAX_ANSWER_BYTES + _ANSWER_BYTES:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: tuple[str, str]) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= _size(key, answer)

    def get(self, path: str, kind: str) -> bytes | None:
        """Return an answer; None: there was no such command, or it was too long ago."""
        return self._answers.get((_normal(path), kind))


def _size(key: tuple[str, str], answer: bytes) -> int:
    return len(key[0]) + len(answer) + _ANSWER_BYTES


def _normal(path: str) -> str:
    return "/" + path.strip("/")[:100]
