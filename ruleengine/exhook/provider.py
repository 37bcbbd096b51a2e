"""Provider: the conversation with one provider: introduction, events, loss, and the next introduction."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from taipan.broker.access.exhook.client import ExhookClient, ProviderAddress, ProviderFailed
from taipan.broker.access.exhook.messages import CLASSES, meta
from taipan.broker.core.hooks import HookPoint
from taipan.broker.mqtt.message import Message
from taipan.broker.observability.throttle import Throttle
from taipan.broker.routing.filter_index import FilterIndex
from taipan.broker.server import Server

from ..config import ExhookServer, ExhookSettings
from ..delivery.circuit_breaker import CircuitBreaker
from ..event_lanes import EventLanes, LaneLimits
from .events import Callbacks
from .inspector import MESSAGE_PUBLISH

logger = logging.getLogger(__name__)

ASKED_ELSEWHERE: Final = {"client.authenticate": "access.exhook.url", "client.check_acl": "access.exhook.url"}
"""Hooks whose answer decides about access, and the setting of the source that asks."""
_Request = tuple[str, Any]  # the name of the call, and its message
_LANES: Final = 32
"""Number of clients whose events are sent at the same time."""
_OVERHEAD: Final = 400
"""Approximate memory of a waiting request in addition to its encoded size, in bytes."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two checks of the connections."""
_STREAMS: Final = 16
"""Questions about messages at a time over one connection."""


