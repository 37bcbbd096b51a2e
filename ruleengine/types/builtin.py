"""The built-in action and resource types, in the order in which they are listed."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Final

from .. import sinks
from ..actions.action import ActionType
from ..actions.debug import DO_NOTHING, INSPECT
from ..actions.republish import REPUBLISH
from ..resources.resource import ResourceType


def _modules(name: str) -> list[ModuleType]:
    """Return the module with this name of each sink."""
    folders = [each.name for each in pkgutil.iter_modules(sinks.__path__)]
    return [import_module(f"{sinks.__name__}.{folder}.{name}") for folder in folders]


def _place(kind: ActionType | ResourceType) -> tuple[int, str]:
    return kind.order, kind.name


_actions: list[ActionType] = [INSPECT, DO_NOTHING, REPUBLISH]
_resources: list[ResourceType] = []
for _module in _modules("action"):
    _actions += _module.ACTIONS
for _module in _modules("resource"):
    _resources += _module.RESOURCES

ACTION_TYPES: Final = tuple(sorted(_actions, key=_place))
RESOURCE_TYPES: Final = tuple(sorted(_resources, key=_place))
