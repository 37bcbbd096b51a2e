"""The files that a migration reads: regular files of a limited size."""

import os
from pathlib import Path
from typing import Final

from taipan.broker.loop.regular_file import MIB, read_regular

MAX_TEXT: Final = 64 * MIB
"""Maximum size of a configuration, or of a file of passwords or rules: half a million users."""
MAX_EXPORT: Final = 1024 * MIB
"""Maximum size of an export from EMQX."""
MAX_DATABASE: Final = 8192 * MIB
"""Maximum size of a persistence file."""


def read_named(path: Path, most: int = MAX_TEXT) -> bytes:
    """Return all of it. Raise OSError, including for a file that is not regular or larger than ``most``
    bytes, and ValueError for a NUL in the name."""
    return read_regular(path, most)


def missing(path: Path, none: str = "no such file") -> str:
    """Return why the file cannot be read; empty if it can be."""
    if os.path.isfile(path):  # the methods of Path raise for a name that is too long
        return ""
    return "not a regular file" if os.path.exists(path) and not os.path.isdir(path) else none
