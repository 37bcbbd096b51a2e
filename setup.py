"""Where the packages lie: they stand at the top of the repository and are installed inside ``taipan``."""

from setuptools import find_packages, setup

PARTS = ("broker", "ruleengine", "management")
INSIDE = [f"{part}.{name}" for part in PARTS for name in find_packages(part)]

setup(
    packages=["taipan", *(f"taipan.{name}" for name in (*PARTS, *INSIDE))],
    package_dir={"taipan": "taipan"} | {f"taipan.{part}": part for part in PARTS},
)
