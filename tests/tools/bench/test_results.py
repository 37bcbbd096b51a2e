"""Lines of the generator, kept and read again."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from taipan.broker.compiled import BUILT, NO, VARIABLE, Compiled
from tools.bench.results import UNRECORDED, Measurement, Runs, faults, figure, joined, load, modules, save


def measurement(commit: str, **rates: list[int]) -> Measurement:
    """A run of scenario after scenario with Taipan alone."""
    runs: Runs = defaultdict(list)
    for scenario, values in rates.items():
        runs[scenario, "taipan"] = [{"label": scenario, "delivered_per_s": value} for value in values]
    about = {"commit": commit, "rounds": "3", "taken": "2026-01-02", "modules": "compiled"}
    return Measurement(about, {"taipan": "1"}, runs)


def test_a_figure_is_found_inside_and_is_nothing_where_the_run_failed() -> None:
    assert figure({"lat_us": {"p99": 12.5}}, "lat_us.p99") == 12.5
    assert figure({"label": "S7", "error": "exit 124"}, "lat_us.p99") == 0.0


def test_faults_are_what_is_not_zero() -> None:
    assert faults({"delivered": 5, "lost": 0, "duplicates": 0}) == {}
    assert faults({"lost": 2, "out_of_order": 1, "stalls": 0}) == {"lost": 2, "out_of_order": 1}
    assert faults({"error": "exit 1"}) == {"error": "exit 1"}
    assert faults({"bad_props": 3}) == {"bad_props": 3}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    kept = measurement("abc", S1=[1, 2], S2=[3])
    path = save(kept, tmp_path)
    assert path.name.endswith("-abc.json")
    assert load(path) == kept
    assert [row["round"] for row in json.loads(path.read_text())["rows"]] == [1, 2, 1]


def test_an_older_file_is_dated_by_its_name_and_leaves_open_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "2025-11-21-abc.json"
    path.write_text('{"run": {"commit": "abc", "brokers": {"taipan": "1"}}, "rows": []}')
    assert load(path).about == {"commit": "abc", "taken": "2025-11-21", "modules": UNRECORDED}


def test_of_two_runs_the_last_of_a_scenario_counts_whole() -> None:
    both = joined([measurement("old", S1=[1, 2, 3], S2=[4]), measurement("new", S1=[9])])
    assert [row["delivered_per_s"] for row in both.runs["S1", "taipan"]] == [9]
    assert [row["delivered_per_s"] for row in both.runs["S2", "taipan"]] == [4]
    assert both.about["commit"] == "old; new"
    assert both.about["rounds"] == "3"


def test_what_runs_is_what_a_node_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    usable = {tmp_path, BUILT}
    monkeypatch.setattr(Compiled, "unusable", lambda self: None if self.directory in usable else "stale")
    assert modules() == "compiled"
    monkeypatch.setenv(VARIABLE, "")
    assert modules() == "compiled"
    monkeypatch.setenv(VARIABLE, NO)
    assert modules() == "interpreted"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert modules() == "compiled"
    usable.remove(BUILT)
    monkeypatch.delenv(VARIABLE)
    assert modules() == "interpreted"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "stale"))
    assert modules() == "interpreted"
