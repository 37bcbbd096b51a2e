"""Binding: the listening sockets of one host and port, of which a hostname may have several."""

import asyncio
import errno
import socket
from collections.abc import Iterable
from typing import Final


class PlainSocket(socket.socket):
    """A socket whose ``family`` and ``type`` are numbers. The standard library creates enumeration members each time
    they are read, which accepting a connection does five times: a tenth of its cost until CONNACK."""

    __slots__ = ()

    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]


def is_wildcard(host: str) -> bool:
    """Return whether a socket that is bound to this address accepts connections to every address of the machine."""
    return host in ("0.0.0.0", "::")


_Address = tuple[str | int | bytes, ...]
_FLAGS: Final = socket.AI_PASSIVE | socket.AI_NUMERICSERV


async def listening_sockets(host: str, port: int, backlog: int, shared: bool = False) -> list[PlainSocket]:
    """Return bound, listening, non-blocking sockets, one for each local address of ``host``.

    ``shared``: other processes that also set this may listen at the same address; the system distributes the
    connections among them.

    Raises ``socket.gaierror`` if the host has no address, and ``OSError`` if no address can be bound or one is in
    use."""
    sockets = await bound_sockets(host, port, shared)
    try:
        for sock in sockets:
            sock.listen(backlog)
    except OSError:
        _close(sockets)
        raise
    return sockets


async def bound_sockets(
    host: str, port: int, shared: bool, kind: socket.SocketKind = socket.SOCK_STREAM
) -> list[PlainSocket]:
    """Return the sockets of ``listening_sockets``, bound but not listening; ``kind``: stream or datagram sockets."""
    try:
        # An address is read immediately; a name may need a query, which runs in a thread.
        found = socket.getaddrinfo(host, port, type=kind, flags=_FLAGS | socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind, flags=_FLAGS)
    return _bind(_addresses(found), port, shared, kind)


def try_to_bind(host: str, port: int, shared: bool = False, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
    """Check whether ``bound_sockets`` would succeed, without accepting clients. Raises the same errors; blocks."""
    found = socket.getaddrinfo(host, port, type=kind, flags=_FLAGS)
    _close(_bind(_addresses(found), port, shared, kind))


def _addresses(found: Iterable[tuple[int, int, int, str, _Address]]) -> list[tuple[int, _Address]]:
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _bind(addresses: list[tuple[int, _Address]], port: int, shared: bool, kind: socket.SocketKind) -> list[PlainSocket]:
    streams = kind == socket.SOCK_STREAM
    sockets: list[PlainSocket] = []
    failure: OSError | None = None
    for family, address in addresses:
        try:
            # With the protocol, because asyncio sets TCP_NODELAY only then.
            sock = PlainSocket(family, kind, socket.IPPROTO_TCP if streams else socket.IPPROTO_UDP)
        except OSError as exc:  # this machine does not support that family
            failure = failure or exc
            continue
        try:
            sock.setblocking(False)
            if streams:  # for datagrams it would let another process take the port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
        except OSError as exc:
            sock.close()
            failure = failure or exc
            if exc.errno == errno.EADDRNOTAVAIL:  # a hostname may have addresses of other machines
                continue
            _close(sockets)
            raise
        port = sock.getsockname()[1]
        sockets.append(sock)
    if not sockets:
        raise failure or OSError(errno.EADDRNOTAVAIL, "no address")
    return sockets
