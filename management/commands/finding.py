"""What ``taipan doctor`` finds."""

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "error"]


class Finding(NamedTuple):
    """``check``: what was looked at. ``advice``: what to do, empty where all is well."""

    level: Level
    check: str
    found: str
    advice: str = ""
