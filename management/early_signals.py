"""Signals that arrive before the node can handle them are stored, from the beginning of the process.

Importing the node takes most of a second, and a signal without a handler ends the process with the signal's status.
``node`` handles the stored signals as soon as it can."""

import os
import signal
from types import FrameType
from typing import Any, Final

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_replaced: dict[signal.Signals, Any] = {}
_kept: list[signal.Signals] = []


def keep() -> None:
    """Install handlers that store signals. A second stop signal ends the process immediately."""
    for number in (*STOPS, signal.SIGHUP):
        if number not in _replaced:
            _replaced[number] = signal.signal(number, _came)


def _came(number: int, frame: FrameType | None) -> None:
    _kept.append(signal.Signals(number))
    if number in STOPS:
        for each in STOPS:
            signal.signal(each, signal.SIG_DFL)


def kept() -> list[signal.Signals]:
    """Return the stored signals, once."""
    came, _kept[:] = _kept[:], []
    return came


def release() -> None:
    """Restore the previous handlers. A signal that was stored since and not handled is sent again."""
    for number, handler in _replaced.items():
        signal.signal(number, handler)
    _replaced.clear()
    for each in kept():
        os.kill(os.getpid(), each)
