"""What pyproject.toml cannot say: where the packages lie, and which modules are compiled.

The packages stand at the top of the repository and are installed inside ``taipan``. With ``TAIPAN_COMPILE=yes`` in the
environment a wheel holds compiled modules beside the sources; without it, it runs anywhere, interpreted. An editable
install takes what ``make compile`` builds.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
PARTS = ("broker", "ruleengine", "management")
INSIDE = [f"{part}.{name}" for part in PARTS for name in find_packages(str(ROOT / part))]
COMPILE = os.environ.get("TAIPAN_COMPILE") == "yes" and not {"editable_wheel", "develop"} & set(sys.argv)
# The commands of a build that want nothing but names: mypy is not installed for them.
BUILDS = {"bdist_wheel", "build", "build_ext", "install"} & set(sys.argv)

options = {}
if COMPILE:
    # mypy reads the types of what the sources import.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    imported = [*project["dependencies"], *(each for name in ("bcrypt", "cluster", "uvloop") for each in extras[name])]
    options["setup_requires"] = ["mypy[mypyc]>=2.4,<3", *imported]
if COMPILE and BUILDS:
    sys.path.insert(0, str(ROOT))
    import build_compiled

    for part in PARTS:  # a source distribution has no links
        link = ROOT / "taipan" / part
        if not link.exists():
            link.symlink_to(Path("..") / part)
    options["ext_modules"] = build_compiled.extensions(ROOT / "build" / "mypyc")
    options["cmdclass"] = {"build_ext": build_compiled.build_command()}

setup(
    packages=["taipan", "taipan.config", *(f"taipan.{name}" for name in (*PARTS, *INSIDE))],
    package_dir={"taipan": "taipan", "taipan.config": "config"} | {f"taipan.{part}": part for part in PARTS},
    **options,
)
