"""watch and top: what they show, what they leave out, and how they end."""

import asyncio
import contextlib
import io
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from taipan.management.ctl import output, top_screen
from taipan.management.ctl.execution import ControlRequest, carry_out
from taipan.management.ctl.output import Output
from taipan.management.ctl.top_lines import fitted
from taipan.management.operations import live_answers
from tests.support.api import APP_ID, SECRET, ManagedNode, managed_node
from tests.support.ctl import ROOT, Said, ctl, done, refused, run
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio
APP = f"{APP_ID}:{SECRET}"


def watched(node: ManagedNode) -> int:
    return len(node.management.operations.live.answers.message_watches)


@contextlib.asynccontextmanager
async def saying(node: ManagedNode, *words: str, as_json: bool = False) -> AsyncIterator["asyncio.Task[Said]"]:
    """A command that goes on, from when it watches on."""
    task = asyncio.create_task(ctl(node, *words, as_json=as_json))
    try:
        await until(lambda: watched(node) or task.done())
        yield task
    finally:
        task.cancel()


async def test_messages_as_they_come() -> None:
    async with managed_node() as node:
        peer = await node.client("red\x1b[31m", 5)
        await peer.publish("t/0", b"before")
        async with saying(node, "watch", "t/+", "--count", "3") as said:
            await peer.publish("t/1", b"21.5", qos=1)
            await peer.publish("other", b"no")
            await peer.publish("t/2", b"\x1b[2J\r\n\xc2\x9b", qos=2, retain=True)
            await peer.publish("t/\u202e3", b"\xff\x00")
            status, out, err = await said
        assert (status, err) == (0, "")
        first, second, third = out.splitlines()
        assert first.startswith("Message(t/1, qos=1, retain=false, clientid=red\\x1b[31m, at=")
        assert first.endswith(", payload=21.5)")
        assert second.endswith(", payload=\\x1b[2J\\r\\n\\x9b)") and "qos=2, retain=true" in second
        assert third.startswith("Message(t/\\u202e3, ") and third.endswith(", payload=0xff00)")
        assert all(line.isprintable() for line in out.splitlines())
        await until(lambda: watched(node) == 0 and node.management.operations.live.count == 0)


@pytest.mark.parametrize(
    "form, payload, encoding",
    [("text", "/w==", "base64"), ("hex", "ff", "hex"), ("base64", "/w==", "base64"), ("none", None, None)],
)
async def test_payloads(form: str, payload: str | None, encoding: str | None) -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        words = ("watch", "#", "--qos", "1", "--payload", form, "--count", "1")
        async with saying(node, *words, as_json=True) as said:
            await peer.publish("t", b"not this one")
            await peer.publish("t", b"\xff", qos=1)
            row = json.loads((await said).out)
        assert (row["topic"], row["qos"], row["clientid"]) == ("t", 1, "c")
        assert (row.get("payload"), row.get("payload_encoding")) == (payload, encoding)
        async with saying(node, *words) as said:
            await peer.publish("t", b"x" * 9000, qos=1)
            line = (await said).out
        assert "size=9000" in line


async def test_what_is_left_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_answers, "MESSAGES_A_SECOND", 2)
    async with managed_node() as node:
        peer = await node.client("c", 4)
        many = [Publish("t", b"%d" % number, 0, False, False, 0, {}) for number in range(5)]
        for as_json, words in ((False, "3 messages are left out"), (True, '{"left_out":3}')):
            async with saying(node, "watch", "t", "--count", "3", as_json=as_json) as said:
                await peer.send(*many)
                await peer.ping()
                await node.pass_time(2)
                await peer.publish("t", b"the third")
                status, out, err = await said
            assert status == 0 and len(out.splitlines()) == 3
            assert err.splitlines()[0].startswith(words), err


class StuckSink:
    """A reader who reads nothing until he is let."""

    def __init__(self) -> None:
        self.data = b""
        self.stuck = False
        self.free = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        if b"Message(" in self.data:
            self.stuck = True
            await self.free.wait()


