"""Signals that arrive before the node can act on them are kept, from the first moment on.

Importing the node takes most of a second, and a signal without a handler ends the process with the signal's status.
``node`` acts on what was kept as soon as it can.
"""

import os
import signal
from types import FrameType
from typing import Any, Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_replaced: dict[signal.Signals, Any] = {}
_kept: list[signal.Signals] = []


def keep() -> None:
    """Handlers that write down what came. A second signal to stop ends the process at once."""
    for number in (*STOPS, signal.SIGHUP):
        if number not in _replaced:
            _replaced[number] = signal.signal(number, _came)


def _came(number: int, frame: FrameType | None) -> None:
    _kept.append(signal.Signals(number))
    if number in STOPS:
        for each in STOPS:
            signal.signal(each, signal.SIG_DFL)


def kept() -> list[signal.Signals]:
    """What came so far, once."""
    came, _kept[:] = _kept[:], []
    return came


def release() -> None:
    """The handlers that were there before. A signal that came since and was not handled comes again."""
    for number, handler in _replaced.items():
        signal.signal(number, handler)
    _replaced.clear()
    for each in kept():
        os.kill(os.getpid(), each)
