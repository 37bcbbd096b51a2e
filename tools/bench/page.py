"""The page of figures: each measurement writes its own section and leaves the others."""

import textwrap
from pathlib import Path

from tools.bench.brokers import ROOT

PAGE = ROOT / "docs" / "performance.md"
FIRST = ("", "Against other brokers", "How it grows", "What costs what")
WIDTH = 120
LAST = ("Measuring it yourself",)


def sections(text: str) -> dict[str, str]:
    """Title -> text of each second-level section; the part before the first stands under an empty title."""
    found: dict[str, str] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line[3:]
        else:
            found[title] = found.get(title, "") + line + "\n"
    return found


def _wrapped(line: str) -> str:
    """A line of prose in lines of at most 120 columns; a row of a table and a picture as they are."""
    if len(line) <= WIDTH or line.startswith(("|", "![", "#")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write(title: str, text: str, page: Path = PAGE) -> None:
    """Put ``text`` in the place of the section called ``title``, or at the end; empty: before the first."""
    all_of_them = sections(page.read_text(encoding="utf-8")) if page.exists() else {}
    all_of_them[title] = "\n".join(map(_wrapped, text.splitlines()))
    others = [each for each in all_of_them if each not in FIRST and each not in LAST]
    order = [each for each in (*FIRST, *others, *LAST) if each in all_of_them]
    parts = [f"## {each}\n\n{all_of_them[each].strip()}" if each else all_of_them[each].strip() for each in order]
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
