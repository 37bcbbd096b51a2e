"""Log lines: their form, and that nothing a client says can break it."""

import asyncio
import io
import json
import logging
import re
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.observability.log_lines import DELAY
from taipan.management.configuration.config import LogSettings
from taipan.management.log_lines import CollectingHandler, JsonLines, TextLines, field, setup_logging


def record(message: str, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("taipan.broker.channel", level, "file.py", 1, message, arguments, None)
    made.created, made.msecs = 1_700_000_000.123, 123.0
    return made


def text(message: str, *arguments: object) -> str:
    return TextLines().format(record(message, *arguments))


def test_text() -> None:
    line = text("client_connected client_id=%s peer=%s", "sensor-7", "10.0.0.7:50112")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.123 INFO taipan\.broker\.channel "
        r"client_connected client_id=sensor-7 peer=10\.0\.0\.7:50112",
        line,
    )


@pytest.mark.parametrize(
    "value, written",
    [
        ("a", "a"),
        ("", '""'),
        ("a b", '"a b"'),
        ("a\nb", '"a\\nb"'),
        ("a\\nb", '"a\\\\nb"'),
        ('a"b', '"a\\"b"'),
        ("x peer=1.2.3.4", '"x peer=1.2.3.4"'),
        ("\x1b[31m", '"\\x1b[31m"'),
        ("\u202e", '"\\u202e"'),
        ("\u00fc", "\u00fc"),
        ("\ud800", '"\\ud800"'),
        (None, "-"),
        ("x" * 512, "x" * 512),
        ("x" * 65_535, f'"{"x" * 512}... (65535 characters)"'),
        (b"a b", "\"b'a b'\""),
    ],
)
def test_fields(value: object, written: str) -> None:
    assert field(value) == written
    assert text("e k=%s", value).endswith(f" e k={written}")


def test_other_conversions() -> None:
    assert text("%s %d%% of %.1f %r", "a", 5, 2.25, "x\ny").endswith(" a 5% of 2.2 'x\\ny'")
    assert text("100%").endswith(" 100%")
    assert text("a\nb").endswith(" a\\nb")
    assert text("%(a)s", {"a": "x\ny"}).endswith(" x\\ny")


def test_exceptions_stay_on_the_line() -> None:
    made = record("failed error=%s", "x", level=logging.ERROR)
    try:
        raise ValueError("bad\nthing")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    line = TextLines().format(made)
    assert "\n" not in line
    assert 'failed error=x exception="Traceback' in line
    assert "ValueError: bad\\nthing" in line
    assert json.loads(JsonLines().format(made))["exception"].endswith("ValueError: bad\nthing")


def test_json() -> None:
    line = JsonLines().format(record("client_connected client_id=%s port=%d clean=%s level=%s", "a\nb", 7, True, "x"))
    assert "\n" not in line
    parsed = json.loads(line)
    assert parsed.pop("time").endswith(".123")
    # "level" is the line's own: a field cannot take its place.
    assert parsed == {
        "level": "INFO", "logger": "taipan.broker.channel", "event": "client_connected",
        "client_id": "a\nb", "port": 7, "clean": True,
    }  # fmt: skip
    assert json.loads(JsonLines().format(record("listener %s on %s", "a", "b")))["event"] == "listener a on b"
    assert json.loads(JsonLines().format(record("a=%s 5%%", "b"))) | {"time": ""} == {
        "time": "", "level": "INFO", "logger": "taipan.broker.channel", "event": "5%", "a": "b",
    }  # fmt: skip
    several = record("c loop=uvloop peer=%s:%s n=%.1f%%", "10.0.0.7", 5, 2)
    assert json.loads(JsonLines().format(several)) | {"time": ""} == {
        "time": "", "level": "INFO", "logger": "taipan.broker.channel", "event": "c", "loop": "uvloop",
        "peer": "10.0.0.7:5", "n": "2.0%",
    }  # fmt: skip


@given(st.text(), st.binary())
def test_whatever_a_client_says_is_one_line(said: str, bytes_: bytes) -> None:
    line = text("refused client_id=%s username=%r data=%s", said, said, bytes_)
    assert line.isprintable()
    line = JsonLines().format(record("refused client_id=%s data=%s", said, bytes_))
    assert line.isprintable()
    assert json.loads(line)["client_id"] == said


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_setup_replaces_what_was_set_up_before(root: logging.Logger) -> None:
    before = len(root.handlers)
    first, second = io.StringIO(), io.StringIO()
    setup_logging(LogSettings(level="debug"), first)
    logging.getLogger("broker.x").debug("seen")
    setup_logging(LogSettings(level="warning", format="json"), second)
    logging.getLogger("broker.x").info("not seen")
    logging.getLogger("broker.x").warning("seen too")
    assert len(root.handlers) == before + 1
    assert first.getvalue().endswith(" DEBUG broker.x seen\n")
    assert json.loads(second.getvalue())["event"] == "seen too"


