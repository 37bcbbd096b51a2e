"""ListenerKind: the meaning of ``type`` in a table ``[[listeners]]``. No other file compares the names of types."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WEBSOCKET_KEYS: Final = (
    "path",
    "subprotocols",
    "subprotocol_required",
    "allowed_origins",
    "compress",
    "mqtt_piggyback",
)
SOCKET_FILE_KEYS: Final = ("socket_mode", "socket_owner", "socket_group")
PORT_KEYS: Final = ("reuse_port", "nodelay")
STREAM_KEYS: Final = ("backlog", "nodelay", "proxy_protocol", "proxy_protocol_timeout")
MAX_SOCKET_PATH: Final = 107
"""Maximum length of a Unix socket's path in bytes, given by the operating system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerKind:
    """One type of listener.

    ``protocol`` is its name in ``/listeners``, as EMQX writes it: ``mqtt:tcp``; with ``protocol_has_port`` the port
    follows: ``mqtt:ws:8083``. ``scheme``: scheme of the URL for clients. ``port``: the usual port, 0 for none. ``tls``:
    its clients use TLS, so it needs certificates. ``websocket``: MQTT packets come in WebSocket frames. ``local``: it
    is bound to a Unix socket, a file, and not to a host and a port. ``datagram``: it receives datagrams (UDP), for a
    gateway."""

    name: str
    protocol: str
    scheme: str
    port: int = 0
    protocol_has_port: bool = False
    tls: bool = False
    websocket: bool = False
    local: bool = False
    datagram: bool = False

    def unused_keys(self) -> dict[str, str]:
        """The keys of a listener that have no effect for this type, each with a description of the types that accept
        it."""
        unused = dict.fromkeys(() if self.websocket else WEBSOCKET_KEYS, _types(websocket=True))
        unused |= dict.fromkeys(() if self.local else SOCKET_FILE_KEYS, _types(local=True))
        unused |= dict.fromkeys(PORT_KEYS if self.local else (), _types(local=False))
        return unused | dict.fromkeys(STREAM_KEYS if self.datagram else (), _types())


LISTENER_KINDS: Final[dict[str, ListenerKind]] = {
    kind.name: kind
    for kind in (
        ListenerKind(name="tcp", protocol="mqtt:tcp", scheme="mqtt", port=1883),
        ListenerKind(name="ssl", protocol="mqtt:ssl", scheme="mqtts", port=8883, tls=True),
        ListenerKind(name="ws", protocol="mqtt:ws", protocol_has_port=True, scheme="ws", port=8083, websocket=True),
        ListenerKind(
            name="wss", protocol="mqtt:wss", protocol_has_port=True, scheme="wss", port=8084, tls=True, websocket=True
        ),
        ListenerKind(name="unix", protocol="mqtt:unix", scheme="unix", local=True),
    )
}
"""All types, by name."""


def find_kind(*, tls: bool, websocket: bool, local: bool = False) -> ListenerKind:
    """Return the type of MQTT listeners with these properties. Raises StopIteration if there is none."""
    wanted = (tls, websocket, local)
    return next(kind for kind in LISTENER_KINDS.values() if (kind.tls, kind.websocket, kind.local) == wanted)


def words(names: Iterable[str], joint: str = "or") -> str:
    """Return ``ssl or wss``; ``tcp, ssl, ws or wss``."""
    *before, last = names
    return f"{', '.join(before)} {joint} {last}" if before else last


def _types(*, websocket: bool | None = None, local: bool | None = None) -> str:
    return words(
        [
            kind.name
            for kind in LISTENER_KINDS.values()
            if websocket in (None, kind.websocket) and local in (None, kind.local) and not kind.datagram
        ],
        "and",
    )
