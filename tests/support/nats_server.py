"""Real ``nats-server`` processes on free loopback ports: one, or several as one cluster.

``TAIPAN_TEST_NATS_SERVER=path`` lets the tests run with another version.

async with NatsServers(3) as servers:
    servers.urls, servers[0].pause(), await servers[1].kill(), await servers[1].start()
    await servers.until_whole()        # each that runs has all that the others have
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from .absent import absent
from .node import free_port
from .patience import patience
from .peer import TIMEOUT


def nats_server_program() -> str:
    """The one of the environment that the tests run in, else that of the system; skips where there is none."""
    beside = str(Path(sys.executable).parent)
    found = os.environ.get("TAIPAN_TEST_NATS_SERVER") or shutil.which(
        "nats-server", path=os.pathsep.join([beside, os.environ.get("PATH", "")])
    )
    return found or absent("nats-server")


class NatsServer:
    """One process, started again with the same port and directory. ``more``: further lines of its configuration."""

    def __init__(self, directory: Path, name: str = "s1", more: str = "") -> None:
        self.name = name
        self.port = free_port()
        self.route_port = free_port()
        self.http_port = free_port()
        self.directory = directory / name
        self.more = more
        self.log = self.directory / "log"
        self.cluster = ""
        self._process: asyncio.subprocess.Process | None = None
        self._program = nats_server_program()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> "NatsServer":
        """Until it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "nats.conf").write_text(
            f'server_name: "{self.name}"\nlisten: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.http_port}"\n'
            f"{self.cluster}"
            + (
                self.more
                if "jetstream" in self.more
                else f'jetstream {{ store_dir: "{self.directory}/js" }}\n{self.more}'
            )
        )
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._program, "-c", str(self.directory / "nats.conf"), stdout=log, stderr=log
            )
        async with asyncio.timeout(patience(TIMEOUT)):
            while True:
                if self._process.returncode is not None:
                    raise AssertionError(f"nats-server ended: {self.log.read_text()[-2000:]}")
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    await writer.wait_closed()
                    return self
                await asyncio.sleep(0.02)

    @property
    def runs(self) -> bool:
        return self._process is not None

    async def is_whole(self) -> bool:
        """Whether it says that it has every bucket, as its leader has it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http_port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return b" 200 " in answer.partition(b"\r\n")[0]

    def pause(self) -> None:
        """SIGSTOP, until each of its threads has stopped: one that runs may still answer."""
        self._signal(signal.SIGSTOP)
        process = self._process
        while process is not None and process.returncode is None:
            states = [each.read_text() for each in Path(f"/proc/{process.pid}/task").glob("*/stat")]
            if all(each.rpartition(")")[2].split()[0] == "T" for each in states):
                return
            time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL; its data stays."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Its data is gone."""
        shutil.rmtree(self.directory / "js", ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


class NatsServers:
    """So many of them; more than one are a cluster of NATS."""

    def __init__(self, count: int = 1, more: str = "max_payload: 4MB\n") -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="taipan-nats-")
        path = Path(self._directory.name)
        self._servers = [NatsServer(path, f"s{number + 1}", more) for number in range(count)]
        if count > 1:
            routes = ", ".join(f'"nats://127.0.0.1:{each.route_port}"' for each in self._servers)
            for each in self._servers:
                each.cluster = (
                    f'cluster {{ name: "test", listen: "127.0.0.1:{each.route_port}", routes: [{routes}] }}\n'
                )

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(each.url for each in self._servers)

    def __getitem__(self, number: int) -> NatsServer:
        return self._servers[number]

    def __iter__(self) -> Iterator[NatsServer]:
        return iter(self._servers)

    async def until_whole(self) -> None:
        """Until each that runs has all that the others have, so that it can be the one that is left. An election takes
        four to nine seconds, one that nobody wins is followed by another, and each bucket has its own."""
        async with asyncio.timeout(patience(100)):
            for each in self._servers:
                while each.runs and not await each.is_whole():
                    await asyncio.sleep(0.05)

    async def __aenter__(self) -> "NatsServers":
        try:
            await asyncio.gather(*(each.start() for each in self._servers))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._servers:
            await each.kill()
        self._directory.cleanup()