class Provider:
    """``start`` and ``close`` once each. ``connected``: whether it has answered the introduction, and each event
    since."""

    def __init__(
        self,
        server: Server,
        name: str,
        settings: ExhookSettings,
        address: ExhookServer,
        breaker: CircuitBreaker,
        hooks_changed: Callable[[], None],
    ) -> None:
        """``hooks_changed`` is called when it may ask for messages, or not any more. Raises ValueError for a file that
        cannot be used."""
        self._server = server
        self.name = name
        self._settings = settings
        self._node = server.settings.node.name
        files = ProviderAddress(address.url, address.cacertfile, address.certfile, address.keyfile)
        self._client = ExhookClient(files, settings.pool_size, self._node)
        limits = LaneLimits("exhook", _LANES, _OVERHEAD, settings.max_queued, settings.max_queued_bytes)
        self._lanes: EventLanes[_Request] = EventLanes(server, limits, self._send, self._dropped)
        self._topics: dict[str, FilterIndex[bool] | None] = {}
        self._hooked: list[tuple[HookPoint[Any], Callable[..., Any]]] = []
        self._throttle = Throttle()
        self._lost = asyncio.Event()
        # When it answered last, on the clock of the event loop.
        self._answered = 0.0
        self._task: asyncio.Task[None] | None = None
        self._breaker = breaker
        self._turns = asyncio.Semaphore(settings.pool_size * _STREAMS)
        self._hooks_changed = hooks_changed
        # The last known hooks with their filters; they remain known after a loss. None: it has never answered.
        self._hooks: dict[str, list[str]] | None = None
        # The topics of messages about which it is asked; None: every topic.
        self._questions: FilterIndex[bool] | None = None
        self._introduced = asyncio.Event()
        self.connected = False

    def start(self) -> None:
        """Introduce the node, and send events as soon as the provider has named them."""
        self._lanes.start(f"exhook {self.name}")
        self._task = asyncio.create_task(self._run(), name=f"exhook {self.name}")

    async def close(self, seconds: float) -> None:
        """Send waiting events for a limited time, and report the node's stop to the provider."""
        self._unhook()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        left = await self._lanes.close(seconds if self.connected else 0.0)
        if left:
            self._dropped("stopped", "ruleengine.close_timeout", left)
        if self.connected:
            try:
                goodbye = CLASSES["ProviderUnloadedRequest"](meta=meta(self._node))
                await self._client.call("OnProviderUnloaded", goodbye, min(1.0, self._settings.request_timeout))
            except ProviderFailed as why:
                logger.debug("exhook_failed provider=%s reason=%s", self.name, why.reason)
        await self._client.close()

    # -------------------------------------------------------------- connection

    async def _run(self) -> None:
        while True:
            try:
                hooks = await self._client.loaded(self._settings.request_timeout)
            except ProviderFailed as why:
                self._down(why)
            else:
                self._up(hooks)
                await self._until_lost()
            if not self._settings.auto_reconnect:
                logger.warning("exhook_given_up provider=%s setting=exhook.auto_reconnect", self.name)
                return
            if not self._lost.is_set():  # after a loss, at once
                await asyncio.sleep(self._settings.auto_reconnect)
            self._lost.clear()

    async def _until_lost(self) -> None:
        """Wait until a request fails, or a connection ends while there is nothing to send: the provider may have been
        started again, with other hooks."""
        while not self._lost.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), _LOOK_EVERY)
            if self._settings.auto_reconnect and not self._client.connected:
                self._lost.set()

    def _up(self, hooks: dict[str, list[str]]) -> None:
        self.connected = True
        self._lost.clear()
        self._server.alarms.deactivate(self._alarm)
        self._breaker.retry_now()
        self._hooks = hooks
        self._questions = _index(hooks.get(MESSAGE_PUBLISH, []))
        self._introduced.set()
        self._hooks_changed()
        self._unhook()
        callbacks = Callbacks(self._node, self._put, self._wants, self._server.broker.identify).by_hook()
        points = self._server.hooks.points
        for hook, topics in hooks.items():
            if hook in ASKED_ELSEWHERE:
                line = "exhook_hook_not_sent provider=%s hook=%s setting=%s"
                logger.info(line, self.name, hook, ASKED_ELSEWHERE[hook])
            elif hook in callbacks:
                self._topics[hook] = _index(topics)
                points[hook].add(callbacks[hook])
                self._hooked.append((points[hook], callbacks[hook]))
            elif hook != MESSAGE_PUBLISH:
                logger.error("exhook_hook_not_sent provider=%s hook=%s detail=unknown", self.name, hook)
        served = [hook for hook in hooks if hook in self._topics or hook == MESSAGE_PUBLISH]
        logger.info("exhook_connected provider=%s hooks=%s", self.name, ",".join(served))

    def _down(self, why: ProviderFailed) -> None:
        self.connected = False
        self._introduced.clear()
        self._alarm_for(why)

    def _alarm_for(self, why: ProviderFailed) -> None:
        details = {"provider": self.name, "setting": "exhook.servers", "fault": why.reason}
        if not self._server.alarms.activate(self._alarm, f"exhook provider {self.name} is down", details):
            self._server.alarms.amend(self._alarm, details)

    @property
    def _alarm(self) -> str:
        return f"exhook_down/{self.name}"

    def _unhook(self) -> None:
        for point, callback in self._hooked:
            point.remove(callback)
        self._hooked.clear()
        self._topics.clear()

    # ------------------------------------------------------------------ events

    def _wants(self, hook: str, topic: str) -> bool:
        if topic.startswith("$SYS/"):
            return False
        index = self._topics[hook]
        return index is None or bool(index.match(topic))

    def _put(self, client_id: str, method: str, make: Callable[[], Any]) -> None:
        """Queue a request, unless the provider is down: then it is dropped before it is made."""

        def request() -> tuple[_Request, int]:
            made = make()
            return (method, made), made.ByteSize()

        if self.connected:
            self._lanes.put(client_id, request)
        else:
            self._dropped("down", "exhook.servers", 1)

    def _dropped(self, reason: str, setting: str, count: int) -> None:
        self._note("exhook_dropped", reason, setting, count)

    async def _send(self, waiting: _Request) -> None:
        if not self.connected:
            self._dropped("down", "exhook.servers", 1)
            return
        with suppress(ProviderFailed):
            await self._call(*waiting)

    async def _call(self, method: str, request: Any) -> Any:
        """Return the answer. Raises ProviderFailed, which was counted."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            reply = await self._client.call(method, request, self._settings.request_timeout)
        except ProviderFailed as why:
            logger.debug("exhook_answer provider=%s method=%s detail=%s", self.name, method, why.detail)
            self._note("exhook_failed", why.reason, "exhook.request_timeout" if why.away else "exhook.servers")
            if not why.away:
                self._heard()
            elif why.reason == "unavailable" and self.connected:
                self._down(why)
                self._lost.set()
            elif self._answered < began and self.connected:
                self._alarm_for(why)  # it hangs: nothing at all was answered in that time
            raise
        self._heard()
        return reply

    # --------------------------------------------------------------- questions

    @property
    def may_ask(self) -> bool:
        """Whether the provider decides about messages, or this is unknown and messages are refused until it is
        known."""
        if self._hooks is None:
            return self._settings.request_failed_action == "deny"
        return MESSAGE_PUBLISH in self._hooks

    def asks(self, topic: str) -> bool:
        """Return whether it is asked about a message to this topic."""
        return self.may_ask and (self._questions is None or bool(self._questions.match(topic)))

    async def decision(self, make: Callable[[], Any]) -> Any:
        """Return the answer about a message; None: there was no answer, which was counted. An answer without a value:
        the provider no longer decides about messages. ``make`` makes the request, a copy of the message, when it is
        sent."""
        if self._is_down():
            return None
        async with self._turns:
            if self._is_down():  # since it waits
                return None
            await self._breaker.admit()
            try:
                reply = await self._decided(make)
            except ProviderFailed as why:
                if why.away:
                    self._breaker.failed()
                else:
                    self._breaker.succeeded()
                return None
            except BaseException:
                self._breaker.withdraw()
                raise
            self._breaker.succeeded()
            return reply

    def _is_down(self) -> bool:
        """Return whether the circuit breaker is open; then count a question without an answer."""
        if self._breaker.blocked:
            self._note("exhook_failed", "down", "exhook.servers")
        return self._breaker.blocked

    async def _decided(self, make: Callable[[], Any]) -> Any:
        if not self.connected:
            try:
                async with asyncio.timeout(self._settings.request_timeout):
                    await self._introduced.wait()
            except TimeoutError:
                self._note("exhook_failed", "down", "exhook.servers")
                raise ProviderFailed("down", "not connected", True) from None
        if not self.may_ask:
            return CLASSES["ValuedResponse"]()
        return await self._call("OnMessagePublish", make())

    def bad_answer(self, detail: str) -> None:
        """Count an answer that cannot be used."""
        logger.debug("exhook_answer provider=%s method=OnMessagePublish detail=%s", self.name, detail)
        self._note("exhook_failed", "bad_answer", "exhook.servers")

    def stopped(self, message: Message) -> None:
        """Count a message that the provider does not let pass."""
        client_id = "" if message.publisher is None else message.publisher.client_id
        logger.debug("exhook_message_stopped provider=%s client_id=%s topic=%s", self.name, client_id, message.topic)
        self._note("exhook_message", "stopped", "exhook.servers")

    def _heard(self) -> None:
        """Note that the provider has answered, even if with an error."""
        self._answered = asyncio.get_running_loop().time()
        if self.connected:
            self._server.alarms.deactivate(self._alarm)

    def _note(self, event: str, reason: str, setting: str, count: int = 1) -> None:
        """Count, and log at most once a minute for each reason and setting."""
        self._server.metrics.refusals.add(f"{event}_{reason}", count)
        since = self._throttle.due(self._server.clock.now(), event, reason, setting, times=count)
        if since:
            line = "%s provider=%s reason=%s setting=%s count=%s"
            logger.warning(line, event, self.name, reason, setting, since)


def _index(topics: list[str]) -> FilterIndex[bool] | None:
    """Return the filters that a message must match; None: every topic."""
    if not topics:
        return None
    index: FilterIndex[bool] = FilterIndex()
    for topic in topics:
        index.put(topic, True)
    return index
