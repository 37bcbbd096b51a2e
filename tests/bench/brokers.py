"""Starts a broker for a measurement, fresh, pinned to a core, on free loopback ports, and takes it down again."""

import contextlib
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config" / "taipan.toml"
MOSQUITTO = shutil.which("mosquitto", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")
START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0


class BrokerError(Exception):
    """The broker did not come up, or went away; the text ends with what it said last."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def raise_file_limit() -> int:
    """As many open files as the system lets this process (and its children) have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def pinned(core: int | None) -> list[str]:
    """The prefix that keeps a command on one core; empty where there is nothing to choose."""
    return ["taskset", "-c", str(core)] if core is not None else []


def installed() -> dict[str, str]:
    """Name -> version of the brokers that can be started here."""
    found = {"taipan": _taipan_version()}
    if MOSQUITTO:
        text = subprocess.run([MOSQUITTO, "-h"], capture_output=True, text=True, check=False).stdout
        found["mosquitto"] = text.split("\n", 1)[0].removeprefix("mosquitto version ").strip()
    return found


@contextlib.contextmanager
def running(
    name: str, core: int | None = None, settings: tuple[str, ...] = (), persistence: bool = False
) -> Iterator[tuple[int, int]]:
    """(port, pid) of a broker that serves for as long as the block lasts.

    ``settings`` are Taipan's ``--set``; ``persistence`` is Mosquitto's.
    """
    with tempfile.TemporaryDirectory(prefix="taipan-bench-") as directory:
        port = free_port()
        log = Path(directory, "log")
        if name == "taipan":
            command = _taipan_command(port, Path(directory), settings)
        else:
            command = _mosquitto_command(port, Path(directory), persistence)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*pinned(core), *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if name == "taipan" else stream,
                stderr=stream,
            )
        try:
            if name == "taipan":
                _await_ready(process, log)
            _await_port(process, port, log)
            yield port, process.pid
            if process.poll() is not None:
                raise BrokerError(f"{name} ended with status {process.returncode}: {_tail(log)}")
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _taipan_command(port: int, directory: Path, settings: tuple[str, ...]) -> list[str]:
    """The shipped configuration, on other ports; the first tcp listener gets ``port``."""
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    moved = [f"node.data_dir={directory}", f"management.bind=127.0.0.1:{free_port()}"]
    for index, listener in enumerate(config["listeners"]):
        first_tcp = listener["type"] == "tcp" and port
        moved.append(f"listeners.{index}.bind=127.0.0.1:{port if first_tcp else free_port()}")
        if first_tcp:
            port = 0
    start = "import sys; from management.node import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "--config", str(CONFIG)]
    for setting in (*moved, *settings):
        command += ["--set", setting]
    return command


def _mosquitto_command(port: int, directory: Path, persistence: bool) -> list[str]:
    if not MOSQUITTO:
        raise BrokerError("mosquitto is not installed")
    config = directory / "mosquitto.conf"
    text = f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
    if persistence:
        text += f"persistence true\npersistence_location {directory}/\n"
    config.write_text(text, encoding="utf-8")
    return [MOSQUITTO, "-c", str(config)]


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Reads stdout up to the line that begins ``taipan ready``."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT
    seen = b""
    while not any(line.startswith(b"taipan ready") for line in seen.split(b"\n")[:-1]):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise BrokerError(f"taipan did not get ready: {_tail(log)}")
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            raise BrokerError(f"taipan did not start: {_tail(log)}")
        seen += data


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise BrokerError(f"nobody listens on the port: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-600:].strip() or "(it said nothing)"


def _taipan_version() -> str:
    try:
        return version("taipan-mqtt")
    except PackageNotFoundError:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        found: str = tomllib.loads(text)["project"]["version"]
        return found
