"""Sections of the page of figures."""

from pathlib import Path

from tools.bench.page import sections, write


def test_a_section_takes_the_place_of_the_one_of_its_name(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write("", "# Figures\n\nold", page)
    write("One", "1", page)
    write("Two", "2", page)
    write("One", "one", page)
    write("", "# Figures\n\nnew\n", page)
    assert page.read_text() == "# Figures\n\nnew\n\n## One\n\none\n\n## Two\n\n2\n"
    assert list(sections(page.read_text())) == ["", "One", "Two"]


def test_long_lines_of_prose_are_wrapped(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    row = "| " + "x " * 100 + "|"
    write("One", "word " * 40 + f"\n\n{row}\n", page)
    lines = page.read_text().splitlines()
    assert row in lines
    assert max(len(line) for line in lines if line != row) <= 120
