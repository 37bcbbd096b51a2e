"""AccessSource: the declaration of a source of authentication or authorization, so that a configuration can name it.

``registry.ACCESS_SOURCES`` are the built-in sources: ``SOURCE`` in the module ``declaration`` of each package below
``broker/access``. Another package declares one as an entry point of the group ``taipan.access_sources``; see
``docs/recipes/add-an-access-source.md``."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ..setting_rules import Fault, ValueRule
from ..value_types import PositiveSeconds
from .emqx_plugin import EmqxPlugin


class RemoteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The common keys in the table of each remote source; the settings of a ``remote.RemoteSource`` are a subclass."""

    timeout: PositiveSeconds = 5.0  # of a question, from its turn on
    wait_timeout: PositiveSeconds = 60.0  # of a question that waits for its turn
    connect_timeout: PositiveSeconds = 5.0
    pool_size: Annotated[int, Meta(ge=1, le=10_000)] = 32
    on_failure: Literal["deny", "ignore"] = "deny"


COMMON_KEYS: Final = frozenset(RemoteSettings.__struct_fields__)
"""The settings that every remote source has. None of these values is secret."""


class SourceReason(NamedTuple):
    """A reason that a source gives. ``settings``: the settings that may have decided, as in the log; ``<key>`` stands
    for any key. ``text``: the explanation for operators."""

    kind: Literal["client", "message"]
    reason: str
    settings: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class AccessSource:
    """A source that ``access.authenticators`` and ``access.authorizers`` may name.

    ``name``: the name in these settings, and in the table ``[access.<name>]``. ``settings``: the struct of that table;
    None: the source has no table. ``create(settings, context)`` creates the ``source.Source``, or returns None if this
    node has none; it is called with settings that ``check`` has accepted, and raises ValueError if they cannot be used.
    ``create`` and ``check`` may be given as ``"module:name"``: the module is imported only if the table exists.
    ``extra``: the extra to install with pip for these imports.

    ``rules`` are the rules for single values, ``check(settings)`` yields faults in combinations of values. ``shown``
    are keys of the table without secrets: for a built-in source those that are named like secrets, for a package's
    source all keys that need not be masked.

    ``place``: the position of a built-in source in the default order, lowest first; a package's source comes last.
    ``rules_first``: in the default order of ``authorizers``, the source comes before those without this flag.

    ``emqx``: the plugin of EMQX 4 that does the same; None: there is none."""

    name: str
    create: Callable[[Any, Any], Any] | str
    settings: type[msgspec.Struct] | None = None
    check: Callable[[Any], Iterator[Fault]] | str | None = None
    rules: Mapping[str, ValueRule] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    reasons: tuple[SourceReason, ...] = ()
    extra: str = ""
    place: int = 100
    rules_first: bool = False
    emqx: EmqxPlugin | None = None

    @property
    def remote(self) -> bool:
        """Whether the source is on another system, and may be unreachable."""
        return self.settings is not None and issubclass(self.settings, RemoteSettings)

    def explained(self) -> tuple[SourceReason, ...]:
        """Return ``reasons`` and the reasons that all remote sources have."""
        if not self.remote:
            return self.reasons
        text = "the service did not answer about the client or about its session's subscriptions"
        return *self.reasons, SourceReason("client", "server_unavailable", (f"access.{self.name}.<key>",), text)

    def made(self, settings: object, context: object) -> Any:
        """Return the source, or None. Raises ValueError."""
        return self._resolved(self.create)(settings, context)

    def faults(self, settings: msgspec.Struct) -> Iterator[Fault]:
        """Yield the faults of a table with valid types and values."""
        try:
            check = None if self.check is None else self._resolved(self.check)
            self._resolved(self.create)
        except ValueError as error:
            yield Fault((), str(error))
            return
        if check is not None:
            yield from check(settings)

    def sample(self) -> str:
        """The table as an example for a configuration file, with a note above each key: ``sample.toml`` next to the
        module of ``settings``; empty: there is no such file, or no package that could contain one."""
        module = None if self.settings is None else sys.modules.get(self.settings.__module__)
        package = None if module is None else module.__package__
        file = files(package).joinpath("sample.toml") if package else None
        return file.read_text("utf-8") if file is not None and file.is_file() else ""

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
