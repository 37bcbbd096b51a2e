"""The compiled modules that ``make compile`` has built, taken in place of their sources where these are unchanged.

Import this before anything else of ``broker``. It does nothing unless the environment variable ``TAIPAN_COMPILED``
names the directory they are in; ``outcome`` says what came of it.
"""

import hashlib
import importlib
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "TAIPAN_COMPILED"
MANIFEST: Final = "manifest.json"
ROOT: Final = Path(__file__).resolve().parents[1]

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"


class Compiled:
    """A directory of extension modules, with a manifest of what they were made of."""

    def __init__(self, directory: Path, root: Path = ROOT) -> None:
        self.directory = directory.resolve()
        self.root = root
        self._manifest: dict[str, Any] = {}
        try:
            self._manifest = json.loads((self.directory / MANIFEST).read_bytes())
        except (OSError, ValueError):
            pass  # ``unusable`` tells

    @property
    def modules(self) -> list[str]:
        """The modules in it, by their absolute names."""
        names: list[str] = self._manifest.get("modules", [])
        return names

    @staticmethod
    def digests(root: Path) -> dict[str, str]:
        """Every source file of ``broker`` with its SHA-256: compiled code may hold constants of any of them."""
        files = sorted((root / "broker").rglob("*.py"))
        return {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def unusable(self) -> str | None:
        """Why these modules cannot stand for the sources; None: they can."""
        if not self._manifest:
            return "nothing is compiled"
        if self._manifest["suffix"] != sysconfig.get_config_var("EXT_SUFFIX"):
            return "compiled for another Python"
        if self._manifest["sources"] != self.digests(self.root):
            return "the sources have changed since"
        return None

    def prefer(self) -> str:
        """Have them found before their sources; returns what ``outcome`` is to say."""
        reason = self.unusable()
        if reason is None:
            early = [module for module in self.modules if module in sys.modules]
            reason = f"{early[0]} was imported before" if early else None
        if reason is not None:
            return f"{INTERPRETED}: {reason}"
        sys.path.append(str(self.directory))  # what they share lies at its top
        for name in sorted({module.rpartition(".")[0] for module in self.modules}):
            package = importlib.import_module(name)
            package.__path__.insert(0, str(self.directory.joinpath(*name.split("."))))
        return COMPILED


def _chosen() -> str:
    directory = os.environ.get(VARIABLE)
    return Compiled(Path(directory)).prefer() if directory else INTERPRETED


outcome: Final = _chosen()
"""``compiled``, ``interpreted``, or ``interpreted: `` and why what was asked for cannot be had."""
