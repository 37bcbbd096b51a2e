"""The socket file of a listener of type ``unix``: created with its permissions, distinguished from a leftover,
removed."""

import fcntl
import grp
import logging
import os
import pwd
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ..config import ListenerSettings
from ..listener_kinds import MAX_SOCKET_PATH
from ..loop.socket_state import IN_USE, LEFT_OVER, NO_SOCKET, state_of
from ..session.client_info import LOCAL_USER
from .binding import PlainSocket

logger = logging.getLogger(__name__)

_PEER_CREDENTIALS: Final = int(getattr(socket, "SO_PEERCRED", 0))  # only available on Linux
_PATH_ONLY: Final = int(getattr(os, "O_PATH", 0)) if sys.platform == "linux" else 0
"""Opens a file to change its owner and its mode; 0: the system does not support it."""
_FOLLOW: Final = bool(_PATH_ONLY)
"""Whether the path that ``_held`` returns is a link to the file."""
_MOST: Final = 0xFFFF_FFFE
"""The highest number of a user and of a group. The next one means "no change" to the system."""
_LOOKS: Final = 100
_BETWEEN_LOOKS: Final = 0.02
"""Seconds. A lock that somebody else keeps for two seconds is not of a node that makes a socket."""
_CLOSED: Final = int(getattr(select, "POLLRDHUP", select.POLLHUP))


class SocketFileError(Exception):
    """The socket cannot be created because of the setting ``key``; the message is one line."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(slots=True)
class SocketFile:
    """A listening socket, and the file that it has created at ``path``."""

    sock: PlainSocket
    path: str
    identity: tuple[int, int]  # device and inode

    def remove(self) -> None:
        """Delete the file, unless another process has put its own there. The caller closes the socket.

        A file that cannot be deleted is logged, and stays: the next start replaces it."""
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self.identity:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("socket_not_removed path=%s error=%s", self.path, error.strerror)


def listening_socket(settings: ListenerSettings) -> SocketFile:
    """Bind and listen at ``settings.bind``. Clients can connect only after the file has its owner and its permissions.

    A leftover file is replaced. Raises SocketFileError, and OSError of the system."""
    path = settings.bind
    mode, user, group = _rights(settings)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise SocketFileError("bind", f"the path of a socket has at most {MAX_SOCKET_PATH} bytes")
    with _alone_in_directory(path):
        try:
            found = state_of(path)
        except PermissionError:
            directory = os.path.dirname(path)
            raise SocketFileError("bind", f"the user of the node may not access the directory {directory}") from None
        if found == IN_USE:
            raise SocketFileError("bind", "another process listens at this socket")
        if found == NO_SOCKET:
            raise SocketFileError("bind", "a file that is not a socket exists there")
        if found == LEFT_OVER:
            os.unlink(path)
        return _bound(settings, mode, user, group)


def _bound(settings: ListenerSettings, mode: int, user: int, group: int) -> SocketFile:
    """A socket that listens at a path that is free."""
    path = settings.bind
    sock = PlainSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    made: SocketFile | None = None
    try:
        sock.setblocking(False)
        sock.bind(path)
        with _held(path) as file:
            found_file = os.stat(file, follow_symlinks=_FOLLOW)
            if not stat.S_ISSOCK(found_file.st_mode):
                raise SocketFileError("bind", "another process has replaced the socket")
            made = SocketFile(sock, path, (found_file.st_dev, found_file.st_ino))
            if (user, group) != (-1, -1):
                _give(file, user, group, settings)
            os.chmod(file, mode, follow_symlinks=_FOLLOW)
        sock.listen(settings.backlog)
    except BaseException:
        sock.close()
        if made is not None:
            made.remove()
        raise
    return made


@contextmanager
def _alone_in_directory(path: str) -> Iterator[None]:
    """Prevent other nodes from creating a socket in the directory of ``path``: a socket that is bound and does not
    listen yet looks like a leftover.

    If the directory cannot be locked, or a stranger keeps its lock, nothing is held.
    """
    try:
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        for _ in range(_LOOKS):
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_BETWEEN_LOOKS)
                continue
            except OSError:  # its file system has no locks
                pass
            break
        yield
    finally:
        os.close(directory)


@contextmanager
def _held(path: str) -> Iterator[str]:
    """Return a path to the file that is at ``path`` now, even if another process puts a different file there.

    It never leads to a file to which a symbolic link at ``path`` points."""
    if not _PATH_ONLY:
        yield path
        return
    descriptor = os.open(path, _PATH_ONLY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def rights_faults(settings: ListenerSettings) -> list[SocketFileError]:
    """Yield the faults of the owner and of the group, for the users of this machine."""
    try:
        _rights(settings)
    except SocketFileError as error:
        return [error]
    return []


def _rights(settings: ListenerSettings) -> tuple[int, int, int]:
    """Return mode, user and group as numbers; -1 for those that remain unchanged."""
    user = _number("socket_owner", settings.socket_owner, "user", lambda name: pwd.getpwnam(name).pw_uid)
    group = _number("socket_group", settings.socket_group, "group", lambda name: grp.getgrnam(name).gr_gid)
    return int(settings.socket_mode, 8), user, group


def _number(key: str, given: str, kind: str, look_up: Callable[[str], int]) -> int:
    if not given:
        return -1
    if given.isascii() and given.isdigit():
        digits = given.lstrip("0") or "0"
        if len(digits) > len(str(_MOST)) or int(digits) > _MOST:
            raise SocketFileError(key, f"the number of a {kind} must be 0 to {_MOST}")
        return int(digits)
    try:
        return look_up(given)
    except KeyError:
        raise SocketFileError(key, f"there is no {kind} {given!r}") from None


def _give(path: str, user: int, group: int, settings: ListenerSettings) -> None:
    try:
        os.chown(path, user, group, follow_symlinks=_FOLLOW)
    except PermissionError:
        key = "socket_owner" if user not in (-1, os.geteuid()) else "socket_group"
        who = getattr(settings, key)
        raise SocketFileError(key, f"the user of the node cannot give the socket to {who!r}") from None


def peer_of(sock: socket.socket) -> tuple[str, int]:
    """Return the client in place of an address and a port: ``("uid-1000", 4711)``, user and process.

    The operating system guarantees both. ``("local", 0)`` if it does not report them."""
    try:
        process, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, _PEER_CREDENTIALS, 12))
    except OSError:
        return "local", 0
    return f"{LOCAL_USER}{user & 0xFFFFFFFF}", process


def peer_has_closed(sock: socket.socket) -> bool:
    """Return whether the client has closed its side, even if earlier data has not been read yet."""
    waiting = select.poll()
    waiting.register(sock.fileno(), _CLOSED)
    return bool(waiting.poll(0))
