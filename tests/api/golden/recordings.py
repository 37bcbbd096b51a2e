"""The recordings: what was once sent to EMQX, and what it answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
VERSIONS: Final = ("4.1.5", "4.4.19")

Case = dict[str, Any]


def groups(version: str) -> list[str]:
    return sorted(file.stem for file in (HERE / f"emqx-{version}").glob("*.json"))


def cases(version: str, group: str) -> list[Case]:
    found: list[Case] = json.loads((HERE / f"emqx-{version}" / f"{group}.json").read_text("utf-8"))["cases"]
    return found


def ids() -> Iterator[tuple[str, str, int, str]]:
    """Version, group, number and note of every case."""
    for version in VERSIONS:
        for group in groups(version):
            for case in cases(version, group):
                yield version, group, case["seq"], case["note"]
