"""A finding of ``taipan doctor``."""

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "error"]


class Finding(NamedTuple):
    """``check``: what was checked. ``advice``: what to do, empty if there is no problem."""

    level: Level
    check: str
    found: str
    advice: str = ""
