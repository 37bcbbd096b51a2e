"""How many packages an installation without extras brings."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def brought(wanted: list[str]) -> set[str]:
    """By these requirements, and what they need themselves, in this environment."""
    found: set[str] = set()
    asked: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in wanted]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.add(name)
        for part in ("", *requirement.extras):
            if (name, part) not in asked:
                asked.add((name, part))
                waiting += [(Requirement(text), part) for text in importlib.metadata.requires(name) or ()]
    return found


def test_packages_of_an_installation_without_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    # A bound and no exact number: what others need changes with their releases.
    said = re.search(r"never more than (\d+)\.", page)
    assert said is not None
    found = brought(project["dependencies"])
    assert len(found) <= int(said[1]), sorted(found)
