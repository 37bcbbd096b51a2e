"""The socket: what it does with whoever does not speak as taipan-ctl does."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from taipan.management.ctl import execution
from taipan.management.ctl import socket as ctl_socket
from taipan.management.ctl.socket import MAX_CONNECTIONS, MAX_REQUEST_SIZE, ControlError, ControlSocket
from tests.support.api import managed_node
from tests.support.ctl import ctl, done, exchange, parse, run
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

REQUEST = b'{"args":["status"]}\n'


@pytest.mark.parametrize(
    "octets, eof, why",
    [
        (b"\x00\xff garbage\n", False, "error: request: is none: "),
        (b"GET / HTTP/1.1\r\n\r\n", False, "error: request: is none: "),
        (b"[]\n", False, "error: request: is none: "),
        (b'{"args":"status"}\n', False, "error: request: is none: "),
        (b'{"args":["\\ud800"]}\n', False, "error: request: is none: "),
        (b'{"args":["status"]', True, "does not end"),
        (b"", True, "does not end"),
        (b"[" * 100_000 + b"\n", False, "request"),
        (b"x" * (3 * MAX_REQUEST_SIZE), True, "at most"),
    ],
    ids=["garbage", "http", "array", "wrong-type", "surrogate", "half", "nothing", "deep", "huge"],
)
async def test_what_is_no_request(octets: bytes, eof: bool, why: str) -> None:
    async with managed_node() as node:
        said = parse(await exchange(node.management.control.path, octets, eof))
        assert said.status == 2 and why in said.err and said.out == ""
        assert await done(node, "status")


async def test_half_closed_is_answered() -> None:
    async with managed_node() as node:
        assert parse(await exchange(node.management.control.path, REQUEST, eof=True)).status == 0


async def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctl_socket, "REQUEST_TIMEOUT", 0.05)
    async with managed_node() as node:
        said = parse(await exchange(node.management.control.path, b'{"args"'))
        assert said.status == 2 and "error: request: none arrived within" in said.err


async def test_too_many_at_once() -> None:
    async with managed_node() as node:
        path = str(node.management.control.path)
        writers = []
        for _ in range(MAX_CONNECTIONS):
            _, writer = await asyncio.open_unix_connection(path)
            writers.append(writer)
        said = await ctl(node, "status")
        assert said.status == 1 and "too many" in said.err
        writers.pop().transport.abort()
        async with asyncio.timeout(patience(40)):
            while (await ctl(node, "status")).status:
                await asyncio.sleep(0)
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)


async def test_who_does_not_read_holds_nobody_up() -> None:
    async with managed_node() as node:
        _, writer = await asyncio.open_unix_connection(str(node.management.control.path))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b'{"args":["help"]}\n')
        assert await done(node, "status")
        writer.transport.abort()
        assert await done(node, "status")


async def test_only_its_own_user_may_open_it() -> None:
    async with managed_node() as node:
        assert node.management.control.path.stat().st_mode & 0o777 == 0o600
    assert not node.management.control.path.exists()


async def test_without_the_http_server_too() -> None:
    async with managed_node({"enabled": False}) as node:
        assert await done(node, "status")


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "ctl.sock"))
    stale.close()
    async with managed_node() as node:
        operations = node.management.operations
        control = ControlSocket(operations, str(tmp_path))
        await control.start()
        try:
            with pytest.raises(ControlError, match="in use"):
                await ControlSocket(operations, str(tmp_path)).start()
            assert parse(await exchange(control.path, REQUEST)).status == 0
        finally:
            await control.stop()
        assert not control.path.exists()
        (tmp_path / "ctl.sock").write_text("something else")
        with pytest.raises(ControlError, match="not a socket"):
            await control.start()
        assert (tmp_path / "ctl.sock").read_text() == "something else"


async def test_a_long_path(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 100) / ("b" * 100)
    async with managed_node(node={"data_dir": str(path)}) as node:
        assert node.management.control.path.exists()
        assert (await run("--data-dir", str(path), "status")).status == 0


async def test_a_command_that_fails_inside_says_so_and_nothing_of_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as node:
        complaints = node._complaints.records

        def broken() -> None:
            raise RuntimeError("the inside")

        monkeypatch.setattr(node.management.operations.nodes, "broker", broken)
        said = await ctl(node, "broker")
        assert said.status == 1 and "internal error" in said.err and "the inside" not in said.err + said.out
        assert any("control_error command=broker" in each for each in complaints)
        complaints.clear()


async def test_a_slow_command_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "KEEPALIVE_INTERVAL", 0.01)
    async with managed_node() as node:
        go = asyncio.Event()

        async def slow(*_: object) -> dict[str, str]:
            await go.wait()
            return {"cpu/load1": "0.00"}

        monkeypatch.setattr("taipan.management.ctl.node_commands.runtime", slow)
        reader, writer = await asyncio.open_unix_connection(str(node.management.control.path))
        writer.write(json.dumps({"args": ["vm"]}).encode() + b"\n")
        assert await reader.readexactly(5) == b"o\0\0\0\0"
        go.set()
        assert b"cpu/load1               : 0.00\n" in await reader.read(-1)
        writer.close()
        await asyncio.sleep(0)
