"""The tags of the tree, the list of statements and docs/conformance.md fit together."""

from pathlib import Path

import pytest

from tests.conformance.report import (
    PAGE,
    ROOT,
    collect,
    load_statements,
    open_statements,
    render,
    unknown_tags,
)
from tests.conformance.tags import V5, V311, BadTag, parse_tag, tags_in


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("MQTT-3.3.4-2", ["MQTT-3.3.4-2"]),
        ("MQTT-4.2-1", ["MQTT-4.2-1"]),
        ("MQTT-3.3.4-2..4", ["MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4"]),
        ("MQTT-3.8.4-1, -5, MQTT-3.9.3-1", ["MQTT-3.8.4-1", "MQTT-3.8.4-5", "MQTT-3.9.3-1"]),
        ("MQTT-3.8.4-1, MQTT-3.9.3-1..2", ["MQTT-3.8.4-1", "MQTT-3.9.3-1", "MQTT-3.9.3-2"]),
    ],
)
def test_a_tag_is_one_statement_a_range_or_a_list(text: str, statements: list[str]) -> None:
    assert parse_tag(text) == statements


@pytest.mark.parametrize("text", ["MQTT-3.3.4", "MQTT-3.3.4-x", "MQTT-3.3.4-4..2", "MQTT-3.3.1-4 in both", "-5"])
def test_what_is_no_tag_is_told(text: str) -> None:
    with pytest.raises(BadTag):
        parse_tag(text)


def test_a_tag_stands_under_the_innermost_name_and_comments_above_count() -> None:
    tag = "[" + "MQTT-3.1.0-1]"
    source = "\n".join(
        [
            f'"""{tag}"""',
            f"ROW = 1  # {tag}",
            "class A:",
            f"    # {tag}",
            "    def f(self):",
            f"        return 1  # [3.1.1 {tag[1:]}",
        ]
    )
    found = [(each.version, each.name, each.line) for each in tags_in("a.py", source)]
    assert found == [(V5, "", 1), (V5, "ROW", 2), (V5, "A.f", 4), (V311, "A.f", 6)]


def test_an_unclosed_tag_is_told_with_file_and_line() -> None:
    with pytest.raises(BadTag, match=r"a\.py:2: "):
        list(tags_in("a.py", "x = 1\n# [" + "MQTT-3.1.0-1,\n# MQTT-3.1.0-2]\n"))


def test_places_are_collected_and_missing_ones_are_open(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "broker/a.py").write_text("def keep(): ...  # [" + "MQTT-3.12.4-1]\n", encoding="utf-8")
    (tmp_path / "tests/test_a.py").write_text("def test_it(): ...  # [" + "MQTT-3.12.4-1]\n", encoding="utf-8")
    statements = load_statements()
    collect(tmp_path, statements)
    ping = statements[V5, "MQTT-3.12.4-1"]
    assert (ping.code, ping.tests) == (["broker/a.py:keep"], ["tests/test_a.py:test_it"])
    assert statements[V311, "MQTT-3.12.4-1"].tests == ping.tests
    ids = [(each.version, each.id) for each in open_statements(statements)]
    assert (V5, "MQTT-3.12.4-1") not in ids
    assert (V5, "MQTT-3.1.0-2") in ids
    assert "| MQTT-3.12.4-1 | PINGREQ is answered by PINGRESP. | server | `broker/a.py:keep` |" in render(statements)


def test_the_list_of_statements_is_whole() -> None:
    statements = load_statements()
    assert sum(each.version == V5 for each in statements.values()) == 251
    assert sum(each.version == V311 for each in statements.values()) == 141
    for each in statements.values():
        assert each.binds in ("server", "client", "both"), each
        assert each.says.endswith("."), each
        assert not each.same or (V5, each.same) in statements, each


def test_every_tag_of_the_tree_names_a_statement() -> None:
    assert unknown_tags(ROOT, load_statements()) == []


def test_the_page_is_up_to_date() -> None:
    statements = load_statements()
    collect(ROOT, statements)
    assert (ROOT / PAGE).read_text(encoding="utf-8") == render(statements), "make conformance"
