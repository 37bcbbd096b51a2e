"""LogRing: the latest lines of the log, bounded."""

import json

import pytest

from taipan.broker.observability.log_ring import MAX_CHARACTERS, MAX_LINES, LogRing, level_of


def line(level: str, text: str) -> str:
    return f"2026-11-21T09:00:00.123 {level} taipan.x {text}"


def test_after_level_and_part() -> None:
    ring = LogRing()
    ring.add([line("INFO", "a=1"), line("WARNING", "a=2"), line("ERROR", "b=3")])
    assert [each.number for each in ring.after(0, "DEBUG", "", 10)] == [1, 2, 3] and ring.last == 3
    assert [each.text for each in ring.after(0, "WARNING", "a=", 10)] == [line("WARNING", "a=2")]
    assert [each.number for each in ring.after(2, "DEBUG", "", 10)] == [3]
    assert [each.number for each in ring.after(0, "DEBUG", "", 2)] == [2, 3]  # the latest
    assert ring.after(3, "DEBUG", "", 10) == []


def test_lines_and_characters_are_bounded() -> None:
    ring = LogRing()
    ring.add(str(number) for number in range(3 * MAX_LINES))
    found = ring.after(0, "DEBUG", "", 10 * MAX_LINES)
    assert len(found) == MAX_LINES and found[-1].number == ring.last == 3 * MAX_LINES
    for _ in range(1000):
        ring.add(["x" * 1_000_000])
        assert ring._characters <= MAX_CHARACTERS
        assert ring._characters == sum(len(each.text) for each in ring.after(0, "DEBUG", "", 10 * MAX_LINES))


@pytest.mark.parametrize(
    "text, level",
    [
        (line("ERROR", "x"), "ERROR"),
        (json.dumps({"time": "t", "level": "WARNING"}), "WARNING"),
        (json.dumps({"time": "t", "level": "ERROR", "exception": "x" * 20_000})[:8_192], "ERROR"),
        ("{not json", "INFO"),
        ("[]", "INFO"),
        ("", "INFO"),
        ("one two three", "INFO"),
        ('{"level": 5}', "INFO"),
    ],
)
def test_level_of(text: str, level: str) -> None:
    assert level_of(text) == level
