"""A time-out ends a test, never the run: when and where the alarm of pytest-timeout goes off.

That plugin says how long a test may take, on a machine that has nothing else to do than this run; where it has, it is
longer in proportion. Its alarm is set anew here for each phase (set-up, call, tear-down) of each attempt, also of one
that runs again. It goes off only while code of the test runs, never within that of pytest itself, whose books would be
wrong for every test that follows, and once more where somebody has caught it.
"""

import signal
import sysconfig
import threading
import time
from collections.abc import Generator
from types import FrameType
from typing import Any, Final

import pytest
import pytest_timeout
from _pytest.outcomes import OutcomeException

from .patience import patience

AGAIN: Final = 10.0
"""Seconds after which a phase that has caught it is interrupted once more."""
_SOON: Final = 0.02
"""Seconds after which it is tried again where pytest itself was at work."""
_MOST: Final = 500
"""So often pytest itself is let finish: it may be what hangs."""
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_LOOPS: Final = frozenset({"asyncio", "selectors", "uvloop"})
_OF_PYTEST: Final = frozenset(
    {"_pytest", "execnet", "pluggy", "pytest_asyncio", "pytest_rerunfailures", "pytest_timeout", "xdist"}
)

_settings = pytest.StashKey[Any]()


class TimedOut(OutcomeException):
    """Not a failure like others: hypothesis would try to make its example smaller."""

    __module__ = "builtins"  # as of pytest's own outcomes, for the report


def is_of_the_test(frame: FrameType | None) -> bool:
    """Whether a test, a fixture or a loop of theirs runs, and not pytest for itself; a library is its caller's."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        if package in _OF_PYTEST or file == __file__:
            return False
        if package in _LOOPS or not file.startswith((*_LIBRARIES, "<")):
            return True
        frame = frame.f_back
    return False


class TimeLimit:
    """The plugin. Between phases there is no ``item``: whatever goes off then is meant for nobody."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None
        self._phase = ""
        self._limit = 0.0
        self._began = 0.0
        self._postponed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
            return None  # that plugin has a thread for it
        item.stash[_settings] = settings
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """The end of a phase does it."""
        return True if isinstance(item, pytest.Item) and _settings in item.stash else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._bounded(item, "set-up"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._bounded(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._bounded(item, "tear-down"))

    def _bounded(self, item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
        settings = item.stash.get(_settings, None)
        if settings is None or (settings.func_only and phase != "call"):
            return (yield)
        self._item, self._phase, self._limit, self._postponed = item, phase, settings.timeout, 0
        self._began = time.monotonic()
        signal.signal(signal.SIGALRM, self._went_off)
        signal.setitimer(signal.ITIMER_REAL, self._limit, AGAIN)
        try:
            return (yield)
        finally:
            self._item = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _went_off(self, number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        item = self._item
        if item is None:
            return
        if not item.stash[_settings].disable_debugger_detection and pytest_timeout.is_debugging():
            return
        passed = time.monotonic() - self._began
        if passed < patience(self._limit):
            signal.setitimer(signal.ITIMER_REAL, min(AGAIN, self._limit), AGAIN)
            return
        if self._postponed < _MOST and not is_of_the_test(frame):
            self._postponed += 1
            signal.setitimer(signal.ITIMER_REAL, _SOON, AGAIN)
            return
        self._postponed = 0
        if threading.active_count() > 1:
            pytest_timeout.dump_stacks(item.config.get_terminal_writer())
        raise TimedOut(f"Timeout (>{self._limit}s): the {self._phase} of the test took {passed:.1f} s")