async def test_a_slow_reader_costs_no_memory() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        sink = StuckSink()
        words = ["watch", "t", "--count", "1000"]
        task = asyncio.create_task(carry_out(node.management.operations, ControlRequest(words), Output(sink)))
        await until(lambda: watched(node))
        await peer.publish("t", b"first")
        await until(lambda: sink.stuck)
        watch = node.management.operations.live.answers.message_watches.ask("t", "test").events
        for _ in range(6):
            await node.pass_time(10)  # longer than who asks no more is remembered
            await peer.send(*[Publish("t", bytes(1000), 0, False, False, 0, {})] * 200)
            await peer.ping()
        assert len(watch.latest) <= live_answers.MESSAGES_KEPT
        sink.free.set()
        await until(lambda: b"e" in sink.data and b"messages are left out" in sink.data)
        shown = sink.data.count(b"Message(t, ")
        assert f"{1201 - shown} messages are left out".encode() in sink.data
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: node.management.operations.live.count == 0)


async def test_what_cannot_be_watched() -> None:
    async with managed_node() as node:
        for words in (
            ("a/#/b",), ("$events/client_connected",), ("$share/g/t",), ("$SYS/#",), ("t", "--qos", "3"),
            ("t", "--payload", "xml"), ("t", "--count", "0"), ("",),
        ):  # fmt: skip
            said = await ctl(node, "watch", *words)
            assert said.status == 1 and said.out.startswith("error: "), words
            assert json.loads((await ctl(node, "watch", *words, as_json=True)).out)["code"] == 108
        assert (await ctl(node, "watch")).status == 2
        assert (watched(node), node.management.operations.live.count) == (0, 0)
    async with managed_node(management={"max_live_streams": 1}) as node, saying(node, "watch", "t"):
        said = await ctl(node, "watch", "t")
        assert said.status == 1 and "management.max_live_streams" in said.out


async def test_it_ends_when_the_application_may_no_more() -> None:
    async with managed_node() as node:
        secret = (await done(node, "mgmt", "insert", "other", "x"))[0].partition(": ")[2]
        task = asyncio.create_task(
            run("--url", node.management.url, "watch", "t", TAIPAN_CTL_APP=f"other:{secret}"), name="watch"
        )
        await until(lambda: watched(node))
        await done(node, "mgmt", "delete", "other")
        assert await task == (1, "", "error: topic t: the application no longer has access\n")
        later = await run("--url", node.management.url, "watch", "t", TAIPAN_CTL_APP="other:wrong")
        assert later.status == 1 and later.out == ""


@pytest.mark.parametrize(
    "words, about", [(("watch", "t"), "topic t"), (("top", "--interval", "1"), "command top")], ids=["watch", "top"]
)
async def test_it_ends_when_the_node_does(words: tuple[str, ...], about: str) -> None:
    async with managed_node() as node:
        over_socket = asyncio.create_task(ctl(node, *words))
        over_http = asyncio.create_task(run("--url", node.management.url, "--json", *words, TAIPAN_CTL_APP=APP))
        await until(lambda: node.management.operations.live.count == 2)
        await node.management.operations.live.stop()
        status, _, err = await over_socket
        assert (status, err) == (1, f"error: {about}: the node is stopping\n")
        status, _, err = await over_http
        assert status == 1 and json.loads(err)["message"] == "the node is stopping"


async def test_a_caller_who_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SIGN_INTERVAL", 0.01)
    async with managed_node() as node:
        _, writer = await asyncio.open_unix_connection(str(node.management.control.path))
        writer.write(b'{"args": ["watch", "t"]}\n')
        await until(lambda: watched(node))
        writer.close()
        await until(lambda: node.management.operations.live.count == 0)
        assert watched(node) == 0


async def test_top() -> None:
    async with managed_node() as node:
        peer = await node.client("busy\x1b[2J", 5)
        await node.leave_session("away", "t/#")
        table = asyncio.create_task(ctl(node, "top", "--interval", "1", "--count", "1", "--sort", "in"))
        document = asyncio.create_task(
            ctl(node, "top", "--interval", "1", "--count", "1", "--sort", "clientid", as_json=True)
        )
        await until(lambda: node.management.operations.live.count == 2)
        while not (table.done() and document.done()):
            await peer.publish("t/1", b"x", qos=1)
        status, out, err = await table
        assert (status, err) == (0, "") and all(line.isprintable() for line in out.splitlines())
        lines = out.splitlines()
        assert lines[0].startswith(node.name) and "clients 2" in lines[0]
        assert lines[2].split()[:3] == ["CLIENT", "in/s", "out/s"]
        assert lines[3].startswith("busy\\x1b[2J ") and float(lines[3].split()[1]) > 0
        assert lines[4].startswith("away (offline) ") and int(lines[4].split()[6]) >= 0
        assert any(line.startswith("t/# ") for line in lines[6:])
        look = json.loads((await document).out)
        assert [row["clientid"] for row in look["rows"]] == ["away", "busy\x1b[2J"] and look["clients"] == 2
        assert set(look) == {"node", "at", "figures", "clients", "rows", "topics"}
        assert look["figures"]["messages_received"] > 0
        for wrong in (("--sort", "x"), ("--interval", "0"), ("--below", "a/+"), ("--count", "x")):
            assert (await ctl(node, "top", *wrong)).status == 1, wrong
        assert (await ctl(node, "top", "x")).status == 2
        assert node.management.operations.live.count == 0


