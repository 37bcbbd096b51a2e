"""What holds for all tests: which modules run, and whose data stays untouched.

Compiled modules are taken where they are fresh, as by a node (``taipan.broker.compiled``); the head of the report says
so. With ``TAIPAN_COMPILED=no`` nothing compiled is taken; with a directory in it, as ``make test-compiled`` has it, its
modules must be usable. What is marked ``interpreted`` is left out on compiled modules.
"""

import gc
import importlib
import logging
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from taipan.broker import compiled
from tests.support.absent import what_to_install
from tests.support.passing_time import has_its_own_time, standing_clocks
from tests.support.reruns import explain_reruns
from tests.support.time_limit import TimeLimit

ROOT = Path(__file__).resolve().parents[1]

# How long an example takes says something of the machine, and nothing of what is tested.
hypothesis.settings.register_profile("taipan", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("taipan")

if compiled.asked_for() and compiled.outcome != compiled.COMPILED:
    raise RuntimeError(compiled.outcome)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TimeLimit())


def pytest_report_header() -> str:
    return f"broker: {compiled.outcome}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    explain_reruns(terminalreporter)
    if config.option.markexpr == "not slow":
        terminalreporter.write_line("Tests marked slow were left out; make test-all runs them too.")
    if config.option.verbose < 0:  # no head of the report
        terminalreporter.write_line(pytest_report_header())
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    line = what_to_install(str(each[2]) for each in skipped if isinstance(each, tuple | list))
    if line is not None:
        terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker imports all modules. The first time they are compiled, which takes twice as long as all else here:
    the workers begin at different ones, and find done what others have come to before."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    gc.disable()
    files = sorted(file for path in session.config.args for file in Path(path).resolve().rglob("test_*.py"))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):  # the collection says what is wrong with it
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there by now stays to the end: no garbage collection has to go through it."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if compiled.outcome == compiled.COMPILED:
        left_out = pytest.mark.skip(reason="replaces or watches what compiled code has built in")
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(left_out)


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """See ``tests.support.passing_time``."""
    if isinstance(item, pytest.Function) and has_its_own_time(item):
        with standing_clocks():
            return (yield)
    return (yield)


# --- the checkout's data directory ------------------------------------------------------------------------------------


def _node_of_the_checkout() -> tuple[int, int] | None:
    """A node writes the lock of its data directory when it starts."""
    try:
        found = (ROOT / "data" / "lock").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@pytest.fixture(autouse=True)
def _no_node_in_the_checkout() -> Iterator[None]:
    before = _node_of_the_checkout()
    yield
    assert _node_of_the_checkout() == before, (
        f"a node was started on {ROOT / 'data'} during this test; each has its own"
    )


# --- the log ----------------------------------------------------------------------------------------------------------


def _not_logged() -> dict[str, object]:
    """What keeps lines from handlers: a level or flag of a logger, ``logging.disable``, a handler of ours."""
    ours = [each for each in logging.root.handlers if type(each).__module__.startswith("taipan")]
    found: dict[str, object] = {"": (logging.root.manager.disable, logging.root.level, ours)}
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("taipan") and not name.endswith(".library") and isinstance(logger, logging.Logger):
            if logger.disabled or not logger.propagate or logger.level:
                found[name] = logger.disabled, logger.propagate, logger.level
    return found


def _handlers_of_tests() -> Iterator[tuple[logging.Logger, logging.Handler]]:
    """Those of ``tests.support``, as a node under test has them until it is stopped."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                if type(handler).__module__.startswith("tests."):
                    yield logger, handler


@pytest.fixture(autouse=True)
def _the_log_goes_on() -> Iterator[None]:
    """A test that reads the log of the process depends on those before it, and on what one left that was ended."""
    before, handlers = _not_logged(), set(_handlers_of_tests())
    yield
    for logger, handler in set(_handlers_of_tests()) - handlers:
        logger.removeHandler(handler)
    assert _not_logged() == before
