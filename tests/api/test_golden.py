"""The recorded answers of EMQX 4.1.5 and 4.4.19: all come out the same, but for what ``deviations.toml`` lists."""

import asyncio
import functools
import json
import re
import tomllib
from typing import Any

import pytest

from tests.api.golden import recordings
from tests.api.golden.replay import Differences, replay

TABLE: dict[str, Any] = tomllib.loads((recordings.HERE / "deviations.toml").read_text("utf-8"))
DIFFERS: dict[str, list[str]] = {case: what for entry in TABLE["cases"] for case, what in entry["differs"].items()}
REPLAYED = list(recordings.ids())


@functools.cache
def differences(version: str, group: str) -> dict[int, Differences]:
    """One replay of a file is for all of its cases."""
    return asyncio.run(replay(version, group))


def covers(field: dict[str, Any], version: str, where: str, what: str) -> bool:
    """``where``: the case's group and note."""
    if version not in field.get("versions", recordings.VERSIONS) or not re.match(field.get("where", ""), where):
        return False
    return re.fullmatch(field["what"], what) is not None


@pytest.mark.parametrize(
    "version, group, seq, note", REPLAYED, ids=[f"{v}/{group}/{seq} {note}" for v, group, seq, note in REPLAYED]
)
def test_case(version: str, group: str, seq: int, note: str) -> None:
    where = f"{group} {note}"
    found = [
        what
        for what in differences(version, group)[seq]
        if not any(covers(field, version, where, what) for field in TABLE["fields"])
    ]
    assert found == DIFFERS.get(f"{version}/{group}/{seq}", [])


@pytest.mark.parametrize("field", TABLE["fields"], ids=lambda field: f"{field.get('where', '')} {field['what']}")
def test_a_listed_field_really_differs(field: dict[str, Any]) -> None:
    for listed in field.get("versions", recordings.VERSIONS):
        assert any(
            covers(field, version, f"{group} {note}", what)
            for version, group, seq, note in REPLAYED
            if version == listed
            for what in differences(version, group)[seq]
        ), f"nothing of {listed} differs so any more"


def test_each_recorded_case_is_one_line() -> None:
    written = {file: file.read_text("utf-8") for file in recordings.files()}
    assert not [file for file, text in written.items() if text != recordings.text_of(json.loads(text))]


def test_listed_cases_are_there() -> None:
    assert set(DIFFERS) <= {f"{version}/{group}/{seq}" for version, group, seq, _ in REPLAYED}
    assert len(DIFFERS) == sum(len(entry["differs"]) for entry in TABLE["cases"]), "a case is listed twice"


@pytest.mark.parametrize("entry", TABLE["cases"] + TABLE["fields"], ids=lambda entry: str(entry["reason"])[:60])
def test_every_deviation_says_what_demands_it(entry: dict[str, Any]) -> None:
    assert entry["source"] in ("specification", "decisions", "reference") and len(entry["reason"]) > 10
