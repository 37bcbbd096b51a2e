"""``python -m tools.soak --workers 2``: the promises of a cluster, kept by ``taipan --workers 2``.

In each cycle, clients connect, publish and subscribe at one address. In the meantime, one process is killed or paused,
the supervisor is killed with all its workers, or all stop after SIGTERM. The supervisor restarts its processes, and the
soak restarts the supervisor. The soak asks the operating system which worker has a connection, because promises about
the order of messages and about retained messages apply to one worker."""

import asyncio
import base64
import json
import os
import random
import signal
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.node import free_port
from tests.support.patience import patience

from .client import Connection, Gone, Receiver
from .cluster import ClusterSoak, later
from .cluster_nodes import APP, ROOT, ClusterNode, nats_server
from .promises import Promises

FAULTS = (
    ("none", 10),
    ("kill worker", 40),
    ("pause worker", 10),
    ("kill nats", 12),
    ("pause nats", 8),
    ("kill supervisor", 12),
    ("stop", 8),
)
START = 180.0
"""Seconds within which all workers must be ready, and must have ended."""
WAIT = 40.0
"""Seconds to wait for an answer: a CONNECT waits 12 s for a worker that has its session and does not run."""
TRIES = 200
"""Connections until one of them is at a certain worker."""


class Worker:
    """A worker, with the attributes of a node in the cluster soak. Clients refer
    to it by its ``number``."""

    replaced = 0

    def __init__(self, broker: "Workers", number: int) -> None:
        self.broker = broker
        self.number = number
        self.port = broker.port
        self.api_port = broker.api_port
        self.name = "taipan@127.0.0.1" if number == 1 else f"taipan-{number}@127.0.0.1"
        self.data = broker.data if number == 1 else broker.data / f"worker-{number}"

    @property
    def pid(self) -> int:
        """The process that has locked the worker's data; 0: none."""
        try:
            pid = int((self.data / "lock").read_text().split("\n")[0])
        except (OSError, ValueError):
            return 0
        return pid if pid in self.broker.children() else 0

    def complaints(self) -> list[str]:
        return self.broker.complaints() if self.number == 1 else []


class Workers:
    """The supervisor and its processes, with the same ports and data directory each time."""

    def __init__(self, directory: Path, promises: Promises, rng: random.Random, count: int) -> None:
        self.directory = directory
        self.promises = promises
        self.rng = rng
        self.count = count
        self.data = directory / "data"
        self.port = free_port()
        self.api_port = free_port()
        self.log = directory / "log"
        self.process: asyncio.subprocess.Process | None = None
        self.nodes = [Worker(self, number) for number in range(1, count + 1)]
        self._read = 0
        self._output: asyncio.Task[None] | None = None

    def configuration(self) -> str:
        return f"""
[node]
data_dir = "{self.data}"
[durability]
level = "disk"
queue_memory = {self.rng.choice((30_000, 1_000_000, 0))}
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
        """Start the supervisor and wait until all workers are ready."""
        file = self.directory / "taipan.toml"
        file.write_text(self.configuration())
        path = f"{Path(nats_server()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with self.log.open("ab") as log:
            self.process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "taipan", "--config", str(file), "--workers", str(self.count),
                stdout=asyncio.subprocess.PIPE, stderr=log, cwd=ROOT, env={**os.environ, "PATH": path},
            )  # fmt: skip
        assert process.stdout is not None
        ready = False
        try:
            async with asyncio.timeout(patience(START)):
                while line := await process.stdout.readline():
                    if line.startswith(b"taipan ready"):
                        ready = True
                        break
        except TimeoutError:
            pass
        if not ready:
            await self.end(signal.SIGKILL)
            self.promises.wrong(f"the broker did not start\n{self.log.read_text()[-3000:]}")
            return False
        self._output = asyncio.create_task(_discard(process.stdout))
        self.promises.ready_at = time.monotonic()
        self.promises.note(f"ready pid={process.pid}")
        return await self.until_all_run()

    async def end(self, how: signal.Signals) -> int:
        """Signal the supervisor, and wait until none of its processes is left."""
        process = self.process
        assert process is not None
        children = self.children()
        self.promises.note(f"{how.name} to the supervisor pid={process.pid}, with {children}")
        if process.returncode is None:
            process.send_signal(how)
        try:
            async with asyncio.timeout(patience(START)):
                status = await process.wait()
                while any(_parent_of(pid) for pid in children):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.promises.other += 1
            self.promises.wrong(f"{how.name}: these processes did not end within {patience(START):g} s: {children}")
            if process.returncode is None:
                process.kill()
            status = await process.wait()
        if self._output is not None:
            await self._output
            self._output = None
        return status

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            for pid in self.children():
                _signal(pid, signal.SIGCONT)
            await self.end(signal.SIGKILL)

    def children(self) -> list[int]:
        """Return the processes that the supervisor has started, and that run."""
        process = self.process
        if process is None:
            return []
        return [int(each) for each in os.listdir("/proc") if each.isdigit() and _parent_of(int(each)) == process.pid]

    @property
    def nats(self) -> int:
        workers = {node.pid for node in self.nodes}
        return next((pid for pid in self.children() if pid not in workers and b"nats-server" in _command(pid)), 0)

    async def until_all_run(self) -> bool:
        """Wait until the workers know each other as running, as after a fault."""
        begun = time.monotonic()
        while time.monotonic() - begun < patience(START):
            if all(node.pid for node in self.nodes) and self.nats and await asyncio.to_thread(self._all_run):
                return True
            await asyncio.sleep(0.1)
        self.promises.other += 1
        self.promises.wrong(f"not all workers run after {patience(START):g} s\n{self.log.read_text()[-3000:]}")
        return False

    def _all_run(self) -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{self.api_port}/api/v4/nodes")
        request.add_header("Authorization", "Basic " + base64.b64encode(":".join(APP).encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=patience(8.0)) as answer:
                rows = json.loads(answer.read())["data"]
        except (OSError, ValueError):
            return False
        return {row["node"]: row["node_status"] for row in rows} == {node.name: "Running" for node in self.nodes}

    def worker_of(self, port: int) -> int:
        """Return the number of the worker that has the connection of a client with this port; 0: none has it."""
        inode = _inode(self.port, port)
        if inode:
            for node in self.nodes:
                pid = node.pid
                if pid and _has_socket(pid, inode):
                    return node.number
        return 0

    def complaints(self) -> list[str]:
        """Return the new lines of the log that should not exist."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
            self._read = log.tell()
        lines = text.decode(errors="replace").splitlines()
        for index, line in enumerate(lines):
            if "Traceback" in line or " CRITICAL " in line:
                return lines[max(0, index - 2) : index + 25]
        return []


