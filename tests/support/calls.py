"""How many functions and methods a piece of work calls."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(work: Callable[[], Any]) -> int:
    """A measure that no load of the machine changes."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
