"""How each source of access is set up for the contract suite: a module of its name, with ``set_up``.

It gives settings with which the source, alone, knows ``ann`` by a password, allows her the topic ``open`` and denies
her the topic ``shut``.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from taipan.broker.access.source import Source


@dataclass(frozen=True, kw_only=True)
class Setup:
    """``settings``: of ``[access]``. ``right`` and ``wrong``: passwords of ``ann``. ``made``: the source, if the node
    makes it itself. ``lasts``: a reload with the same settings keeps the source.

    ``reads_filters``: a subscription to a filter is decided by its rules, and not by the other side. ``denies_rest``:
    what no rule names is denied. ``denies``: there are rules that deny; else ``shut`` is left to the next source.

    Of a remote source: ``away`` makes the other side unreachable, ``back`` reachable again.
    """

    settings: dict[str, Any]
    right: bytes = b"right"
    wrong: bytes = b"wrong"
    made: list[Source] = field(default_factory=list)
    lasts: bool = True
    reads_filters: bool = False
    denies_rest: bool = False
    denies: bool = True
    away: Callable[[], Awaitable[None]] | None = None
    back: Callable[[], Awaitable[None]] | None = None
