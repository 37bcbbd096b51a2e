"""Stores that are not in use: whether one is intact, and moving one out of the way."""

import time
from pathlib import Path
from typing import Final

from ..persistence.log.errors import StoreError
from ..persistence.log.files import sync_directory
from ..persistence.log.sqlite_log import SqliteLog
from .store import CHECK_FILE, FILE

_FILES: Final = (f"{FILE}*", CHECK_FILE, "cluster-routes")
"""The files that belong to a store, including those of SQLite and those with knowledge that depends on its data."""


def is_intact(directory: Path) -> bool:
    """Return whether all batches of the store in ``directory`` can be read; no process may use the directory. A damaged
    store is salvaged."""
    log = SqliteLog(directory / FILE)
    try:
        log.open()
        for _ in log.scan():
            pass
        log.checkpoint_and_close()
    except StoreError:
        return False
    return log.salvaged is None


def set_aside(directory: Path) -> Path:
    """Move the store in a data directory to a new directory ``replaced-<date>`` in it, and return that directory. It is
    never deleted by a node."""
    aside = directory / time.strftime("replaced-%Y%m%dT%H%M%SZ", time.gmtime())
    aside.mkdir(mode=0o700, exist_ok=True)
    for pattern in _FILES:
        for file in sorted(directory.glob(pattern)):
            file.rename(aside / file.name)
    sync_directory(aside / FILE)
    sync_directory(aside)
    return aside
