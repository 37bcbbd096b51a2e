"""The other brokers for comparison: whether each is installed, and the command that starts it.

Debian has Mosquitto and NATS (``nats-server``); ``npm ci`` in ``tools/bench/node`` installs aedes; aMQTT is in the
environment. A broker that is not installed is left out.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

_SYSTEM_PATH = f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}"
MOSQUITTO = shutil.which("mosquitto", path=_SYSTEM_PATH)
NATS = shutil.which("nats-server", path=_SYSTEM_PATH)
NODE = shutil.which("node")
NODE_DIR = Path(__file__).parent / "node"
AMQTT = Path(sys.executable).parent / "amqtt"


class PeerError(Exception):
    """The broker cannot be started with these options; the text gives the reason."""


class Wanted(NamedTuple):
    """The options of a broker.

    ``transport``: tcp, ws or ssl; only ssl requires the certificate. ``other_port`` is a free port for a broker that
    needs two. ``persistence`` keeps sessions on disk; ``nodelay`` disables Nagle's algorithm if it is enabled by
    default.
    """

    port: int
    directory: Path
    transport: str = "tcp"
    certfile: Path | None = None
    keyfile: Path | None = None
    persistence: bool = False
    nodelay: bool = False
    other_port: int = 0


class Peer(NamedTuple):
    """A broker. ``version`` is None if it is not installed; ``missing`` describes how to install it."""

    version: Callable[[], str | None]
    command: Callable[[Wanted], list[str]]
    missing: str


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return done.stdout + done.stderr


def number(text: str) -> str | None:
    """Return the first version number in the broker's output."""
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else None


def _mosquitto_version() -> str | None:
    return number(_said([MOSQUITTO, "-h"])) if MOSQUITTO else None


def _mosquitto(wanted: Wanted) -> list[str]:
    lines = [f"listener {wanted.port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0"]
    if wanted.transport == "ws":  # 2.0.11 does not start without a listener of the other kind
        lines[:1] = [f"listener {wanted.other_port} 127.0.0.1", f"listener {wanted.port} 127.0.0.1"]
        lines.insert(2, "protocol websockets")
    if wanted.transport == "ssl":
        lines[1:1] = [f"certfile {wanted.certfile}", f"keyfile {wanted.keyfile}"]
    if wanted.persistence:
        lines += ["persistence true", f"persistence_location {wanted.directory}/"]
    if wanted.nodelay:
        lines.append("set_tcp_nodelay true")
    config = wanted.directory / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(MOSQUITTO), "-c", str(config)]


def _nats_version() -> str | None:
    return number(_said([NATS, "--version"])) if NATS else None


def _nats(wanted: Wanted) -> list[str]:
    """Return the command for NATS, which keeps MQTT sessions in JetStream; its own port is any free one."""
    if wanted.transport != "tcp":
        raise PeerError("measured over TCP only")
    store = json.dumps(str(wanted.directory / "jetstream"))
    config = wanted.directory / "nats.conf"
    config.write_text(
        "server_name: bench\nlisten: 127.0.0.1:-1\nmax_payload: 8MB\nmax_pending: 256MB\n"
        f"jetstream {{ store_dir: {store}, max_mem: 1GB, max_file: 4GB }}\n"
        f"mqtt {{ host: 127.0.0.1, port: {wanted.port}, max_ack_pending: 65535 }}\n",
        encoding="utf-8",
    )
    return [str(NATS), "-c", str(config)]


def _aedes_version() -> str | None:
    package = NODE_DIR / "node_modules" / "aedes" / "package.json"
    if not NODE or not package.is_file():
        return None
    found: str = json.loads(package.read_text(encoding="utf-8"))["version"]
    return found


def _aedes(wanted: Wanted) -> list[str]:
    if wanted.transport != "tcp":
        raise PeerError("measured over TCP only")
    return [str(NODE), str(NODE_DIR / "aedes.mjs"), str(wanted.port)]


def _amqtt_version() -> str | None:
    try:
        return version("amqtt") if AMQTT.is_file() else None
    except PackageNotFoundError:
        return None


def _amqtt(wanted: Wanted) -> list[str]:
    if wanted.transport != "tcp":
        raise PeerError("measured over TCP only")
    config = wanted.directory / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{wanted.port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n",
        encoding="utf-8",
    )
    return [str(AMQTT), "-c", str(config)]


PEERS = {
    "mosquitto": Peer(_mosquitto_version, _mosquitto, "as root: apt-get install -y mosquitto"),
    "nats": Peer(_nats_version, _nats, "as root: apt-get install -y nats-server"),
    "aedes": Peer(_aedes_version, _aedes, "npm ci in tools/bench/node, which make bench does if npm is installed"),
    "amqtt": Peer(_amqtt_version, _amqtt, "pip install amqtt"),
}
