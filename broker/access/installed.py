"""Sources of access that other packages have: entry points of the group ``taipan.access_sources``.

They are looked for only if a configuration has a name that no built-in source has, and only the one of that name is
imported.
"""

import re
from typing import Final

from ..entry_points import load
from .declaration import AccessSource

GROUP: Final = "taipan.access_sources"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def installed_source(name: str) -> AccessSource | None:
    """The source of this name; None: no package has one. Raises ValueError where it cannot be used."""
    return load(GROUP, name, AccessSource) if _NAME.fullmatch(name) else None
