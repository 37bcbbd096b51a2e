"""Additions to Taipan by other packages through entry points: the object of a group and a name, or all of a group.

Only the requested entry points are imported."""

import logging
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Protocol, TypeVar

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
    found = {(_package(point), point.value): point for point in _installed(group).select(name=name)}
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(package for package, _ in found))
        raise ValueError(f"several packages have an entry point of this name: {packages}; remove all but one")
    [point] = found.values()
    where = _where(point)
    loaded = _imported(point, where)
    if not isinstance(loaded, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ValueError(f"{where}: {point.value} is not {article} {kind.__name__}")
    if loaded.name != name:
        raise ValueError(f"{where}: {point.value} has another name: {loaded.name}")
    _log(point)
    return loaded


def load_all(group: str, kinds: tuple[type, ...], words: str) -> Iterator[tuple[object, str]]:
    """Yield each object of a group, which must be one of ``kinds``, and where it comes from. Raises ValueError, as
    ``load`` does; ``words`` name the kinds."""
    for point in _installed(group):
        where = _where(point)
        loaded = _imported(point, where)
        if not isinstance(loaded, kinds):
            raise ValueError(f"{where}: {point.value} is not {words}")
        _log(point)
        yield loaded, where


def package_of(group: str, name: str) -> str:
    """Return the name of the package that has this entry point, as pip shows it; empty: no package has it."""
    return next((_package(point) for point in _installed(group).select(name=name)), "")


def names(group: str) -> list[str]:
    """Return the names of a group, without importing anything."""
    return [point.name for point in _installed(group)]


def _imported(point: EntryPoint, where: str) -> object:
    try:
        return point.load()
    except Exception as error:
        # Code of other packages may raise anything; the error is one line with the package's name.
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def _where(point: EntryPoint) -> str:
    return f"entry point {point.name} of {point.group}, package {_package(point)}"


def _log(point: EntryPoint) -> None:
    logger.info("extension_loaded group=%s name=%s value=%s", point.group, point.name, point.value)


def _installed(group: str) -> EntryPoints:
    found: EntryPoints = _read(tuple((place, _changed(place)) for place in sys.path)).select(group=group)
    return found


def _changed(place: str) -> int:
    """Return when something was last installed or removed there."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


@lru_cache(1)
def _read(path: tuple[tuple[str, int], ...]) -> Any:
    """Return the entry points of all distributions in ``path``, which has the times of their last changes. They are
    read from many files, therefore once per process."""
    return entry_points()


def _package(point: EntryPoint) -> str:
    return str(getattr(point.dist, "name", "unknown"))
