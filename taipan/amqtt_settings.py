"""Convert an aMQTT configuration to the settings of a node."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import BrokerError

from .broker.listener_kinds import find_kind
from .broker.loop.regular_file import MAX_CREDENTIALS, read_regular
from .broker.mqtt.constants import NEVER_EXPIRES

logger = logging.getLogger(__name__)

_PORTS: Final = {ListenerType.TCP: 1883, ListenerType.WS: 8883}


def node_settings(config: BrokerConfig, directory: tempfile.TemporaryDirectory[str]) -> dict[str, Any]:
    """Return the keywords of ``taipan.Node``. ``directory``: for settings that must be files. Raises BrokerError."""
    listeners = [
        _listener(name, listener, Path(directory.name))
        for name, listener in config.listeners.items()
        if listener.bind is not None
    ]
    if not listeners:
        raise BrokerError("no listener has an address: set 'bind' for one of them")
    if config.timeout_disconnect_delay:
        logger.warning("amqtt_setting_ignored setting=timeout-disconnect-delay used=keep_alive_multiplier")
    expiry = config.session_expiry_interval
    return {
        "listeners": listeners,
        "durability": "memory",  # aMQTT forgets everything when it ends
        "zones": {
            "external": {
                "max_packet_size": 268_435_460,
                "session_expiry_interval": NEVER_EXPIRES if expiry is None else expiry,
                "allow_anonymous": False,  # the plugins decide
            }
        },
        "access": {"cache": False, "authenticators": [], "authorizers": [], "no_match": "allow"},
        "sys_topics": {"interval": 0, "heartbeat": 0},  # the tree is that of BrokerSysPlugin
        "delayed": {"enabled": False},
    }


def _listener(name: str, given: ListenerConfig, directory: Path) -> dict[str, Any]:
    if given.type == ListenerType.EXTERNAL:
        raise BrokerError(f"listener '{name}': type external is not supported; use tcp or ws")
    table: dict[str, Any] = {
        "name": name,
        "type": find_kind(tls=bool(given.ssl), websocket=given.type == ListenerType.WS).name,
        "bind": _bind(str(given.bind), _PORTS[given.type]),
    }
    if given.max_connections > 0:
        table["max_connections"] = given.max_connections
    if given.type == ListenerType.WS:
        table |= {"path": "/", "subprotocol_required": False, "allowed_origins": ["*"]}
    if given.ssl:
        table["tls"] = _tls(name, given, directory)
    return table


def _bind(given: str, port: int) -> str:
    """Return ``host:port`` for aMQTT's forms: port, ``:port``, address, ``address:port``, ``[v6]:port``, empty."""
    if given.startswith("["):
        host, _, rest = given.partition("]")
        host, rest = f"{host}]", rest.removeprefix(":")
    elif ":" in given:
        host, _, rest = given.rpartition(":")
    elif given.isdecimal():
        host, rest = "", given
    else:
        host, rest = given, ""
    if rest and not rest.isdecimal():
        raise BrokerError(f"Invalid port value in bind value: {given}")
    host = "127.0.0.1" if host == "localhost" else host or "0.0.0.0"
    return f"{host}:{rest or port}"


def _tls(name: str, given: ListenerConfig, directory: Path) -> dict[str, Any]:
    if given.certfile is None or given.keyfile is None:
        raise BrokerError(f"listener '{name}': 'certfile' or 'keyfile' configuration parameter missing")
    table: dict[str, Any] = {"certfile": str(given.certfile), "keyfile": str(given.keyfile)}
    files = [str(given.cafile)] if given.cafile else []
    if given.capath:
        files += [each.path for each in os.scandir(given.capath) if each.is_file()]
    authorities = [read_regular(each, MAX_CREDENTIALS).decode("utf-8") for each in files]
    if given.cadata:
        authorities.append(str(given.cadata))
    if authorities:
        # One file: when the node reloads its certificates, it also reloads its authorities.
        cafile = directory / f"authorities-{len(os.listdir(directory))}.pem"
        cafile.write_text("\n".join(authorities))
        table |= {"cafile": str(cafile), "verify": "optional"}
    return table
