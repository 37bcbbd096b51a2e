"""The action and resource types that are offered, in the order in which they are listed."""

from __future__ import annotations

from typing import Final

from .actions import mqtt_bridge as bridge_action
from .actions import opentsdb as opentsdb_action
from .actions import web_hook as web_hook_action
from .actions.action import ActionType
from .actions.debug import DO_NOTHING, INSPECT
from .actions.republish import REPUBLISH
from .resources import mqtt_bridge, opentsdb, web_hook
from .resources.resource import ResourceType

ACTION_TYPES: Final[tuple[ActionType, ...]] = (
    INSPECT,
    DO_NOTHING,
    REPUBLISH,
    web_hook_action.TYPE,
    bridge_action.TYPE,
    opentsdb_action.TYPE,
)
RESOURCE_TYPES: Final[tuple[ResourceType, ...]] = (web_hook.TYPE, mqtt_bridge.TYPE, opentsdb.TYPE)
