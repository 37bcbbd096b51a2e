"""``taipan cluster try``: a NATS server and some nodes on loopback, for trying a cluster, until Ctrl-C."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from taipan.broker.access.random_secret import generate

from .. import early_signals
from ..workers.nats_program import NoNatsServer, nats_configuration, nats_program

_NATS_STARTS_IN: Final = 10.0
_NODE_STARTS_IN: Final = 60.0
_KNOWN_IN: Final = 15.0
_ENDS_IN: Final = 20.0
_POLL: Final = 0.02
_PORTS_TRIED: Final = 1000


class TryError(Exception):
    """The cluster cannot be started; the message is one line."""


class Options(NamedTuple):
    """``port``, ``management_port``, ``dashboard_port``: the first ports to use. ``directory``: where the data stays,
    or ``None``."""

    nodes: int
    share_port: bool
    port: int
    management_port: int
    directory: str | None
    dashboard_port: int = 18083


def run(options: Options) -> int:
    """Run until Ctrl-C, or until no node is left. Return the exit status."""
    try:
        return asyncio.run(_try(options, nats_program()))
    except (TryError, NoNatsServer, OSError) as error:
        print(f"taipan: {error}", file=sys.stderr)
        return 1


async def _try(options: Options, program: str) -> int:
    """Run the cluster; further stop signals do not interrupt anything. At the end, everything that the command created
    is removed."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if early_signals.kept():
        return 0
    with contextlib.ExitStack() as stack:
        if options.directory is None:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taipan-cluster-")))
        else:
            path = Path(options.directory).resolve()
            path.mkdir(parents=True, exist_ok=True)
        return await _Trial(options, program, path, stopping).run()


class _Child:
    """A child process, whose standard error goes to ``log``."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            # A separate session: Ctrl-C reaches only this process, which ends the others in order.
            self.process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self.process

    def last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    async def end(self) -> None:
        process = self.process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_ENDS_IN):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.communicate()


class _Trial:
    """The NATS server and the nodes, until ``stopping`` is set."""

    def __init__(self, options: Options, program: str, directory: Path, stopping: asyncio.Event) -> None:
        self._options = options
        self._program = program
        self._directory = directory
        self._port = 0  # of the node that was configured last
        self._secret = generate()
        self._stopping = stopping
        self._none_left = False
        self._nats = _Child("nats-server", directory / "nats.log")
        self._nodes: list[_Child] = []
        self._watching: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        starting = asyncio.create_task(self._start())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await stopped
            return 1 if self._none_left else 0
        finally:
            for task in (starting, stopped, *self._watching):
                task.cancel()
            await asyncio.gather(starting, stopped, *self._watching, return_exceptions=True)
            await asyncio.gather(*(node.end() for node in self._nodes))
            await self._nats.end()

    async def _start(self) -> None:
        nats_port = _free_port(0)
        taken: set[int] = set()
        files = [self._configure(number, nats_port, taken) for number in range(1, self._options.nodes + 1)]
        config = self._directory / "nats.conf"
        config.write_text(nats_configuration(nats_port, self._directory / "nats"))
        server = await self._nats.start(self._program, "-c", str(config))
        await self._until_open(server, nats_port)
        print(f"nats-server ready: nats://127.0.0.1:{nats_port}, pid {server.pid}", flush=True)
        self._watching.append(asyncio.create_task(self._watch(self._nats)))
        for line in await asyncio.gather(*(self._start_node(*each) for each in files)):
            print(line, flush=True)
        first = files[0][3]
        if not await self._know_each_other([management for _, _, _, management in files]):
            print("the nodes do not know each other yet; their logs may say why", flush=True)
        print(f"TAIPAN=admin:{self._secret}", flush=True)
        print(f"all nodes: curl -u $TAIPAN http://127.0.0.1:{first}/api/v4/nodes", flush=True)
        print(f"data and logs: {self._directory}; Ctrl-C stops everything", flush=True)

    async def _know_each_other(self, ports: list[int]) -> bool:
        """Return whether each node lists all nodes as running before the timeout."""
        auth = aiohttp.BasicAuth("admin", self._secret)
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_KNOWN_IN), aiohttp.ClientSession(auth=auth) as session:
                for port in ports:
                    while True:
                        async with session.get(f"http://127.0.0.1:{port}/api/v4/nodes") as answer:
                            rows = (await answer.json())["data"]
                        if sum(row["node_status"] == "Running" for row in rows) >= len(ports):
                            break
                        await asyncio.sleep(_POLL)
                return True
        return False

    def _configure(self, number: int, nats_port: int, taken: set[int]) -> tuple[str, Path, int, int]:
        """Return name, configuration file, MQTT port and management port of a node."""
        options = self._options
        name = f"taipan{number}@127.0.0.1"
        if not options.share_port or number == 1:
            self._port = self._free_port(options.port, taken)
        port = self._port
        management = self._free_port(options.management_port, taken)
        dashboard = self._free_port(options.dashboard_port, taken)
        file = self._directory / f"taipan{number}.toml"
        file.write_text(
            f"""[node]