class WorkersSoak(ClusterSoak):
    """One run of the soak against ``taipan --workers N``."""

    processes: Workers

    def __init__(self, seed: int, directory: Path | None, workers: int, only: str = "") -> None:
        self.workers = workers
        self._unknown = 0
        super().__init__(seed, directory, only)
        self.faults_to_cause = FAULTS
        for client in self.clients:
            client.placed = self._place
            client.wait = WAIT

    def _processes(self, rng: random.Random, takeover: str, replicas: int) -> Workers:
        return Workers(self.directory, self.promises, rng, self.workers)

    def _place(self, connection: Connection) -> int:
        """Return the worker of a connection; if it has just ended, a number that no other connection has."""
        transport = connection.transport
        name = None if transport is None else transport.get_extra_info("sockname")
        number = self.processes.worker_of(name[1]) if name else 0
        if not number:
            self._unknown -= 1
        return number or self._unknown

    async def _connect_checker(self, checker: Receiver, node: ClusterNode) -> None:
        checker.placed = self._place
        for _ in range(TRIES):
            await checker.connect()
            if checker.place == node.number:
                return
            checker.drop()
        raise Gone

    async def _break(self, fault: str) -> Callable[[], Awaitable[object]]:
        broker = self.processes
        worker = self.rng.choice(broker.nodes)
        if fault in ("kill supervisor", "stop"):
            status = await broker.end(signal.SIGTERM if fault == "stop" else signal.SIGKILL)
            if fault == "stop" and status:
                self.promises.other += 1
                self.promises.wrong(f"exit status {status} on SIGTERM")
            for node in broker.nodes:
                self.promises.retained_closed(node.number)
            return broker.start
        if fault == "none":
            return later(lambda: None)
        pid = worker.pid if fault.endswith("worker") else broker.nats
        self.promises.note(f"{fault} {worker.number if fault.endswith('worker') else ''} pid={pid}")
        if fault.startswith("pause"):
            _signal(pid, signal.SIGSTOP)

            async def resume() -> None:
                _signal(pid, signal.SIGCONT)
                await broker.until_all_run()

            return resume
        _signal(pid, signal.SIGKILL)
        while _parent_of(pid):
            await asyncio.sleep(0.01)
        if fault == "kill worker":
            self.promises.retained_closed(worker.number)
        return broker.until_all_run


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _parent_of(pid: int) -> int:
    """Return the parent of a process, or 0 if the process has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return 0
    return 0 if state in "ZX" else int(parent)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _inode(port: int, peer: int) -> str:
    """Return the inode of the accepted socket on loopback with these ports."""
    here, there = f"0100007F:{port:04X}", f"0100007F:{peer:04X}"
    with open("/proc/net/tcp") as sockets:
        for line in sockets:
            fields = line.split(None, 10)
            if fields[1] == here and fields[2] == there:
                return fields[9]
    return ""


def _has_socket(pid: int, inode: str) -> bool:
    target = f"socket:[{inode}]"
    try:
        for each in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{each}") == target:
                    return True
            except OSError:
                continue
    except OSError:
        pass
    return False


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass
