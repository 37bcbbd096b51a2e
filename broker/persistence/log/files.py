"""Names of files that last: a directory is flushed after a name in it has changed."""

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make names in the directory of ``path`` last."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def replace_file(new: Path, path: Path) -> None:
    """Give ``new``, whose content has been flushed, the name ``path``: after a crash one or the other is there."""
    new.replace(path)
    sync_directory(path)