def look(rows: int, name: str = "c") -> dict[str, object]:
    figures = {"in": 1.0, "out": 0.0, "in_oct": 3.0, "out_oct": 0.0, "queue": 2, "inflight": 1, "dropped": 0}
    return {
        "node": "n", "at": 1_790_000_000_000, "figures": None, "clients": rows,
        "rows": [{"clientid": f"{name}{number}", "connected": True, **figures} for number in range(rows)],
        "topics": [{"topic": "\x1b]0;x\x07", "rate": 1.0, "messages": 7, "deeper": True}],
    }  # fmt: skip


async def test_a_screen_shows_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(top_screen.shutil, "get_terminal_size", lambda: SimpleNamespace(columns=30, lines=8))
    with top_screen.TopScreen() as screen:
        text = json.dumps(look(50, "\x1b[31m")).encode() + b"\n"
        screen.take(text[:40])
        assert written.getvalue() == ""
        screen.take(text[40:] + text)
    screens = written.getvalue().split("\x1b[H")
    assert screens[0] == "\x1b[?25l" and len(screens) == 3 and screens[2].endswith("\x1b[J\x1b[?25h\n")
    lines = screens[2].removesuffix("\x1b[J\x1b[?25h\n").split("\x1b[K\n")[:-1]
    assert len(lines) == 7 and all(line.isprintable() and len(line) <= 30 for line in lines)
    assert lines[3].startswith("\\x1b[31m0 ") and lines[-1].startswith("\\x1b]0;x\\x07/# ")
    assert fitted(look(1), 200, 100)[-1].startswith("\\x1b]0;x\\x07/# ")


# What runs in the background of a shell inherits that SIGINT is ignored.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from taipan.management.ctl.main import main
sys.exit(main())
"""


async def test_in_a_terminal_until_ctrl_c() -> None:
    async with managed_node() as node:
        master, slave = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM,
            "--data-dir", str(node.management.control.path.parent), "top", "--interval", "1",
            stdin=slave, stdout=slave, stderr=asyncio.subprocess.PIPE,
            cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "100", "LINES": "20"},
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(master, False)
        seen = b""

        def drawn() -> bool:
            nonlocal seen
            with contextlib.suppress(OSError):  # nothing yet, or its other end is closed
                seen += os.read(master, 65_536)
            return seen.count(b"\x1b[J") >= 2

        await until(drawn, 60)
        process.send_signal(signal.SIGINT)
        ended = asyncio.create_task(process.communicate())
        await until(lambda: drawn() and ended.done(), 30)  # a terminal that nobody reads is full at some time
        _, err = ended.result()
        os.close(master)
        assert (process.returncode, err) == (130, b"")
        assert seen.startswith(b"\x1b[?25l\x1b[H\x1b[2J" + node.name.encode()) and b"\x1b[?25h" in seen
        await until(lambda: node.management.operations.live.count == 0)


@pytest.mark.parametrize("version", [4, 5])
async def test_publish(version: int) -> None:
    async with managed_node() as node:
        peer = await node.client("c", version)
        await peer.subscribe("t/#", qos=2)
        assert await done(node, "publish", "t/1", "21.5") == ["ok"]
        assert await done(node, "publish", "--qos", "2", "t/2", "x", "--retain", "--clientid=porch") == ["ok"]
        await peer.expect_publish("t/1", b"21.5", 0)
        await peer.expect_publish("t/2", b"x", 2)
        assert await done(node, "retainer", "topics") == ["t/2"]
        for words, said in (
            (("t/#", "x"), "argument Topic: 't/#' is not a topic name"),
            (("t", "x", "--qos", "3"), "option --qos: expected a number from 0 to 2"),
        ):  # fmt: skip
            assert (await refused(node, "publish", *words)).startswith(said)
        assert (await ctl(node, "publish", "t")).err.startswith("error: command publish: <Payload> is missing\n")
