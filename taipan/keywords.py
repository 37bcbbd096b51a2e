"""The keywords of ``taipan.Node``: the tables of the configuration file, with short forms for the most common ones."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit

from .broker.config import parse_bind
from .broker.listener_kinds import LISTENER_KINDS
from .management.configuration.config import DEFAULT_LISTENERS, TABLES, Loaded, read, read_data
from .management.configuration.config_document import ConfigError
from .management.configuration.validation import nearest, quoted

Table = Mapping[str, Any]


class Keywords(TypedDict, total=False):
    """The keywords of ``Node``. Each is a table of the configuration file (docs/configuration.md).

    Short forms: ``listeners`` also accepts URLs, such as ``tcp://127.0.0.1:0``, ``ws://127.0.0.1:0/mqtt`` and
    ``unix:///run/mqtt.sock``; port 0 is any free port. ``durability`` also accepts the level alone. ``management`` and
    ``dashboard`` also accept True, or a URL such as ``http://127.0.0.1:0``. Management, dashboard and history are off
    unless you request them.
    """

    listeners: Sequence[str | Table]
    durability: str | Table
    management: bool | str | Table
    dashboard: bool | str | Table
    history: bool | Table
    node: Table
    data: Table
    limits: Table
    stop: Table
    retained: Table
    delayed: Table
    slow_subscriptions: Table
    sys_topics: Table
    shared: Table
    access: Table
    cluster: Table
    ruleengine: Table
    zones: Mapping[str, Table]


_OFF: Final = ("management", "dashboard", "history")
_TYPES: Final = {"tcp": "tcp", "mqtt": "tcp", "ws": "ws", "unix": "unix"}
_WITH_TLS: Final = {"tls"} | {word for kind in LISTENER_KINDS.values() if kind.tls for word in (kind.name, kind.scheme)}


def load_keywords(config: Table | None, keywords: Keywords) -> tuple[Loaded, bool]:
    """Return the settings, and whether the data directory is temporary because the node keeps no data.

    ``config`` is a configuration as a dictionary; ``keywords`` override it. Raises ConfigError, and TypeError for an
    unknown keyword.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config: expected a dictionary with the structure of the configuration file, got {type(config).__name__}"
        )
    data: dict[str, Any] = dict(config or {})
    known = Keywords.__annotations__
    for name, value in keywords.items():
        if name not in known and name != "log":
            raise TypeError(f"Node has no keyword {quoted(name)}{nearest(name, known)}")
        data[name] = value
    if "log" in data:
        raise ConfigError("log: a program sets up its own logging; the node logs under 'taipan'")
    for name in TABLES:
        data[name] = _table(name, data[name]) if name in data else {}
    for name in _OFF:
        data[name] = data[name] or {"enabled": False}
    data = {name: table for name, table in data.items() if table or name not in TABLES}
    data["listeners"] = _listeners(data.get("listeners", DEFAULT_LISTENERS))
    node = data.get("node", {})
    temporary = "data_dir" not in node and data.get("durability", {}).get("level") == "memory"
    if temporary:
        data["node"] = {**node, "data_dir": f"{tempfile.gettempdir()}/taipan-{secrets.token_hex(8)}"}
    return read_data(data), temporary


def load_file(path: str) -> Loaded:
    """Return the settings of a file. Environment variables have no effect. Raises ConfigError."""
    return read(path, (), {})


def _table(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        table = dict(value)
        if name in ("management", "dashboard", "history"):
            table.setdefault("enabled", True)
        return table
    if name == "durability" and isinstance(value, str):
        return {"level": value}
    if name in _OFF and isinstance(value, bool):
        return {"enabled": value}
    if name in ("management", "dashboard") and isinstance(value, str):
        return {"enabled": True, "bind": _bind(name, value, ("http",))[1]}
    raise ConfigError(f"{name}: expected a table, got {type(value).__name__} {value!r}"[:200])


def _listeners(given: Any) -> list[Any]:
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise ConfigError(f"listeners: expected a list of URLs or tables, got {given!r}"[:200])
    made: list[Any] = []
    names: set[tuple[str, str]] = set()
    for index, each in enumerate(given):
        place = f"listeners.{index}"
        if isinstance(each, str):
            scheme, bind, path = _bind(place, each, tuple(_TYPES))
            each = {"type": _TYPES[scheme], "bind": path if _is_local(scheme) else bind}
            if path and LISTENER_KINDS[_TYPES[scheme]].websocket:
                each["path"] = path
        elif isinstance(each, Mapping):
            each = dict(each)
        if isinstance(each, dict) and "name" not in each:
            kind = str(each.get("type"))
            each["name"] = kind if (kind, kind) not in names else f"{kind}-{index}"
            names.add((kind, each["name"]))
        made.append(each)
    return made


def _is_local(scheme: str) -> bool:
    return scheme in _TYPES and LISTENER_KINDS[_TYPES[scheme]].local


def _form(scheme: str) -> str:
    return f"{scheme}:///path" if _is_local(scheme) else f"{scheme}://host:port"


def _bind(place: str, url: str, schemes: tuple[str, ...]) -> tuple[str, str, str]:
    """Return scheme, ``host:port`` and path of a URL. Raises ConfigError."""
    try:
        parsed = urlsplit(url)
        bind = parsed.netloc
        if parsed.scheme in _WITH_TLS and "tcp" in schemes:
            raise ConfigError(f"{place}: {quoted(url)} requires certificates: use a table with type, bind and tls")
        if parsed.scheme not in schemes:
            raise ValueError(f"expected {' or '.join(map(_form, schemes))}")
        if not _is_local(parsed.scheme):
            parse_bind(bind)
        elif bind or not parsed.path:
            raise ValueError(f"expected {_form(parsed.scheme)}")
    except ValueError as error:
        raise ConfigError(f"{place}: {quoted(url)}: {error}") from None
    return parsed.scheme, bind, parsed.path
