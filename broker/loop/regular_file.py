"""Reading of files chosen by a user: limited in size, and never waiting for a writer.

Opening a FIFO waits until another process writes to it, and a device such as /dev/zero never ends. Either would stop
the node's loop, so only regular files are read.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

MIB: Final = 1_048_576
MAX_CONFIGURATION: Final = 16 * MIB
"""Maximum size of a configuration."""
MAX_CREDENTIALS: Final = 64 * MIB
"""Maximum size of a file of certificates, keys or revocation lists."""


def read_regular(path: str | Path, most: int) -> bytes:
    """Return the whole file. Raise OSError, including for files that are not regular or exceed ``most`` bytes."""
    number = _opened(path, most)
    with open(number, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:  # it has grown, or it is a file in /proc, whose size is shown as 0
        raise _too_large(path, most)
    return data


def check_regular(path: str | Path, most: int) -> None:
    """Check a file that a library will open by name. Raises OSError, as ``read_regular`` does."""
    os.close(_opened(path, most))


def _opened(path: str | Path, most: int) -> int:
    _check(os.stat(path), path, most)  # checked first, because opening a device may have side effects
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(os.fstat(number), path, most)
    except BaseException:
        os.close(number)
        raise
    return number


def _check(found: os.stat_result, path: str | Path, most: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if found.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most // MIB} MiB", str(path))
