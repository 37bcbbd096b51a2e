"""The file at the path of a Unix socket: whether a process listens at it."""

import os
import socket
import stat
from typing import Final

FREE: Final = "free"
LEFT_OVER: Final = "left over"
IN_USE: Final = "in use"
NO_SOCKET: Final = "no socket"
"""The possible contents of a path: nothing, the socket of a process that has ended, the socket of a process that
listens, or another file."""


def state_of(path: str) -> str:
    """Return ``FREE``, ``LEFT_OVER``, ``IN_USE`` or ``NO_SOCKET``. Raises OSError if the state cannot be determined."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return NO_SOCKET
    except FileNotFoundError:
        return FREE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return FREE
        except ConnectionRefusedError:
            return LEFT_OVER
        except (BlockingIOError, PermissionError):  # its queue is full; it is another user's
            return IN_USE
    return IN_USE
