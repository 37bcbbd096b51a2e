"""A broker of several workers: the installed command with ``--workers``, and the processes that it has started."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType

from .api import APP_ID, SECRET, ApiClient
from .cluster_processes import PROGRAM
from .nats_server import nats_server_program
from .node import NodeProcess, free_port
from .patience import patience
from .peer import Address, Peer

NAME = "taipan@127.0.0.1"


def parent_of(pid: int) -> int:
    """0: it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class WorkerProcesses(NodeProcess):
    """``async with WorkerProcesses(2, tmp_path) as broker``; ``broker.workers = 1``, ``await broker.restart()``: fewer.
    Its output is read, so that it never waits for us."""

    command = (str(PROGRAM),)

    def __init__(self, workers: int | str, directory: Path, more: str = "") -> None:
        """``more``: further tables of the configuration."""
        nats_server_program()
        self.workers = workers
        self.directory = directory
        self.data = directory / "data"
        self.tcp = Address("127.0.0.1", free_port())
        self.ws = Address("127.0.0.1", free_port(), "ws")
        management = free_port()
        self.api = ApiClient(f"http://127.0.0.1:{management}")
        config = directory / "taipan.toml"
        config.write_text(
            f'[node]\ndata_dir = "{self.data}"\n'
            f'[[listeners]]\nname = "tcp"\ntype = "tcp"\nbind = "127.0.0.1:{self.tcp.port}"\n'
            f'[[listeners]]\nname = "ws"\ntype = "ws"\nbind = "127.0.0.1:{self.ws.port}"\n'
            f'[management]\nbind = "127.0.0.1:{management}"\n'
            f'[[management.apps]]\nid = "{APP_ID}"\nsecret = "{SECRET}"\n{more}\n'
        )
        beside = f"{PROGRAM.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        super().__init__(config, env={"TAIPAN__MANAGEMENT__BIND": f"127.0.0.1:{management}", "PATH": beside})
        self.log = bytearray()
        """The output of this start."""
        self._drains: list[asyncio.Task[None]] = []
        self._clients = AsyncExitStack()

    async def start(self, timeout: float = 50.0) -> "WorkerProcesses":
        self.arguments = ("--workers", str(self.workers))
        self.log.clear()
        await super().start(timeout)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._drains = [asyncio.create_task(self._drain(each)) for each in (self.process.stdout, self.process.stderr)]
        return self

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(65_536):
            self.log += data

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send this signal to the supervisor; the exit status. It may start again."""
        await self._clients.aclose()
        await self.api.close()
        children = self.children()
        if self.process.returncode is None:
            # Not send_signal: if the process has just ended, that takes its status, and asyncio reports 255.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        async with asyncio.timeout(patience(60)):
            status = await self.process.wait()
            await asyncio.gather(*self._drains)
            while any(map(runs, children)):
                await asyncio.sleep(0.01)
        return status

    async def restart(self) -> None:
        assert await self.end() == 0, self.log.decode()
        await self.start()

    async def __aenter__(self) -> "WorkerProcesses":
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = await self.end()
        assert error is not None or status == 0, self.log.decode()

    # ------------------------------------------------------------------------ its processes

    def children(self) -> list[int]:
        """The processes whose parent is the supervisor."""
        processes = (int(each) for each in os.listdir("/proc") if each.isdigit())
        return [each for each in processes if parent_of(each) == self.process.pid]

    def pid(self, number: int) -> int:
        """The process of a worker, by the lock of its data directory; 0 while there is none."""
        data = self.data if number == 1 else self.data / f"worker-{number}"
        return next((each for each in self.children() if str(each) == (data / "lock").read_text().split("\n")[0]), 0)

    def nats(self) -> int:
        """The process of the NATS server; 0 while there is none."""
        return next((each for each in self.children() if self._is_nats(each)), 0)

    @staticmethod
    def _is_nats(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"nats-server")
        except (FileNotFoundError, ProcessLookupError):
            return False

    async def nodes(self) -> dict[str, str]:
        """Each node by name, with its status."""
        return {each["node"]: each["node_status"] for each in (await self.api.get("/nodes")).data}

    async def until_all_run(self, count: int) -> None:
        """Until ``count`` workers know each other as running, and there are no others."""
        wanted = {NAME if number == 1 else f"taipan-{number}@127.0.0.1": "Running" for number in range(1, count + 1)}
        async with asyncio.timeout(patience(60)):
            while True:
                try:
                    if await self.nodes() == wanted:
                        return
                except OSError:  # worker 1 starts again
                    await self.api.close()
                await asyncio.sleep(0.05)

    # ---------------------------------------------------------------------------- its clients

    async def client(self, client_id: str, version: int = 5, **connect: object) -> Peer:
        """A connected client with a session that stays, at any of the workers."""
        peer = Peer(self.tcp, version)
        self._clients.push_async_callback(peer.close)
        if version == 5:
            connect["properties"] = {0x11: 3600}
        await peer.connect(client_id, clean_start=False, **connect)  # type: ignore[arg-type]
        return peer

    async def client_at(self, client_id: str, node: str, version: int = 5) -> Peer:
        """A client whose connection the system has given to this node; it connects until that is so."""
        async with asyncio.timeout(patience(60)):
            while True:
                peer = await self.client(client_id, version)
                found = (await self.api.get(f"/clients/{client_id}")).data
                if found and found[0]["node"] == node:
                    return peer
                await peer.drop()


def as_json(text: bytes | bytearray) -> list[dict[str, object]]:
    """The lines of a log in JSON; other lines are left out."""
    return [json.loads(line) for line in text.decode().splitlines() if line.startswith("{")]
