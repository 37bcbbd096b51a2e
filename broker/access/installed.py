"""Sources of access that other packages have: entry points of the group ``taipan.access_sources``.

They are looked for only if a configuration has a name that no built-in source has, and only the one of that name is
imported.
"""

import logging
import re
from importlib.metadata import entry_points
from typing import Final

from .declaration import AccessSource

logger = logging.getLogger(__name__)

GROUP: Final = "taipan.access_sources"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def installed_source(name: str) -> AccessSource | None:
    """The source of this name; None: no package has one. Raises ValueError where it cannot be used."""
    if not _NAME.fullmatch(name):
        return None
    # A package may be found twice, by an editable installation.
    found = {(_package(point.dist), point.value): point for point in entry_points(group=GROUP, name=name)}
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(package for package, _ in found))
        raise ValueError(f"several packages have a source of this name: {packages}; remove all but one")
    [((package, value), point)] = found.items()
    where = f"entry point {name} of {GROUP}, package {package}"
    try:
        source = point.load()
    except Exception as error:
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(source, AccessSource):
        raise ValueError(f"{where}: {value} is not an AccessSource")
    if source.name != name:
        raise ValueError(f"{where}: the source has another name: {source.name}")
    logger.info("extension_loaded group=%s name=%s value=%s", GROUP, name, value)
    return source


def _package(distribution: object) -> str:
    return str(getattr(distribution, "name", "unknown"))
