"""The program ``nats-server``: its path, and a configuration for a server on loopback."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Final

MAX_PAYLOAD: Final = 4_194_304
"""The usual limit of a message in bytes: more than the default size of the largest packet."""

_INSTALL: Final = 'pip install "taipan-mqtt[workers]"'


class NoNatsServer(Exception):
    """The program, or the package by which nodes connect to it, is missing; the message is one line."""


def nats_program() -> str:
    """Return the path of ``nats-server``, of the system or of this environment. Raises NoNatsServer."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("nats-server") or shutil.which("nats-server", path=beside)
    if found is None:
        raise NoNatsServer(f"nats-server is not installed: apt-get install nats-server, or, next to Taipan, {_INSTALL}")
    if importlib.util.find_spec("nkeys") is None:
        raise NoNatsServer(f"the nodes need the package nkeys: {_INSTALL}")
    return found


def nats_configuration(
    port: int, directory: Path, user: str = "", password: str = "", max_payload: int = MAX_PAYLOAD
) -> str:
    """Return the configuration of a server that listens on loopback. ``directory``: for its data. ``user``: empty for
    a server without credentials; with a user, the server writes its log to ``directory``, at most 2 MB."""
    settings: dict[str, object] = {
        "listen": f"127.0.0.1:{port}",
        "max_payload": max_payload,
        "jetstream": {"store_dir": str(directory)},
    }
    if user:
        settings["authorization"] = {"user": user, "password": password}
        settings |= {"logfile": str(directory / "log"), "logfile_size_limit": 1_000_000, "logfile_max_num": 2}
    return json.dumps(settings, indent=2)
