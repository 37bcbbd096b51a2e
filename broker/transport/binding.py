"""Binding: the listening sockets of one host and port, of which a host name may have several."""

import asyncio
import errno
import socket
from collections.abc import Iterable
from typing import Final


class PlainSocket(socket.socket):
    """One whose ``family`` and ``type`` are numbers. The standard library makes members of enumerations of them each
    time that they are asked for, which accepting a connection does five times: a tenth of what it costs until CONNACK.
    """

    __slots__ = ()

    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]


_Address = tuple[str | int | bytes, ...]
_FLAGS: Final = socket.AI_PASSIVE | socket.AI_NUMERICSERV


async def listening_sockets(host: str, port: int, backlog: int, shared: bool = False) -> list[socket.socket]:
    """Bound and listening, non-blocking, one for each address of ``host`` that is ours.

    ``shared``: other processes that say so too may listen there; the system gives each a part of the connections.

    Raises ``socket.gaierror`` where the host has no address, ``OSError`` where none can be bound, or one is taken.
    """
    try:
        # An address is read at once; for a name somebody may have to be asked, which is for a thread.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=_FLAGS | socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=_FLAGS)
    sockets = _bind(_addresses(found), port, shared)
    try:
        for sock in sockets:
            sock.listen(backlog)
    except OSError:
        _close(sockets)
        raise
    return sockets


def try_to_bind(host: str, port: int, shared: bool = False) -> None:
    """Whether ``listening_sockets`` could have it, without anybody being let in. Raises as that does; blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=_FLAGS)
    _close(_bind(_addresses(found), port, shared))


def _addresses(found: Iterable[tuple[int, int, int, str, _Address]]) -> list[tuple[int, _Address]]:
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _bind(addresses: list[tuple[int, _Address]], port: int, shared: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, address in addresses:
        try:
            # With the protocol named, since asyncio sets TCP_NODELAY only where it is.
            sock = PlainSocket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        except OSError as exc:  # this machine does not speak that family
            failure = failure or exc
            continue
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
        except OSError as exc:
            sock.close()
            failure = failure or exc
            if exc.errno == errno.EADDRNOTAVAIL:  # a host name may have addresses that are not ours to bind
                continue
            _close(sockets)
            raise
        port = sock.getsockname()[1]
        sockets.append(sock)
    if not sockets:
        raise failure or OSError(errno.EADDRNOTAVAIL, "no address")
    return sockets
