"""Installs packages into the environment this runs in: ``.venv/bin/python install.py '.[all,compile]'``.

By uv, which takes a tenth of pip's processor time, and by pip where uv cannot be had or cannot do it. uv asks the index
that pip would ask, and trusts whom pip trusts.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
UV = "uv>=0.5,<1"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
# Without bytecode: Python writes that of the modules that are used when they are used.
BY_PIP = [*PIP, "install", "--no-compile"]


def settings_of_pip() -> dict[str, str]:
    """Its options by their names, from its files and from the environment, which wins."""
    told = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    found = re.findall(r"^(:env:|global|install)\.([a-z-]+)='(.*)'$", told, re.MULTILINE)
    last = ("global", "install", ":env:").index
    return {name: value for _, name, value in sorted(found, key=lambda row: last(row[0]))}


def environment_of_uv(settings: dict[str, str]) -> dict[str, str] | None:
    """With what pip is told; None: pip is to use no index."""
    if "no-index" in settings:
        return None
    environment = dict(os.environ)
    for name, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE"), ("proxy", "ALL_PROXY")):
        if name in settings:
            environment.setdefault(variable, settings[name])
    return environment


def by_uv(packages: list[str]) -> bool:
    """Whether it was done."""
    environment = environment_of_uv(settings_of_pip())
    if environment is None:
        return False
    if importlib.util.find_spec("uv") is None:
        if subprocess.run([*BY_PIP, "--only-binary=:all:", UV], stderr=subprocess.DEVNULL, cwd=ROOT).returncode != 0:
            return False
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, *packages]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def install(packages: list[str]) -> bool:
    """Whether they are there now. Why not is on standard error."""
    return by_uv(packages) or subprocess.run([*BY_PIP, *packages], cwd=ROOT).returncode == 0


if __name__ == "__main__":
    sys.exit(not install(sys.argv[1:]))
