"""``make`` as somebody runs it in a terminal, whatever started the tests."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .absent import absent


def make(*words: str, directory: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Its status and what it said. Skips where there is no make.

    A make that runs the tests hands down its flags, its level and what was set on its command line; this one would
    obey these too, and say which directory it enters and leaves.
    """
    if shutil.which("make") is None:
        absent("make")
    handed_down = ("MAKE", "MFLAGS", "GNUMAKEFLAGS", "PYTHON", "TAIPAN_COMPILED")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(handed_down)}
    return subprocess.run(
        ["make", *words], cwd=directory, text=True, capture_output=True, env=environ | dict(env or {})
    )
