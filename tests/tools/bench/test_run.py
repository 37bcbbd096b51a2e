"""Which scenarios the benchmark runs, and against whom; no broker runs here."""

import re

import pytest

from tools.bench.run import LOADGEN, chosen, takes_part
from tools.bench.scenarios import SCENARIOS, TABLE

SCRIPT = (LOADGEN / "scenarios.sh").read_text(encoding="utf-8")


def test_every_scenario_is_one_of_the_script() -> None:
    theirs = set(re.findall(r"^    (\w+)\) +\S", SCRIPT, re.MULTILINE))
    assert theirs == {name for name, scenario in SCENARIOS.items() if not scenario.base}
    assert {scenario.base for scenario in SCENARIOS.values() if scenario.base} <= theirs


def test_every_option_of_a_scenario_is_one_of_the_generator() -> None:
    source = (LOADGEN / "loadgen.c").read_text(encoding="utf-8")
    known = set(re.findall(r'\{ "([a-z]+)", \'[sld]\'', source))
    words = " ".join([SCRIPT.split("one() {")[1], *(scenario.args for scenario in SCENARIOS.values())])
    used = set(re.findall(r"--([a-z]+)", words))
    assert {"mixed", "slow", "share", "tls", "ws"} <= used <= known


def test_every_figure_is_one_that_the_generator_prints() -> None:
    source = (LOADGEN / "loadgen.c").read_text(encoding="utf-8")
    for scenario in SCENARIOS.values():
        for each in scenario.figures:
            assert all(f'\\"{part}\\":' in source for part in each.path.split(".")), each.path


def test_the_table_has_all_scenarios_of_the_issue() -> None:
    assert {name.rstrip("abc") for name in TABLE} == {f"S{number}" for number in range(1, 14)}


def test_words_name_scenarios() -> None:
    assert chosen([]) == list(SCENARIOS) == chosen(["all"])
    assert chosen(["table"]) == TABLE
    assert chosen(["S2", "S1", "S2"]) == ["S2", "S1"]
    assert chosen(["S13", "table"])[0] == "S13"
    with pytest.raises(KeyError, match="S99"):
        chosen(["S1", "S99"])


def test_a_peer_is_left_out_of_what_is_not_for_it() -> None:
    assert takes_part("amqtt", "S1") and takes_part("mosquitto", "S9c") and takes_part("taipan", "S9c")
    assert not takes_part("amqtt", "S9c") and not takes_part("nats", "TLS")
