"""Lines that wait for others: who sees them, in which order, and what becomes of them at an end."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Literal

import pytest

from taipan.broker.observability.log_lines import DELAY, MAX_WAITING, collect, info, write_waiting
from taipan.broker.observability.log_ring import ring
from taipan.broker.observability.log_text import hosted_node, line_of, timestamp
from taipan.management.configuration.config import LogSettings
from taipan.management.log_lines import setup_logging

logger = logging.getLogger("taipan.broker.channel.test")


@contextmanager
def logging_to(stream: io.StringIO, settings: LogSettings, records: int = 0) -> Iterator[logging.Logger]:
    """The root logger with no handler but Taipan's, as in a node; so many ``records`` are made of lines."""
    root = logging.getLogger()
    handlers, level, factory = root.handlers[:], root.level, logging.getLogRecordFactory()
    made: list[str] = []

    def make(*args: Any, **keys: Any) -> logging.LogRecord:
        made.append(args[0])
        return factory(*args, **keys)

    root.handlers[:] = []
    setup_logging(settings, stream)
    logging.setLogRecordFactory(make)
    try:
        yield root
        assert len(made) == records
    finally:
        logging.setLogRecordFactory(factory)
        root.handlers[:] = handlers
        root.setLevel(level)
        collect(None)


def texts(stream: io.StringIO) -> list[str]:
    """The lines without their time."""
    return [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]


@pytest.mark.asyncio
async def test_a_line_is_made_and_written_after_the_delay() -> None:
    stream = io.StringIO()
    message = "event client_id=%s username=%s n=%s clean=%s rate=%s long=%s"
    values = ("a b\n", None, 5, True, 1.5, "x" * 600)
    with logging_to(stream, LogSettings(), records=1):
        info(logger, message, *values)
        assert stream.getvalue() == ""
        await asyncio.sleep(DELAY)
        direct = texts(stream)
        logger.info(message, *values)
        await asyncio.sleep(DELAY)
    fields = 'client_id="a b\\n" username=- n=5 clean=True rate=1.5'
    long = "x" * 512
    assert direct == [f'INFO taipan.broker.channel.test event {fields} long="{long}... (600 characters)"']
    assert texts(stream) == direct * 2


@pytest.mark.asyncio
async def test_a_reader_of_the_log_finds_lines_that_wait() -> None:
    stream = io.StringIO()
    with logging_to(stream, LogSettings()):
        info(logger, "a n=%s", 1)
        assert stream.getvalue() == ""
        before = ring.last
        write_waiting()
        assert ring.last == before + 1
        assert texts(stream) == [f"INFO {logger.name} a n=1"]
    write_waiting()  # nothing collects lines


@pytest.mark.asyncio
async def test_json() -> None:
    stream = io.StringIO()
    with logging_to(stream, LogSettings(format="json"), records=2):
        for _ in range(2):
            info(logger, "event client_id=%s username=%s", "a\nb", None)
            logger.info("event client_id=%s username=%s", "a\nb", None)
        await asyncio.sleep(DELAY)
    lines = [json.loads(line) | {"time": ""} for line in stream.getvalue().splitlines()]
    assert (
        lines
        == [
            {
                "time": "",
                "level": "INFO",
                "logger": logger.name,
                "event": "event",
                "client_id": "a\nb",
                "username": None,
            }
        ]
        * 4
    )


