"""The Python that measured nodes run on: one built for speed, if it is installed.

CPython built with profile-guided optimisation is up to a third faster. Distributions build theirs with it; version
managers often do not. The chosen interpreter has the same minor version, so that it runs the packages of ``.venv``.
``NODE_PYTHON=FILE`` selects another one; ``NODE_PYTHON=own``: that of ``.venv``.
"""

import json
import os
import subprocess
import sys
import sysconfig
from functools import cache
from typing import Final

OF_DISTRIBUTION: Final = "the distribution's build"
OPTIMISED: Final = "built with profile-guided optimisation"
PLAIN: Final = "built without profile-guided optimisation"

_FACTS: Final = """
import json, platform, sys, sysconfig
settings = ("CONFIG_ARGS", "CFLAGS_NODIST", "PY_CORE_CFLAGS")
print(json.dumps({
    "prefix": sys.base_prefix, "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "settings": " ".join(str(sysconfig.get_config_var(each)) for each in settings),
    "python": platform.python_implementation() + " " + platform.python_version(),
}))
"""


def how_built(prefix: str, settings: str) -> str:
    """Return how the interpreter below ``prefix`` was built, according to its build settings."""
    if "--enable-optimizations" in settings or "-fprofile-use" in settings:
        return OPTIMISED
    # Debian's does not say: its settings are those of the shared library, not of its python3.
    return OF_DISTRIBUTION if prefix == "/usr" else PLAIN


@cache
def _facts(python: str) -> dict[str, str]:
    """Return the facts that an interpreter reports about itself; empty: it does not run."""
    try:
        told = subprocess.run([python, "-I", "-c", _FACTS], capture_output=True, text=True, check=True, timeout=20)
        facts: dict[str, str] = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return facts


def built(python: str) -> str:
    """Return how this interpreter was built; empty: it does not run."""
    facts = _facts(python)
    return how_built(facts["prefix"], facts["settings"]) if facts else ""


def node_python() -> str:
    """Return the interpreter of a measured node."""
    asked = os.environ.get("NODE_PYTHON", "")
    if asked:
        return sys.executable if asked == "own" else asked
    if built(sys.executable) == PLAIN:
        other = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        runs_packages = _facts(other).get("suffix") == sysconfig.get_config_var("EXT_SUFFIX")
        if runs_packages and built(other) != PLAIN:
            return other
    return sys.executable


def node_command(*arguments: str) -> list[str]:
    """Return the command ``taipan`` for that interpreter, with the packages of this one. Its directory is the root."""
    start = "from taipan.management.node import main; sys.exit(main())"
    if node_python() == sys.executable:
        return [sys.executable, "-c", f"import sys; {start}", *arguments]
    # -S: none of its own packages, which may be older.
    packages = f"sys.path.append({sysconfig.get_path('platlib')!r})"
    return [node_python(), "-S", "-c", f"import sys; {packages}; {start}", *arguments]


def described() -> str:
    """Return its version and how it was built."""
    python = node_python()
    return f"{_facts(python).get('python', python)} ({built(python)})"


def main() -> int:
    """Print a line if a faster interpreter of the same version is installed than the one that runs this."""
    other = node_python()
    if built(sys.executable) == PLAIN and other != sys.executable:
        print(
            f"This Python was {PLAIN}, so Taipan runs slower than on {other}. Measurements use {other}. "
            f"To use it for everything: make setup PYTHON={other}",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
