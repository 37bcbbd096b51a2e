"""Modules of the operator's own, whose functions and actions rules may use.

Found by entry points (``taipan.rule_functions`` and ``taipan.rule_actions``) and by ``[[ruleengine.functions]]``.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Final

from .actions.action import ActionType

logger = logging.getLogger(__name__)

FUNCTIONS_GROUP: Final = "taipan.rule_functions"
ACTIONS_GROUP: Final = "taipan.rule_actions"
ACTIONS: Final = "ACTIONS"
"""What a module calls its tuple of action types."""


class OperatorModuleError(Exception):
    """A module that cannot be used; one line that names it."""


def load_operator_modules(modules: Iterable[str]) -> list[ActionType]:
    """Import the configured modules and those of the entry points, which registers their functions; their action types.

    An entry point of the actions' group names an ``ActionType`` or a module; all others name modules. Raises
    OperatorModuleError.
    """
    found: list[ActionType] = []
    for name in modules:
        found += _actions_of(_import(name), f"ruleengine.functions: module {name}")
    for group in (FUNCTIONS_GROUP, ACTIONS_GROUP):
        for point in _entry_points(_path())[group]:
            where = f"entry point {point.name} of {group}"
            try:
                loaded = point.load()
            except Exception as error:
                raise OperatorModuleError(f"{where}: {type(error).__name__}: {error}") from error
            if isinstance(loaded, ActionType):
                found.append(loaded)
            elif isinstance(loaded, ModuleType):
                found += _actions_of(loaded, where)
            else:
                raise OperatorModuleError(f"{where}: {point.value} is neither a module nor an ActionType")
            logger.info("extension_loaded group=%s name=%s value=%s", group, point.name, point.value)
    return list(dict.fromkeys(found))


def _path() -> tuple[tuple[str, int], ...]:
    """Where Python looks for distributions, and when something was last installed or removed there."""
    return tuple((place, _changed(place)) for place in sys.path)


def _changed(place: str) -> int:
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


@lru_cache(1)
def _entry_points(path: tuple[tuple[str, int], ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Of both groups. The files of every distribution are read for it: for many nodes of a process, once."""
    found = entry_points()
    return {group: tuple(found.select(group=group)) for group in (FUNCTIONS_GROUP, ACTIONS_GROUP)}


def validate_modules(modules: Iterable[str]) -> Iterator[str]:
    """Which of the configured modules are not there; none is run."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):  # a package on the way is missing or is none
            found = None
        if found is None:
            yield f"ruleengine.functions: module {name}: there is no such module on the path of Python"


def _import(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        # A module of the operator's may raise anything; the answer is one line that names it.
        raise OperatorModuleError(f"ruleengine.functions: module {name}: {type(error).__name__}: {error}") from error
    logger.info("extension_loaded module=%s", name)
    return module


def _actions_of(module: ModuleType, where: str) -> list[ActionType]:
    actions = getattr(module, ACTIONS, ())
    if not isinstance(actions, list | tuple) or not all(isinstance(each, ActionType) for each in actions):
        raise OperatorModuleError(f"{where}: {ACTIONS} is not a list of ActionType")
    return list(actions)
