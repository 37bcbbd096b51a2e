"""What the page makes of figures; no broker runs here."""

from collections import defaultdict
from pathlib import Path

import pytest

from tools.bench.plot import Bar
from tools.bench.report import against, bars, costs, growth, opening, others_table, scenario_table, write_page
from tools.bench.results import Measurement, Row, Runs
from tools.bench.scenarios import SCENARIOS
from tools.bench.verdict import beyond, falls, goal, ratio, spread

ABOUT = {
    "command": "make bench",
    "commit": "abc",
    "taken": "2026-01-02",
    "cpu": "a processor",
    "system": "a system",
    "python": "CPython",
    "uvloop": "0",
    "modules": "compiled",
    "rounds": "3",
    "duration": "3",
    "pinning": "pinned",
}


def row_of(path: str, value: float) -> Row:
    outer, _, inner = path.partition(".")
    return {outer: {inner: value}} if inner else {outer: value}


def runs_of(scenario: str, path: str = "", **values: list[float]) -> Runs:
    """Rounds of each broker with one figure, the scenario's first if none is named."""
    runs: Runs = defaultdict(list)
    for broker, each in values.items():
        runs[scenario, broker] = [row_of(path or SCENARIOS[scenario].figures[0].path, value) for value in each]
    return runs


def one_line(text: str) -> str:
    return " ".join(text.split())


def measured(runs: Runs) -> Measurement:
    return Measurement(ABOUT, {broker: "1" for _, broker in runs}, runs)


def test_the_ratio_is_of_medians_and_above_1_where_taipan_is_ahead() -> None:
    more = runs_of("S1", taipan=[100, 300, 900], mosquitto=[150, 100, 50])
    assert ratio(more, "S1", SCENARIOS["S1"].figures[0]) == 3.0
    assert "| 300 (100 to 900) | 100 (50 to 150) | 3.00 |" in scenario_table(measured(more))[-1]
    less = runs_of("S7", taipan=[50], mosquitto=[100])
    assert ratio(less, "S7", SCENARIOS["S7"].figures[0]) == 2.0


def test_processor_time_per_message_is_compared_too() -> None:
    runs = runs_of("S1", taipan=[100], mosquitto=[50])
    assert "| 2.00 |  |" in scenario_table(measured(runs))[2]
    runs["S1", "taipan"][0]["broker_cpu"] = 0.5
    runs["S1", "mosquitto"][0]["broker_cpu"] = 1.0
    assert "| 2.00 | 4.00 |" in scenario_table(measured(runs))[2]


def test_fewer_than_three_rounds_say_so() -> None:
    runs = runs_of("S1", taipan=[100], mosquitto=[50])
    assert "first look" not in against(measured(runs))
    assert "first look" in against(Measurement({**ABOUT, "rounds": "1"}, {"taipan": "1", "mosquitto": "1"}, runs))


def test_a_failed_round_counts_as_nothing_and_a_failed_broker_has_no_figure() -> None:
    runs = runs_of("S1", taipan=[0, 0, 9], nats=[0, 0, 0])
    assert spread(runs, "S1", "taipan", "delivered_per_s") == (0, 0, 9)
    assert spread(runs, "S1", "nats", "delivered_per_s") is None
    assert spread(runs, "S1", "aedes", "delivered_per_s") is None
    assert ratio(runs, "S1", SCENARIOS["S1"].figures[0], "nats") is None


@pytest.mark.parametrize(
    "scenario, number, taipan, mosquitto, said",
    [
        ("S1", 0, 500, 100, "≥ 5 ×: met"),
        ("S1", 0, 400, 100, "≥ 5 ×: **missed**, 80 % of it"),
        ("S7", 0, 45, 30, "≤ 1.5 ×: met"),
        ("S7", 0, 90, 30, "≤ 1.5 ×: **missed**, 50 % of it"),
        ("S7", 1, 500, 1, "≤ 500: met"),
        ("S7", 1, 1000, 9000, "≤ 500: **missed**, 50 % of it"),
        ("S9b", 3, 400, 1, "≤ 400: met"),
        ("S8", 1, 5120, 1, "≤ 2,560: **missed**, 50 % of it"),
        ("S7b", 0, 1, 1, "-"),
    ],
)
def test_goal(scenario: str, number: int, taipan: float, mosquitto: float, said: str) -> None:
    about = SCENARIOS[scenario].figures[number]
    assert goal(runs_of(scenario, about.path, taipan=[taipan], mosquitto=[mosquitto]), scenario, about) == said


def test_a_goal_beside_nobody_is_not_measured() -> None:
    assert goal(runs_of("S1", taipan=[1]), "S1", SCENARIOS["S1"].figures[0]) == "≥ 5 ×: not measured"


@pytest.mark.parametrize(
    "scenario, number, values, said",
    [
        ("S1", 0, {"taipan": [100], "nats": [50]}, "past nats: there"),
        ("S1", 0, {"taipan": [100], "nats": [200]}, "past nats: 50 %"),
        ("S1", 0, {"taipan": [100]}, "past nats: not measured"),
        ("S2", 0, {"taipan": [500], "mosquitto": [100]}, "≥ 10 ×: 50 %"),
        ("S7", 1, {"taipan": [100], "mosquitto": [50]}, "≤ 1 ×: 50 %"),
        ("S8", 0, {"taipan": [20_000], "mosquitto": [1]}, "≥ 1 ×: there"),
        ("S8", 1, {"taipan": [4096], "mosquitto": [1]}, "≤ 2,048: 50 %"),
        ("D2u", 0, {"taipan": [1]}, "-"),
    ],
)
def test_beyond(scenario: str, number: int, values: dict[str, list[float]], said: str) -> None:
    about = SCENARIOS[scenario].figures[number]
    assert beyond(runs_of(scenario, about.path, **values), scenario, about) == said


