"""AccessSource: what a source of authentication or authorization declares, so that a configuration can name it.

The built-in sources are listed in ``registry.ACCESS_SOURCES``. A package of others declares one as an entry point of
the group ``taipan.access_sources``; see ``docs/recipes/add-an-access-source.md``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

import msgspec

from ..setting_rules import Fault, ValueRule


class SourceReason(NamedTuple):
    """A reason that a source gives. ``settings``: those that may have decided, as the log writes them; ``<key>`` is
    any. ``text``: the explanation for operators."""

    kind: Literal["client", "message"]
    reason: str
    settings: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class AccessSource:
    """A source that ``access.authenticators`` and ``access.authorizers`` may name.

    ``name``: the word in these settings, and of the table ``[access.<name>]``. ``settings``: the struct of that table;
    None: the source has no table. ``create(settings, context)`` makes the ``source.Source``, or returns None where this
    node has none; it is called with settings that ``check`` has accepted, and raises ValueError where they are of no
    use. ``create`` and ``check`` may be given as ``"module:name"``: the module is imported only where the table is
    there. ``extra``: what pip has to install for these imports.

    ``rules`` are those of single values, ``check(settings)`` yields what is wrong between several. ``shown`` are keys
    of the table without secrets: of a built-in source those that are named like secrets, of a package's source all that
    are not to be masked. ``rules_first``: in the default order of ``authorizers`` the source stands
    before those without.
    """

    name: str
    create: Callable[[Any, Any], Any] | str
    settings: type[msgspec.Struct] | None = None
    check: Callable[[Any], Iterator[Fault]] | str | None = None
    rules: Mapping[str, ValueRule] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    reasons: tuple[SourceReason, ...] = ()
    extra: str = ""
    rules_first: bool = False

    def made(self, settings: object, context: object) -> Any:
        """The source, or None. Raises ValueError."""
        return self._resolved(self.create)(settings, context)

    def faults(self, settings: msgspec.Struct) -> Iterator[Fault]:
        """Yield the faults of a table whose types and values are right."""
        try:
            check = None if self.check is None else self._resolved(self.check)
            self._resolved(self.create)
        except ValueError as error:
            yield Fault((), str(error))
            return
        if check is not None:
            yield from check(settings)

    def _resolved(self, named: Callable[..., Any] | str) -> Callable[..., Any]:
        if not isinstance(named, str):
            return named
        module, _, name = named.partition(":")
        try:
            found: Callable[..., Any] = getattr(import_module(module), name)
        except ImportError as error:
            command = f": pip install '{self.extra}'" if self.extra else ""
            raise ValueError(f"needs a package that is not installed ({error}){command}") from error
        except Exception as error:
            raise ValueError(f"cannot import {named}: {type(error).__name__}: {error}") from error
        return found