name = "{name}"
data_dir = "{self._directory / f"taipan{number}"}"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{port}"
reuse_port = {"true" if options.share_port else "false"}

[cluster]
servers = ["nats://127.0.0.1:{nats_port}"]
replicas = {min(options.nodes - 1, 1)}

[management]
bind = "127.0.0.1:{management}"

[[management.apps]]
id = "admin"
secret = "{self._secret}"

[dashboard]
bind = "127.0.0.1:{dashboard}"
"""
        )
        file.chmod(0o600)
        return name, file, port, management

    def _free_port(self, first: int, taken: set[int]) -> int:
        """Return the next free port, and a note about ports that other processes use."""
        port = _free_port(first, taken)
        others = [f"{each}" for each in range(first, port) if each not in taken] if first else []
        if others:
            taken.update(map(int, others))
            print(f"another process has port {', '.join(others)}; the next free port is used", flush=True)
        return port

    async def _start_node(self, name: str, file: Path, port: int, management: int) -> str:
        """Return the line with its addresses."""
        node = _Child(name, file.with_suffix(".log"))
        self._nodes.append(node)
        process = await node.start(*_taipan(), "--config", str(file))
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_NODE_STARTS_IN):
                while line := await process.stdout.readline():
                    if line.startswith(b"taipan ready"):
                        break
                    if line.startswith(b"The dashboard:"):  # a password, which only the first node prints
                        print(line.decode().rstrip(), flush=True)
                else:
                    await process.wait()
                    raise TryError(f"{name} did not start: {node.last_words()}")
        except TimeoutError:
            late = f"{name} is not ready within {_NODE_STARTS_IN:g} s"
            # Without --dir, the log is deleted with the data.
            raise TryError(f"{late}; the last line of its log: {node.last_words()}") from None
        where = f"mqtt 127.0.0.1:{port}, management http://127.0.0.1:{management}"
        self._watching.append(asyncio.create_task(self._watch(node)))
        return f"{name} ready: {where}, pid {process.pid}"

    async def _until_open(self, server: asyncio.subprocess.Process, port: int) -> None:
        try:
            async with asyncio.timeout(_NATS_STARTS_IN):
                while server.returncode is None:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        return
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise TryError(f"nats-server does not listen within {_NATS_STARTS_IN:g} s") from None
        raise TryError(f"nats-server did not start: {self._nats.last_words()}")

    async def _watch(self, child: _Child) -> None:
        """Report when the process ends."""
        assert child.process is not None and child.process.stdout is not None
        while await child.process.stdout.read(65_536):
            pass
        status = await child.process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        print(f"{child.name} ended {how}; its log: {child.log}", flush=True)
        if all(each.process is not None and each.process.returncode is not None for each in self._nodes):
            print("no node is left", flush=True)
            self._none_left = True
            self._stopping.set()


def _taipan() -> Sequence[str]:
    script = Path(sys.executable).with_name("taipan")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-m", "taipan"]


def _free_port(first: int, taken: set[int] | None = None) -> int:
    """Return the first free port of loopback from ``first`` on that is not in ``taken``, and add it there; 0: any
    port."""
    for port in range(first, min(first + _PORTS_TRIED, 65_536)) if first else [0]:
        if taken is not None and port in taken:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            if taken is not None:
                taken.add(found)
            return found
    raise TryError(f"no port from {first} upwards is free")
