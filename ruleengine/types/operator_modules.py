"""Modules of the operator, which add SQL functions, actions and resource types.

They are found by entry points (``taipan.rule_functions``, ``taipan.rule_actions``, ``taipan.rule_resources``) and by
``[[ruleengine.functions]]``."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Final, NamedTuple, TypeVar

from taipan.broker.entry_points import load_all

from ..actions.action import ActionType
from ..resources.resource import ResourceType

logger = logging.getLogger(__name__)

FUNCTIONS_GROUP: Final = "taipan.rule_functions"
ACTIONS_GROUP: Final = "taipan.rule_actions"
RESOURCES_GROUP: Final = "taipan.rule_resources"
_GROUPS: Final = (FUNCTIONS_GROUP, ACTIONS_GROUP, RESOURCES_GROUP)
ACTIONS: Final = "ACTIONS"
"""The name of a module's list of action types."""
RESOURCES: Final = "RESOURCES"
"""The name of a module's list of resource types."""

_Type = TypeVar("_Type", ActionType, ResourceType)


class OperatorModuleError(Exception):
    """A module that cannot be used; the message is one line with its name."""


class OperatorTypes(NamedTuple):
    """The types that modules of the operator add."""

    actions: list[ActionType]
    resources: list[ResourceType]


def load_operator_modules(modules: Iterable[str]) -> OperatorTypes:
    """Import the configured modules and those of the entry points, which registers their functions.

    Returns their action and resource types. An entry point of the group of actions or resources names a type or a
    module; one of the functions' group names a module. Raises OperatorModuleError.
    """
    actions: list[ActionType] = []
    resources: list[ResourceType] = []
    loaded: list[tuple[object, str]] = [(_import(name), f"ruleengine.functions: module {name}") for name in modules]
    try:
        for group in _GROUPS:
            loaded += load_all(
                group, (ModuleType, ActionType, ResourceType), "a module, an ActionType or a ResourceType"
            )
    except ValueError as error:
        raise OperatorModuleError(str(error)) from error
    for found, where in loaded:
        if isinstance(found, ActionType):
            actions.append(found)
        elif isinstance(found, ResourceType):
            resources.append(found)
        else:
            actions += _types_of(found, ACTIONS, ActionType, where)
            resources += _types_of(found, RESOURCES, ResourceType, where)
    return OperatorTypes(list(dict.fromkeys(actions)), list(dict.fromkeys(resources)))


def validate_modules(modules: Iterable[str]) -> Iterator[str]:
    """Return which of the configured modules do not exist; none is imported."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):  # a package in the path is missing or is not a package
            found = None
        if found is None:
            yield f"ruleengine.functions: module {name}: the module is not on the Python path"


def _import(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        # A module of the operator may raise anything; the error is one line with its name.
        raise OperatorModuleError(f"ruleengine.functions: module {name}: {type(error).__name__}: {error}") from error
    logger.info("extension_loaded module=%s", name)
    return module


def _types_of(module: object, name: str, kind: type[_Type], where: str) -> list[_Type]:
    """Return the types that a module lists under this name."""
    found = getattr(module, name, ())
    if not isinstance(found, list | tuple) or not all(isinstance(each, kind) for each in found):
        raise OperatorModuleError(f"{where}: {name} is not a list of {kind.__name__}")
    return list(found)
