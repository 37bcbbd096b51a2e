"""WebHookPlugin: sends events to an HTTP server, without ever waiting where they happen."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taipan.broker.core.hooks import HookPoint
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Properties, TopicFilter
from taipan.broker.observability.throttle import Throttle
from taipan.broker.routing.filter_index import FilterIndex
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from ..config import EngineSettings, WebHookSettings
from ..event_lanes import EventLanes, LaneLimits
from ..network.allowed_networks import Networks
from ..network.tls import asked_name, client_context
from ..resources.resource import ResourceError
from . import events

if TYPE_CHECKING:
    from ..resources.http_client import HttpClient

logger = logging.getLogger(__name__)

_OVERHEAD: Final = 200
"""Approximate memory of a waiting request in addition to its body, in bytes."""
_Form = Callable[[str, str, ClientInfo], events.Body]
_LAST: Final = -100
"""Priority of the callback of ``message.publish``: after those that change or refuse the message."""


class WebHookPlugin:
    """Belongs to one event loop."""

    def __init__(self, server: Server, settings: WebHookSettings, engine: EngineSettings) -> None:
        """Raises ParamError for a file that cannot be read."""
        self._server = server
        self._settings = settings
        self._engine = engine
        self._node = server.settings.node.name
        self._encode = events.ENCODINGS[settings.encoding_of_payload_field]
        self._tls = client_context(_tls(settings)) if settings.url.startswith("https:") else None
        self._topics: dict[str, FilterIndex[bool] | None] = {}
        limits = LaneLimits("webhook", settings.pool_size, _OVERHEAD, settings.max_queued, settings.max_queued_bytes)
        self._lanes: EventLanes[bytes] = EventLanes(server, limits, self._send, self._dropped)
        self._client: HttpClient | None = None
        self._hooked: list[tuple[HookPoint[Any], Callable[..., Any]]] = []
        self._throttle = Throttle()

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
        for event in callbacks:
            self._server.metrics.plugins.setdefault(_metric(_action(event)), 0)
        for event in self._topics:
            callback = callbacks[event]
            points[event].add(callback, _LAST if event == "message.publish" else 0)
            self._hooked.append((points[event], callback))
        self._lanes.start("web hook")

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
        left = await self._lanes.close(self._engine.close_timeout)
        await self._client.close()
        if left:
            self._note("webhook_dropped", "stopped", "ruleengine.close_timeout", left)

    # ------------------------------------------------------------------ queue

    def _wants(self, event: str, topic: str) -> bool:
        index = self._topics[event]
        return not topic.startswith("$SYS/") and (index is None or bool(index.match(topic)))

    def _put(self, client_id: str, action: str, make: Callable[[], events.Body]) -> None:
        """Count an event, and queue its request."""
        self._server.metrics.plugins[_metric(action)] += 1

        def request() -> tuple[bytes, int]:
            body = msgspec.json.encode(make())
            return body, len(body)

        self._lanes.put(client_id, request)

    def _dropped(self, reason: str, setting: str, count: int) -> None:
        self._note("webhook_dropped", reason, setting, count)

    def _note(self, event: str, reason: str, setting: str, count: int = 1) -> None:
        """Count, and log at most once a minute for each reason and setting."""
        self._server.metrics.refusals.add(f"{event}_{reason}", count)
        since = self._throttle.due(self._server.clock.now(), event, reason, setting, times=count)
        if since:
            logger.warning("%s reason=%s setting=%s count=%s", event, reason, setting, since)

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

    def _of_client(self, action: str, client: ClientInfo, form: _Form = events.client, **more: object) -> None:
        self._put(client.client_id, action, lambda: form(action, self._node, client) | more)

    def _on_client_connect(self, client: ClientInfo, properties: Properties) -> None:
        self._of_client("client_connect", client, events.connection)

    def _on_client_connack(self, properties: Properties, client: ClientInfo, code: int) -> Properties:
        name, at = reason_codes.name(code), self._connected_at(client)
        self._of_client("client_connack", client, events.connection, connected_at=at, conn_ack=name)
        return properties

    def _on_client_connected(self, client: ClientInfo) -> None:
        at = self._connected_at(client)
        self._of_client("client_connected", client, events.connection, connected_at=at)

    def _on_client_disconnected(self, client: ClientInfo, reason: str) -> None:
        at, now = self._connected_at(client), events.milliseconds(self._server.clock.now())
        self._of_client("client_disconnected", client, reason=reason, connected_at=at, disconnected_at=now)

    def _connected_at(self, client: ClientInfo) -> int:
        return events.milliseconds(client.connected_at or self._server.clock.now())

    def _on_client_subscribe(
        self, filters: list[TopicFilter], client: ClientInfo, properties: Properties
    ) -> list[TopicFilter]:
        self._of_filters("client.subscribe", client, [(each.filter, events.options(each)) for each in filters])
        return filters

    def _on_client_unsubscribe(self, filters: list[str], client: ClientInfo, properties: Properties) -> list[str]:
        self._of_filters("client.unsubscribe", client, [(each, {}) for each in filters])
        return filters

    def _of_filters(self, event: str, client: ClientInfo, filters: list[tuple[str, events.Body]]) -> None:
        """One request for each filter."""
        for topic, options in filters:
            if self._wants(event, topic):
                self._of_client(_action(event), client, topic=topic, opts=options)

    def _on_session_subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        if self._wants("session.subscribed", subscription.filter):
            self._of_client("session_subscribed", client, topic=subscription.filter, opts=subscription.info())

    def _on_session_unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        if self._wants("session.unsubscribed", subscription.filter):
            self._of_client("session_unsubscribed", client, topic=subscription.filter)

    def _on_session_terminated(self, client: ClientInfo, session: Session, reason: str) -> None:
        self._of_client("session_terminated", client, reason=reason)

    def _on_message_publish(self, message: Message) -> Message:
        if self._wants("message.publish", message.topic):
            publisher = message.publisher
            body: events.Body = {"action": "message_publish", "node": self._node}
            self._of_message("message_publish", "" if publisher is None else publisher.client_id, body, message)
        return message

    def _on_message_delivered(self, client: ClientInfo, message: Message) -> None:
        self._of_delivery("message.delivered", client, message)

    def _on_message_acked(self, client: ClientInfo, message: Message) -> None:
        self._of_delivery("message.acked", client, message)

    def _of_delivery(self, event: str, client: ClientInfo, message: Message) -> None:
        if self._wants(event, message.topic):
            action = _action(event)
            self._of_message(action, client.client_id, events.client(action, self._node, client), message)

    def _of_message(self, action: str, client_id: str, body: events.Body, message: Message) -> None:
        self._put(client_id, action, lambda: events.message(body, message, self._encode))


def _action(event: str) -> str:
    """``client.connect``: ``client_connect``."""
    return event.replace(".", "_")


def _metric(action: str) -> str:
    """The name of the counter of events that rules select, sent or not."""
    return f"webhook.{action}"


def _tls(settings: WebHookSettings) -> dict[str, object]:
    return {
        "cacertfile": settings.cacertfile,
        "certfile": settings.certfile,
        "keyfile": settings.keyfile,
        "verify": settings.verify,
        "server_name_indication": settings.server_name_indication,
    }