class Stream(io.StringIO):
    """Counts what is written to it, or refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.error: OSError | None = None

    def write(self, text: str, /) -> int:
        if self.error is not None:
            raise self.error
        self.writes += 1
        return super().write(text)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def handler(stream: Stream) -> CollectingHandler:
    return CollectingHandler(stream)


@pytest.mark.asyncio
async def test_lines_within_the_delay_are_one_write(stream: Stream, handler: CollectingHandler) -> None:
    for line in ("a", "b", "c"):
        handler.handle(record(line))
    assert stream.getvalue() == ""
    await asyncio.sleep(DELAY)
    assert stream.getvalue() == "a\nb\nc\n"
    handler.handle(record("d"))
    await asyncio.sleep(DELAY)
    assert stream.getvalue() == "a\nb\nc\nd\n"
    assert stream.writes == 2


@pytest.mark.asyncio
async def test_a_warning_does_not_wait(stream: Stream, handler: CollectingHandler) -> None:
    handler.handle(record("a"))
    handler.handle(record("b", level=logging.WARNING))
    assert stream.getvalue() == "a\nb\n"
    await asyncio.sleep(DELAY)
    assert stream.writes == 1


@pytest.mark.asyncio
async def test_few_lines_wait(stream: Stream, handler: CollectingHandler) -> None:
    for _ in range(1000):
        handler.handle(record("a"))
    assert stream.getvalue().count("\n") == 768
    handler.flush()
    assert stream.getvalue().count("\n") == 1000


def test_without_a_loop_nothing_waits(stream: Stream, handler: CollectingHandler) -> None:
    handler.handle(record("a"))
    assert stream.getvalue() == "a\n"


def test_a_closed_stream_hinders_nobody_when_nothing_waits(root: logging.Logger) -> None:
    first = io.StringIO()
    setup_logging(LogSettings(), first)
    first.close()
    second = io.StringIO()
    setup_logging(LogSettings(), second)
    logging.getLogger("broker.x").warning("seen")
    assert second.getvalue().endswith(" WARNING broker.x seen\n")


def test_lines_of_a_loop_that_ended_come_with_the_next(stream: Stream, handler: CollectingHandler) -> None:
    async def log(line: str, turns: int) -> None:
        handler.handle(record(line))
        for _ in range(turns):
            await asyncio.sleep(DELAY)

    loop = asyncio.new_event_loop()
    loop.call_soon(loop.stop)
    loop.call_soon(handler.handle, record("a"))
    loop.run_forever()
    loop.close()
    assert stream.getvalue() == ""
    asyncio.run(log("b", 1))
    assert stream.getvalue() == "a\nb\n"
    handler.handle(record("c"))
    assert stream.getvalue() == "a\nb\nc\n"


@pytest.mark.asyncio
async def test_lines_of_a_thread_come_in_order(stream: Stream, handler: CollectingHandler) -> None:
    handler.handle(record("a"))
    thread = threading.Thread(target=handler.handle, args=(record("b"),))
    thread.start()
    thread.join()
    await asyncio.sleep(DELAY)
    assert stream.getvalue() == "a\nb\n"


@pytest.mark.asyncio
async def test_a_stream_that_takes_nothing(
    stream: Stream, handler: CollectingHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.error = OSError(28, "No space left on device")
    handler.handle(record("a"))
    await asyncio.sleep(DELAY)
    assert "No space left on device" in capsys.readouterr().err
    stream.error = None
    handler.handle(record("b"))
    await asyncio.sleep(DELAY)
    assert stream.getvalue() == "b\n"


@pytest.mark.asyncio
async def test_a_line_that_cannot_be_made(
    stream: Stream, handler: CollectingHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    handler.handle(record("a=%d", "x"))
    handler.handle(record("b"))
    await asyncio.sleep(DELAY)
    assert stream.getvalue() == "b\n"
    assert "TypeError" in capsys.readouterr().err


def test_what_a_client_chose_is_cut_in_text_and_json() -> None:
    """A Client Identifier has up to 65,535 characters, and stands in two lines of each connection."""
    arguments = ("x" * 65_535, None, "y" * 600, 7)
    line = text("client_connected client_id=%s username=%s peer=%s:%s", *arguments)
    assert f'client_id="{"x" * 512}... (65535 characters)" username=- ' in line
    assert len(line) < 1300
    made = json.loads(JsonLines().format(record("client_connected client_id=%s username=%s n=%s", *arguments[:3])))
    assert made["client_id"] == "x" * 512 + "... (65535 characters)"
    assert made["username"] is None and len(made["n"]) < 600


def test_a_traceback_is_not_cut() -> None:
    made = record("internal_error client_id=%s", "c")
    made.exc_text = "x" * 5000
    made.exc_info = (ValueError, ValueError(), None)
    assert "x" * 5000 in TextLines().format(made)
