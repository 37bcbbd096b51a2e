"""The package in ``tests/packages/keypad``, installed by pip as a user would: it adds a source of access."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .absent import absent

PACKAGE = Path(__file__).parents[1] / "packages" / "keypad"


def install_keypad(directory: Path) -> Path:
    """A directory that has it installed, without any index."""
    for needed in ("pip", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            absent(needed)
    sources, target = directory / "sources", directory / "installed"
    shutil.copytree(PACKAGE, sources, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(target), str(sources)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


@contextmanager
def importable(directory: Path) -> Iterator[None]:
    """As long as this lasts, what is installed there is found."""
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop("taipan_keypad", None)
