"""Plugins: load aMQTT's plugins with its own plugin manager, and call them for a node."""

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
"""The most plugin calls for events that may run at a time; further events are not reported to plugins."""

_PACKETS: Final = ("EventLoggerPlugin", "PacketLoggerPlugin", "BrokerSysPlugin")
"""aMQTT's own plugins that use packets only to log or count them; the node does both."""
_SELDOM: Final = (BrokerEvents.CLIENT_CONNECTED, BrokerEvents.CLIENT_DISCONNECTED)


class Plugins(PluginManager["BrokerContext"]):  # type: ignore[misc]  # aMQTT has no types for others
    """Log and count exceptions of event methods: ``count`` receives the reason. Other plugins are not affected."""

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
        """Return whether a plugin decides about topics."""
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
        """Call the plugins that have a method for the event. ``wait``: return when all of them have finished."""
        calls = self.tell(event_name, **method_kwargs)
        if wait and calls:
            await asyncio.wait(calls)

    async def finish(self, timeout: float) -> None:
        """Wait for running calls; cancel those that do not finish within ``timeout`` seconds."""
        calls = [each for each in self._calls if each is not asyncio.current_task()]
        if not calls:
            return
        _, late = await asyncio.wait(calls, timeout=timeout)
        for each in late:
            each.cancel()
        if late:
            await asyncio.wait(late)


def _quiet(plugin: object, event: Events) -> bool:
    """Return whether the plugin would do nothing: aMQTT's event logger, if its logger does not log at debug."""
    if not isinstance(plugin, EventLoggerPlugin) or event in _SELDOM:
        return False
    return not plugin.context.logger.isEnabledFor(logging.DEBUG)
