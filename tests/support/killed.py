"""The files of a node as they are at a moment, which is all that is left after a kill."""

import shutil
from pathlib import Path


def as_killed(data: Path, copy: Path) -> Path:
    """Copy what is on the disk in the data directory of a running node, and return the copy. The event loop of the
    node does not run meanwhile if it is the caller's."""
    return Path(shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock", "lock")))
