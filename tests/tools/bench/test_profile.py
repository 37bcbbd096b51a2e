"""Whose work a stack is, and the page that is made of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench.profile import ProfileError, page, recorded
from tools.bench.stacks import EVENT_LOOP, Function, function_of, read, threads

MODULE = "abc__mypyc.cpython-311-x86_64-linux-gnu.so"
LOOP = "thread (1): MainThread;main (management/node.py:65);uv_run (core.c:464)"
PUT = f"CPyPy_retained___RetainedStore___put ({MODULE});CPyDef_retained___RetainedStore___put ({MODULE})"
LINES = [
    f"{LOOP};{PUT};CPyDict_Get ({MODULE}) 30",
    f"{LOOP};{PUT};gc_collect_main (libpython3.11.so.1.0);message___Message_traverse ({MODULE}) 10",
    f"{LOOP};end (broker/channel/closing.py:103);{PUT} 20",
    f"{LOOP};uv__stream_io (stream.c:1210);uv__read (stream.c:1063);read (libc.so.6) 40",
    f"{LOOP};uv__io_poll (linux.c:1452);epoll_pwait (libc.so.6) 100",
    "thread (2): store;LogWriter.run (broker/log/log_writer.py:99);unixSync (apsw.so);fdatasync (libc.so.6) 50",
    "thread (2): store;LogWriter.run (broker/log/log_writer.py:102);unixWrite (apsw.so);pwrite64 (libc.so.6) 5",
]
ABOUT = dict.fromkeys(("commit", "duration", "cpu", "system", "python", "uvloop", "modules", "faults"), "?")


@pytest.mark.parametrize(
    "frame, function",
    [
        ("Connection._take (broker/transport/connection.py:220)", Function("Connection._take", "connection.py")),
        (f"CPyDef_broker___Broker____retain ({MODULE})", Function("Broker._retain", "broker")),
        (f"CPyDef_publish____acknowledge ({MODULE})", Function("_acknowledge", "publish")),
        (f"CPyDef_encoder___wire ({MODULE})", Function("wire", "encoder")),
        (
            f"CPyDef_channel___outbound_writer___OutboundWriter___answer ({MODULE})",
            Function("OutboundWriter.answer", "channel.outbound_writer"),
        ),
        (f"CPyDef_channel___authorization___authorize ({MODULE})", Function("authorize", "channel.authorization")),
        (f"CPyDef_message_____mypyc__Message_setup ({MODULE})", Function("Message", "message")),
        (f"CPyDef_message___Delivery_clear ({MODULE})", Function("Delivery", "message")),
        (
            f"CPyDef_retained___walk_RetainedStore_gen_____mypyc_generator_helper__ ({MODULE})",
            Function("RetainedStore.walk", "retained"),
        ),
        (f"CPyPy_retained___RetainedStore___put ({MODULE})", None),  # the way in; the function itself comes next
        ("Logger.info (logging/__init__.py:1489)", None),
        ("main (management/node.py:65)", None),
        ("uv_run (core.c:464)", None),
        ("<module> (<string>:1)", None),
    ],
)
def test_function(frame: str, function: Function | None) -> None:
    assert function_of(frame) == function


@pytest.mark.parametrize(
    "frames, kind",
    [
        ("UVStream__try_write (loop.c:106818);write (libc.so.6)", "kernel: write"),
        ("write (loop.c:106818);memcpy (libc.so.6)", ""),
        (
            "_queue_SimpleQueue_get_impl (q.c:1);pthread_cond_timedwait (libc.so.6);0x1 (libc.so.6)",
            "interpreter's lock",
        ),
        ("PyThread_acquire_lock_timed (libpython3.11.so.1.0);0x1 (libc.so.6)", "for work"),
        ("time_sleep (libpython3.11.so.1.0);clock_nanosleep (libc.so.6)", "asleep"),
        ("uv__close_nocancel (core.c:619);syscall (libc.so.6)", "kernel: close"),
        ("Logger.info (logging/__init__.py:1489);LogRecord.__init__ (logging/__init__.py:337)", "logging"),
        ("Logger.info (logging/__init__.py:1489);write (libc.so.6)", "kernel: write"),
    ],
)
def test_kind(frames: str, kind: str) -> None:
    assert read(f"{LOOP};end (broker/channel/closing.py:1);{frames} 1").kind.endswith(kind)
    assert bool(read(f"{LOOP};{frames} 1").kind) == bool(kind)


def test_a_call_by_us_of_something_telling_does_not_colour_what_we_do_ourselves() -> None:
    assert read(f"{LOOP};Logger.info (logging/__init__.py:1489);{PUT} 1").kind == ""


def test_samples_go_to_the_innermost_function_and_to_each_once() -> None:
    loop = threads([*LINES, ""])["MainThread"]
    put = loop.functions[Function("RetainedStore.put", "retained")]
    assert (put.own, put.inclusive) == ({"": 50, "garbage collection": 10}, 60)
    end = loop.functions[Function("end", "closing.py")]
    assert (end.own.total(), end.inclusive) == (0, 20)
    assert loop.functions[Function(EVENT_LOOP, "")].own == {"kernel: read": 40}
    assert loop.work.total() == 100
    assert loop.waits == {("for the network", Function(EVENT_LOOP, "")): 100}
    twice = threads([f"{LOOP};{PUT};{PUT} 7"])["MainThread"]
    assert twice.functions[Function("RetainedStore.put", "retained")].inclusive == 7


def test_page() -> None:
    text = page("S10", threads(LINES), ABOUT)
    assert "| RetainedStore.put | retained | 60.0 | 60.0 | garbage collection 10.0 |" in text
    assert "| end | closing.py | 0.0 | 20.0 |  |" in text
    assert f"| {EVENT_LOOP} |  | 40.0 | 40.0 | kernel: read 40.0 |" in text
    assert f"| waits for the network | 50.0 | {EVENT_LOOP} 50.0 |" in text
    assert "| waits for the disk | 90.9 | LogWriter.run 90.9 |" in text
    assert text.index("## The loop's thread") < text.index("## The store's thread")
    assert max(map(len, text.split("## ")[0].splitlines())) <= 120


def test_page_of_a_loop_that_rests_warns_that_shares_are_skewed() -> None:
    assert "waits for much of this load" in page("S10", threads(LINES), ABOUT)
    assert "waits for much of this load" not in page("S10", threads(LINES[:4]), ABOUT)


def test_without_py_spy_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ProfileError, match="make setup"), recorded(os.getpid(), tmp_path / "raw"):
        pass


def test_a_process_that_cannot_be_looked_at_is_said_in_one_line(tmp_path: Path) -> None:
    if not (Path(sys.executable).parent / "py-spy").exists():
        pytest.skip("py-spy is not installed")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(ProfileError) as caught, recorded(gone.pid, tmp_path / "raw"):
        pass
    assert "\n" not in str(caught.value)
