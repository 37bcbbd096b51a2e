"""ClusterProcesses: real ``taipan`` processes, one cluster over real NATS servers, each with data and ports of its own.

async with ClusterProcesses(3, tmp_path) as cluster:
    publisher, subscriber = Peer(cluster[0].tcp), Peer(cluster[1].tcp)
    await cluster.ask(2, "/nodes")
"""

import asyncio
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from .api import APP_ID, SECRET, ApiClient
from .nats_server import NatsServers
from .node import NodeProcess, free_port
from .patience import patience
from .peer import Address

PROGRAM = Path(sys.executable).parent / "taipan"


class ClusterProcess(NodeProcess):
    """One node, by the command as it is installed. Its output is read, so that it never waits for us."""

    command = (str(PROGRAM),)

    def __init__(
        self, number: int, directory: Path, urls: tuple[str, ...], more: str = "", datagrams: str = ""
    ) -> None:
        """``datagrams``: a type of listener for datagrams, which then has the port ``udp``."""
        self.name = f"n{number}@127.0.0.1"
        self.udp = free_port()
        self.tcp = Address("127.0.0.1", free_port())
        self.ws = Address("127.0.0.1", free_port(), "ws")
        management = free_port()
        self.api = ApiClient(f"http://127.0.0.1:{management}")
        config = directory / f"n{number}.toml"
        config.write_text(
            f'[node]\nname = "{self.name}"\ndata_dir = "{directory / f"n{number}"}"\n'
            f"[cluster]\nservers = {json.dumps(urls)}\nstrict_subscribe = true\n{more}\n"
            f'[[listeners]]\nname = "tcp"\ntype = "tcp"\nbind = "127.0.0.1:{self.tcp.port}"\n'
            f'[[listeners]]\nname = "ws"\ntype = "ws"\nbind = "127.0.0.1:{self.ws.port}"\n'
            + (f'[[listeners]]\nname = "udp"\ntype = "{datagrams}"\nbind = "127.0.0.1:{self.udp}"\n' * bool(datagrams))
            + f'[management]\nbind = "127.0.0.1:{management}"\n'
            f'[[management.apps]]\nid = "{APP_ID}"\nsecret = "{SECRET}"\n'
        )
        super().__init__(config, env={"TAIPAN__MANAGEMENT__BIND": f"127.0.0.1:{management}"})
        self.log = bytearray()
        """What this start of it has said."""
        self._drains: list[asyncio.Task[None]] = []

    async def start(self, timeout: float = 50.0) -> "ClusterProcess":
        self.log.clear()
        await super().start(timeout)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._drains = [asyncio.create_task(self._drain(each)) for each in (self.process.stdout, self.process.stderr)]
        return self

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(65_536):
            self.log += data

    async def end(self) -> int:
        """SIGTERM; the exit status. It may start again."""
        await self.api.close()
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(patience(40)):
            status = await self.process.wait()
            await asyncio.gather(*self._drains)
        return status


class ClusterProcesses:
    """``nodes`` see each other when the block begins; at its end each must stop in order."""

    def __init__(self, count: int, directory: Path, more: str = "", datagrams: str = "") -> None:
        """``more``: lines of ``[cluster]``."""
        self._datagrams = datagrams
        self._directory = directory
        self._more = more
        self._count = count
        self.servers = NatsServers()
        self.nodes: list[ClusterProcess] = []

    def __getitem__(self, number: int) -> ClusterProcess:
        return self.nodes[number]

    async def ask(self, number: int, path: str) -> Any:
        """The ``data`` of an answer of this node's HTTP API."""
        return (await self.nodes[number].api.get(path)).data

    async def __aenter__(self) -> "ClusterProcesses":
        await self.servers.__aenter__()
        self.nodes = [
            ClusterProcess(number, self._directory, self.servers.urls, self._more, self._datagrams)
            for number in range(1, self._count + 1)
        ]
        try:
            await asyncio.gather(*(node.start() for node in self.nodes))
            for number in range(self._count):
                while not await self._sees_all(number):
                    await asyncio.sleep(0.05)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def _sees_all(self, number: int) -> bool:
        found = await self.ask(number, "/nodes")
        return [each["node_status"] for each in found] == ["Running"] * self._count

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started = [node for node in self.nodes if node._process is not None]
        statuses = await asyncio.gather(*(node.end() for node in started))
        await self.servers.__aexit__(None, None, None)
        assert error is not None or not any(statuses), statuses
