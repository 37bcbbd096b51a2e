"""SocketView: addresses and options of a socket that a PolledTransport owns.

Not compiled: a compiled module checks types of the standard library, which are narrower than what it returns."""

import errno
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol


class Owner(Protocol):
    """The owner of a socket. ``fd``: its number, or -1 after the owner has closed it."""

    fd: int


class SocketView:
    """The options and addresses of a socket. Like asyncio's TransportSocket, it does not read, write or close.

    Its methods raise OSError after the socket was closed."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def fileno(self) -> int:
        return self._owner.fd

    @property
    def family(self) -> int:
        return self._ask(lambda sock: sock.family)  # type: ignore[no-any-return]

    def getsockname(self) -> Any:
        return self._ask(lambda sock: sock.getsockname())

    def getpeername(self) -> Any:
        return self._ask(lambda sock: sock.getpeername())

    def getsockopt(self, *arguments: Any) -> Any:
        return self._ask(lambda sock: sock.getsockopt(*arguments))

    def setsockopt(self, *arguments: Any) -> None:
        self._ask(lambda sock: sock.setsockopt(*arguments))

    def shutdown(self, how: int) -> None:
        self._ask(lambda sock: sock.shutdown(how))

    def _ask(self, question: Callable[[socket.socket], Any]) -> Any:
        fd = self._owner.fd
        if fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sock = socket.socket(fileno=fd)
        try:
            return question(sock)
        finally:
            sock.detach()
