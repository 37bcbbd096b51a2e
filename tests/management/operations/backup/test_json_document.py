"""Documents: what stands where, also in texts that are longer than a window, and what is not JSON."""

import json
from typing import Any

import pytest

from taipan.management.operations.backup.json_document import BadRecord, Document
from taipan.management.operations.refusal import Refusal

LONG = [
    "\\" * 200_000 + '"',
    'a"\\' * 50_000,
    "\U0001f600" * 100_000,
    '"\\n\x01' * 30_000,
    "x" * 300_000,
    "\\u" * 90_000,
]


def read(text: str, size: int = 100_000) -> Document:
    """``size``: of the pieces that it comes in."""
    document = Document(text[at : at + size] for at in range(0, len(text), size))
    for _ in document.read():
        pass
    return document


@pytest.mark.parametrize("index", range(len(LONG)))
@pytest.mark.parametrize("ascii", [True, False])
def test_long_texts(index: int, ascii: bool) -> None:
    text = LONG[index]
    document = read(json.dumps({"f": text, "g": [1, [2], {"a": text}], "h": [], "i": {}}, ensure_ascii=ascii))
    assert "".join(document.long_text(document.members["f"])) == text
    assert document.value(document.members["f"]) == text
    assert [document.value(span) for span in document.sections["g"]] == [1, [2], {"a": text}]
    assert len(document.sections["h"]) == 0 and document.value(document.members["i"]) == {}


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": []}, {"": [{}], "b": None, "c": 1.5}, {"a": {"b": ["}", "]"]}}])
@pytest.mark.parametrize("indent", [None, 2])
def test_members(value: dict[str, Any], indent: int | None) -> None:
    document = read(json.dumps(value, indent=indent))
    found: dict[str, Any] = {key: document.value(span) for key, span in document.members.items()}
    found |= {key: [document.value(span) for span in spans] for key, spans in document.sections.items()}
    assert found == value


def test_the_last_of_two_counts() -> None:
    document = read('{"a": 1, "a": [2], "b": [1], "b": 3}')
    assert [document.raw(span) for span in document.sections["a"]] == ["2"]
    assert document.raw(document.members["b"]) == "3" and set(document.sections) == {"a"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[", '{"a"}', '{"a":1,}', '{"a":[1,]}', '{"a":[1}', '{"a":NaN}', '{"a":[Infinity]}', '{"a":"x']
    + ['{"a":1}x', '{"a":"\\ud83d"}', "{a:1}", "[" * 100_000, '{"a":' + "[" * 100_000, '{"a":[' + "[" * 100_000]
    + ['{"a" 1}', '{"a":"' + "\\" * 70_001, '{"a":"\n"}', '{"a":"\\x"}', "{1:2}", '{"a":1 "b":2}', "nul", '{"a":01}'],
)  # fmt: skip
def test_no_json(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        read(text)
    assert refusal.value.code == 109


@pytest.mark.parametrize("text", ["[]", "1", '"x"', "null"])
def test_no_object(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        read(text)
    assert refusal.value.code == 108


def test_half_a_surrogate_pair() -> None:
    document = read('{"a": ["\\udc00", "\\ud83d\\ude00", "\\\\ud800"]}')
    half, pair, none = document.sections["a"]
    with pytest.raises(BadRecord):
        document.value(half)
    assert (document.value(pair), document.value(none)) == ("\U0001f600", "\\ud800")


@pytest.mark.parametrize(
    "text, what",
    [
        ('{"a": 1,\n "b" 2}', ": is expected: line 2 column 6 (char 14)"),
        ('{"a":\n nul}', "Expecting value: line 2 column 2 (char 7)"),
        ('{"a": 1,\n 2: 3}', "a key in double quotes is expected: line 2 column 2 (char 10)"),
        ('{"a": [1,\n 2}', "] is expected: line 2 column 3 (char 12)"),
        ("{}\n x", "data follows the document: line 2 column 2 (char 4)"),
        ('{"a": "x', "Unterminated string starting at: line 1 column 7 (char 6)"),
        ("\ufeff\ufeff{}", "Expecting value: line 1 column 2 (char 1)"),
        ('{"a": [NaN]}', "NaN is not JSON"),
    ],
)
def test_the_place_of_a_fault_is_told(text: str, what: str) -> None:
    with pytest.raises(Refusal) as refusal:
        read(text)
    assert refusal.value.message == f"not JSON: {what}"


PIECED = (
    '{"a": [1, 1.5, -2e+3, 1E-2, "x\\u00e9\\ud83d\\ude00", true, null, [], {"b": [{}]}],\n "b": {"c": [1.25e2]},'
    ' "c": "a\\n\\"b",\n\n "d": 12.5e-1, "e": false}\n'
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 64])
def test_values_go_over_the_ends_of_pieces(size: int) -> None:
    document = read(PIECED, size)
    found: dict[str, Any] = {key: document.value(span) for key, span in document.members.items()}
    found |= {key: [document.value(span) for span in spans] for key, spans in document.sections.items()}
    assert found == json.loads(PIECED)
    assert [document.raw(span) for span in document.sections["a"]][:4] == ["1", "1.5", "-2e+3", "1E-2"]
    assert "".join(document.long_text(document.members["c"])) == 'a\n"b'


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 64])
def test_a_fault_is_told_alike_whatever_the_pieces_are(size: int) -> None:
    def told(text: str, size: int) -> str | None:
        try:
            read(text, size)
        except Refusal as refusal:
            return f"{refusal.code} {refusal.message}"
        return None

    for at in range(len(PIECED)):
        for text in (PIECED[:at], PIECED[:at] + PIECED[at + 1 :], PIECED[:at] + "}" + PIECED[at:]):
            assert told(text, size) == told(text, len(PIECED) + 1)
