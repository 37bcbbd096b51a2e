"""Starts a new broker process for a measurement, pinned to a core, on free loopback ports, and stops it afterwards."""

import contextlib
import datetime
import os
import resource
import select
import socket
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.node import free_port
from tools.bench.interpreter import node_command
from tools.bench.peers import PEERS, PeerError, Wanted

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config" / "taipan.toml"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0


class BrokerError(Exception):
    """The broker did not start, or ended; the text ends with its last output."""


def raise_file_limit() -> int:
    """Raise the limit of open files to the maximum for this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def pinned(core: int | None) -> list[str]:
    """Return the prefix that keeps a command on one core; empty if there is no choice."""
    return ["taskset", "-c", str(core)] if core is not None else []


def installed() -> dict[str, str]:
    """Return the versions of the brokers that can be started here, by name."""
    found = {"taipan": _taipan_version()}
    for name, peer in PEERS.items():
        number = peer.version()
        if number is not None:
            found[name] = number
    return found


@contextlib.contextmanager
def running(
    name: str,
    core: int | None = None,
    settings: tuple[str, ...] = (),
    persistence: bool = False,
    nodelay: bool = False,
    transport: str = "tcp",
) -> Iterator[tuple[int, int]]:
    """Run a broker during the block; yield its port and pid.

    ``settings`` are Taipan's ``--set``; ``persistence`` and ``nodelay`` are for the others, whose defaults differ.
    ``transport``: tcp, ws (path ``/mqtt``) or ssl, with a new certificate.
    """
    with tempfile.TemporaryDirectory(prefix="taipan-bench-", ignore_cleanup_errors=True) as directory:
        port = free_port()
        log = Path(directory, "log")
        certfile, keyfile = _certificate(Path(directory)) if transport == "ssl" else (None, None)
        wanted = Wanted(port, Path(directory), transport, certfile, keyfile, persistence, nodelay, free_port())
        if name == "taipan":
            command = _taipan_command(wanted, settings)
        else:
            try:
                command = PEERS[name].command(wanted)
            except PeerError as error:
                raise BrokerError(f"{name}: {error}") from None
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


def _taipan_command(wanted: Wanted, settings: tuple[str, ...]) -> list[str]:
    """Return the command for the shipped configuration on other ports, with the requested first listener."""
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    moved = [
        f"node.data_dir={wanted.directory / 'data'}",
        f"management.bind=127.0.0.1:{free_port()}",
        "dashboard.enabled=false",
    ]
    for index in range(len(config["listeners"])):
        moved.append(f"listeners.{index}.bind=127.0.0.1:{free_port() if index else wanted.port}")
    moved.append(f"listeners.0.type={wanted.transport}")
    if wanted.transport == "ssl":
        moved += [f"listeners.0.tls.certfile={wanted.certfile}", f"listeners.0.tls.keyfile={wanted.keyfile}"]
    command = node_command("--config", str(CONFIG))
    for setting in (*moved, *settings):
        command += ["--set", setting]
    return command


def _certificate(directory: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key (P-256), valid for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certfile, keyfile = directory / "server.pem", directory / "server.key"
    certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    keyfile.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    directory.chmod(0o755)
    return certfile, keyfile


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Read stdout up to the line that begins with ``taipan ready``."""
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
    raise BrokerError(f"nothing listens on the port: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-600:].strip() or "(it said nothing)"


def _taipan_version() -> str:
    try:
        return version("taipan-mqtt")
    except PackageNotFoundError:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        found: str = tomllib.loads(text)["project"]["version"]
        return found
