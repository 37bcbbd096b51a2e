"""The page of figures: each measurement writes its own section and leaves the others."""

import textwrap
from pathlib import Path

from tools.bench.brokers import ROOT

PAGE = ROOT / "docs" / "performance.md"
FIRST = ("", "What to expect", "Measuring it yourself", "Against other brokers", "How it grows", "What costs what")
"""The sections for users, before the tables; other sections keep their order on the page."""
WIDTH = 120


def sections(text: str) -> dict[str, str]:
    """Return the text of each second-level section by its title; the part before the first has an empty title."""
    found: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line[3:]
        else:
            found[title] = found.get(title, "") + line + "\n"
    return found


def _wrapped(line: str) -> str:
    """Wrap a line of prose at 120 columns; table rows and pictures stay unchanged."""
    if len(line) <= WIDTH or line.startswith(("|", "![", "#")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write(title: str, text: str, page: Path = PAGE) -> None:
    """Replace the section called ``title`` with ``text``, or append it; the part before the first has no title."""
    all_of_them = sections(page.read_text(encoding="utf-8")) if page.exists() else {}
    all_of_them[title] = "\n".join(map(_wrapped, text.splitlines()))
    others = [each for each in all_of_them if each not in FIRST]
    order = [each for each in (*FIRST, *others) if each in all_of_them]
    parts = [f"## {each}\n\n{all_of_them[each].strip()}" if each else all_of_them[each].strip() for each in order]
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
