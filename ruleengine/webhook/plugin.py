"""WebHookPlugin: sends events to an HTTP server, without ever waiting where they happen.

Each client has a lane, which sends one request at a time, in order. The number of waiting requests is limited;
further events are dropped and counted."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from taipan.broker.core.hooks import HookPoint
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Properties, TopicFilter
from taipan.broker.routing.filter_index import FilterIndex
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from ..config import EngineSettings, WebHookSettings
from ..network.allowed_networks import Networks
from ..network.tls import asked_name, client_context
from ..resources.resource import ResourceError
from . import events

if TYPE_CHECKING:
    from ..resources.http_client import HttpClient

logger = logging.getLogger(__name__)

_QUIET: Final = 60.0
_OVERHEAD: Final = 200
"""Approximate memory of a waiting request in addition to its body, in bytes."""
_LAST: Final = -100
"""Priority of the callback of ``message.publish``: after those that change or refuse the message."""


class WebHookPlugin:
    """Belongs to one event loop. ``waiting`` and ``waiting_bytes``: requests that wait, and their size."""

    def __init__(self, server: Server, settings: WebHookSettings, engine: EngineSettings) -> None:
        """Raises ParamError for a file that cannot be read."""
        self._server = server
        self._settings = settings
        self._engine = engine
        self._node = server.settings.node.name
        self._encode = events.ENCODINGS[settings.encoding_of_payload_field]
        self._tls = client_context(_tls(settings)) if settings.url.startswith("https:") else None
        self._topics: dict[str, FilterIndex[bool] | None] = {}
        self._lanes: list[deque[bytes]] = [deque() for _ in range(settings.pool_size)]
        self._wake: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._client: HttpClient | None = None
        self._hooked: list[tuple[HookPoint[Any], Callable[..., Any]]] = []
        self._said: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self.waiting = 0
        self.waiting_bytes = 0

    def start(self) -> None:
        """Send events from now on, if the plugin is configured."""
        settings = self._settings
        if not settings.url or not settings.rules:
            if settings.rules:
                logger.warning("webhook_not_started setting=webhook.url rules=%s", len(settings.rules))
            return
        from ..resources.http_client import HttpClient  # imported here: a node without web hooks needs no aiohttp

        self._client = HttpClient(
            Networks(self._engine.refused_networks),
            settings.pool_size,
            settings.connect_timeout,
            settings.request_timeout,
            self._engine.max_reply_bytes,
            self._tls,
            asked_name(_tls(settings)),
            settings.enable_pipelining,
        )
        for rule in settings.rules:
            index = self._topics.setdefault(rule.event, FilterIndex() if rule.topic else None)
            if not rule.topic:
                self._topics[rule.event] = None  # every topic
            elif index is not None:
                index.put(rule.topic, True)
        points = self._server.hooks.points
        callbacks = self._callbacks()
        for event in self._topics:
            callback = callbacks[event]
            points[event].add(callback, _LAST if event == "message.publish" else 0)
            self._hooked.append((points[event], callback))
        for lane in range(settings.pool_size):
            self._wake.append(asyncio.Event())
            self._tasks.append(asyncio.create_task(self._run(lane), name=f"web hook {lane}"))

    def _callbacks(self) -> dict[str, Callable[..., Any]]:
        return {
            "client.connect": self._on_client_connect,
            "client.connack": self._on_client_connack,
            "client.connected": self._on_client_connected,
            "client.disconnected": self._on_client_disconnected,
            "client.subscribe": self._on_client_subscribe,
            "client.unsubscribe": self._on_client_unsubscribe,
            "session.subscribed": self._on_session_subscribed,
            "session.unsubscribed": self._on_session_unsubscribed,
            "session.terminated": self._on_session_terminated,
            "message.publish": self._on_message_publish,
            "message.delivered": self._on_message_delivered,
            "message.acked": self._on_message_acked,
        }

    async def close(self) -> None:
        """Send what waits, for at most ``ruleengine.close_timeout``; the rest is dropped and counted."""
        for point, callback in self._hooked:
            point.remove(callback)
        self._hooked.clear()
        if self._client is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._engine.close_timeout
        while self.waiting and loop.time() < deadline:
            await asyncio.sleep(0.01)
        left = self.waiting
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        if left:
            self._note("webhook_dropped", "stopped", "ruleengine.close_timeout", left)

    # ------------------------------------------------------------------ queue

    def _wants(self, event: str, topic: str) -> bool:
        index = self._topics[event]
        return not topic.startswith("$SYS/") and (index is None or bool(index.match(topic)))

    def _full(self) -> str:
        """Return the setting whose limit is reached; empty: there is room."""
        settings = self._settings
        if self.waiting >= settings.max_queued:
            return "webhook.max_queued"
        return "webhook.max_queued_bytes" if self.waiting_bytes >= settings.max_queued_bytes else ""

    def _put(self, client_id: str, make: Callable[[], events.Body], count: int = 1) -> bool:
        """Queue a request. If too much waits, drop it, or ``count`` of them, before it is made, and return False."""
        setting = self._full()
        if setting:
            self._note("webhook_dropped", "queue_full", setting, count)
            return False
        body = msgspec.json.encode(make())
        lane = crc32(client_id.encode()) % len(self._lanes)
        self.waiting += 1
        self.waiting_bytes += len(body) + _OVERHEAD
        self._lanes[lane].append(body)
        self._wake[lane].set()
        return True

    def _note(self, event: str, reason: str, setting: str, count: int = 1) -> None:
        """Count, and log at most once a minute for each reason and setting."""
        self._server.metrics.refusals.add(f"{event}_{reason}", count)
        key = f"{event} {reason} {setting}"
        self._counts[event] = self._counts.get(event, 0) + count
        now = self._server.clock.now()
        if now - self._said.get(key, -_QUIET) >= _QUIET:
            if len(self._said) >= 100:
                self._said.clear()
            self._said[key] = now
            logger.warning("%s reason=%s setting=%s count=%s", event, reason, setting, self._counts.pop(event))

    async def _run(self, lane: int) -> None:
        queue, wake = self._lanes[lane], self._wake[lane]
        while True:
            if not queue:
                wake.clear()
                await wake.wait()
                continue
            body = queue[0]  # it counts as waiting until it is answered
            try:
                await self._send(body)
            finally:
                queue.popleft()
                self.waiting -= 1
                self.waiting_bytes -= len(body) + _OVERHEAD

    async def _send(self, body: bytes) -> None:
        assert self._client is not None
        try:
            reply = await self._client.send("POST", self._settings.url, self._settings.headers, body)
        except ResourceError as error:
            self._failed("no_answer", str(error))
            return
        if not 200 <= reply.status < 300:
            self._failed(f"http_{reply.status}", reply.body[:200].decode("utf-8", "replace"))

    def _failed(self, reason: str, detail: str) -> None:
        logger.debug("webhook_answer reason=%s detail=%s", reason, detail)
        self._note("webhook_failed", reason, "webhook.url")

    # ----------------------------------------------------------------- events

    def _on_client_connect(self, client: ClientInfo, properties: Properties) -> None:
        self._put(client.client_id, lambda: events.connection("client_connect", self._node, client))

    def _on_client_connack(self, properties: Properties, client: ClientInfo, code: int) -> Properties:
        more = {"connected_at": self._connected_at(client), "conn_ack": reason_codes.name(code)}
        self._put(client.client_id, lambda: events.connection("client_connack", self._node, client) | more)
        return properties

    def _on_client_connected(self, client: ClientInfo) -> None:
        more = {"connected_at": self._connected_at(client)}
        self._put(client.client_id, lambda: events.connection("client_connected", self._node, client) | more)

    def _on_client_disconnected(self, client: ClientInfo, reason: str) -> None:
        more = {
            "reason": reason,
            "connected_at": self._connected_at(client),
            "disconnected_at": events.milliseconds(self._server.clock.now()),
        }
        self._put(client.client_id, lambda: events.client("client_disconnected", self._node, client) | more)

    def _connected_at(self, client: ClientInfo) -> int:
        return events.milliseconds(client.connected_at or self._server.clock.now())

    def _on_client_subscribe(
        self, filters: list[TopicFilter], client: ClientInfo, properties: Properties
    ) -> list[TopicFilter]:
        self._of_filters("client.subscribe", client, [(each.filter, each) for each in filters])
        return filters

    def _on_client_unsubscribe(self, filters: list[str], client: ClientInfo, properties: Properties) -> list[str]:
        self._of_filters("client.unsubscribe", client, [(each, None) for each in filters])
        return filters

    def _of_filters(self, event: str, client: ClientInfo, filters: list[tuple[str, TopicFilter | None]]) -> None:
        """One request for each filter; if too much waits, all others are dropped at once."""
        action = event.replace(".", "_")
        for place, (topic, entry) in enumerate(filters):
            if self._wants(event, topic):
                more = {"topic": topic, "opts": {} if entry is None else events.options(entry)}
                body = events.client(action, self._node, client) | more
                if not self._put(client.client_id, lambda body=body: body, len(filters) - place):  # type: ignore[misc]
                    return

    def _on_session_subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        if self._wants("session.subscribed", subscription.filter):
            more = {"topic": subscription.filter, "opts": subscription.info()}
            self._put(client.client_id, lambda: events.client("session_subscribed", self._node, client) | more)

    def _on_session_unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        if self._wants("session.unsubscribed", subscription.filter):
            more = {"topic": subscription.filter}
            self._put(client.client_id, lambda: events.client("session_unsubscribed", self._node, client) | more)

    def _on_session_terminated(self, client: ClientInfo, session: Session, reason: str) -> None:
        more = {"reason": reason}
        self._put(client.client_id, lambda: events.client("session_terminated", self._node, client) | more)

    def _on_message_publish(self, message: Message) -> Message:
        if self._wants("message.publish", message.topic):
            body = {"action": "message_publish", "node": self._node}
            publisher = message.publisher
            client_id = "" if publisher is None else publisher.client_id
            self._put(client_id, lambda: events.message(body, message, self._encode))
        return message

    def _on_message_delivered(self, client: ClientInfo, message: Message) -> None:
        self._of_delivery("message.delivered", client, message)

    def _on_message_acked(self, client: ClientInfo, message: Message) -> None:
        self._of_delivery("message.acked", client, message)

    def _of_delivery(self, event: str, client: ClientInfo, message: Message) -> None:
        if self._wants(event, message.topic):
            action = event.replace(".", "_")
            self._put(
                client.client_id,
                lambda: events.message(events.client(action, self._node, client), message, self._encode),
            )


def _tls(settings: WebHookSettings) -> dict[str, object]:
    return {
        "cacertfile": settings.cacertfile,
        "certfile": settings.certfile,
        "keyfile": settings.keyfile,
        "verify": settings.verify,
        "server_name_indication": settings.server_name_indication,
    }
