"""Measure passwords: how long one request that creates users takes, and how long clients need to reconnect after a
restart: CLIENTS (10,000) with random secrets and SLOW (1,000) with slow hashes. Starts the console script.

``python -m tools.bench.passwords`` writes its section of ``docs/performance.md``. PATIENCE (30) is the number of
seconds that a client waits for its CONNACK."""

import asyncio
import base64
import hashlib
import io
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.mqtt.encoder import encode
from taipan.broker.mqtt.packets import Connect
from tests.support.node import free_port
from tools.bench.brokers import ROOT, raise_file_limit
from tools.bench.page import write
from tools.bench.results import commit, modules

APP: Final = ("bench", "a secret of the bench")
START: Final = 120.0
CONNACK: Final = 0x20
_HEADERS: Final = {"Authorization": "Basic " + base64.b64encode(":".join(APP).encode()).decode()}


class Node:
    """The console script with a data directory of its own. ``more``: further tables of its configuration."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.directory = directory
        self.port, self.api_port = free_port(), free_port()
        self.process: asyncio.subprocess.Process | None = None
        (directory / "taipan.toml").write_text(
            f"""
[node]
data_dir = "{directory / "data"}"
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{self.port}"
[dashboard]
enabled = false
[management]
bind = "127.0.0.1:{self.api_port}"
[[management.apps]]
id = "{APP[0]}"
secret = "{APP[1]}"
{more}""",
            encoding="utf-8",
        )

    async def start(self) -> None:
        script = Path(sys.executable).parent / "taipan"
        command = str(script) if script.exists() else shutil.which("taipan") or "taipan"
        with (self.directory / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                command, "--config", str(self.directory / "taipan.toml"), cwd=ROOT, stdout=log, stderr=log
            )

    async def ready(self) -> None:
        """Wait until the API answers, which is opened last."""
        until = time.monotonic() + START
        while time.monotonic() < until:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.api_port)
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)
        raise RuntimeError(f"the node did not start: {(self.directory / 'log').read_text('utf-8')[-2000:]}")

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()

    def processor_seconds(self) -> float:
        """Return the processor time of the process since its start, on all processors."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def failures(self, source: str) -> dict[str, int]:
        """Return how often a source of access gave no answer since the start, by reason."""
        url = f"http://127.0.0.1:{self.api_port}/api/v4/emqx_prometheus?type=prometheus"
        async with aiohttp.ClientSession(headers=_HEADERS) as session, session.get(url) as reply:
            text = await reply.text()
        found = re.findall(rf'^taipan_refusals_total{{.*reason="access_{source}_(\w+)".*}} (\d+)', text, re.MULTILINE)
        return {reason: int(count) for reason, count in found if count != "0"}

    async def post(self, users: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], float]:
        """Send POST /auth_user; return the time that it took."""
        url = f"http://127.0.0.1:{self.api_port}/api/v4/auth_user"
        timeout = aiohttp.ClientTimeout(total=3600)
        async with aiohttp.ClientSession(headers=_HEADERS, timeout=timeout) as session:
            begun = time.perf_counter()
            async with session.post(url, data=io.BytesIO(msgspec.json.encode(users))) as reply:
                answer = await reply.json()
        assert answer["code"] == 0 and set(answer["data"].values()) == {"ok"}, str(answer)[:500]
        return answer, time.perf_counter() - begun


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory(prefix="taipan-passwords-") as name:
        node = Node(Path(name))
        try:
            await node.start()
            await node.ready()
            yield node
        finally:
            await node.stop()


