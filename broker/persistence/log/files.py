"""Durable file names: after a change of a name, its directory is flushed."""

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Flush the directory of ``path``, so that changes of names in it are durable."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def replace_file(new: Path, path: Path) -> None:
    """Rename ``new``, whose content has been flushed, to ``path``: after a crash, either the old or the new file is
    there."""
    new.replace(path)
    sync_directory(path)
