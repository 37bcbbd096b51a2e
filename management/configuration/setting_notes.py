"""The meaning of each setting in a sentence or two, from the comments of ``config/taipan.toml`` and of the samples of
access sources, which together contain every key."""

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Final

from taipan.broker.access.declaration import COMMON_KEYS, AccessSource
from taipan.broker.access.registry import ACCESS_SOURCES, installed_sources

_TABLE: Final = re.compile(r"#?\[\[?([a-z_.]+)\]\]?")
_KEY: Final = re.compile(r"#?([a-z0-9_]+) = ")
_SECTION: Final = "# ---"


def samples(sources: Iterable[AccessSource] = ACCESS_SOURCES) -> str:
    """Return the tables of sources, as they are added to the shipped file."""
    return "".join(f"\n{sample}" for source in sources if (sample := source.sample()))


def setting_notes() -> dict[str, str]:
    """Return the notes by key, as ``note_of`` names it: ``listeners.bind``, ``zones.max_qos``,
    ``access.users.username``."""
    return _notes((*ACCESS_SOURCES, *installed_sources()))


@lru_cache(maxsize=4)
def _notes(sources: tuple[AccessSource, ...]) -> dict[str, str]:
    notes: dict[str, str] = {}
    table = note = ""
    lines: list[str] = []
    text = files("taipan").joinpath("config", "taipan.toml").read_text("utf-8") + samples(sources)
    for line in text.splitlines():
        header, key = _TABLE.fullmatch(line), _KEY.match(line)
        if header is not None:
            table = re.sub(r"^zones\.\w+", "zones", header[1])
            if lines:
                notes.setdefault(table, " ".join(lines))
        elif key is not None:
            # Consecutive keys share the comment above the first.
            note = " ".join(lines) or note
            notes.setdefault(f"{table}.{key[1]}", note)
        if line.startswith("# ") and not line.startswith(_SECTION):
            lines.append(line[2:].strip())
        else:
            lines = []
    return notes


def note_of(table: str, key: str) -> str:
    """Return the note of a setting. ``table``: its table without indices and names of zones; empty: ``key`` is a table.
    A listener may have keys of a zone."""
    notes = setting_notes()
    if not table:
        return notes.get(key, "")
    places = [table]
    if table == "listeners":
        places.append("zones")
    elif table.endswith(".tls"):
        places.append("listeners.tls")
    elif table.startswith("access.") and key in COMMON_KEYS:
        places += [f"access.{each.name}" for each in ACCESS_SOURCES if each.remote]
    return next((notes[f"{place}.{key}"] for place in places if f"{place}.{key}" in notes), "")