class Crowd:
    """Clients that connect, lose their node, and reconnect. Records the answer to each client, and the time of its
    acceptance."""

    def __init__(self, node: Node, secrets: dict[str, str], patience: float) -> None:
        self.node = node
        self.secrets = secrets
        self.patience = patience
        self.told: Counter[str] = Counter()
        self.back: list[float] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._arriving = asyncio.Semaphore(100)

    async def come(self) -> float:
        """Connect all clients at once; return the seconds until the last one is accepted."""
        begun = time.perf_counter()
        self.back.clear()
        self.told.clear()
        await asyncio.gather(*(self._come(name, secret, begun) for name, secret in self.secrets.items()))
        return time.perf_counter() - begun

    async def _come(self, name: str, secret: str, begun: float) -> None:
        packet = encode(Connect(4, f"client-{name}", username=name, password=secret.encode(), keep_alive=600), 4)
        while True:
            told = await self._try(packet)
            self.told[told] += 1
            if told == "accepted":
                self.back.append(time.perf_counter() - begun)
                return
            await asyncio.sleep(0.5 + random.random())

    async def _try(self, packet: bytes) -> str:
        # Few at a time: each connected client sends its CONNECT, as it would from a machine of its own.
        async with self._arriving:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.node.port)
                writer.write(packet)
            except OSError:
                return "no connection"
        try:
            answer = await asyncio.wait_for(reader.readexactly(4), self.patience)
        except TimeoutError:
            told = "gave up"
        except (asyncio.IncompleteReadError, OSError):
            told = "closed without an answer"
        else:
            if answer[0] == CONNACK and answer[3] == 0:
                self._writers.append(writer)
                return "accepted"
            told = f"return code {answer[3]}"
        writer.close()
        return told

    def leave(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()


async def storm(node: Node, secrets: dict[str, str], patience: float) -> str:
    """Connect all clients and restart the node; return how they reconnect."""
    crowd = Crowd(node, secrets, patience)
    await crowd.come()
    await node.stop()
    crowd.leave()
    await node.start()
    begun = time.perf_counter()
    took = await crowd.come()
    used = node.processor_seconds()
    told = ", ".join(f"{count:,} times {what}" for what, count in crowd.told.most_common() if what != "accepted")
    log = (node.directory / "log").read_text("utf-8")
    false = log.count("no complete CONNECT in time")
    half = sorted(crowd.back)[len(crowd.back) // 2]
    crowd.leave()
    assert time.perf_counter() >= begun
    return (
        f"{took:.1f} s, half of them in {half:.1f} s; {used:.1f} s of processor time of the node since its start; other"
        f" results: {told or 'none'}; logged as incomplete: {false}"
    )


def seconds_of_a_hash() -> float:
    """Return the processor time of one hash."""
    begun = time.process_time()
    for _ in range(5):
        ScryptHash.create(b"secret")
    return (time.process_time() - begun) / 5


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"{len(os.sched_getaffinity(0))} x {line.partition(':')[2].strip()}"
    return "unknown processor"


async def measure(clients: int, slow: int, patience: float) -> str:
    where = f"On {processor()} (load {os.getloadavg()[0]:.0f} before), {modules()}, commit {commit()}"
    lines = [f"{where}; a slow hash takes {seconds_of_a_hash() * 1000:.0f} ms of processor time."]
    lines += ["", "| What | Result |", "|---|---|"]
    async with running() as node:
        hashed = [
            {
                "login": f"hashed-{number}",
                "is_superuser": False,
                "password_hash": hashlib.sha256(f"{number:08}p".encode()).hexdigest(),
                "method": "sha256",
                "salt": f"{number:08}",
            }
            for number in range(clients)
        ]
        _, took = await node.post(hashed)
        lines.append(f"| {clients:,} users with ready hashes by one `POST /auth_user` | {took:.2f} s |")
        made = [{"login": f"device-{n}", "is_superuser": False, "generate": True} for n in range(clients)]
        answer, took = await node.post(made)
        lines.append(f"| {clients:,} users whose secrets the node generates | {took:.2f} s |")
        told = await storm(node, answer["passwords"], patience)
        lines.append(f"| {clients:,} clients with these secrets are back after the start of the process | {told} |")
    async with running() as node:
        plain = [{"login": f"person-{n}", "is_superuser": False, "password": f"pass {n}"} for n in range(slow)]
        before = node.processor_seconds()
        _, took = await node.post(plain)
        used = node.processor_seconds() - before
        told = f"{took:.1f} s, {used:.1f} s of processor time"
        lines.append(f"| {slow:,} users with plain passwords by one `POST /auth_user` | {told} |")
        told = await storm(node, {user["login"]: user["password"] for user in plain}, patience)
        lines.append(f"| {slow:,} clients with these passwords are back | {told} |")
    return "\n".join(lines)


def main() -> int:
    raise_file_limit()
    numbers = [int(os.environ.get(name, most)) for name, most in (("CLIENTS", "10000"), ("SLOW", "1000"))]
    text = asyncio.run(measure(*numbers, float(os.environ.get("PATIENCE", "30"))))
    print(text)
    if not os.environ.get("DRY"):
        write("Reconnecting with passwords", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
