"""What the benchmark makes of the generator's lines; no broker runs here."""

import re
from collections import defaultdict

from tests.bench.run import LOADGEN, SCENARIOS, Runs, faults, figure, page, table

ABOUT = {
    "commit": "abc",
    "cpu": "a processor",
    "system": "a system",
    "python": "CPython",
    "uvloop": "0",
    "rounds": "3",
    "duration": "3",
    "pinning": "pinned",
}


def runs_of(scenario: str, **values: list[float]) -> Runs:
    name = SCENARIOS[scenario].figure
    runs: Runs = defaultdict(list)
    for broker, each in values.items():
        for value in each:
            outer, _, inner = name.partition(".")
            runs[scenario, broker].append({outer: {inner: value}} if inner else {outer: value})
    return runs


def test_every_scenario_is_one_of_the_script() -> None:
    script = (LOADGEN / "scenarios.sh").read_text(encoding="utf-8")
    theirs = set(re.findall(r"^    (S\w+)\) ", script, re.MULTILINE))
    assert theirs == {name for name, scenario in SCENARIOS.items() if not scenario.base}
    assert {scenario.base for scenario in SCENARIOS.values() if scenario.base} <= theirs


def test_a_figure_is_found_inside_and_is_nothing_where_the_run_failed() -> None:
    assert figure({"lat_us": {"p99": 12.5}}, "lat_us.p99") == 12.5
    assert figure({"label": "S7", "error": "exit 124"}, "lat_us.p99") == 0.0


def test_faults_are_what_is_not_zero() -> None:
    assert faults({"delivered": 5, "lost": 0, "duplicates": 0}) == {}
    assert faults({"lost": 2, "out_of_order": 1, "stalls": 0}) == {"lost": 2, "out_of_order": 1}
    assert faults({"error": "exit 1"}) == {"error": "exit 1"}


def test_the_ratio_is_of_medians_and_above_1_where_taipan_is_ahead() -> None:
    more = table(runs_of("S1", taipan=[100, 300, 900], mosquitto=[150, 100, 50]), ["taipan", "mosquitto"])
    assert "| 300 (100 to 900) | 100 (50 to 150) | 3.00 | none |" in more[-1]
    less = table(runs_of("S7", taipan=[50], mosquitto=[100]), ["taipan", "mosquitto"])
    assert "| 50 (50 to 50) | 100 (100 to 100) | 2.00 | none |" in less[-1]


def test_faults_stand_in_the_table_and_raised_limits_below_it() -> None:
    runs = runs_of("S12", taipan=[10], mosquitto=[10])
    runs["S12", "taipan"][0]["lost"] = 7
    text = page(runs, {"taipan": "0.1.0", "mosquitto": "2"}, ABOUT, "make bench", "2026-01-01")
    assert "drained/s (1) |" in text
    assert "| taipan lost 7 |" in text
    assert text.endswith("(1) Taipan with raised limits, S12: `zones.external.max_queued_messages=0`.\n")
