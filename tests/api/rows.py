"""The rows of the specification's tables and the tests that cover them, from ``rows.toml``.

``python -m tests.api.rows`` writes them into docs/api.md, section "Specification rows".
"""

import tomllib
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).parents[1]
FILE: Final = Path(__file__).parent / "rows.toml"
PAGE: Final = TESTS.parent / "docs" / "api.md"
HEADING: Final = "## Specification rows\n"


class Row(NamedTuple):
    """``test``: an id below tests; of a parametrised one the first words of the parameters do."""

    section: str
    name: str
    test: str


def rows() -> list[Row]:
    sections = tomllib.loads(FILE.read_text("utf-8"))["sections"]
    return [Row(each["title"], name, test) for each in sections for name, test in each["rows"].items()]


def table() -> str:
    """The section of docs/api.md, heading and all."""
    told = rows()
    lines = [
        HEADING,
        f"Every row of the specification's tables ({len(told)}) and the test that covers it, below `tests/`; written by",
        "`python -m tests.api.rows` from `tests/api/rows.toml`.",
    ]
    section = ""
    for row in told:
        if row.section != section:
            section = row.section
            lines += ["", f"### {section}", "", "| Row | Test |", "|---|---|"]
        lines.append(f"| `{row.name}` | `{row.test}` |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/api.md as it has to be: what is written by hand, and the table."""
    by_hand, heading, _ = PAGE.read_text("utf-8").partition(HEADING)
    assert heading, f"{PAGE} has no section {HEADING!r}"
    return by_hand + table()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