@pytest.mark.asyncio
async def test_lines_keep_their_order_and_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with logging_to(stream, LogSettings(), records=2):
        monkeypatch.setattr("time.time", lambda: 1_700_000_000.25)
        info(logger, "a n=%s", 1)
        monkeypatch.undo()
        logger.info("b n=%s", 2)
        info(logger, "c n=%s", 3)
        assert stream.getvalue() == ""
        logger.warning("d n=%s", 4)  # does not wait, and what came before it neither
        assert [line.rsplit(" ", 2)[1] for line in texts(stream)] == ["a", "b", "c", "d"]
    assert stream.getvalue().startswith(timestamp(1_700_000_000.25) + " INFO")


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@pytest.mark.asyncio
async def test_levels_filters_and_other_handlers_count() -> None:
    stream = io.StringIO()
    other = Records()
    parent = logging.getLogger("taipan.broker")
    with logging_to(stream, LogSettings(level="warning"), records=4) as root:
        info(logger, "not seen n=%s", 1)
        root.setLevel(logging.INFO)
        refuse = logging.Filter("nobody")
        logger.addFilter(refuse)
        info(logger, "filtered n=%s", 1)
        logger.removeFilter(refuse)
        for where in (parent, root):
            where.addHandler(other)
            info(logger, "seen n=%s", 1)
            where.removeHandler(other)
        assert other.seen == ["seen n=1"] * 2  # at once
        parent.propagate = False
        info(logger, "kept below n=%s", 1)
        parent.propagate = True
        logger.disabled = True
        info(logger, "disabled n=%s", 1)
        logger.disabled = False
        await asyncio.sleep(DELAY)
    assert texts(stream) == [f"INFO {logger.name} seen n=1"] * 2


@pytest.mark.asyncio
async def test_few_lines_wait() -> None:
    stream = io.StringIO()
    with logging_to(stream, LogSettings()) as root:
        for n in range(MAX_WAITING + 10):
            info(logger, "e n=%s", n)
        assert stream.getvalue().count("\n") == MAX_WAITING
        root.handlers[0].flush()
    assert [line.rpartition("=")[2] for line in texts(stream)] == [str(n) for n in range(MAX_WAITING + 10)]


def test_without_a_loop_nothing_waits() -> None:
    stream = io.StringIO()
    with logging_to(stream, LogSettings()):
        info(logger, "a n=%s", 1)
        assert texts(stream) == [f"INFO {logger.name} a n=1"]


@pytest.mark.parametrize("end, lines", [("sys.exit(3)", 2), ("1 / 0", 2), ("os.kill(os.getpid(), 9)", 0)])
def test_what_waits_at_an_end(end: str, lines: int) -> None:
    """An exit and a fatal error write it; a process that is killed while it waits loses it."""
    source = f"""
import asyncio, logging, os, sys
from taipan.broker.observability.log_lines import info
from taipan.management.configuration.config import LogSettings
from taipan.management.log_lines import setup_logging
setup_logging(LogSettings())
async def main():
    info(logging.getLogger("x"), "first n=%s", 1)
    logging.getLogger("x").info("second n=%s", 2)
    {end}
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment)
    seen = [line for line in done.stderr.splitlines() if " INFO x " in line]
    assert done.returncode != 0
    assert len(seen) == lines


def test_milliseconds() -> None:
    assert timestamp(1_700_000_000.123).endswith(".123")
    assert timestamp(1_700_000_000.9999995).endswith(".999")
    assert timestamp(1_700_000_001.0).endswith(".000")
    assert line_of(0.5, "INFO", "x", "a").endswith(".500 INFO x a")


@pytest.mark.asyncio
@pytest.mark.parametrize("form", ["text", "json"])
async def test_a_line_that_waits_is_not_of_a_hosted_node_that_logs_later(form: Literal["text", "json"]) -> None:
    stream = io.StringIO()
    hosted = Context()
    hosted.run(hosted_node.set, "lost")
    with logging_to(stream, LogSettings(format=form), records=2):
        info(logger, "client_connected client_id=%s", "c")
        hosted.run(logger.warning, "link_closed node=%s", "b")
        hosted.run(logger.info, "link_open node=%s", "b")
        info(logger, "client_connected client_id=%s", "d")
        await asyncio.sleep(DELAY * 2)
        write_waiting()
    assert ["lost" in line for line in stream.getvalue().splitlines()] == [False, True, True, False]
