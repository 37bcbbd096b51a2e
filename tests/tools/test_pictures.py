"""The pictures of the dashboard in the docs: each is as its page is, and ``tools.pictures`` notices where it is not."""

import re
from pathlib import Path

import pytest

from tools.pictures import manifest

ROOT = Path(__file__).parents[2]
SHOTS = re.compile(r'(?m)^    Shot\("([\w-]+)", "(\w+)"')
"""Read as text: importing the module takes Playwright."""
PAGES = dict(SHOTS.findall((ROOT / "tools" / "pictures" / "shots.py").read_text("utf-8")))


def test_the_pictures_are_as_the_pages_are() -> None:
    assert len(PAGES) > 15
    assert manifest.problems(PAGES) == [], "take them again: make pictures"


def test_each_page_of_the_dashboard_has_one() -> None:
    pages = set(re.findall(r'\{ name: "(\w+)"', (manifest.SOURCES / "routes.ts").read_text("utf-8")))
    assert len(pages) == 11
    assert set(PAGES.values()) == pages


def test_the_docs_show_them() -> None:
    shown = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    files = {manifest.file_of(name, theme) for name in PAGES for theme in manifest.THEMES}
    assert files == set(re.findall(r"dashboard/([\w-]+\.webp)", shown))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A dashboard of two pages."""
    source = tmp_path / "src"
    (source / "pages" / "one").mkdir(parents=True)
    (source / "texts").mkdir()
    for name, text in {
        "main.tsx": 'import { App } from "./app";\nimport "./styles.css";\n',
        "app.tsx": 'import { useState } from "preact/hooks";\nexport const App = () => null;\n',
        "styles.css": "body { margin: 0 }\n",
        "pages/one.tsx": 'import { List } from "./one/list";\nimport { texts } from "../texts/one";\n',
        "pages/one/list.tsx": 'import type { Kind } from "../two";\nconst read = () => import("../../shared");\n',
        "pages/two.tsx": "export type Kind = string;\n",
        "texts/one.ts": 'export const texts = { title: "One" };\n',
        "shared.ts": "export const a = 1;\n",
    }.items():
        (source / name).write_text(text)
    return source


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("texts/one.ts", {"first"}),
        ("pages/one/list.tsx", {"first"}),
        ("shared.ts", {"first"}),
        ("pages/two.tsx", {"second"}),
        ("styles.css", {"first", "second"}),
        ("app.tsx", {"first", "second"}),
    ],
)
def test_a_change_makes_the_pictures_of_its_pages_stale(
    tmp_path: Path, sources: Path, changed: str, stale: set[str]
) -> None:
    pages, pictures = {"first": "one", "second": "two"}, tmp_path / "pictures"
    pictures.mkdir()
    for name in pages:
        for theme in manifest.THEMES:
            (pictures / manifest.file_of(name, theme)).write_bytes(b"a picture")
    manifest.write({name: manifest.digest(page, sources) for name, page in pages.items()}, pictures)
    assert manifest.problems(pages, pictures, sources) == []
    (sources / changed).write_text((sources / changed).read_text() + "/* more */\n")
    found = manifest.problems(pages, pictures, sources)
    assert {line.partition(" ")[0] for line in found} == stale and all("is older than" in line for line in found)


def test_a_picture_that_is_missing_unknown_or_too_large_is_reported(tmp_path: Path, sources: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    manifest.write({"first": manifest.digest("one", sources)}, pictures)
    (pictures / "first.webp").write_bytes(b"\0" * (manifest.MOST_BYTES + 1))
    (pictures / "other.webp").write_bytes(b"")
    assert manifest.problems({"first": "one"}, pictures, sources) == [
        "first-dark.webp is missing",
        "other.webp belongs to no page",
        f"the pictures have {manifest.MOST_BYTES + 1} bytes, more than {manifest.MOST_BYTES}",
    ]
