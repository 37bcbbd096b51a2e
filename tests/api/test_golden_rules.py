"""The rule engine's endpoints against what was recorded of two real brokers: every case, every difference explained."""

import asyncio
import re
from functools import cache
from typing import Final, NamedTuple

import pytest

from tests.api.golden.replay import VERSIONS, Differences, cases
from tests.api.golden.rule_replay import GROUPS, replay


class Deviation(NamedTuple):
    """``where``: what ``version group note`` must contain; ``what``: a difference as a whole."""

    reason: str
    where: str
    what: str


_FIELDS: Final = r"data(\[\])?\.actions\[\]\.params"

DEVIATIONS: Final = [
    # The answer to what is wrong: docs/api.md, the table of refusals.
    Deviation("the specification's code for a wrong value", "", "code 400 -> 108"),
    Deviation("the specification's code for a missing key", "", "code 400 -> 107"),
    Deviation("the specification's code for what is not there", "", "code (400|404) -> 102"),
    Deviation("the specification's code for what exists", "own id again", "code 400 -> 113"),
    Deviation("deleting what is not there is 404", "rules unknown|resources again", "code 0 -> 102"),
    Deviation("bad input is never a 500", "4.4.19", "status -> 40[04]"),
    Deviation("bad input is never a 500", "4.1.5 resources numeric type", "status -> 400"),
    Deviation("no body but an object is one", "rules array", "(code 0 -> 108|data: missing)"),
    Deviation("an event that there is not is refused", "unknown event", "(code 0 -> 108|data: missing)"),
    Deviation("a resource that is not there is refused, as in 4.1", "4.4.19 rules unknown resource", "code 0 -> 102"),
    Deviation("a resource that is not there is refused, as in 4.1", "4.4.19 rules unknown resource", "data: missing"),
    # 4.4 has more than 4.1, and so has this.
    Deviation("4.4 has it", "4.1.5 rules", r"data(\[\])?\.created_at: extra"),
    Deviation("4.4 has it", "4.1.5 rules", r"data.*metrics\[\]\.(passed|failed|no_result|exception|taken): extra"),
    Deviation("beyond both", "rules", r"data.*metrics\[\]\.evaluated: extra"),
    Deviation("a float from the start, as in 4.4", "4.1.5 rules", r"data.*\.speed_max: number -> number"),
    Deviation("4.4 has it", "4.1.5 rules (empty|page)", "meta: extra"),
    Deviation("4.4 has pages", "4.1.5 rules page", "data: length 13 -> 2"),
    Deviation("other rules are there", "4.4.19 rules page", r"meta\.count: 12 -> \d+"),
    Deviation("other rules are there", "rules page", rf"{_FIELDS}\.[a-z_$]+: (extra|missing)"),
    Deviation("an empty object is one", "4.1.5 rules", rf"{_FIELDS}: array -> object"),
    Deviation("an id that is given is taken, as in 4.4", "4.1.5 .* own id", r"data\.id: '(\w+):0' -> '\1:(own|mine)'"),
    Deviation(
        "a path is decoded, as in 4.4", "4.1.5 rules colon encoded", "(code 404 -> 0|message: missing|data: extra)"
    ),
    Deviation("defaults are filled in", "4.1.5 rules republish", rf"{_FIELDS}\.target_retain: extra"),
    Deviation("defaults are filled in", "rules rule after deleting", rf"{_FIELDS}\.(path|body|payload_tmpl): extra"),
    Deviation("4.4 has it", "4.1.5 resources PUT", "status -> 200"),
    Deviation("both forms of web_hook have their fields", "resources", r"data\.config\.[a-z_]+: extra"),
    Deviation("what else is known of a resource", "resources one", r"data\.status\[\]\.(reason|buffer): extra"),
    # Types and events: words of its own, 4.4's definitions and some more.
    Deviation("words of its own", "", r"data.*\.(title|description)\.(zh|en): .*"),
    Deviation("its own name", "", r"data.*\.(app|provider): 'emqx_\w+' -> 'taipan_rule_engine'"),
    Deviation("the specification's time-series action", "", "(data_to|backend)_opentsdb: extra"),
    Deviation("Erlang's own protocol between nodes", "", "bridge_rpc: missing"),
    Deviation("Erlang's own protocol between nodes", "actions all", r"data\.data_to_mqtt_broker\.types: length 2 -> 1"),
    Deviation("4.4 has it", "4.1.5 actions", r"data.*\.category: extra"),
    Deviation("4.4 and 4.1 together", "(actions|resource_types)", r"data.*\.params\.[a-z_$]+: extra"),
    Deviation("said where it is true", "(actions|resource_types)", r"data.*\.params\.[a-z_]+\.required: missing"),
    Deviation("4.4 requires it", "4.1.5 resource_types all", r"data.*\.clientid\.required: False -> True"),
    Deviation("they stand in one order", "(actions|resource_types)", r"data.*\.order: (extra|\d+ -> \d+)"),
    Deviation("bounds are told", "resource_types", r"data.*\.(range|format): extra"),
    Deviation("placeholders are taken too", "actions", r"data.*\.target_(qos|retain)\.(enum|input|required): missing"),
    Deviation("placeholders are taken too", "actions", r"data.*\.target_(qos|retain)\.type.*"),
    Deviation("the resource's own hold", "actions all", r"data.*\.params\.(method|headers)\.default: missing"),
    Deviation("its own default", "resource_types all", r"data\.bridge_mqtt.*\.default: .*"),
    Deviation("4.4's type", "4.1.5 resource_types all", r"data\.bridge_mqtt\.params\.\w+\.(type: .*|enum: missing)"),
    Deviation("4.4 has it", "4.1.5 rules event list", r"\$events/\w+: extra"),
    Deviation("an example of every column", "event list", r"data.*\.test_columns\.\w+: extra"),
    Deviation("an example of its own", "event list", r"data.*\.(test_columns\.\w+|sql_example): '.*"),
    Deviation("4.4 lists it, and its event has none", "event list", r"data.*connack\.columns\.connected_at: missing"),
    Deviation("more columns", "event list", r"data.*\.columns\.\w+: extra"),
]


@cache
def differences(version: str, group: str) -> dict[int, Differences]:
    return asyncio.run(replay(version, group))


def explained(version: str, group: str, note: str, difference: str) -> list[Deviation]:
    where = f"{version} {group} {note}"
    return [each for each in DEVIATIONS if re.search(each.where, where) and re.fullmatch(each.what, difference)]


@pytest.mark.parametrize(
    "version, group, seq, note",
    [
        pytest.param(version, group, case["seq"], case["note"], id=f"{version}-{group}-{case['seq']}-{case['note']}")
        for version in VERSIONS
        for group in GROUPS
        for case in cases(version, group)
    ],
)
def test_case(version: str, group: str, seq: int, note: str) -> None:
    found = differences(version, group)[seq]
    assert [each for each in found if not explained(version, group, note, each)] == []


def test_no_deviation_is_over() -> None:
    used = {
        deviation
        for version in VERSIONS
        for group in GROUPS
        for case in cases(version, group)
        for each in differences(version, group)[case["seq"]]
        for deviation in explained(version, group, case["note"], each)
    }
    assert [each for each in DEVIATIONS if each not in used] == []
