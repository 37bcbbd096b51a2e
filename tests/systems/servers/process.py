"""A server as a process of its own, in a directory and on a port that it keeps when it starts again.

As root, the process is run by an account without rights, as database servers require."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from tests.support.absent import absent
from tests.support.node import free_port
from tests.support.patience import patience

ACCOUNT: Final = "nobody"
_START: Final = 40.0


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped: each stops by itself, after the signal."""
    states = []
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(each.read_text().rpartition(")")[2].split()[0])
        except FileNotFoundError:  # the thread has ended
            continue
    return all(state in "TZX" for state in states)


def program(name: str, *places: str) -> str:
    """The path of a program; skips where it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *places])
    return shutil.which(name, path=path) or absent(name)


class ServerProcess(ABC):
    """Everything here waits without a loop, so that a module's or a session's fixture can start one.

    ``user``, ``password`` and ``database`` are those of a user that owns the database."""

    user: str = "taipan"
    password: str = "s3cr3t"
    database: str = "taipan"

    def __init__(self) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix=f"taipan-{type(self).__name__.lower()}-"))
        self.log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False
        self._account = pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None
        self.own(self.directory)
        # Not the machine's: a MariaDB that starts deletes the temporary tables of others there.
        self._temporary = self.directory / "tmp"
        self._temporary.mkdir()
        self.own(self._temporary)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def prepare(self) -> None:
        """Before the first start: what it keeps in its directory."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def ready(self) -> bool:
        """Whether it accepts a login."""

    @abstractmethod
    def populate(self) -> None:
        """After the first start."""

    def own(self, path: Path, mode: int = 0o700) -> Path:
        """The account has it for itself."""
        path.chmod(mode)
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)
        return path

    def give(self, name: str, source: str) -> Path:
        """A copy of a file (a certificate, a key) for the account only."""
        path = self.directory / name
        shutil.copyfile(source, path)
        return self.own(path, 0o600)

    def run(self, *command: str, text: str = "") -> str:
        """What a program that the account runs has said. Raises AssertionError where it fails."""
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, cwd=self.directory, timeout=patience(_START),
            env=self._environment(), **self._as_account(),
        )  # fmt: skip
        assert done.returncode == 0, f"{command[0]}: {done.stderr.decode()[-2000:]}"
        return done.stdout.decode()

    def start(self) -> None:
        """Until it accepts a login."""
        if not self._prepared:
            self.prepare()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                env=self._environment(), **self._as_account(),
            )  # fmt: skip
        end = time.monotonic() + patience(_START)
        while not (self._listens() and self.ready()):
            if not self.runs or time.monotonic() > end:
                raise AssertionError(f"it did not start: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        if not self._prepared:
            self._prepared = True
            self.populate()

    def stop(self) -> None:
        """As its operator stops it, with its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """With SIGKILL; its data stays."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """With SIGSTOP, all its processes: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        stops = time.monotonic() + patience(_START)
        while not all(_is_stopped(each) for each in (self._process.pid, *_children(self._process.pid))):
            assert time.monotonic() < stops, "it did not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """It is gone, and its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        children = _children(process.pid)
        if process.poll() is None:
            process.send_signal(number)
            for each in (process.pid, *children):  # one that has been stopped ends when it continues
                _send(each, signal.SIGCONT)
        try:
            process.wait(patience(_START))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if number == signal.SIGKILL:
            for each in children:
                _send(each, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        for each in (self._process.pid, *_children(self._process.pid)):
            _send(each, number)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""), "HOME": str(self.directory), "TMPDIR": str(self._temporary),
            "LC_ALL": "C.UTF-8", "TZ": "UTC",
        }  # fmt: skip

    def _as_account(self) -> dict[str, int]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid}


def _children(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(each) for each in found]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
