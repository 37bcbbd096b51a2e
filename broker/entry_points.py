"""Additions to Taipan by other packages through entry points: the object of a group and a name.

Only the requested entry point is imported."""

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar

logger = logging.getLogger(__name__)


class Named(Protocol):
    """An object for an entry point; it has the same name."""

    @property
    def name(self) -> str: ...


_Kind = TypeVar("_Kind", bound=Named)


def load(group: str, name: str, kind: type[_Kind]) -> _Kind | None:
    """Return the object of this name and of the type ``kind``; None: no package has one. Raises ValueError if it cannot
    be used; the message is one line."""
    # A package may be found twice because of an editable installation.
    found = {(_package(point), point.value): point for point in entry_points(group=group, name=name)}
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(package for package, _ in found))
        raise ValueError(f"several packages have an entry point of this name: {packages}; remove all but one")
    [((package, value), point)] = found.items()
    where = f"entry point {name} of {group}, package {package}"
    try:
        loaded = point.load()
    except Exception as error:
        # Code of other packages may raise anything; the error is one line with the package's name.
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ValueError(f"{where}: {value} is not {article} {kind.__name__}")
    if loaded.name != name:
        raise ValueError(f"{where}: {value} has another name: {loaded.name}")
    logger.info("extension_loaded group=%s name=%s value=%s", group, name, value)
    return loaded


def names(group: str) -> list[str]:
    """Return the names of a group, without importing anything."""
    return [point.name for point in entry_points(group=group)]


def _package(point: EntryPoint) -> str:
    return str(getattr(point.dist, "name", "unknown"))
