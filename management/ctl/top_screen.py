"""``taipan-ctl top`` in a terminal: each update replaces the previous one."""

import json
import shutil
import sys
from types import TracebackType
from typing import Final

from .top_lines import fitted

_HIDE_CURSOR: Final = "\x1b[?25l"
_SHOW_CURSOR: Final = "\x1b[?25h"
_CLEAR: Final = "\x1b[H\x1b[2J"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"


class TopScreen:
    """Context manager that shows the cursor again at its end."""

    def __init__(self) -> None:
        self._pending = b""
        self._drawn = False

    def __enter__(self) -> "TopScreen":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._drawn and not isinstance(error, BrokenPipeError):
            sys.stdout.write(_SHOW_CURSOR + "\n")
            sys.stdout.flush()

    def take(self, text: bytes) -> None:
        """Process lines of JSON: each is an update, or the reason why there is none."""
        *lines, self._pending = (self._pending + text).split(b"\n")
        for line in lines:
            look = json.loads(line)
            if "rows" in look:
                self._draw(look)
            else:
                print(f"Error: {look['message']}")

    def _draw(self, look: dict[str, object]) -> None:
        size = shutil.get_terminal_size()
        lines = fitted(look, size.columns, size.lines - 1)
        start = _HOME if self._drawn else _HIDE_CURSOR + _CLEAR
        self._drawn = True
        sys.stdout.write(start + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST_OF_SCREEN)
        sys.stdout.flush()
