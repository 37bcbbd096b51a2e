"""``make prose``: spelling, grammar and terms of the documentation."""

from pathlib import Path

import pytest

import build_dashboard
from tests.support.absent import absent
from tools.style import prose


@pytest.fixture(scope="module")
def node() -> Path:
    found = build_dashboard.node_of_the_machine() or build_dashboard.own_node()
    if found is None:
        absent("node")
    try:
        build_dashboard.install_packages(prose.LINTERS, fetch=False)
    except build_dashboard.CannotBuild:
        absent("cspell")
    return found


def test_its_words_are_in_order_and_named_once() -> None:
    words = [line.lower() for line in prose.WORDS.read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert len(words) == len(set(words))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_misspelt(node: Path) -> None:
    assert prose.spelling(node, prose.files_for_spelling()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_grammar(node: Path) -> None:
    assert prose.grammar(node, prose.checked_for_grammar()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_terms(node: Path) -> None:
    assert prose.terms(node, prose.pages()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_wrong_is_found(node: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nThe broker refuses the mesage in in time. `Mesage` is code, and the colour is British.\n", "utf-8"
    )
    assert [each.partition(" - ")[2] for each in prose.spelling(node, [page])] == [
        "Unknown word (mesage) fix: (message)"
    ]
    assert ["in in" in each for each in prose.grammar(node, [page])].count(True) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_terms_are_found(node: Path, tmp_path: Path) -> None:
    """Those of the glossary and those of textlint's list; not in code, and not the term itself in the plural."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nThe client ids and the User name. Client IDs and usernames. It was switched off.\n\n"
        "`client id`, the host name, the last span of the Client Identifier.\n",
        "utf-8",
    )
    assert [each.rpartition("/")[2] for each in prose.terms(node, [page])] == [
        "page.md:3 Incorrect term: “client ids”, use “client IDs” instead",
        "page.md:3 Incorrect term: “ids”, use “IDs” instead",
        "page.md:3 Incorrect term: “User name”, use “username” instead",
        "page.md:3 Incorrect term: “switched off”, use “enable, disable” instead",
        "page.md:5 Incorrect term: “host name”, use “hostname” instead",
        "page.md:5 Incorrect term: “span”, use “time range” instead",
    ]
