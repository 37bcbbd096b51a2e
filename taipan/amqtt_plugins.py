"""Plugins: aMQTT's plugins, loaded by its own plugin manager, called for a node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from amqtt.events import BrokerEvents, Events, MQTTEvents
from amqtt.plugins.logging_amqtt import EventLoggerPlugin
from amqtt.plugins.manager import PluginManager

if TYPE_CHECKING:
    from amqtt.broker import BrokerContext

logger = logging.getLogger(__name__)

MAX_CALLS: Final = 10_000
"""Calls of plugins for events that may run at a time; further events are not told."""

_PACKETS: Final = ("EventLoggerPlugin", "PacketLoggerPlugin", "BrokerSysPlugin")
"""aMQTT's own, which want packets only to log them or to count: the node does both."""
_SELDOM: Final = (BrokerEvents.CLIENT_CONNECTED, BrokerEvents.CLIENT_DISCONNECTED)


class Plugins(PluginManager["BrokerContext"]):  # type: ignore[misc]  # aMQTT has no types for others
    """What an event's method raises is logged and counted: ``count`` is told the reason. No other plugin notices."""

    def __init__(
        self,
        namespace: str,
        context: BrokerContext,
        loop: asyncio.AbstractEventLoop,
        count: Callable[[str], None],
    ) -> None:
        super().__init__(namespace, context, loop)
        self._count = count
        self._calls: set[asyncio.Task[None]] = set()
        self._methods: dict[str, list[Callable[..., Coroutine[Any, Any, object]]]] = {}
        for event in BrokerEvents:
            self._methods[event] = [
                method
                for plugin in self.plugins
                if (method := getattr(plugin, f"on_{event}", None)) is not None and not _quiet(plugin, event)
            ]
        for plugin in self.plugins:
            name = type(plugin).__name__
            for packets in MQTTEvents:
                if name not in _PACKETS and hasattr(plugin, f"on_{packets}"):
                    logger.warning("amqtt_event_not_sent plugin=%s event=on_%s", name, packets)

    @property
    def topics(self) -> bool:
        """Whether a plugin decides about topics."""
        return self.is_topic_filtering_enabled() and any(hasattr(each, "topic_filtering") for each in self.plugins)

    def wants(self, *events: Events) -> bool:
        return any(self._methods[event] for event in events)

    @property
    def full(self) -> bool:
        return len(self._calls) >= MAX_CALLS

    def tell(self, event: Events, **facts: Any) -> list[asyncio.Task[None]]:
        """Call the plugins that have a method for ``event``, in their order and without waiting for them."""
        started = []
        for method in self._methods[event]:
            task = asyncio.get_running_loop().create_task(self._call(event, method, facts))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            started.append(task)
        return started

    async def _call(self, event: Events, method: Callable[..., Coroutine[Any, Any, object]], facts: Any) -> None:
        try:
            await method(**facts)
        except Exception as error:
            self._count("amqtt_plugin_failed")
            plugin = type(getattr(method, "__self__", None)).__name__
            logger.error("amqtt_plugin_failed plugin=%s event=on_%s", plugin, event, exc_info=error)

    async def fire_event(self, event_name: Events, *, wait: bool = False, **method_kwargs: Any) -> None:
        """``wait``: until every plugin is done with it."""
        calls = self.tell(event_name, **method_kwargs)
        if wait and calls:
            await asyncio.wait(calls)

    async def finish(self, timeout: float) -> None:
        """Wait for calls that run; what is not done in time is cancelled."""
        calls = [each for each in self._calls if each is not asyncio.current_task()]
        if not calls:
            return
        _, late = await asyncio.wait(calls, timeout=timeout)
        for each in late:
            each.cancel()
        if late:
            await asyncio.wait(late)


def _quiet(plugin: object, event: Events) -> bool:
    """Whether it would do nothing: aMQTT's logger of events, where nobody reads what it writes at debug."""
    if not isinstance(plugin, EventLoggerPlugin) or event in _SELDOM:
        return False
    return not plugin.context.logger.isEnabledFor(logging.DEBUG)
