"""Selects the modules of the hot path: compiled ones, or their sources.

``taipan.broker`` imports this module first. A wheel contains compiled modules next to the sources, and Python prefers
them. In a checkout they are in ``build/compiled``, where ``make compile`` creates them, or in the directory that the
environment variable ``TAIPAN_COMPILED`` names; they are used if the sources have not changed since. If the variable is
``no``, the sources run, even in a wheel. ``outcome`` reports the selection."""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "TAIPAN_COMPILED"
MANIFEST: Final = "manifest.json"
FACTS: Final = {"suffix", "modules", "sources", "sizes"}
SUFFIX: Final[str] = sysconfig.get_config_var("EXT_SUFFIX")
NO: Final = "no"
ROOT: Final = Path(__file__).resolve().parents[1]
BUILT: Final = ROOT / "build" / "compiled"

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"


class Compiled:
    """A directory of extension modules, with a manifest of their sources."""

    def __init__(self, directory: Path, root: Path = ROOT) -> None:
        self.directory = directory.resolve()
        self.root = root
        self._manifest: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):  # checked in ``unusable``
            found = json.loads((self.directory / MANIFEST).read_bytes())
            if isinstance(found, dict) and found.keys() == FACTS:
                self._manifest = found

    @property
    def modules(self) -> list[str]:
        """Return its modules by their absolute names."""
        names: list[str] = self._manifest.get("modules", [])
        return names

    @staticmethod
    def digests(root: Path) -> dict[str, str]:
        """Return every source file of ``broker`` with its SHA-256: compiled code may contain constants of any of
        them."""
        files = sorted((root / "broker").rglob("*.py"))
        return {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    @staticmethod
    def sizes(directory: Path) -> dict[str, int]:
        """Return every extension module below ``directory`` with its size in bytes: a truncated one would crash the
        process."""
        files = sorted(directory.rglob(f"*{SUFFIX}"))
        return {file.relative_to(directory).as_posix(): file.stat().st_size for file in files}

    def unusable(self) -> str | None:
        """Return why these modules cannot replace the sources; None: they can."""
        if not self._manifest:
            return "nothing is compiled"
        if self._manifest["suffix"] != SUFFIX:
            return "compiled for another Python"
        if self._manifest["sources"] != self.digests(self.root):
            return "the sources have changed since"
        if self._manifest["sizes"] != self.sizes(self.directory):
            return "the compiled modules are incomplete"
        return None

    def prefer(self) -> str:
        """Make Python find the modules before their sources; return the text for ``outcome``."""
        reason = self.unusable()
        if reason is None:
            early = [module for module in self.modules if module in sys.modules]
            reason = f"{early[0]} was imported before" if early else None
        if reason is not None:
            return f"{INTERPRETED}: {reason}"
        try:
            self._load_shared()
        except ImportError as error:
            return f"{INTERPRETED}: {error}"
        for name in sorted({module.rpartition(".")[0] for module in self.modules}):
            package = importlib.import_module(name)
            package.__path__.insert(0, str(self.directory.joinpath(*name.split("."))))
        return COMPILED

    def _load_shared(self) -> None:
        """Load the module that they share, which is at the top of the directory and is imported without a package name.

        The directory itself is not added to a path: a process that inherits ``sys.path`` would find it before the
        package, with a ``taipan`` without sources."""
        for file in self.directory.glob(f"*{SUFFIX}"):
            name = file.name.removesuffix(SUFFIX)
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module


class SourcesOnly(MetaPathFinder):
    """Finds the sources of ``taipan`` if compiled modules are next to them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("taipan."):
            return None
        for directory in path or ():
            spec = FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname)
            if spec is not None:
                return spec
        return None


def beside_sources(package: Path) -> bool:
    """Return whether the package was installed with compiled modules: a wheel of ``make wheel``."""
    return any(package.glob(f"mqtt/*{SUFFIX}"))


def asked_for() -> str | None:
    """Return the directory in the environment variable, if there is one."""
    value = os.environ.get(VARIABLE)
    return None if value == NO else value or None


def _chosen() -> str:
    installed = beside_sources(Path(__file__).parent)
    if os.environ.get(VARIABLE) == NO:
        if installed:
            sys.meta_path.insert(0, SourcesOnly())
        return INTERPRETED
    if installed:
        return COMPILED
    return Compiled(Path(asked_for() or BUILT)).prefer()


outcome: Final = _chosen()
"""``compiled``; ``interpreted``, if requested; or ``interpreted: `` and the reason."""
