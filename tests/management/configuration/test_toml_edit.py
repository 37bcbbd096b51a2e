"""Single keys of a TOML document are changed; everything else stays as it was written."""

import difflib
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.management.configuration.toml_edit import EditError, KeyChange, MaskRules, edit, masked_diff

TEXT = """\
# A node of ours.
[node]
name = "a"   # the name

[limits]
# memory = "1GiB"

[[listeners]]
name = "x"
type = "tcp"
[listeners.tls]
certfile="a"

[access]
users = [{username = "ann", password = "b"}] # some
[[access.rules]]
topics = ["a/#", # one
  "b"]
"""


@pytest.mark.parametrize(
    ("path", "value", "lines"),
    [
        (("limits", "memory"), "2GiB", {'memory = "2GiB"'}),
        (("listeners", 0, "max_qos"), 1, {"max_qos = 1"}),
        (("access", "rules", 0, "allow"), False, {"allow = false"}),
        (("log", "level"), "debug", {"[log]", 'level = "debug"'}),
        (("zones", "external", "max_inflight"), 7, {"[zones.external]", "max_inflight = 7"}),
        (("node", "rate"), 1.5, {"rate = 1.5"}),
        (("node", "odd"), 'q"\n\u2028\\', {'odd = "q\\"\\n\u2028\\\\"'}),
    ],
)
def test_a_new_key_is_added_and_no_line_changes(path: tuple[str | int, ...], value: Any, lines: set[str]) -> None:
    edited = edit(TEXT, [KeyChange(path, value)])
    old, new = TEXT.split("\n"), edited.split("\n")
    assert [line for line in difflib.ndiff(old, new) if line.startswith("- ")] == []
    assert set(new) - set(old) == lines
    found: Any = tomllib.loads(edited)
    for step in path:
        found = found[step]
    assert found == value


def test_a_value_is_replaced_and_its_comment_stays() -> None:
    edited = edit(TEXT, [KeyChange(("node", "name"), "b"), KeyChange(("access", "users", 0, "password"), "c")])
    assert 'name = "b"   # the name\n' in edited
    assert '{username = "ann", password = "c"}] # some\n' in edited
    assert edited.count("\n") == TEXT.count("\n")


def test_a_deleted_key_is_gone_and_one_that_is_not_there_changes_nothing() -> None:
    assert "topics" not in edit(TEXT, [KeyChange(("access", "rules", 0, "topics"), None)])
    assert edit(TEXT, [KeyChange(("retained", "max_messages"), None)]) == TEXT
    assert edit(TEXT, [KeyChange(("limits", "memory"), None)]) == TEXT


def test_lines_end_as_they_did() -> None:
    edited = edit(TEXT.replace("\n", "\r\n"), [KeyChange(("log", "level"), "debug")])
    assert "\n" not in edited.replace("\r\n", "") and "level" in edited


@pytest.mark.parametrize(
    "path", [("listeners", 1, "max_qos"), ("rewrite", 0, "to"), ("node", "name", "x"), ("access", 0)]
)
def test_a_place_that_the_file_does_not_have_is_refused(path: tuple[str | int, ...]) -> None:
    with pytest.raises(EditError):
        edit(TEXT, [KeyChange(path, 1)])


@pytest.mark.parametrize("value", [[None], {"a": None}, object()])
def test_a_value_that_toml_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(EditError):
        edit(TEXT, [KeyChange(("node", "x"), value)])


SCATTERED = """\
a.b = 1

# The first.
[[x]]  # header
n = 1 # one

# About y.
[y]
"k.1" = "#"

# The second.
[[x]]
n = 2
[x.t.u]
v = 1
[z]
text = \"\"\"
[not.a.table]
# = 1
\"\"\"
[a.d]"""


