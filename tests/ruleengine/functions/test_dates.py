"""Dates beyond the shared vectors: leap years, zones, and that what is written reads back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.registry import FunctionError
from tests.ruleengine.functions.calls import call

seconds = st.integers(-62_135_510_400, 253_402_214_400)
FULL = "%Y-%m-%dT%H:%M:%S.%N%::z"


@pytest.fixture(name="zone")
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def choose(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "date",
    ["2020-02-29", "2020-03-01", "2024-12-31", "2000-02-29", "1900-03-01", "1972-03-01", "1969-12-31", "0001-01-02"],
)
def test_dates_are_not_a_day_off(date: str) -> None:
    expected = int(datetime.fromisoformat(date + "T00:00:00+00:00").timestamp())
    assert call("date_to_unix_ts", "second", "%Y-%m-%d", date) == expected
    assert call("rfc3339_to_unix_ts", date + "T00:00:00Z") == expected
    assert call("format_date", "second", "Z", "%Y-%m-%d", expected) == date


@given(seconds, st.integers(-86_399, 86_399), st.integers(0, 10**9 - 1))
def test_a_formatted_date_reads_back(second: int, offset: int, fraction: int) -> None:
    stamp = second * 10**9 + fraction
    text = call("format_date", "nanosecond", offset, FULL, stamp)
    assert call("date_to_unix_ts", "nanosecond", FULL, text) == stamp
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    shown = expected.astimezone(timezone(timedelta(seconds=offset)))
    assert text.startswith(f"{shown.year:04d}-{shown.month:02d}-{shown.day:02d}T{shown.hour:02d}:{shown.minute:02d}:")


@given(seconds, st.sampled_from([("second", 1), ("millisecond", 10**3), ("microsecond", 10**6), ("nanosecond", 10**9)]))
def test_rfc3339_reads_back(second: int, unit: tuple[str, int]) -> None:
    stamp = second * unit[1] + unit[1] // 3
    assert call("rfc3339_to_unix_ts", call("unix_ts_to_rfc3339", stamp, unit[0]), unit[0]) == stamp


def test_the_zone_of_the_node_and_its_summer(zone: Callable[[str], None]) -> None:
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    assert call("unix_ts_to_rfc3339", 1653561612) == "2022-05-26T12:40:12+02:00"
    assert call("unix_ts_to_rfc3339", 1640995200) == "2022-01-01T01:00:00+01:00"
    assert call("now_rfc3339", "millisecond") == "2022-05-26T12:40:12.250+02:00"
    assert call("timezone_to_second", "local") == 7200
    assert call("format_date", "second", "local", "%H:%M%z", 1640995200) == "01:00+0100"
    assert call("date_to_unix_ts", "second", "local", "%Y-%m-%d %H:%M:%S", "2022-05-26 12:40:12") == 1653561612


@pytest.mark.parametrize("unit, stamp", [("second", 1653561612), ("microsecond", 1653561612250000)])
def test_now(unit: str, stamp: int) -> None:
    assert call("now_timestamp", unit) == stamp
    assert call("format_date", unit, "Z", "%S.%6N") == ("12.250000" if unit != "second" else "12.000000")


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("rfc3339_to_unix_ts", ["1969-12-31 23:59:59.5Z"], -1),
        ("rfc3339_to_unix_ts", ["2022-05-26t18:40:12.1234567891+08:00", "nanosecond"], 1653561612123456789),
        ("unix_ts_to_rfc3339", [-1, "millisecond"], "1969-12-31T23:59:59.999+00:00"),
        ("date_to_unix_ts", ["second", "%H:%M", "01:30"], 5400),
        ("date_to_unix_ts", ["second", "%Y-%m-%dT%H:%M:%S%:z", "1970-01-01T00:00:01Z"], 1),
        ("date_to_unix_ts", ["second", 3600, "%Y-%m-%d", "1970-01-02"], 82_800),
        ("timezone_to_second", ["-01:30:15"], -5415),
    ],
)
def test_answers(name: str, arguments: list[Any], expected: Any, zone: Callable[[str], None]) -> None:
    zone("UTC")
    assert call(name, *arguments) == expected


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("rfc3339_to_unix_ts", ["2022-02-30T00:00:00Z"]),
        ("rfc3339_to_unix_ts", ["2022-02-03T00:00:00"]),
        ("rfc3339_to_unix_ts", ["2022-02-03T25:00:00Z"]),
        ("rfc3339_to_unix_ts", ["2022-02-03T00:00:00+24:00"]),
        ("unix_ts_to_rfc3339", [10**30]),
        ("unix_ts_to_rfc3339", [1.5]),
        ("unix_ts_to_rfc3339", [1, "minute"]),
        ("format_date", ["second", "Z", "%Y", -(10**12)]),
        ("format_date", ["second", 86_400, "%Y", 0]),
        ("format_date", ["second", "+08:60", "%Y", 0]),
        ("date_to_unix_ts", ["second", "%Y-%m-%d", "2022-13-01"]),
        ("date_to_unix_ts", ["second", "%Y-%m-%d", "2022-1-1"]),
        ("date_to_unix_ts", ["second", "%Y", "٢٠٢٢"]),
        ("date_to_unix_ts", ["second", "%Y%z", "2022local"]),
        ("date_to_unix_ts", ["second", 0, "2022"]),
        ("timezone_to_second", ["08:00"]),
        ("timezone_to_second", [1.5]),
    ],
)
def test_refused(name: str, arguments: list[Any]) -> None:
    with pytest.raises(FunctionError, match=f"^{name}: "):
        call(name, *arguments)
