"""Sources of access in other packages: entry points of the group ``taipan.access_sources``.

They are searched only if a configuration contains a name that no built-in source has, and only the source with that
name is imported."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..entry_points import load, package_of
from ..observability.log_text import one_line
from ..setting_rules import Fault
from .declaration import AccessSource

GROUP: Final = "taipan.access_sources"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def installed_source(name: str) -> AccessSource | None:
    """Return the source with this name; None: no package has one. Raises ValueError if it cannot be used."""
    return load(GROUP, name, AccessSource) if _NAME.fullmatch(name) else None


def guarded(source: AccessSource, check: Callable[[Any], Iterator[Fault]]) -> Callable[[Any], Iterator[Fault]]:
    """Wrap a check so that an exception in it becomes a further fault, which names the package of the source."""

    def guard(value: Any) -> Iterator[Fault]:
        try:
            for fault in check(value):
                if not isinstance(fault, Fault):
                    raise TypeError(f"expected Fault, got {type(fault).__name__}")
                yield fault
        except Exception as error:
            package = package_of(GROUP, source.name) or "taipan"
            what = one_line(f"{type(error).__name__}: {error}")
            yield Fault((), f"a check of the package {package} failed, report it there: {what}")

    return guard
