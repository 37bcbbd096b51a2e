"""Registry: all sources of access, and the type of ``[access]``, which has a table for each of them."""

import sys
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, Literal, TypeVar

import msgspec

from .declaration import AccessSource

Common = TypeVar("Common", bound=type[msgspec.Struct])


def _built_in() -> tuple[AccessSource, ...]:
    """Return the source of each package next to this module. Only the small declarations are imported, not the
    implementations."""
    assert __package__ is not None
    packages = [each.name for each in iter_modules(sys.modules[__package__].__path__) if each.ispkg]
    found: list[AccessSource] = [import_module(f"{__package__}.{name}.declaration").SOURCE for name in packages]
    return tuple(sorted(found, key=lambda source: (source.place, source.name)))


ACCESS_SOURCES: Final = _built_in()
"""The built-in ones, in the order in which they are asked who a client is."""

_SOURCES: Final[dict[type, tuple[AccessSource, ...]]] = {}
"""By the type of ``[access]`` that was made for them."""


@lru_cache(maxsize=16)
def access_settings(common: Common, sources: tuple[AccessSource, ...]) -> Common:
    """Return the type of ``[access]``: the keys of ``common``, the names of ``sources``, and a table for each source
    that has settings."""
    names = tuple(source.name for source in sources)
    kind = tuple[Literal[names], ...]  # type: ignore[valid-type]
    first = sorted(sources, key=lambda source: not source.rules_first)
    tables = [(source.name, source.settings | None, None) for source in sources if source.settings is not None]
    made = msgspec.defstruct(
        common.__name__,
        [("authenticators", kind, names), ("authorizers", kind, tuple(source.name for source in first)), *tables],
        bases=(common,),
        module=common.__module__,
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )
    _SOURCES[made] = sources
    return made  # type: ignore[return-value]


def sources_of(access: msgspec.Struct) -> tuple[AccessSource, ...]:
    """Return the sources that these settings of ``[access]`` may name."""
    return _SOURCES[type(access)]


def installed_sources() -> list[AccessSource]:
    """Return the sources of other packages that a configuration of this process has named."""
    found = {source: None for sources in _SOURCES.values() for source in sources if source not in ACCESS_SOURCES}
    return list(found)


def table_of(access: msgspec.Struct, source: AccessSource) -> Any:
    """Return the settings in ``[access.<name>]``; None: there is no such table."""
    return None if source.settings is None else getattr(access, source.name)


def tables_of(access: msgspec.Struct) -> dict[str, Any]:
    """Return the settings of each source that has a table; None: the configuration has none."""
    return {source.name: table_of(access, source) for source in sources_of(access) if source.settings is not None}


def written_type(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the class in the source code for a generated type: for the type of ``[access]``, the class with the common
    keys."""
    return struct.__bases__[0] if struct in _SOURCES else struct
