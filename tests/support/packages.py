"""Packages of others, from ``tests/packages``: put where Python finds them, as pip does."""

import shutil
import tomllib
from pathlib import Path
from typing import Final

PACKAGES: Final = Path(__file__).resolve().parents[1] / "packages"


def install(name: str, site: Path) -> None:
    """Copy the modules of a package into ``site``, and write what pip writes of its ``pyproject.toml``."""
    project = tomllib.loads((PACKAGES / name / "pyproject.toml").read_text("utf-8"))["project"]
    for module in (PACKAGES / name).glob("*.py"):
        shutil.copy(module, site)
    made = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    made.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (made / "METADATA").write_text(metadata, "utf-8")
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
