"""The socket file of a listener of type ``unix``: made with its rights, told from one that is left over, removed."""

import errno
import grp
import os
import pwd
import select
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..config import ListenerSettings
from ..listener_kinds import MAX_SOCKET_PATH
from ..session.client_info import LOCAL_USER
from .binding import PlainSocket

FREE: Final = "free"
LEFT_OVER: Final = "left over"
IN_USE: Final = "in use"
NO_SOCKET: Final = "no socket"
"""What is at a path: nothing; the socket of a process that has ended; that of one that listens; another file."""
_PEER_CREDENTIALS: Final = int(getattr(socket, "SO_PEERCRED", 0))  # Linux alone has it
_CLOSED: Final = int(getattr(select, "POLLRDHUP", select.POLLHUP))


class SocketFileError(Exception):
    """The socket cannot be made, because of the setting ``key``; the text is one line."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(slots=True)
class SocketFile:
    """A socket that listens, and the file that it has made at ``path``."""

    sock: socket.socket
    path: str
    identity: tuple[int, int]  # device and inode

    def remove(self) -> None:
        """Take the file away, unless another process has put its own there. The caller closes the socket."""
        if _identity(self.path) == self.identity:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass


def listening_socket(settings: ListenerSettings) -> SocketFile:
    """Bind and listen at ``settings.bind``. Clients can connect only after the file has its owner and its rights.

    A file that a process has left behind is replaced. Raises SocketFileError, and OSError of the system.
    """
    path = settings.bind
    mode, user, group = _rights(settings)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise SocketFileError("bind", f"the path of a socket has at most {MAX_SOCKET_PATH} bytes")
    found = state_of(path)
    if found == IN_USE:
        raise SocketFileError("bind", "another process listens at this socket")
    if found == NO_SOCKET:
        raise SocketFileError("bind", "a file that is not a socket exists there")
    if found == LEFT_OVER:
        os.unlink(path)
    sock = PlainSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    made: SocketFile | None = None
    try:
        sock.setblocking(False)
        sock.bind(path)
        identity = _identity(path)
        if identity is None:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted again")
        made = SocketFile(sock, path, identity)
        if (user, group) != (-1, -1):
            _give(path, user, group, settings)
        os.chmod(path, mode)
        sock.listen(settings.backlog)
    except BaseException:
        sock.close()
        if made is not None:
            made.remove()
        raise
    return made


def state_of(path: str) -> str:
    """``FREE``, ``LEFT_OVER``, ``IN_USE`` or ``NO_SOCKET``. Raises OSError where that cannot be seen."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return NO_SOCKET
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except FileNotFoundError:
        return FREE
    except ConnectionRefusedError:
        return LEFT_OVER
    except (BlockingIOError, PermissionError):  # its queue is full; it is another user's
        return IN_USE
    return IN_USE


def rights_faults(settings: ListenerSettings) -> list[SocketFileError]:
    """The faults of the owner and of the group, as this machine knows users."""
    try:
        _rights(settings)
    except SocketFileError as error:
        return [error]
    return []


def _rights(settings: ListenerSettings) -> tuple[int, int, int]:
    """Mode, user and group as numbers; -1 for those that stay."""
    try:
        user = _number(settings.socket_owner, lambda name: pwd.getpwnam(name).pw_uid)
    except KeyError:
        raise SocketFileError("socket_owner", f"there is no user {settings.socket_owner!r}") from None
    try:
        group = _number(settings.socket_group, lambda name: grp.getgrnam(name).gr_gid)
    except KeyError:
        raise SocketFileError("socket_group", f"there is no group {settings.socket_group!r}") from None
    return int(settings.socket_mode, 8), user, group


def _number(name: str, look_up: Callable[[str], int]) -> int:
    if not name:
        return -1
    return int(name) if name.isascii() and name.isdigit() else look_up(name)


def _give(path: str, user: int, group: int, settings: ListenerSettings) -> None:
    try:
        os.chown(path, user, group)
    except PermissionError:
        key = "socket_owner" if user not in (-1, os.geteuid()) else "socket_group"
        who = getattr(settings, key)
        raise SocketFileError(key, f"the user of the node may not give the socket to {who!r}") from None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def peer_of(sock: socket.socket) -> tuple[str, int]:
    """The client, in the place of an address and a port: ``("uid-1000", 4711)``, user and process.

    The system vouches for both. ``("local", 0)`` where it does not tell.
    """
    try:
        process, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, _PEER_CREDENTIALS, 12))
    except OSError:
        return "local", 0
    return f"{LOCAL_USER}{user & 0xFFFFFFFF}", process


def peer_has_closed(sock: socket.socket) -> bool:
    """Whether the client has closed its side, also where what it has sent before is not read yet."""
    waiting = select.poll()
    waiting.register(sock.fileno(), _CLOSED)
    return bool(waiting.poll(0))
