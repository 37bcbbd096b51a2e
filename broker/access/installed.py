"""Sources of access in other packages: entry points of the group ``taipan.access_sources``.

They are searched only if a configuration contains a name that no built-in source has, and only the source with that
name is imported."""

import re
from typing import Final

from ..entry_points import load
from .declaration import AccessSource

GROUP: Final = "taipan.access_sources"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def installed_source(name: str) -> AccessSource | None:
    """Return the source with this name; None: no package has one. Raises ValueError if it cannot be used."""
    return load(GROUP, name, AccessSource) if _NAME.fullmatch(name) else None
