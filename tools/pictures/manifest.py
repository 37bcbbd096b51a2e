"""The source files behind each picture: ``docs/dashboard/pictures.json``. A picture is stale if its page has changed.

The digest of a picture covers the source files of its page: the shell, the styles, the page, and every file that these
import. The Chinese texts are not included, because the pictures are in English."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "dashboard" / "src"
PICTURES: Final = ROOT / "docs" / "dashboard"
MANIFEST: Final = "pictures.json"
SHELL: Final = ("app.tsx", "main.tsx", "styles.css")
THEMES: Final = ("light", "dark")
MOST_BYTES: Final = 3_500_000
"""Limit for all pictures together."""

_IMPORT = re.compile(r"""(?m)^\s*(?:import|export)\b(?!\s+type\b)[^"';]*["'](\.[^"']+)["']""")
_LOADED = re.compile(r"""\bimport\(["'](\.[^"']+)["']\)""")
_OTHERS = ("routes.ts", "language.ts")
"""Files that load pages and languages, only one of which a picture shows."""


def file_of(picture: str, theme: str) -> str:
    """Return the name of the file: ``clients.webp``, ``clients-dark.webp``."""
    return f"{picture}.webp" if theme == "light" else f"{picture}-{theme}.webp"


def digest(page: str, sources: Path = SOURCES) -> str:
    """Return the digest of the page ``src/pages/<page>.tsx`` and of everything that it imports."""
    found = hashlib.sha256()
    for file in sorted(closure([sources / name for name in (*SHELL, f"pages/{page}.tsx")])):
        found.update(f"{file.relative_to(sources).as_posix()}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def closure(files: list[Path]) -> set[Path]:
    """Return these files and all files that they import, directly or indirectly."""
    seen: set[Path] = set()
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting.extend(_imported(file))
    return seen


def _imported(file: Path) -> Iterator[Path]:
    if file.suffix not in (".ts", ".tsx"):
        return
    text = file.read_text("utf-8")
    for name in _IMPORT.findall(text) + ([] if file.name in _OTHERS else _LOADED.findall(text)):
        place = file.parent / name
        candidates = [place, *(place.parent / f"{place.name}{suffix}" for suffix in (".ts", ".tsx"))]
        yield next(each.resolve() for each in candidates if each.is_file())


def read(directory: Path = PICTURES) -> dict[str, str]:
    """Return the digest of each picture when it was taken."""
    found: dict[str, str] = json.loads((directory / MANIFEST).read_text("utf-8"))
    return found


def write(digests: Mapping[str, str], directory: Path = PICTURES) -> None:
    text = json.dumps(dict(sorted(digests.items())), indent=2)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


def problems(pages: Mapping[str, str], directory: Path = PICTURES, sources: Path = SOURCES) -> list[str]:
    """Return one line for each picture that is missing, stale or unknown, and one if they are too large. ``pages``: the
    page of each picture."""
    taken = read(directory)
    wanted = {file_of(name, theme) for name in pages for theme in THEMES}
    there = {file.name: file.stat().st_size for file in directory.iterdir() if file.name != MANIFEST}
    found = [f"{name} is missing" for name in sorted(wanted - set(there))]
    found += [f"{name} belongs to no page" for name in sorted(set(there) - wanted)]
    found += [f"{name} is older than the page {page}" for name, page in sorted(pages.items())
              if taken.get(name) != digest(page, sources)]  # fmt: skip
    if sum(there.values()) > MOST_BYTES:
        found.append(f"the pictures have {sum(there.values())} bytes, more than {MOST_BYTES}")
    return found
