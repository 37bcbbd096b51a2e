"""The recorded answers of EMQX 4.1.5 and 4.4.19: all come out the same, but for what ``deviations.toml`` lists."""

import asyncio
import fnmatch
import functools
import tomllib
from typing import Any

import pytest

from tests.api.golden import replay

TABLE: dict[str, Any] = tomllib.loads((replay.HERE / "deviations.toml").read_text("utf-8"))
PENDING = {group for entry in TABLE["pending"] for group in entry["groups"]}
DIFFERS: dict[str, list[str]] = {case: what for entry in TABLE["cases"] for case, what in entry["differs"].items()}


@functools.cache
def differences(version: str, group: str) -> dict[int, replay.Differences]:
    """One replay of a file is for all of its cases."""
    return asyncio.run(replay.replay(version, group))


def is_listed(version: str, what: str) -> bool:
    return any(covers(field, version, what) for field in TABLE["fields"])


def covers(field: dict[str, Any], version: str, what: str) -> bool:
    pattern = field["what"].replace("[", "[[]")
    return version in field.get("versions", replay.VERSIONS) and fnmatch.fnmatchcase(what, pattern)


REPLAYED = [(v, group, seq, note) for v, group, seq, note in replay.ids() if group not in PENDING]


@pytest.mark.parametrize(
    "version, group, seq",
    [each[:3] for each in REPLAYED],
    ids=[f"{v}/{g}/{seq} {note}" for v, g, seq, note in REPLAYED],
)
def test_case(version: str, group: str, seq: int) -> None:
    found = [each for each in differences(version, group)[seq] if not is_listed(version, each)]
    assert found == DIFFERS.get(f"{version}/{group}/{seq}", [])


@pytest.mark.parametrize("field", TABLE["fields"], ids=lambda field: str(field["what"]))
def test_a_listed_field_really_differs(field: dict[str, Any]) -> None:
    for version in field.get("versions", replay.VERSIONS):
        groups = [group for group in replay.groups(version) if group not in PENDING]
        assert any(
            covers(field, version, what)
            for group in groups
            if "group" not in field or field["group"] == group
            for found in differences(version, group).values()
            for what in found
        ), f"nothing of {version} differs so any more"


def test_listed_cases_are_there() -> None:
    assert set(DIFFERS) <= {f"{version}/{group}/{seq}" for version, group, seq, _ in REPLAYED}
    assert len(DIFFERS) == sum(len(entry["differs"]) for entry in TABLE["cases"]), "a case is listed twice"


@pytest.mark.parametrize("entry", TABLE["cases"] + TABLE["fields"], ids=lambda entry: str(entry["reason"])[:60])
def test_every_deviation_says_what_demands_it(entry: dict[str, Any]) -> None:
    assert entry["source"] in ("specification", "decisions", "reference") and len(entry["reason"]) > 10


@pytest.mark.parametrize("group", sorted(PENDING))
def test_what_is_pending_is_recorded(group: str) -> None:
    assert all(group in replay.groups(version) for version in replay.VERSIONS)