def test_faults_stand_in_the_table() -> None:
    runs = runs_of("S12", taipan=[10], mosquitto=[10])
    runs["S12", "taipan"][0]["lost"] = 7
    assert "| taipan lost 7 |" in scenario_table(measured(runs))[2]
    assert "| none |" in scenario_table(measured(runs_of("S1", taipan=[1])))[2]


def test_others_come_with_the_ratio_to_them_and_a_dash_where_they_cannot() -> None:
    runs = runs_of("S1", taipan=[100], mosquitto=[10], nats=[200], aedes=[50])
    runs["S1", "aedes"][0]["lost"] = 1
    runs |= runs_of("S3", taipan=[100], aedes=[10])
    runs["S3", "nats"] = [{"error": "closed"}]
    lines = others_table(measured(runs))
    assert "| S1 | delivered/s | 200; 0.50 | 50; 2, faulty |" in [line.replace("2.00", "2") for line in lines]
    assert "| S3 | delivered/s | - | 10; 10.00 |" in lines
    assert others_table(measured(runs_of("S1", taipan=[1], mosquitto=[1]))) == []


def test_growth_tells_how_far_matching_falls() -> None:
    runs = runs_of("S9a", taipan=[100]) | runs_of("S9c", taipan=[25])
    assert falls(runs) == 4
    assert "falls 4.00 times (goal: at most 2.5: **missed**)" in one_line(growth(measured(runs)))
    runs["S9c", "taipan"] = runs_of("S9c", taipan=[80])["S9c", "taipan"]
    assert "falls 1.25 times (goal: at most 2.5: met)" in one_line(growth(measured(runs)))
    assert falls(runs_of("S9a", taipan=[1])) is None


def test_growth_compares_the_others_with_and_without_a_reader_that_stopped() -> None:
    runs = runs_of("SLq", "lat_us.p99", taipan=[100]) | runs_of("SL", "lat_us.p99", taipan=[150])
    assert "from 100 to 150 µs, 1.50 times (goal: at most 2: met)." in one_line(growth(measured(runs)))


def test_costs_are_processor_time_per_message_beside_plain_ones() -> None:
    runs: Runs = defaultdict(list)
    runs["S1", "taipan"] = [{"broker_cpu": 1.0, "delivered_per_s": 500_000}]
    runs["TLS", "taipan"] = [{"broker_cpu": 0.5, "delivered_per_s": 100_000}]
    text = costs(measured(runs))
    assert "| S1: 1 to 1, QoS 0 | 2.00 | 1.0 |" in text
    assert "| TLS: S1 over TLS | 5.00 | 2.5 |" in text
    assert "| S2:" not in text


def test_the_opening_says_what_was_measured_and_nothing_else() -> None:
    text = one_line(opening(measured(runs_of("S1", taipan=[600_000]))))
    assert "| QoS 0, one publisher to one subscriber | **600,000** messages/s | - |" in text
    assert "queued" not in text


def test_the_opening_has_the_ratio_to_mosquitto() -> None:
    text = opening(measured(runs_of("S1", taipan=[600_000], mosquitto=[200_000])))
    assert "| **600,000** messages/s | 3.00 |" in text
    text = opening(measured(runs_of("S7", taipan=[50], mosquitto=[100])))
    assert "| at 5,000 messages/s, half of the messages arrive within | **50** µs | 2.00 |" in text


@pytest.mark.parametrize("rounds", ["1", "2", "3; 1"])
def test_the_opening_states_no_figure_of_too_few_rounds(rounds: str) -> None:
    few = Measurement({**ABOUT, "rounds": rounds}, {"taipan": "1"}, runs_of("S1", taipan=[600_000]))
    text = one_line(opening(few))
    assert "first look" in text and "600,000" not in text and "One core" not in text
    assert "first look" not in opening(few._replace(about=ABOUT))


@pytest.mark.parametrize("ran", ["compiled", "interpreted"])
def test_the_page_says_what_taipan_ran(ran: str) -> None:
    about = {**ABOUT, "modules": ran}
    text = one_line(against(Measurement(about, {"taipan": "1"}, runs_of("S1", taipan=[1]))))
    assert "at commit abc: taipan 1." in text and f"Taipan ran {ran}." in text


def test_bars_are_ratios_to_mosquitto_and_a_goal_below_turns_around() -> None:
    runs = runs_of("S7", taipan=[50], mosquitto=[100], nats=[200])
    assert bars(measured(runs)) == [Bar("S7 p50 µs", 2.0, {"nats": 0.5}, 1 / 1.5)]
    assert bars(measured(runs_of("S1", taipan=[1]))) == []


def test_writing_the_page_keeps_the_sections_of_others(tmp_path: Path) -> None:
    page, plot = tmp_path / "performance.md", tmp_path / "performance.svg"
    page.write_text("# Old\n\n## Rules\n\nkept\n")
    write_page(measured(runs_of("S1", taipan=[5], mosquitto=[1])), page, plot)
    titles = [line for line in page.read_text().splitlines() if line.startswith("#") and "make" not in line]
    assert titles == [
        "# Performance",
        "## Measuring it yourself",
        "## Against other brokers",
        "## How it grows",
        "## What costs what",
        "## Rules",
    ]
    assert "kept" in page.read_text() and "**1 of 1 goals are met.**" in page.read_text()
    assert plot.read_text().startswith("<svg ")
