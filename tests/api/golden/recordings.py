"""The recordings: what was once sent to EMQX, and what it answered.

A file has one case on each line. ``python -m tests.api.golden.recordings`` writes all files in this form again, after
one of them was changed or a recorder has written a new one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
VERSIONS: Final = ("4.1.5", "4.4.19")

Case = dict[str, Any]


def files() -> list[Path]:
    return [HERE / f"emqx-{version}" / f"{group}.json" for version in VERSIONS for group in groups(version)]


def groups(version: str) -> list[str]:
    return sorted(file.stem for file in (HERE / f"emqx-{version}").glob("*.json"))


def cases(version: str, group: str) -> list[Case]:
    found: list[Case] = json.loads((HERE / f"emqx-{version}" / f"{group}.json").read_text("utf-8"))["cases"]
    return found


def text_of(recording: Case) -> str:
    """Return ``recording`` as its file has it: each case on a line of its own."""
    about = {name: value for name, value in recording.items() if name != "cases"}
    each_case = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recording["cases"])
    return f'{json.dumps(about, ensure_ascii=False)[:-1]}, "cases": [\n{each_case}\n]}}\n'


def ids() -> Iterator[tuple[str, str, int, str]]:
    """Version, group, number and note of every case."""
    for version in VERSIONS:
        for group in groups(version):
            for case in cases(version, group):
                yield version, group, case["seq"], case["note"]


if __name__ == "__main__":
    for recorded in files():
        recorded.write_text(text_of(json.loads(recorded.read_text("utf-8"))), "utf-8")