@pytest.mark.parametrize(
    ("path", "added"),
    [
        (("x", 0, "n"), ["n = 5 # one"]),
        (("x", 0, "m"), ["m = 5"]),
        (("x", 1, "m"), ["m = 5"]),
        (("x", 0, "t", "w"), ["[x.t]", "w = 5"]),
        (("x", 1, "t", "u", "v"), ["v = 5"]),
        (("x", 1, "t", "w"), ["[x.t]", "w = 5"]),
        (("y", "k.1"), ['"k.1" = 5']),
        (("y", "k 2"), ['"k 2" = 5']),
        (("y k", "a", "b"), ['["y k".a]', "b = 5"]),
        (("z", "m"), ["m = 5"]),
        (("a", "b"), ["a.b = 5"]),
        (("a", "d", "e"), ["e = 5"]),
        (("new",), ["new = 5"]),
    ],
)
def test_only_the_lines_of_the_key_change_wherever_its_table_is(path: tuple[str | int, ...], added: list[str]) -> None:
    for text in (SCATTERED, SCATTERED + "\n", SCATTERED.replace("\n", "\r\n")):
        edited = edit(text, [KeyChange(path, 5)])
        old, new = text.splitlines(), edited.splitlines()
        changes = [line for line in difflib.ndiff(old, new) if line[0] in "+-" and line[2:]]
        assert [line[2:] for line in changes if line[0] == "+"] == added
        assert len([line for line in changes if line[0] == "-"]) == (len(new) == len(old))
        found: Any = tomllib.loads(edited)
        for step in path:
            found = found[step]
        assert found == 5
        # A comment that is about the next table stays before it.
        assert edited.splitlines()[edited.splitlines().index("# About y.") + 1] == "[y]"


def test_a_table_inside_of_a_list_or_of_another_value_is_changed() -> None:
    text = "a = {b = 1, c = {d = 2}}\nl = [\n  {n = 1}, # one\n  {n = 2},\n]\n"
    assert edit(text, [KeyChange(("a", "c", "d"), 5)]) == text.replace("d = 2", "d = 5")
    assert edit(text, [KeyChange(("l", 1, "n"), 5)]) == text.replace("n = 2", "n = 5")
    assert tomllib.loads(edit(text, [KeyChange(("a", "x", "y"), 5)]))["a"]["x"] == {"y": 5}


def test_lines_of_two_kinds_and_tables_by_headers_are_refused() -> None:
    with pytest.raises(EditError, match="CR LF"):
        edit("a = 1\r\nb = 2\n", [KeyChange(("a",), 5)])
    with pytest.raises(EditError):
        edit("[a.b]\nc = 1\n", [KeyChange(("a", "b"), {"d": 1})])


@given(st.data())
def test_whatever_the_document_a_change_is_exact_or_refused(data: st.DataObject) -> None:
    """The pieces of a document come in any order; tomllib decides which of these are documents."""
    pieces = [
        "a.b = 1\n",
        "[a]\n",
        "[a.c]\n",
        "x = 1\n",
        "y = {z = 1}\n",
        "[[l]]\n",
        "[l.m]\n",
        "# note\n",
        "\n",
        "[q]\n",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=9)))
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    path = data.draw(
        st.sampled_from([("a", "x"), ("a", "c", "x"), ("a", "b"), ("l", 0, "x"), ("l", 0, "m", "x"), ("q", "y", "z")])
    )
    try:
        edited = edit(text, [KeyChange(path, 5)])
    except EditError:
        return
    node: Any = wanted
    for step in path[:-1]:
        node = node[step] if isinstance(step, int) else node.setdefault(step, {})
    node[path[-1]] = 5
    assert tomllib.loads(edited) == wanted
    removed = [line for line in difflib.ndiff(text.splitlines(), edited.splitlines()) if line[0] == "-" and line[2:]]
    assert len(removed) <= 1


def test_a_diff_has_no_secrets() -> None:
    def shown(path: tuple[str | int, ...], value: Any) -> Any:
        return "******" if path[-1] == "password" else value

    def is_table(path: tuple[str | int, ...]) -> bool:
        return path[-1] in ("node", "access", "users") or isinstance(path[-1], int)

    lines = [
        "[node]",
        'name = "a" # was = "opensesame"',
        '# token = "opensesame"',
        "# plain words",
        "[access]",
        'users = [{username = "ann", password = "opensesame"}]',
    ]
    text = "\n".join(lines) + "\n"
    edited = edit(text, [KeyChange(("node", "name"), "b"), KeyChange(("access", "users", 0, "password"), "sesameopen")])
    diff = masked_diff("f", text, edited, MaskRules(shown, is_table), [("access", "users", 0, "password")])
    assert "sesame" not in diff
    in_order = '[[access]]\n[z]\n[[access]]\npassword = "opensesame"\n[node]\nname = "x"\n'
    assert "sesame" not in masked_diff(
        "f", in_order, edit(in_order, [KeyChange(("node", "name"), "y")]), MaskRules(shown, is_table)
    )
    assert '-name = "a" # ******\n+name = "b" # ******\n # ******\n # plain words' in diff
    assert '+users = [{username = "ann", password = "****** (new)"}]' in diff
    assert masked_diff("f", text, text, MaskRules(shown, is_table)) == ""
