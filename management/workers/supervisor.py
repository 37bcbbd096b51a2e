"""The supervisor: the process that the operator started, which runs a NATS server and the workers.

For its workers, it is what systemd is for a node: they report over ``NOTIFY_SOCKET`` that they are ready and that their
event loops run, and it restarts those that end or hang. Itself, it reports to systemd, passes signals on, and prints
the ready line of worker 1. It has no data and no clients: if it is killed, the system kills the workers, too."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from taipan.broker.access.random_secret import generate
from taipan.broker.cluster.nats.client import largest_packet

from .. import early_signals
from ..configuration.config import Settings
from ..data_dir import NATS_DIRECTORY, DataDir, DataDirError
from ..systemd_notify import keep_watchdog, notify, watchdog_interval
from . import child
from .nats_program import MAX_PAYLOAD, nats_configuration, nats_program
from .place import NATS_USER, VARIABLE, WorkerPlace, directory, node_name, retiring, wanted
from .restarts import Restarts

logger = logging.getLogger(__name__)

NATS: Final = "nats-server"
_HANGS_AFTER: Final = 30.0
"""Seconds without a report after which a worker hangs, unless systemd has another limit for the supervisor
(``WatchdogSec``). A worker reports every half of this time."""
_LOOK_EVERY: Final = 1.0
_SUSPENDED: Final = 5.0
"""Seconds by which a check is late if the machine was suspended: in that case, no worker could report."""
_NATS_LISTENS_IN: Final = 30.0
_POLL: Final = 0.02
_STOPS_IN: Final = 80.0
"""Less than the ``TimeoutStopSec`` of the unit that ``taipan install-service`` writes."""
_NATS_STOPS_IN: Final = 5.0
_LONGEST_LINE: Final = 65_536
_PACKET_HEADER: Final = 8192
"""Bytes by which a message between nodes may be larger than the packet in it."""
_ENVIRONMENT_OF_SYSTEMD: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class StartFailed(Exception):
    """A process could not start; its own output contains the reason. The message is one line."""


def run(settings: Settings, command: Sequence[str], config: str | None) -> int:
    """Run until a signal arrives. ``command``: ``taipan`` with the arguments of this process. Return the exit
    status."""
    return asyncio.run(_Supervisor(settings, command).run(config))


class _Process:
    """A program that starts again whenever it ends, until ``stop``."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], umask: int = -1) -> None:
        """``umask``: -1 for that of this process."""
        self.name = name
        self._umask = umask
        self.ready = asyncio.Event()
        self._command = command
        self._environment = environment
        self._restarts = Restarts()
        self._stopping = False
        self.process: asyncio.subprocess.Process | None = None
        self.heard_at = 0.0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> asyncio.subprocess.Process:
        loop = asyncio.get_running_loop()
        self.ready.clear()
        self._restarts.started(loop.time())
        # A separate session: Ctrl-C reaches only the supervisor, which stops the others in order.
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", child.__file__, str(os.getpid()), *self._command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, env=self._environment,
            start_new_session=True, umask=self._umask,
        )  # fmt: skip
        return self.process

    async def ended(self) -> int:
        """Wait until the process has ended, and print what it prints. Return its status."""
        process = self.process
        assert process is not None and process.stdout is not None
        rest = b""
        while data := await process.stdout.read(_LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.printed(line.decode("utf-8", "replace"))
            if len(rest) >= _LONGEST_LINE:
                self.printed(rest.decode("utf-8", "replace"))
                rest = b""
        if rest:
            self.printed(rest.decode("utf-8", "replace"))
        status = await process.wait()
        self.ready.clear()
        return status

    def printed(self, line: str) -> None:
        """The process has printed this line; one that is too long comes in pieces."""
        print(line, flush=True)

    def is_over(self, status: int) -> bool:
        """Return whether a process with this exit status does not start again."""
        return self._stopping

    async def keep_running(self) -> None:
        """Start it again whenever it ends. The first process has been started."""
        loop = asyncio.get_running_loop()
        while not self.is_over(status := await self.ended()):
            delay = self._restarts.ended(loop.time())
            logger.error("process_ended name=%s how=%s restart_in=%s", self.name, how_ended(status), f"{delay:g}")
            await asyncio.sleep(delay)
            if self._stopping:
                return
            try:
                process = await self.start()
            except OSError as error:  # the system has no memory or no descriptor for it now
                logger.error("process_not_started name=%s error=%s", self.name, error)
            else:
                logger.info("process_restarted name=%s pid=%s", self.name, process.pid)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def stop(self, within: float) -> None:
        """Stop it in order; after ``within`` seconds, kill it."""
        self._stopping = True
        process = self.process
        if process is None:
            return
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                await process.wait()
        except TimeoutError:
            logger.error("process_killed name=%s seconds=%s", self.name, within)
            self.send(signal.SIGKILL)
            await process.wait()


class _Worker(_Process):
    """A node, which reports to a socket of the supervisor."""

    def __init__(self, place: WorkerPlace, name: str, command: Sequence[str], reports: Path) -> None:
        self._hangs_after = 2 * watchdog_interval() or _HANGS_AFTER
        environment = {key: value for key, value in os.environ.items() if key not in _ENVIRONMENT_OF_SYSTEMD}
        environment |= {
            VARIABLE: place.as_text(),
            "NOTIFY_SOCKET": str(reports),
            "WATCHDOG_USEC": str(int(self._hangs_after * 1e6)),
        }
        super().__init__(name, command, environment)
        self.place = place
        self.ready_line = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.bind(str(reports))

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._reported)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def printed(self, line: str) -> None:
        if line.startswith("taipan ready "):
            self.ready_line = line
        else:
            super().printed(line)

    def is_over(self, status: int) -> bool:
        return super().is_over(status) or (self.place.retires and status == 0)

    def _reported(self) -> None:
        """Read the reports of the worker: READY=1, WATCHDOG=1, and others."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(4096).split(b"\n")
                self.heard_at = asyncio.get_running_loop().time()
                if b"READY=1" in lines:
                    self.ready.set()

    def hangs(self, now: float) -> bool:
        return self.running and self.ready.is_set() and now - self.heard_at > self._hangs_after


class _Supervisor:
    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self._settings = settings
        self._command = command
        self._data_dir = settings.broker.node.data_dir
        self._workers: list[_Worker] = []
        self._nats: _Process | None = None
        self._stop = asyncio.Event()
        self._reload_asked = False
        self._ready = False
        self._failed = False
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, config: str | None) -> int:
        loop = asyncio.get_running_loop()
        for number in early_signals.STOPS:
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        for number in early_signals.kept():
            if number is signal.SIGHUP:
                self._on_reload()
            else:
                self._on_stop(number)
                return 0
        try:
            lock = DataDir(str(Path(self._data_dir) / NATS_DIRECTORY), config, of=self._data_dir)
        except DataDirError as error:
            return _cannot_start(error)
        with tempfile.TemporaryDirectory(prefix="taipan-") as reports:
            starting = asyncio.create_task(self._start(Path(reports)))
            stopped = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                    await stopped
                return 1 if self._failed else 0
            except (StartFailed, OSError) as error:
                return _cannot_start(error)
            finally:
                notify("STOPPING=1")
                await self._end(starting, stopped)
                lock.close()
                logger.info("stopped")

    async def _end(self, *tasks: asyncio.Task[object]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop(_STOPS_IN) for worker in self._workers))
        if self._nats is not None:
            await self._nats.stop(_NATS_STOPS_IN)
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            worker.close()

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background. If it fails, this process cannot supervise any longer, and ends."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._done)
        self._tasks.append(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("supervisor_failed error=%s", error, exc_info=error)
            self._failed = True
            self._stop.set()

    def _on_stop(self, number: signal.Signals) -> None:
        logger.info("stopping signal=%s", number.name)
        # A further signal ends this process immediately, and then the system kills the others.
        loop = asyncio.get_running_loop()
        for each in early_signals.STOPS:
            loop.remove_signal_handler(each)
        self._stop.set()

    def _on_reload(self) -> None:
        self._reload_asked = not self._ready
        if self._ready and not self._stop.is_set():
            for worker in self._workers:
                worker.send(signal.SIGHUP)

    # ---------------------------------------------------------------- starting

    async def _start(self, reports: Path) -> None:
        """Start all processes. Worker 1 comes first: the others take users, rules and retained messages from it."""
        port, password = (0, "") if self._settings.broker.cluster is not None else await self._start_nats()
        numbers = range(1, wanted(self._settings) + 1)
        leaving = retiring(self._settings)
        for number in (*numbers, *leaving):
            place = WorkerPlace(
                number=number, count=len(numbers) + len(leaving), nats_port=port, nats_password=password,
                retires=number in leaving,
            )  # fmt: skip
            name = node_name(self._settings.broker.node.name, number)
            worker = _Worker(place, name, self._command, reports / str(number))
            worker.listen()
            self._workers.append(worker)
        await self._start_worker(self._workers[0])
        await asyncio.gather(*map(self._start_worker, self._workers[1 : len(numbers)]))
        await asyncio.gather(*map(self._start_worker, self._workers[len(numbers) :]))
        self._watch(self._look())
        self._watch(keep_watchdog())
        while not self._workers[0].ready_line:
            await asyncio.sleep(_POLL)
        print(f"{self._workers[0].ready_line} workers={len(numbers)}", flush=True)
        notify("READY=1")
        self._ready = True
        if self._reload_asked:
            self._on_reload()

    async def _start_nats(self) -> tuple[int, str]:
        """Return port and password of the server."""
        home = Path(self._data_dir).resolve() / NATS_DIRECTORY
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        password = generate()
        payload = max(MAX_PAYLOAD, largest_packet(self._settings.broker) + _PACKET_HEADER)
        file = home / "nats.conf"
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as writing:
            writing.write(nats_configuration(port, home, NATS_USER, password, payload))
        self._nats = _Process(NATS, (nats_program(), "-c", str(file)), dict(os.environ), umask=0o077)
        process = await self._nats.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + _NATS_LISTENS_IN
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            if process.returncode is not None:
                raise StartFailed(f"nats-server ended {how_ended(process.returncode)}; its log: {home / 'log'}")
            if loop.time() > end:
                raise StartFailed(f"nats-server does not listen within {_NATS_LISTENS_IN:g} s; its log: {home / 'log'}")
            await asyncio.sleep(_POLL)
        self._watch(self._nats.keep_running())
        logger.info("nats_started pid=%s port=%s", process.pid, port)
        return port, password

    async def _start_worker(self, worker: _Worker) -> None:
        """Return when the worker is ready. Raises StartFailed if it ends before."""
        process = await worker.start()
        logger.info("worker_started name=%s pid=%s", worker.name, process.pid)
        self._watch(self._keep(worker))
        ready = asyncio.create_task(worker.ready.wait())
        first_end = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((ready, first_end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            first_end.cancel()
        if not worker.ready.is_set():
            raise StartFailed(f"{worker.name} ended {how_ended(process.returncode)}; its own message is above")

    async def _keep(self, worker: _Worker) -> None:
        await worker.keep_running()
        if worker.place.retires and not self._stop.is_set():
            shutil.rmtree(directory(self._data_dir, worker.place.number))
            logger.info("worker_removed name=%s setting=node.workers", worker.name)

    # ----------------------------------------------------------------- running

    async def _look(self) -> None:
        """Kill workers that hang, so that they are restarted."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_EVERY
            await asyncio.sleep(_LOOK_EVERY)
            now = loop.time()
            for worker in self._workers:
                if now - due > _SUSPENDED:
                    worker.heard_at = now
                elif worker.hangs(now):
                    logger.error("worker_hangs name=%s seconds=%s", worker.name, int(now - worker.heard_at))
                    worker.heard_at = now
                    worker.send(signal.SIGKILL)


def _cannot_start(why: Exception) -> int:
    print(f"taipan: cannot start: {why}", file=sys.stderr)
    return 1


def how_ended(status: int | None) -> str:
    """Return the end of a process in words: ``by SIGKILL``, ``with status 1``."""
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-status).name}"
    return f"with status {status}"
