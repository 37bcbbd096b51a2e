"""Compiles the hot path with mypyc into ``build/compiled`` (``make compile``); ``--check`` asks whether that is fresh.

The sources are compiled as they stand and nothing is put beside them. ``broker.compiled`` takes what is built here, as
long as the sources are still these.
"""

import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from broker.compiled import MANIFEST, ROOT, Compiled

TARGET = ROOT / "build" / "compiled"
WORK = ROOT / "build" / "mypyc"

# The ground floor, and what a message passes above it. Left out: what subclasses asyncio's classes, what tests put
# another class in the place of (the clock), and whatever runs once a connection or more seldom.
ROOMS = ("mqtt", "session", "routing")
ABOVE = (
    "core/broker",
    "core/turn",
    "core/durability",
    "core/fates",
    "core/metrics",
    "core/client_info",
    "channel/outlet",
    "channel/publish",
    "channel/state",
    "channel/context",
    "channel/channel",
)


def sources() -> list[str]:
    """What is compiled, relative to the root."""
    files = [file for room in ROOMS for file in sorted((ROOT / "broker" / room).glob("*.py"))]
    files += [ROOT / "broker" / f"{name}.py" for name in ABOVE]
    return [file.relative_to(ROOT).as_posix() for file in files if file.name != "__init__.py"]


def missing() -> str | None:
    """What this machine lacks for it; None: nothing."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there is no Python.h (python3-dev)"
    return None


def build(files: list[str], into: Path) -> None:
    """Write the extension modules under ``into``. Ends the process if mypy or the C compiler complain."""
    # Imported here: --check has to be quick.
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]

    extensions = mypycify(files, opt_level="3", debug_level="0", target_dir=str(WORK))
    # Not setup(): that would read pyproject.toml, which is about the package and not about this.
    distribution = Distribution({"name": "taipan-compiled", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(into), str(WORK)
    distribution.run_command("build_ext")


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if Compiled(TARGET).unusable() is None else 1
    lacking = missing()
    if lacking is not None:
        print(f"not compiled: {lacking}", file=sys.stderr)
        return 1
    files = sources()
    before = Compiled.digests(ROOT)  # a file that changes meanwhile makes the result stale, not wrong
    fresh = TARGET.with_suffix(".new")
    for directory in (WORK, fresh):
        shutil.rmtree(directory, ignore_errors=True)
    build(files, fresh)
    manifest = {
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "modules": [file.removesuffix(".py").replace("/", ".") for file in files],
        "sources": before,
    }
    (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(TARGET, ignore_errors=True)
    fresh.rename(TARGET)
    print(f"{len(files)} modules are compiled into {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
