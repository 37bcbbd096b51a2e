"""Where keys stand, checked against what ``tomllib`` reads."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.management.configuration.toml_lines import KeyPath, key_lines

DOCUMENT = '''# comment = 1 [no.table]
top = "a # b = c"
"quoted.key" = 1
'lit#eral' = 2
dotted.a.b = 3

[node]   # trailing
name = """
[not.a.table]
key = "no" \\""" ""\"""
other = \'\'\'
x = 1
\'\'\'
[[listeners]]
bind = "1"
  [listeners.tls]
  certfile = "x"
[[listeners]]
bind = "2"
tls = { certfile = "a", names = { "b.c" = [1, 2] } }
[a.b]
c = [
  1, # one
  { d = 2 },

  "]",
]
[[a.e.f]]
when = 1979-05-27 07:32:00
[a.e.f.g]
h = 1.5e3
'''

LINES: dict[KeyPath, int] = {
    ("top",): 2,
    ("quoted.key",): 3,
    ("lit#eral",): 4,
    ("dotted", "a", "b"): 5,
    ("node",): 7,
    ("node", "name"): 8,
    ("node", "other"): 11,
    ("listeners", 0): 14,
    ("listeners", 0, "bind"): 15,
    ("listeners", 0, "tls", "certfile"): 17,
    ("listeners", 1): 18,
    ("listeners", 1, "bind"): 19,
    ("listeners", 1, "tls", "names", "b.c", 1): 20,
    ("a", "b", "c"): 22,
    ("a", "b", "c", 0): 23,
    ("a", "e", "f", 0, "when"): 29,
    ("a", "e", "f", 0, "g", "h"): 31,
}


def paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    found = {path} if path else set()
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found |= paths(member, path + (key,))
    return found


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines(ending: str) -> None:
    text = DOCUMENT.replace("\n", ending)
    lines = key_lines(text)
    assert {path: lines.get(path) for path in LINES} == LINES
    assert set(lines) == paths(tomllib.loads(text))


KEYS = st.sampled_from(["a", "b-c", '"x y"', "'p.q'", '"\\u0041\\""', '"#"'])
STRINGS = st.sampled_from(
    ['"x"', '"\\"#]"', "'[a]'", '"""a\n= "b" \\""""', "'''x\n]''''", '""', "''", '""""""', '"""\\\\"""']
)
SCALARS = STRINGS | st.sampled_from(["1", "true", "1.5", "1979-05-27 07:32:00", "-inf", "0x1F"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[ # c ]\n" + ",\n ".join(items) + "]")
        | st.dictionaries(KEYS, inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + "}"
        )
    ),
    max_leaves=6,
)
STATEMENTS = st.lists(
    st.one_of(
        st.tuples(st.lists(KEYS, min_size=1, max_size=3), VALUES).map(lambda kv: f"{' . '.join(kv[0])} = {kv[1]} # c"),
        st.lists(KEYS, min_size=1, max_size=3).map(lambda keys: f"[ {'.'.join(keys)} ]"),
        st.lists(KEYS, min_size=1, max_size=3).map(lambda keys: f"[[{'.'.join(keys)}]] # d"),
        st.just(""),
    ),
    max_size=8,
)


@given(STATEMENTS)
def test_every_key_of_any_document_has_its_line(statements: list[str]) -> None:
    text = ""
    for statement in statements:  # leave out what would not be valid
        try:
            tomllib.loads(text + statement + "\n")
        except tomllib.TOMLDecodeError:
            continue
        text += statement + "\n"
    lines = key_lines(text)
    assert set(lines) == paths(tomllib.loads(text))
    assert all(1 <= line <= text.count("\n") for line in lines.values())
