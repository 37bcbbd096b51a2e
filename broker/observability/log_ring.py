"""LogRing: the latest lines of the log, in memory, for operators who cannot read the log itself.

The lines are those that were written, so their values are shortened and quoted in the same way, and levels that the
configuration turns off are not among them."""

import re
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_LINES: Final = 2_000
MAX_CHARACTERS: Final = 1_048_576
"""Maximum number of characters of all lines."""
_MAX_LINE: Final = 8_192
_JSON_LEVEL: Final = re.compile(r'\{"time": "[^"]*", "level": "([A-Z]+)"')
"""The beginning of a line of the JSON format. The end of a long line, such as one with a traceback, is cut off."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class NumberedLine(NamedTuple):
    """A line of the log. ``number``: the lines of a process are numbered from 1."""

    number: int
    level: str
    text: str


class LogRing:
    """The latest lines of this process, oldest first. ``last``: the number of the latest one; 0: there is none."""

    def __init__(self) -> None:
        self.last = 0
        self._lines: deque[str] = deque()
        self._characters = 0

    def add(self, lines: Iterable[str]) -> None:
        """Add lines without their ends. The oldest ones are removed as soon as there are too many."""
        kept = self._lines
        for line in lines:
            text = line if len(line) <= _MAX_LINE else line[:_MAX_LINE]
            kept.append(text)
            self._characters += len(text)
            self.last += 1
        while len(kept) > MAX_LINES or self._characters > MAX_CHARACTERS:
            self._characters -= len(kept.popleft())

    def after(self, number: int, lowest: str, part: str, most: int) -> list[NumberedLine]:
        """Return the latest lines after this number, at most ``most``, of this level or a higher one, that contain
        ``part``."""
        found: list[NumberedLine] = []
        least = LEVELS.index(lowest)
        for back, text in enumerate(reversed(self._lines)):
            at = self.last - back
            if at <= number or len(found) == most:
                break
            level = level_of(text)
            if LEVELS.index(level) >= least and part in text:
                found.append(NumberedLine(at, level, text))
        found.reverse()
        return found


def level_of(line: str) -> str:
    """Return the level of a line of either format; INFO for a line that is not ours."""
    if line.startswith("{"):
        found = _JSON_LEVEL.match(line)
        level = found[1] if found is not None else None
    else:
        level = line.split(" ", 2)[1] if line.count(" ") > 1 else None
    return level if level in LEVELS else "INFO"


ring: Final = LogRing()
"""The ring of this process: there is one log for each process, as in ``logging``."""
